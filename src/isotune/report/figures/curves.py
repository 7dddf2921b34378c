"""Curves against tokens: loss by LR and by ELR, noise, gradient norm, all of them side by side, trunks with decays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isotune.analyze.curves import effective_learning_rate, warmup_end
from isotune.analyze.diagnosis import Diagnosis
from isotune.analyze.families import End, Family, lineage_of
from isotune.analyze.stretches import stretch_values
from isotune.errors import InputError
from isotune.recipe.quantities import format_number
from isotune.report.figures.drawing import (
    INK,
    Drawing,
    Scale,
    as_text,
    lines,
    log_axis,
    plain_axis,
    plain_token_axis,
    points,
    thin,
    token_axis,
)
from isotune.report.figures.words import count, name_verdict
from isotune.runs.trajectory import RunInfo, Trajectory

MAX_CURVES = 100
MAX_CURVE_POINTS = 300
MAX_POINTS = 12_000  # of all curves of a figure: a page holds a dozen such figures
NUM_STRETCHES = 16  # over which noise is averaged
MAX_BRANCHED = 16  # trunks that are drawn with their decays
QUANTITIES = {"scaled_noise": "gradient noise (nats per token)", "scaled_gradient": "gradient norm (nats per token)"}

Setting = Literal["LR", "ELR"]


@dataclass(frozen=True)
class Curve:
    """One run's column against tokens."""

    log2_lr: float
    log2_elr: float
    words: str
    tokens: np.ndarray
    values: np.ndarray
    has_diverged: bool = False


@dataclass(frozen=True)
class CurveSet:
    """Curves of a family; `num_runs` counts those that are not drawn too."""

    curves: tuple[Curve, ...]
    num_runs: int
    label: str  # of the values, with their unit
    is_log: bool = False  # whether the values want a logarithmic axis

    @property
    def left_out(self) -> str:
        """A sentence, if not all runs are drawn."""
        if len(self.curves) == self.num_runs:
            return ""
        return f" {len(self.curves)} of {self.num_runs} runs are drawn, spread evenly over ELR."


# Data


def loss_curves(family: Family, diverged: Sequence[Trajectory] = ()) -> CurveSet:
    """The losses of a family's runs after their warm-up, up to their decay; runs that diverged as far as they came."""
    runs = [*family.curves, *diverged]
    curves = []
    chosen = spread_runs(runs)
    for run in chosen:
        at, values = run.measured(family.loss)
        begins = warmup_end(run)
        kept = (at > 0) & (at >= (0.0 if math.isnan(begins) else begins)) & np.isfinite(values)
        if run.info.status == "diverged" and not kept.any():
            kept = (at > 0) & np.isfinite(values)
        if kept.any():
            curves.append(_curve(run.info, at[kept].astype(float), values[kept]))
    if not curves:
        raise InputError("no run has a finite loss after its warm-up: evaluate the runs, or train them for longer")
    return CurveSet(_thinned(curves), len(runs), _loss_label(family.loss))


