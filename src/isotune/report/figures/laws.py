"""Laws: L0 and noise against ELR, predicted against measured; optima against budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.diagnosis import Diagnosis
from isotune.analyze.laws import PowerLaw, SaturatingPowerLaw
from isotune.analyze.scaling import Laws, with_minimum
from isotune.errors import InputError
from isotune.report.figures.drawing import (
    CATEGORIES,
    INK,
    Drawing,
    Scale,
    as_text,
    band,
    error_bars,
    lines,
    log_axis,
    octave_ticks,
    plain_axis,
    points,
    power_of_two,
    token_axis,
)
from isotune.report.figures.words import count, interval

LINE_POINTS = 60
QUANTITIES = (
    ("learning_rate", "LR"),
    ("weight_decay", "WD"),
    ("effective_learning_rate", "ELR"),
    ("loss", "loss (nats per token)"),
)


@dataclass(frozen=True)
class LawLine:
    """A law's values and interval on a grid of x."""

    x: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class LawOfElr:
    """Measured values of runs against ELR, the law through them, and what it predicts of a run left out."""

    name: str
    label: str
    elr: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray  # by the law of the other runs (of the other ELR groups)
    line: LawLine
    words: str


@dataclass(frozen=True)
class Optima:
    """One quantity at the best cell of each budget: fitted minima with intervals, the lowest cells, the law."""

    tokens: np.ndarray
    values: np.ndarray
    intervals: tuple[tuple[float, float], ...]
    best_tokens: np.ndarray
    best_values: np.ndarray
    line: LawLine | None
    words: str


@dataclass(frozen=True)
class FamilyOptima:
    """All four quantities of one family."""

    name: str
    quantities: dict[str, Optima]
    reason: str  # why a law is missing


# Data


def laws_of_elr(laws: Laws) -> tuple[LawOfElr, ...]:
    """L0 (without it the mean late loss) and late noise against ELR."""
    found = []
    floors = ("floors", "L0") if laws.floors is not None else ("late_losses", "late loss")
    for (key, name), label in ((floors, f"{floors[1]} (nats)"), (("noise", "G"), "late noise G (nats)")):
        law = getattr(laws, key)
        if law is None or key not in laws.points:
            continue
        x, y = laws.points[key]
        errors = np.array(law.leave_one_out_errors)
        predicted = y * (1 + errors) if len(errors) == len(y) else law.value_at(x)
        found.append(LawOfElr(name, label, x, y, predicted, law_line(law, x), _law_words(name, law, "ELR")))
    if not found:
        raise InputError(_reason(laws, "floors", "late_losses", "noise"))
    return tuple(found)


def law_line(law: PowerLaw | SaturatingPowerLaw, x: np.ndarray, reach: float = 1.15) -> LawLine:
    """The law a little beyond its data, with its interval."""
    grid = np.geomspace(x.min() / reach, x.max() * reach, LINE_POINTS)
    predictions = [law.predict(float(one)) for one in grid]
    columns = [np.array([getattr(one, name) for one in predictions]) for name in ("value", "low", "high")]
    return LawLine(grid, *columns)


def family_optima(diagnosis: Diagnosis, laws: Laws) -> FamilyOptima:
    """Fitted minima inside the grid, the lowest measured cell of each budget, and the laws of the minima."""
    found = {}
    inside = with_minimum(diagnosis.surfaces)
    measured = [one for one in diagnosis.surfaces if np.isfinite(one.cells.value).any()]
    for key, name in QUANTITIES:
        values, intervals = [], []
        for one in inside:
            surface = one.surface
            assert surface is not None
            if key == "loss":
                values.append(surface.minimum_loss)
                intervals.append(surface.minimum_loss_interval)
            else:
                values.append(2.0 ** getattr(surface, f"minimum_log2_{key}"))
                low, high = getattr(surface, f"minimum_log2_{key}_interval")
                intervals.append((2.0**low, 2.0**high))
        best = [_best(one.cells, key) for one in measured]
        law = getattr(laws, f"optimal_{key}")
        tokens = np.array([float(one.tokens) for one in inside])
        line = law_line(law, tokens) if law is not None and len(tokens) else None
        words = _law_words(f"best {name.partition(' ')[0]}", law, "D") if law is not None else ""
        best_tokens = np.array([float(one.tokens) for one in measured])
        found[key] = Optima(tokens, np.array(values), tuple(intervals), best_tokens, np.array(best), line, words)
    return FamilyOptima(diagnosis.family.name, found, laws.reasons.get("optimal_learning_rate", ""))


def _best(cells: Any, key: str) -> float:
    row = int(np.nanargmin(cells.value))
    values = {
        "learning_rate": 2.0 ** cells.log2_lr[row],
        "weight_decay": 2.0 ** cells.log2_wd[row],
        "effective_learning_rate": 2.0 ** cells.log2_elr[row],
        "loss": cells.value[row],
    }
    return float(values[key])


def _law_words(name: str, law: PowerLaw | SaturatingPowerLaw, x: str) -> str:
    exponent = f"{law.exponent:.2f} {interval(*law.exponent_interval, 2)}"
    if isinstance(law, SaturatingPowerLaw):
        floor = f"{law.floor:.3g} + " if math.isfinite(law.floor) else ""
        return f"{name} = {floor}{law.amplitude:.3g} {x}^{exponent}, R² {law.r_squared:.3f}"
    return f"{name} = {law.coefficient:.3g} {x}^{exponent}, R² {law.r_squared:.3f}"


