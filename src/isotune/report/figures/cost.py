"""Tokens trained against those of a full grid: what shared prefixes save."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.families import Family, cells_of, lineage_of
from isotune.errors import InputError
from isotune.recipe.quantities import format_tokens
from isotune.report.figures.drawing import CATEGORIES, Drawing, as_text, plain_token_axis

FAMILY_HEIGHT = 70  # pixels
NAME_WIDTH = 17  # characters


@dataclass(frozen=True)
class Cost:
    """Tokens of one family's runs: with shared prefixes, each from scratch, and of the full grid from scratch."""

    name: str
    shared: float
    from_scratch: float
    full_grid: float
    num_ends: int
    num_full: int


def costs_of(families: Sequence[Family]) -> tuple[Cost, ...]:
    """The cost of each family that has final losses."""
    costs = tuple(cost_of(family) for family in families if any(budget.ends for budget in family.budgets))
    if not costs:
        raise InputError("no run has ended with a loss: nothing can be said of what it cost")
    return costs


def cost_of(family: Family) -> Cost:
    """What the family's ends cost if a prefix is trained once, if it is not, and if every LR met every WD."""
    lengths: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for budget in family.budgets:
        for end in budget.ends:
            decay = end.info.decay_tokens
            tail = 0.0 if isinstance(decay, str) else float(min(decay, end.tokens))
            lengths.setdefault(lineage_of(end.run, family.loss), []).append((float(end.tokens), tail))
    shared = 0.0
    trunks = {lineage_of(run, family.loss): float(run.tokens[-1]) for run in family.curves if len(run.tokens)}
    for lineage, ends in lengths.items():
        branch = max(tokens - tail for tokens, tail in ends)
        shared += max(branch, trunks.get(lineage, 0.0)) + sum(tail for _, tail in ends)
    from_scratch = sum(tokens for ends in lengths.values() for tokens, _ in ends)
    full, num_full = from_scratch, sum(len(ends) for ends in lengths.values())
    for budget in family.budgets:
        cells = cells_of([end.info for end in budget.ends], np.zeros(len(budget.ends)))
        num_missing = max(0, _num_values(cells.log2_lr) * _num_values(cells.log2_wd) - len(cells.value))
        full += num_missing * float(budget.tokens)
        num_full += num_missing
    return Cost(family.name, shared, from_scratch, full, sum(len(ends) for ends in lengths.values()), num_full)


def _num_values(log2_values: np.ndarray) -> int:
    """The values of an axis; those drawn at random count as a grid of octaves."""
    return min(len(np.unique(log2_values.round(2))), round(float(np.ptp(log2_values))) + 1)


def draw_costs(costs: Sequence[Cost]) -> dict[str, Any]:
    """Three bars for each family, its name beside them: long names below would leave no room."""
    names = [_in_lines(cost.name) for cost in costs]
    drawing = Drawing(panel_height=100 + FAMILY_HEIGHT * len(costs))
    bars = (
        ("shared prefixes", [cost.shared for cost in costs], CATEGORIES[2]),
        ("each run from scratch", [cost.from_scratch for cost in costs], CATEGORIES[0]),
        ("full grid from scratch", [cost.full_grid for cost in costs], CATEGORIES[1]),
    )
    for name, values, color in bars:
        text = [format_tokens(value) for value in values]
        bar = {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": values,
            "name": name,
            "marker": {"color": color},
            "text": text,
        }
        drawing.add(
            0,
            bar
            | {"textposition": "outside", "cliponaxis": False, "showlegend": True, "hovertemplate": "%{text} tokens"},
        )
    high = max(cost.full_grid for cost in costs)
    families = {"showgrid": False, "autorange": "reversed", "type": "category"}
    drawing.axes(0, plain_token_axis(high, "tokens trained", pad=0.2), families)
    drawing.set(barmode="group")
    return drawing.finish()


def _in_lines(name: str) -> str:
    return "<br>".join(as_text(line) for line in textwrap.wrap(name, NAME_WIDTH, break_on_hyphens=False)) or " "


def cost_caption(costs: Sequence[Cost]) -> str:
    words = []
    for cost in costs:
        prefix = f"{cost.name}: " if len(costs) > 1 else ""
        saved = 1 - cost.shared / cost.full_grid if cost.full_grid else 0.0
        words.append(
            f"{prefix}{cost.num_ends:,} final losses for {format_tokens(cost.shared)} tokens, {saved:.0%} less than "
            f"{format_tokens(cost.full_grid)} of a full grid ({cost.num_full:,} runs) from scratch"
        )
    return (
        "Tokens of these runs where a trunk is trained once for all its decays, where each run starts from scratch, "
        f"and of the full grid of their LR and WD. {'; '.join(words)}."
    )
