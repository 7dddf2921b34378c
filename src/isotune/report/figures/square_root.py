"""The square-root rule, LR ~ sqrt(batch), against runs that kept their LR at a switch and against the best LR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.batches import OptimalRate, square_root_rule
from isotune.analyze.diagnosis import Diagnosis
from isotune.analyze.families import End, Family
from isotune.errors import InputError
from isotune.recipe.quantities import format_tokens
from isotune.report.figures.drawing import (
    CATEGORIES,
    INK,
    Drawing,
    error_bars,
    lines,
    log_axis,
    octave_axis,
    plain_axis,
    points,
)

RULE_WORDS = "square-root rule"  # in the history of runs that follow it
Interval = tuple[float, float]


@dataclass(frozen=True)
class SwitchPairs:
    """Final losses of runs that differ in what LR did at a batch switch, at one budget."""

    tokens: int
    log2_lr: np.ndarray  # before the switch
    kept: np.ndarray
    scaled: np.ndarray


@dataclass(frozen=True)
class BestRates:
    """The best LR at each batch size, at one budget; `is_fitted` where a paraboloid's minimum lies inside the grid."""

    tokens: int
    batch_sizes: np.ndarray
    rates: np.ndarray
    intervals: tuple[Interval, ...]
    is_fitted: np.ndarray
    verdict: str
    reason: str


@dataclass(frozen=True)
class SquareRootData:
    """What runs say of the rule: pairs after a switch, best LR by batch size."""

    pairs: tuple[SwitchPairs, ...]
    best: BestRates | None


def square_root_data(diagnoses: Sequence[Diagnosis]) -> SquareRootData:
    """Pairs of switched runs and the best LR of plain families, as far as there are any."""
    pairs = _pairs([diagnosis.family for diagnosis in diagnoses])
    best = _best_rates(diagnoses)
    if not pairs and best is None:
        raise InputError(
            "the square-root rule needs sweeps at two batch sizes with a budget in common, or runs that switch the "
            'batch with LR kept and with LR scaled (switch = "type2" and "square_root" of a sweep)'
        )
    return SquareRootData(pairs, best)


def _pairs(families: Sequence[Family]) -> tuple[SwitchPairs, ...]:
    scaled = [family for family in families if RULE_WORDS in family.history]
    found: dict[int, list[tuple[float, float, float]]] = {}
    for one in scaled:
        history = one.history.replace(f"LR by the {RULE_WORDS} and ", "")
        for other in families:
            if (other.history, other.batch_size, other.setup) != (history, one.batch_size, one.setup):
                continue
            kept = {(b.tokens, _cell(end)): end.loss for b in other.budgets for end in b.ends}
            for budget in one.budgets:
                for end in budget.ends:
                    cell = _cell(end)
                    if (budget.tokens, cell) in kept:
                        found.setdefault(budget.tokens, []).append((cell[0], kept[budget.tokens, cell], end.loss))
    return tuple(SwitchPairs(tokens, *np.array(sorted(rows)).T) for tokens, rows in sorted(found.items()))


def _cell(end: End) -> tuple[float, float, object]:
    """log2 of LR before the switch and of WD, and the seed."""
    rate = end.run.columns.get("learning_rate")
    batch = end.run.columns.get("batch_size")
    before = float(end.info.learning_rate)
    if rate is not None and batch is not None and len(batch):
        rows = (batch == batch[0]) & ~np.isnan(rate)
        before = float(rate[rows].max()) if rows.any() else before
    return round(math.log2(before), 2), round(math.log2(float(end.info.weight_decay)), 2), end.info.seed


def _best_rates(diagnoses: Sequence[Diagnosis]) -> BestRates | None:
    plain = [one for one in diagnoses if not one.family.history and not isinstance(one.family.batch_size, str)]
    by_setup: dict[str, list[Diagnosis]] = {}
    for one in plain:
        by_setup.setdefault(one.family.setup, []).append(one)
    for together in by_setup.values():
        sizes = [one.family.batch_size for one in together]
        shared = set.intersection(*({s.tokens for s in one.surfaces} for one in together))
        if len(set(sizes)) > 1 and len(set(sizes)) == len(sizes) and shared:
            return _best_at(sorted(together, key=lambda one: int(one.family.batch_size)), max(shared))
    return None