def noise_curves(family: Family, column: str) -> CurveSet:
    """scaled_noise or scaled_gradient, averaged over stretches of equal length in log tokens."""
    metered = [run for run in family.curves if len(run.measured("precond_noise_trace")[0])]
    if not metered:
        raise InputError(
            "gradient noise was not measured: train with the meter on, or log precond_noise_trace and "
            "precond_gradient_sq_norm (docs/gradient-noise.md)"
        )
    curves = []
    for run in spread_runs(metered):
        at = run.measured("precond_noise_trace")[0].astype(float)
        begins = warmup_end(run)
        at = at[at >= (at[0] if math.isnan(begins) else begins)]
        if len(at) < 4 * 2 or at[0] <= 0:
            continue
        edges = np.geomspace(at[0], at[-1], min(NUM_STRETCHES, len(at) // 4) + 1)
        values = stretch_values(run, column, edges)
        positive = values > 0  # a signal that is lost in the noise may come out below 0
        if positive.sum() > 1:
            middle = np.sqrt(edges[1:] * edges[:-1])
            curves.append(_curve(run.info, middle[positive], values[positive]))
    if not curves:
        raise InputError("no run has enough readings of its gradient noise: measure it more often, or train for longer")
    return CurveSet(tuple(curves), len(metered), QUANTITIES[column], is_log=True)


@dataclass(frozen=True)
class Branch:
    """A decay: from its trunk's loss where it leaves, to the loss where it ends."""

    log2_lr: float
    log2_elr: float
    words: str
    tokens: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class BranchedCurves:
    """Trunks and the decays that leave them."""

    trunks: CurveSet
    branches: tuple[Branch, ...] = field(repr=False)


def branched_curves(family: Family) -> BranchedCurves:
    """Trunks of some cells, spread over ELR, with their decays; losses of both are on the same windows."""
    ends: dict[tuple[object, ...], list[End]] = {}
    for budget in family.budgets:
        for end in budget.ends:
            if not isinstance(end.info.decay_tokens, str) and end.info.decay_tokens > 0:
                ends.setdefault(lineage_of(end.run, family.loss), []).append(end)
    if family.shape != "constant" or not ends:
        raise InputError("no run at constant LR ends in a decay: branch decays off the runs (budgets of a sweep)")
    decayed = [run for run in family.curves if lineage_of(run, family.loss) in ends]
    chosen = spread_runs(decayed, MAX_BRANCHED)
    branches = [
        _branch(end, family.loss)
        for run in chosen
        for end in ends[lineage_of(run, family.loss)]
        if math.isfinite(end.curve_loss)
    ]
    if not chosen or not branches:
        raise InputError(f"no decay was evaluated at its end on {family.loss}: evaluate there")
    curves = []
    for run in chosen:
        at, values = run.measured(family.loss)
        kept = at > 0
        curves.append(_curve(run.info, at[kept].astype(float), values[kept]))
    trunks = CurveSet(_thinned(curves), len(decayed), _loss_label(family.loss))
    return BranchedCurves(trunks, tuple(branches))


def spread_runs(runs: Sequence[Trajectory], most: int = MAX_CURVES) -> list[Trajectory]:
    """At most so many runs: one for each cell if need be, then evenly over ELR and LR."""
    ordered = sorted(runs, key=lambda run: (*log2_settings_of(run.info)[::-1], str(run.info.seed)))
    if len(ordered) <= most:
        return ordered
    by_cell: dict[tuple[object, ...], Trajectory] = {}
    for run in ordered:
        by_cell.setdefault((run.info.learning_rate, run.info.weight_decay), run)
    cells = list(by_cell.values())
    return [cells[index] for index in thin(np.arange(len(cells)), most)]


def run_words(info: RunInfo) -> str:
    """The run as hovering over it says."""
    lr, wd = (
        value if isinstance(value, str) else format_number(value) for value in (info.learning_rate, info.weight_decay)
    )
    seed = "" if info.seed == "unknown" else f", seed {info.seed}"
    return f"LR {lr}, WD {wd}{seed}"


def _branch(end: End, loss: str) -> Branch:
    length = int(end.info.decay_tokens)
    at, values = end.run.measured(loss)
    begins = end.tokens - length
    kept = (at > begins) & (at < end.tokens)
    tokens = np.concatenate([at[kept], [end.tokens]]).astype(float)
    losses = np.concatenate([values[kept], [end.curve_loss]])
    before = at > 0
    if before.any() and at[before][0] <= begins:  # else nothing is known of where it leaves
        first = np.interp(begins, at[before], values[before])
        tokens, losses = np.concatenate([[begins], tokens]), np.concatenate([[first], losses])
    return Branch(*log2_settings_of(end.info), run_words(end.info), tokens, losses)


def _curve(info: RunInfo, tokens: np.ndarray, values: np.ndarray) -> Curve:
    return Curve(*log2_settings_of(info), run_words(info), tokens, values, info.status == "diverged")


def log2_settings_of(info: RunInfo) -> tuple[float, float]:
    """(log2 LR, log2 ELR); NaN where they are unknown."""
    try:
        lr, elr = float(info.learning_rate), effective_learning_rate(info)
    except (InputError, ValueError):
        return math.nan, math.nan
    return (math.log2(lr), math.log2(elr)) if lr > 0 and elr > 0 else (math.nan, math.nan)


def _thinned(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    most = min(MAX_CURVE_POINTS, max(12, MAX_POINTS // len(curves)))
    result = []
    for curve in curves:
        rows = thin_log(curve.tokens, most)
        result.append(
            Curve(
                curve.log2_lr, curve.log2_elr, curve.words, curve.tokens[rows], curve.values[rows], curve.has_diverged
            )
        )
    return tuple(result)


def thin_log(tokens: np.ndarray, most: int) -> np.ndarray:
    """Rows to keep, at most so many: evenly spread on a logarithmic axis, as far as there are rows."""
    if len(tokens) <= most:
        return np.arange(len(tokens))
    wanted = np.geomspace(max(tokens[0], 1.0), tokens[-1], most)
    rows = np.unique(np.concatenate([np.searchsorted(tokens, wanted).clip(0, len(tokens) - 1), [0, len(tokens) - 1]]))
    return thin(rows, most)


def _loss_label(loss: str) -> str:
    names = {"val_loss": "validation loss", "train_loss": "training loss"}
    return f"{names[loss]} (nats per token)" if loss in names else as_text(loss)


# Drawings


def draw_curves(data: CurveSet, setting: Setting) -> dict[str, Any]:
    """The curves in the colours of LR or ELR."""
    scale = _scale(data.curves, setting)
    drawing = Drawing()
    _add_curves(drawing, 0, data, setting, scale)
    drawing.add(0, scale.carrier())
    drawing.set(coloraxis=scale.axis())
    return drawing.finish()


def draw_dynamics(panels: Sequence[CurveSet], batch_size: float) -> dict[str, Any]:
    """Several quantities of the same runs side by side, the noise scale last, all in the colours of ELR."""
    scale = _scale([curve for data in panels for curve in data.curves], "ELR")
    drawing = Drawing(len(panels), panel_height=240)
    for panel, data in enumerate(panels):
        _add_curves(drawing, panel, data, "ELR", scale, as_panel=True)
    if math.isfinite(batch_size):
        values = np.concatenate([[batch_size], *(curve.values for curve in panels[-1].curves)])
        drawing.change_axis(len(panels) - 1, log_axis("sequences", values.tolist()))
        drawing.line(len(panels) - 1, y=batch_size, words="batch")
    drawing.add(0, scale.carrier())
    drawing.set(coloraxis=scale.axis())
    return drawing.finish()


def draw_branched(data: BranchedCurves) -> dict[str, Any]:
    """Trunks, and decays with a mark where they end, in the colours of ELR."""
    scale = _scale(data.trunks.curves, "ELR")
    drawing = Drawing()
    first = 0.7 * min(float(branch.tokens[-1]) for branch in data.branches)
    for curve in data.trunks.curves:
        kept = curve.tokens >= first
        drawing.add(
            0,
            _line(
                Curve(curve.log2_lr, curve.log2_elr, curve.words, curve.tokens[kept], curve.values[kept]),
                scale,
                "ELR",
                1.0,
            ),
        )
    for branch in data.branches:
        color = scale.color(branch.log2_elr)
        marker = {"size": [0] * (len(branch.tokens) - 1) + [6], "color": color}
        trace = lines(branch.tokens, branch.values, color=color, dash="dot", name=f"{branch.words}, decay", width=1.2)
        drawing.add(0, trace | {"mode": "lines+markers", "marker": marker, "hovertemplate": _HOVER})
    shown = [value for curve in data.trunks.curves for value in curve.values[curve.tokens >= first]]
    shown += [branch.values[-1] for branch in data.branches]
    # A short trunk may end before its first evaluation.
    ends = [float(curve.tokens[-1]) for curve in data.trunks.curves if len(curve.tokens)]
    last = max([*ends, *(float(branch.tokens[-1]) for branch in data.branches)])
    # Not logarithmic: decays of one length shall look alike.
    drawing.axes(0, plain_token_axis(last), plain_axis(data.trunks.label, shown))
    drawing.add(0, scale.carrier())
    drawing.set(coloraxis=scale.axis())
    return drawing.finish()


_HOVER = "%{x:.4s} tokens: %{y:.4f}"


def _add_curves(
    drawing: Drawing, panel: int, data: CurveSet, setting: Setting, scale: Scale, as_panel: bool = False
) -> None:
    # The smallest value is drawn first, so that which curves lie on top does not depend on the order of the runs.
    for curve in sorted(data.curves, key=lambda one: _value(one, setting)):
        drawing.add(panel, _line(curve, scale, setting))
        if curve.has_diverged:
            words = f"{curve.words}: diverged"
            drawing.add(panel, points(curve.tokens[-1:], curve.values[-1:], color=INK, symbol="x", name=words))
    tokens = np.concatenate([curve.tokens for curve in data.curves])
    x = token_axis(float(tokens.min()), float(tokens.max()) * 1.03, most=4 if as_panel else 6)
    y = _value_axis(data)
    name, _, unit = data.label.removesuffix(")").partition(" (")
    drawing.axes(panel, x, y | {"title": {"text": unit}} if as_panel else y, name if as_panel else "")


def _line(curve: Curve, scale: Scale, setting: Setting, width: float = 1.2) -> dict[str, Any]:
    color = scale.color(_value(curve, setting))
    dash = "dash" if curve.has_diverged else "solid"
    mode = "lines" if len(curve.tokens) > 1 else "markers"
    trace = lines(curve.tokens, curve.values, color=color, name=curve.words, width=width, dash=dash)
    return trace | {"mode": mode, "hovertemplate": _HOVER}


def _value_axis(data: CurveSet) -> dict[str, Any]:
    """A range that sound runs fill: one that blows up may leave it."""
    sound = [curve for curve in data.curves if not curve.has_diverged] or list(data.curves)
    values = np.concatenate([curve.values for curve in sound])
    if data.is_log:
        low, high = np.quantile(values, [0.003, 0.997])
        return log_axis(data.label, [float(low), float(high)])
    low = float(values.min())
    high = min(float(values.max()), low + 4 * (float(np.quantile(values, 0.9)) - low) or low + 1)
    return plain_axis(data.label, [low, high])


def _scale(curves: Sequence[Curve], setting: Setting) -> Scale:
    return Scale.of(setting, (_value(curve, setting) for curve in curves))


def _value(curve: Curve, setting: Setting) -> float:
    return curve.log2_lr if setting == "LR" else curve.log2_elr


# Captions


def loss_caption(diagnosis: Diagnosis, data: CurveSet, setting: Setting) -> str:
    """What to look for, and the verdict that these curves gave."""
    stage = {"LR": diagnosis.stages[0], "ELR": diagnosis.stages[-1]}[setting]
    when = {"LR": "early", "ELR": "late"}[setting]
    look = (
        f"Loss up to the decay, coloured by {setting}. If curves of one colour lie on each other {when}, {setting} "
        "alone decides there."
    )
    diverged = sum(curve.has_diverged for curve in data.curves)
    marked = f" {count(diverged, 'run')} that diverged dashed, with a cross." if diverged else ""
    return look + marked + f" {name_verdict(stage)}" + data.left_out


def noise_caption(data: CurveSet) -> str:
    return (
        "Gradient noise (LR/B) Tr(P^-1 Sigma) of the hidden matrices, clip-corrected, as means over stretches, "
        f"coloured by ELR. Where curves of one colour lie on each other, ELR decides how noisy training "
        f"is.{data.left_out}"
    )


DYNAMICS_CAPTION = (
    "The same runs in four quantities, coloured by ELR; the batch is dotted beside the noise scale. Look for colours "
    "that separate: there ELR decides."
)


def branched_caption(data: BranchedCurves) -> str:
    return (
        "Trunks at constant LR and their decays to zero (dotted, with a mark where they end), coloured by ELR. If "
        f"marks of one colour lie together, the collapse persists through the decay.{data.trunks.left_out}"
    )


# Runs without a place


def unplaced_curves(trajectories: Sequence[Trajectory], loss: str) -> CurveSet:
    """Losses of runs whatever is known of them."""
    curves = []
    for run in [trajectories[index] for index in thin(np.arange(len(trajectories)), MAX_CURVES)]:
        at, values = run.measured(loss)
        kept = (at > 0) & np.isfinite(values)
        if kept.any():
            curves.append(_curve(run.info, at[kept].astype(float), values[kept]))
    if not curves:
        raise InputError("no run has a finite loss: evaluate the runs, or name another column as the loss")
    return CurveSet(_thinned(curves), len(trajectories), _loss_label(loss))


def draw_unplaced(data: CurveSet) -> dict[str, Any]:
    """The curves in one colour."""
    drawing = Drawing()
    _add_curves(drawing, 0, data, "LR", Scale.of("LR", ()))
    return drawing.finish()
