"""The final loss over LR and WD: heatmaps with the fitted paraboloid, its eigenvalues and direction against budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.diagnosis import Diagnosis, SurfaceFinding, degrees
from isotune.analyze.families import Cells
from isotune.analyze.surface import NAMED_DIRECTIONS, LossSurface
from isotune.errors import InputError
from isotune.recipe.quantities import format_number, format_tokens
from isotune.report.figures.drawing import (
    ACCENT,
    CATEGORIES,
    INK,
    Drawing,
    error_bars,
    log_axis,
    octave_axis,
    plain_axis,
    points,
    thin,
    token_axis,
)
from isotune.report.figures.words import count

MAX_PANELS = 6
GRID_POINTS = 41  # of the fitted surface in each direction
MAX_LATTICE = 900  # squares of a heatmap
FILLED = 0.4  # of the lattice: below, cells are drawn as points
SPREAD_SHOWN = 0.25  # relative: losses farther above the best share the last colour
NUM_CONTOURS = 8


@dataclass(frozen=True)
class SurfaceMap:
    """The cells of one budget, and the fitted surface on a grid (NaN outside the fitted cells)."""

    tokens: int
    cells: Cells
    surface: LossSurface | None
    reason: str
    grid_lr: np.ndarray
    grid_wd: np.ndarray
    fitted: np.ndarray  # [WD x LR]
    flat_limit: float  # the highest loss of the flat set


def surface_map(finding: SurfaceFinding) -> SurfaceMap:
    """What is drawn of one budget."""
    cells, surface = finding.cells, finding.surface
    nothing = np.zeros(0)
    if surface is None or not np.isfinite([surface.salient_direction, surface.active_direction]).all():
        reason = finding.reason or "the losses are too large for a fit"
        return SurfaceMap(finding.tokens, cells, None, reason, nothing, nothing, nothing, math.nan)
    lr = np.linspace(surface.fitted_cells[:, 0].min(), surface.fitted_cells[:, 0].max(), GRID_POINTS)
    wd = np.linspace(surface.fitted_cells[:, 1].min(), surface.fitted_cells[:, 1].max(), GRID_POINTS)
    x, y = np.meshgrid(lr, wd)
    fitted = np.where(surface.contains(x, y), surface.loss_at(x, y), np.nan)
    return SurfaceMap(finding.tokens, cells, surface, "", lr, wd, fitted, surface.flat_set().limit)


def surface_maps(diagnosis: Diagnosis, most: int = MAX_PANELS) -> tuple[SurfaceMap, ...]:
    """The largest budgets, at most so many, small ones first."""
    usable = [finding for finding in diagnosis.surfaces if np.isfinite(finding.cells.value).any()]
    if not usable:
        raise InputError("no two runs ended after as many tokens: give runs with other LR and WD and equal length")
    return tuple(surface_map(finding) for finding in usable[-most:])


@dataclass(frozen=True)
class Eigen:
    """Eigenvalues and directions of the fitted paraboloids, budget by budget."""

    tokens: np.ndarray
    first: np.ndarray
    second: np.ndarray
    salient: np.ndarray
    salient_intervals: tuple[tuple[float, float], ...]
    active: np.ndarray
    active_intervals: tuple[tuple[float, float], ...]


def eigen(diagnosis: Diagnosis) -> Eigen:
    """Of every budget that has a surface."""
    fitted = [(one.tokens, one.surface) for one in diagnosis.surfaces if one.surface is not None]
    if not fitted:
        reasons = [one.reason for one in diagnosis.surfaces if one.reason]
        raise InputError(reasons[-1] if reasons else "no two runs ended after as many tokens: no surface is fitted")
    surfaces = [surface for _, surface in fitted]
    return Eigen(
        np.array([float(tokens) for tokens, _ in fitted]),
        np.array([surface.eigenvalues[0] for surface in surfaces]),
        np.array([surface.eigenvalues[1] for surface in surfaces]),
        np.array([surface.salient_direction for surface in surfaces]),
        tuple(surface.salient_direction_interval for surface in surfaces),
        np.array([surface.active_direction for surface in surfaces]),
        tuple(surface.active_direction_interval for surface in surfaces),
    )


# Drawings


def draw_surfaces(maps: Sequence[SurfaceMap], wd_label: str) -> dict[str, Any]:
    """A panel for each budget, each with its own colours: lowest loss dark."""
    single = len(maps) == 1
    drawing = Drawing(len(maps), columns=1 if single else 3, panel_height=360 if single else 220, gap=0.09)
    for panel, one in enumerate(maps):
        low = float(np.nanmin(one.cells.value))
        high = min(float(np.nanmax(one.cells.value)), low * (1 + SPREAD_SHOWN))
        high = high if high > low else low + 1e-6
        shared = {"colorscale": "Cividis", "zmin": low, "zmax": high}
        _add_cells(drawing, panel, one.cells, shared, single)
        if one.surface is not None:
            _add_fit(drawing, panel, one, single)
        x = octave_axis("LR", one.cells.log2_lr, pad=0.6, most=7 if single else 3) | {"showgrid": False, "tickangle": 0}
        y = octave_axis(wd_label if panel % 3 == 0 else "", one.cells.log2_wd, pad=0.6) | {"showgrid": False}
        title = "" if single else f"{format_tokens(one.tokens)} tokens"
        drawing.axes(panel, x, y, title)
    return drawing.finish()


def _add_cells(drawing: Drawing, panel: int, cells: Cells, colors: dict[str, Any], with_bar: bool) -> None:
    bar = {"title": {"text": "loss<br>(nats)<br>\u00a0", "side": "top"}, "thickness": 11, "outlinewidth": 0, "len": 0.9}
    lr, wd = np.unique(cells.log2_lr.round(3)), np.unique(cells.log2_wd.round(3))
    hover = "LR 2^%{x:.2f}, WD 2^%{y:.2f}: %{z:.4f}<extra></extra>"
    is_lattice = len(lr) * len(wd) <= min(MAX_LATTICE, len(cells.value) / FILLED)
    if is_lattice:
        z = np.full((len(wd), len(lr)), np.nan)
        z[np.searchsorted(wd, cells.log2_wd.round(3)), np.searchsorted(lr, cells.log2_lr.round(3))] = cells.value
        heat = {"type": "heatmap", "x": lr, "y": wd, "z": z, "hovertemplate": hover, "showscale": with_bar}
        drawing.add(panel, heat | colors | {"colorbar": bar})
    rows = thin(np.argsort(cells.value), MAX_LATTICE)
    marker: dict[str, Any] = {"color": CELL_MARK, "size": 4, "line": {"width": 0.7, "color": INK}}
    if not is_lattice:
        marker = {"color": cells.value[rows], "colorscale": colors["colorscale"], "cmin": colors["zmin"]}
        marker |= {"cmax": colors["zmax"], "size": 9, "showscale": with_bar, "colorbar": bar}
    hover_words = [f"{value:.4f}" for value in cells.value[rows]]
    trace = points(cells.log2_lr[rows], cells.log2_wd[rows], color=CELL_MARK, marker=marker, name="tried")
    drawing.add(panel, trace | {"text": hover_words, "hovertemplate": "%{text}<extra></extra>", "showlegend": True})


CELL_MARK = "rgba(255,255,255,0.75)"


def _add_fit(drawing: Drawing, panel: int, one: SurfaceMap, single: bool) -> None:
    surface = one.surface
    assert surface is not None
    known = one.fitted[np.isfinite(one.fitted)]
    grid: dict[str, Any] = {"type": "contour", "x": one.grid_lr.round(3), "y": one.grid_wd.round(3), "z": one.fitted}
    grid |= {"showscale": False, "hoverinfo": "skip", "connectgaps": False}
    if len(known):
        low, high = float(known.min()), float(np.quantile(known, 0.98))
        step = (high - low) / NUM_CONTOURS or 1.0
        levels = {"coloring": "none", "start": low + step / 2, "end": high, "size": step}
        line = {"color": "#ffffff", "width": 0.8}
        drawing.add(panel, grid | {"contours": levels, "line": line, "name": "fitted", "showlegend": False})
        levels = {"coloring": "none", "start": one.flat_limit, "end": one.flat_limit, "size": 1.0}
        line = {"color": CATEGORIES[4], "width": 2.5}
        flat = {"contours": levels, "line": line, "name": "flat set", "showlegend": True}
        drawing.add(panel, grid | flat)
    best = surface.best_cell
    drawing.add(
        panel,
        points(
            [best.log2_learning_rate],
            [best.log2_weight_decay],
            color="rgba(0,0,0,0)",
            symbol="square",
            size=11 if single else 9,
            name="lowest measured",
            marker={"line": {"width": 2, "color": CATEGORIES[1]}},
            showlegend=True,
            hovertemplate=f"lowest measured: {best.loss:.4f}<extra></extra>",
        ),
    )
    if surface.is_convex and math.isfinite(surface.minimum_log2_learning_rate):
        _add_minimum(drawing, panel, surface, one.cells)


def _add_minimum(drawing: Drawing, panel: int, surface: LossSurface, cells: Cells) -> None:
    """The fitted minimum with its interval, cut at the panel's edge; left out where it lies beyond."""
    x, y = surface.minimum_log2_learning_rate, surface.minimum_log2_weight_decay
    ends = []
    for value, (low, high), column in (
        (x, surface.minimum_log2_learning_rate_interval, cells.log2_lr),
        (y, surface.minimum_log2_weight_decay_interval, cells.log2_wd),
    ):
        first, last = float(column.min()) - 0.6, float(column.max()) + 0.6
        if not first <= value <= last:
            return
        ends.append((max(low, first), min(high, last)))
    trace = points([x], [y], color=ACCENT, symbol="diamond", size=8, name="fitted minimum", showlegend=True)
    trace |= {"error_x": error_bars([x], [ends[0]], ACCENT), "error_y": error_bars([y], [ends[1]], ACCENT)}
    drawing.add(panel, trace | {"hovertemplate": f"fitted minimum: {surface.minimum_loss:.4f}<extra></extra>"})