def _reason(laws: Laws, *names: str) -> str:
    reasons = dict.fromkeys(laws.reasons[name] for name in names if name in laws.reasons)
    return "; ".join(reasons) or "no law is fitted"


# Drawings


def draw_laws_of_elr(data: Sequence[LawOfElr]) -> dict[str, Any]:
    """Above the law over ELR, below what it predicts of runs left out against what they measured."""
    drawing = Drawing(2 * len(data), columns=len(data), panel_height=240)
    scale = Scale.of("ELR", np.log2(np.concatenate([one.elr for one in data])))
    for panel, one in enumerate(data):
        colors = [scale.color(value) for value in np.log2(one.elr)]
        drawing.add(panel, band(one.line.x, one.line.low, one.line.high, INK))
        drawing.add(panel, lines(one.line.x, one.line.value, color=INK, name="law", hoverinfo="skip"))
        drawing.add(panel, points(one.elr, one.measured, color=colors, name=one.name, hovertemplate="%{y:.4g}"))
        y = log_axis(one.label, one.measured) if one.name == "G" else plain_axis(one.label, one.measured, pad=0.1)
        drawing.axes(panel, _elr_axis(one.elr), y, f"{one.name} against ELR")
        low_panel = panel + len(data)
        ends = np.array(
            [min(one.measured.min(), np.nanmin(one.predicted)), max(one.measured.max(), np.nanmax(one.predicted))]
        )
        drawing.add(low_panel, lines(ends, ends, color=INK, dash="dot", hoverinfo="skip"))
        drawing.add(low_panel, points(one.measured, one.predicted, color=colors, name=one.name))
        x, y = (
            log_axis(title, ends.tolist(), most=4) if one.name == "G" else plain_axis(title, ends.tolist())
            for title in ("measured (nats)", "predicted (nats)")
        )
        drawing.axes(low_panel, x, y, f"{one.name} of runs left out")
    drawing.add(0, scale.carrier())
    drawing.set(coloraxis=scale.axis())
    return drawing.finish()


def draw_optima(families: Sequence[FamilyOptima]) -> dict[str, Any]:
    """LR, WD, ELR and loss against budget; a colour for each family."""
    drawing = Drawing(len(QUANTITIES), panel_height=240)
    tokens = np.concatenate([one.quantities["loss"].best_tokens for one in families])
    for panel, (key, label) in enumerate(QUANTITIES):
        shown: list[float] = []
        for place, family in enumerate(families):
            color = CATEGORIES[place % len(CATEGORIES)]
            _add_optima(drawing, panel, family.quantities[key], family.name, color, len(families) > 1)
            shown += family.quantities[key].values.tolist() + family.quantities[key].best_values.tolist()
        x = token_axis(float(tokens.min()) / 1.3, float(tokens.max()) * 1.3, "budget (tokens)")
        y = plain_axis(label, shown) if key == "loss" else log_axis(label, shown, pad=0.12)
        drawing.axes(panel, x, y)
    return drawing.finish()


def _add_optima(drawing: Drawing, panel: int, data: Optima, name: str, color: str, several: bool) -> None:
    prefix = f"{as_text(name)}: " if several else ""
    if data.line is not None:
        drawing.add(panel, band(data.line.x, data.line.low, data.line.high, color))
        law = lines(data.line.x, data.line.value, color=color, name=f"{prefix}law", showlegend=False, hoverinfo="skip")
        drawing.add(panel, law)
    fitted = points(data.tokens, data.values, color=color, name=f"{prefix}fitted minimum", showlegend=True)
    drawing.add(
        panel,
        fitted | {"error_y": error_bars(data.values.tolist(), data.intervals, color), "hovertemplate": "%{y:.4g}"},
    )
    marker = {"line": {"width": 1.5, "color": color}}
    words = f"{prefix}lowest cell, not fitted"
    drawing.add(
        panel,
        points(data.best_tokens, data.best_values, color=color, symbol="x-thin", size=7, name=words, marker=marker)
        | {"showlegend": True, "hovertemplate": "%{y:.4g}"},
    )


def _elr_axis(elr: np.ndarray) -> dict[str, Any]:
    low, high = float(np.log2(elr.min())), float(np.log2(elr.max()))
    ticks = octave_ticks(low, high, 5)
    more = 0.06 * max(high - low, 1.0)
    edges = [(end) * math.log10(2) for end in (low - more, high + more)]
    axis = {"type": "log", "range": edges, "tickvals": 2.0**ticks, "ticktext": [power_of_two(tick) for tick in ticks]}
    return axis | {"title": {"text": "ELR"}}


# Captions


def laws_of_elr_caption(data: Sequence[LawOfElr]) -> str:
    words = "; ".join(one.words for one in data)
    return (
        "Where n > 3: each run's L0 of L(t) = L0 + A (LR t)^-alpha and its mean gradient noise G, the laws over ELR, "
        f"and what each law predicts of runs that it was not fitted to. {words}."
    )


def optima_caption(families: Sequence[FamilyOptima]) -> str:
    words = []
    for family in families:
        prefix = f"{family.name}: " if len(families) > 1 else ""
        fitted = [one.words for one in family.quantities.values() if one.words]
        words.append(prefix + ("; ".join(fitted) if fitted else f"no law, {family.reason or 'too few budgets'}"))
    num_budgets = max(len(one.quantities["loss"].best_tokens) for one in families)
    return (
        f"Best settings against budget D ({count(num_budgets, 'budget')}): fitted minima inside the grid with "
        f"intervals, laws with bands, and the lowest measured cells (crosses). {'. '.join(words)}."
    )