def _best_at(diagnoses: Sequence[Diagnosis], tokens: int) -> BestRates:
    sizes, rates, intervals, is_fitted = [], [], [], []
    for one in diagnoses:
        finding = next(finding for finding in one.surfaces if finding.tokens == tokens)
        surface = finding.surface
        sizes.append(int(one.family.batch_size))
        if surface is not None and "learning_rate" not in surface.censored:
            low, high = surface.minimum_log2_learning_rate_interval
            rates.append(2.0**surface.minimum_log2_learning_rate)
            intervals.append((2.0**low, 2.0**high))
            is_fitted.append(True)
        else:
            rates.append(2.0 ** float(finding.cells.log2_lr[np.nanargmin(finding.cells.value)]))
            intervals.append((0.0, math.inf))
            is_fitted.append(False)
    optima = [OptimalRate(rate, *ends) for rate, ends in zip(rates, intervals, strict=True)]
    known = all(is_fitted[place] for place in (0, -1))
    rule = square_root_rule(
        rates[0],
        sizes[0],
        sizes[-1],
        optimum=optima[0] if known else None,
        new_optimum=optima[-1] if known else None,
    )
    fitted = np.array(is_fitted)
    sizes_array, rates_array = np.array(sizes, dtype=float), np.array(rates)
    return BestRates(tokens, sizes_array, rates_array, tuple(intervals), fitted, rule.verdict, rule.reason)


def draw_square_root(data: SquareRootData) -> dict[str, Any]:
    """Loss over LR for kept and scaled LR; best LR over batch with the rule."""
    drawing = Drawing(bool(data.pairs) + (data.best is not None))
    panel = 0
    if data.pairs:
        for place, one in enumerate(data.pairs):
            dash = ("solid", "dash", "dot")[place % 3]
            for values, name, color in ((one.kept, "LR kept", CATEGORIES[0]), (one.scaled, "LR scaled", CATEGORIES[5])):
                words = f"{name}, {format_tokens(one.tokens)}"
                trace = lines(one.log2_lr, values, color=color, dash=dash, name=words, showlegend=True)
                drawing.add(0, trace | {"mode": "lines+markers", "marker": {"color": color, "size": 6}})
        losses = [value for one in data.pairs for value in (*one.kept, *one.scaled)]
        x = octave_axis("LR before the switch", np.concatenate([one.log2_lr for one in data.pairs]))
        drawing.axes(0, x, plain_axis("final loss (nats per token)", losses))
        panel = 1
    if data.best is not None:
        _add_best(drawing, panel, data.best)
    return drawing.finish()


def _add_best(drawing: Drawing, panel: int, best: BestRates) -> None:
    rule = best.rates[0] * np.sqrt(best.batch_sizes / best.batch_sizes[0])
    drawing.add(panel, lines(best.batch_sizes, rule, color=INK, dash="dot", name="square-root rule", showlegend=True))
    for is_fitted, symbol, name in ((True, "circle", "fitted minimum"), (False, "circle-open", "lowest cell")):
        rows = np.flatnonzero(best.is_fitted == is_fitted)
        if not len(rows):
            continue
        trace = points(best.batch_sizes[rows], best.rates[rows], color=CATEGORIES[0], symbol=symbol, size=9, name=name)
        if is_fitted:
            ends = [best.intervals[row] for row in rows]
            trace |= {"error_y": error_bars(best.rates[rows].tolist(), ends, CATEGORIES[0])}
        drawing.add(panel, trace | {"showlegend": True, "hovertemplate": "%{y:.3g}"})
    limits = [end for pair in best.intervals for end in pair if 0 < end < math.inf]
    x = log_axis("batch (sequences)", best.batch_sizes.tolist(), pad=0.15)
    ticks = np.unique(best.batch_sizes)
    x |= {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    drawing.axes(panel, x, log_axis("best LR", [*best.rates, *rule, *limits], pad=0.15))


def square_root_caption(data: SquareRootData) -> str:
    words = []
    if data.pairs:
        worse = sum(int((one.scaled > one.kept).sum()) for one in data.pairs)
        total = sum(len(one.kept) for one in data.pairs)
        words.append(
            "Final losses of runs whose batch was raised, with LR kept and with LR scaled by the square root of the "
            f"batch's factor: scaling is worse in {worse} of {total}."
        )
    if data.best is not None:
        best = data.best
        words.append(
            f"Best LR at each batch size after {format_tokens(best.tokens)} tokens, and what the rule makes of the "
            f"smallest batch's: {best.verdict}, {best.reason}."
        )
    return " ".join(words)