def draw_eigen(data: Eigen) -> dict[str, Any]:
    """Eigenvalues left, angles right."""
    drawing = Drawing(2)
    x_axis = token_axis(float(data.tokens.min()) / 1.3, float(data.tokens.max()) * 1.3, "budget (tokens)")
    positive = [value for value in (*data.first, *data.second) if value > 0]
    for values, name, color in ((data.first, "largest", CATEGORIES[0]), (data.second, "other", CATEGORIES[1])):
        for sign, symbol, suffix in ((1, "circle", ""), (-1, "circle-open", " (negative)")):
            rows = sign * values > 0
            if rows.any():
                trace = points(data.tokens[rows], np.abs(values[rows]), color=color, symbol=symbol, name=name + suffix)
                drawing.add(
                    0,
                    trace
                    | {
                        "mode": "lines+markers" if sign > 0 else "markers",
                        "line": {"width": 1, "color": color},
                        "showlegend": True,
                    },
                )
    shown = [*positive, *(abs(value) for value in data.second)]
    drawing.axes(0, x_axis, log_axis("eigenvalue (loss per octave²)", shown), "curvature")
    for values, intervals, name, color, shift in (
        (data.salient, data.salient_intervals, "eigenvector", CATEGORIES[2], 0.96),
        (data.active, data.active_intervals, "gradients", CATEGORIES[3], 1.04),
    ):
        bars = error_bars(values.tolist(), intervals, color)
        trace = points(data.tokens * shift, values, color=color, name=name, showlegend=True)
        drawing.add(1, trace | {"error_y": bars, "hovertemplate": "%{y:.0f} degrees"})
    y_axis = plain_axis("angle (degrees)") | {"range": [-95, 95], "tickvals": [-90, -45, 0, 45, 90]}
    drawing.axes(1, x_axis, y_axis, "direction that matters")
    for name in ("LR", "ELR"):
        drawing.line(1, y=NAMED_DIRECTIONS[name], words=name)  # type: ignore[index]
    return drawing.finish()


# Captions


def surface_caption(one: SurfaceMap) -> str:
    words = [
        f"Final loss after {format_tokens(one.tokens)} tokens over LR and WD, {count(len(one.cells.value), 'cell')}."
    ]
    surface = one.surface
    if surface is None:
        return f"{words[0]} No surface is fitted: {one.reason}."
    words.append("White lines: the fitted paraboloid; blue line: the set that is as good as its lowest point.")
    low, high = surface.active_direction_interval
    words.append(
        f"The loss changes most at {degrees(surface.active_direction)} degrees [{degrees(low)}, {degrees(high)}] "
        "(0 is LR, 45 ELR)."
    )
    if surface.is_censored:
        words.append("The minimum is not known to lie inside the grid.")
    else:
        lr, wd = (2.0**v for v in (surface.minimum_log2_learning_rate, surface.minimum_log2_weight_decay))
        words.append(f"Minimum at LR {format_number(lr)}, WD {format_number(wd)}, loss {surface.minimum_loss:.4f}.")
    return " ".join(words)


def surfaces_caption(maps: Sequence[SurfaceMap]) -> str:
    inside = sum(one.surface is not None and not one.surface.is_censored for one in maps)
    return (
        f"Final loss over LR and WD after {', '.join(format_tokens(one.tokens) for one in maps)} tokens, each with its "
        "own colours (dark is low). White lines: the fitted paraboloid; blue line: as good as its lowest point. The "
        f"minimum is known to lie inside the grid in {inside} of {len(maps)}."
    )


def eigen_caption(data: Eigen) -> str:
    low, high = data.salient_intervals[-1]
    return (
        "Eigenvalues of the fitted paraboloid and the angle of its first eigenvector, against budget; beside it the "
        f"angle of the mean gradient. 0 degrees is LR, 45 is ELR. Largest budget: {degrees(float(data.salient[-1]))} "
        f"degrees [{degrees(low)}, {degrees(high)}]."
    )
