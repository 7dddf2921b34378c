"""The grounds of the race: real tables, real tables with shuffled labels, and surfaces made by a formula.

    real           the table
    shuffled-wd    the table with its WDs in another order: what one WD tells of its neighbours is gone
    shuffled-lr    the same with its LRs
    shuffled-lr-2  the same in another order, up to shuffled-lr-6, and so for WDs: one order may suit anybody
    lower-lrs      the table without the highest third of its LRs, so that the optimum is nearer to an edge
    upper-lrs      the same without the lowest third
    16-seeds       the table, where the grid has 16 seeds in each cell, as many as isotune may ask for
    made-elr       a bowl in log2 ELR, nearly flat along it: the tuner's assumption holds
    made-lr        a bowl in log2 LR, nearly flat along WD
    made-round     a round bowl: no direction is flat, nothing is invariant
    made-between   a valley along LR^2 * WD, between LR and ELR

Made ones have the cells, budgets and decay of the nano table, a minimum that drifts to lower ELR with the budget,
losses at constant LR that are above the decayed ones by a * ELR^q, and seeds' noise of .1 % that budgets share by half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from landscape import Landscape, relabelled, restricted, table_landscapes

from isotune.analyze.seed_noise import SeedNoise
from isotune.errors import InputError
from isotune.runs import read_table
from isotune.tune.questions import MAX_SEEDS

TABLES = Path(__file__).resolve().parents[2] / "tables"
MADE = "made"
MADE_BUDGETS = tuple(172_032 * 2**octave for octave in range(5))
MADE_DECAY_TOKENS = 131_072
NOISE = 0.0015
_EACH = np.ones(len(MADE_BUDGETS))
MADE_NOISE = SeedNoise(NOISE * _EACH, (np.outer(_EACH, _EACH) + np.diag(_EACH)) / 2)
# Coefficients of log2 LR and log2 WD of the steep and of the flat direction, and the curvatures along both.
DIRECTIONS = {
    "made-elr": ((1.0, 1.0), (1.0, -1.0), 0.006, 0.0004),
    "made-lr": ((1.0, 0.0), (0.0, 1.0), 0.012, 0.0004),
    "made-round": ((1.0, 0.0), (0.0, 1.0), 0.006, 0.006),
    "made-between": ((2.0, 1.0), (1.0, -2.0), 0.003, 0.0002),
}
SEVERAL_SEEDS = f"{MAX_SEEDS}-seeds"
NUM_ORDERS = 6
SHUFFLED = ("shuffled-wd", "shuffled-lr")
ORDERS = {
    name if number == 0 else f"{name}-{number + 1}": (name, number) for name in SHUFFLED for number in range(NUM_ORDERS)
}
OFF_CENTRE = ("lower-lrs", "upper-lrs")
SCENARIOS = ("real", *ORDERS, *OFF_CENTRE, SEVERAL_SEEDS, *DIRECTIONS)


@cache
def landscapes(table: str, scenario: str = "real") -> dict[str, Landscape]:
    """The families of a table under a scenario; those made by a formula are in the table `made`."""
    if (table == MADE) != (scenario in DIRECTIONS):
        raise InputError(f"scenario {scenario!r} does not go with table {table!r}: {MADE} has {', '.join(DIRECTIONS)}")
    if table == MADE:
        return {scenario: _made(scenario)}
    real = table_landscapes(read_table(TABLES / table))
    if scenario == "real":
        return real
    if scenario == SEVERAL_SEEDS:
        return {
            name: replace(landscape, num_seeds=MAX_SEEDS)
            for name, landscape in real.items()
            if landscape.noise is not None
        }
    if scenario in OFF_CENTRE:
        return {name: off_centre(landscape, scenario == "lower-lrs") for name, landscape in real.items()}
    axis, order = ORDERS[scenario]
    shuffle = {"shuffled-wd": shuffled_wd, "shuffled-lr": shuffled_lr}[axis]
    return {name: shuffle(landscape, order) for name, landscape in real.items()}


def off_centre(landscape: Landscape, are_lower: bool) -> Landscape:
    """The lower, or the upper, two thirds of the LRs."""
    levels = np.unique(landscape.log2_lr)
    num_dropped = len(levels) // 3
    kept = levels[: len(levels) - num_dropped] if are_lower else levels[num_dropped:]
    return restricted(landscape, np.flatnonzero(np.isin(landscape.log2_lr, kept)))


def shuffled_wd(landscape: Landscape, order: int = 0) -> Landscape:
    """Weight decays in an order of chance, the same for all LRs."""
    return _shuffled(landscape, landscape.log2_wd, landscape.log2_lr, order)


def shuffled_lr(landscape: Landscape, order: int = 0) -> Landscape:
    """Learning rates in an order of chance, the same for all WDs."""
    return _shuffled(landscape, landscape.log2_lr, landscape.log2_wd, order)


def _shuffled(landscape: Landscape, axis: np.ndarray, other: np.ndarray, number: int) -> Landscape:
    """Cells whose counterpart is missing, in a partial table, stay as they are."""
    levels = np.unique(axis)
    order = dict(zip(levels, np.random.default_rng(number).permutation(levels), strict=True))
    place = {key: index for index, key in enumerate(zip(axis, other, strict=True))}
    wanted = [place.get((order[a], b)) for a, b in zip(axis, other, strict=True)]
    taken = np.array([index if old is None else old for index, old in enumerate(wanted)])
    return relabelled(landscape, taken, landscape.family)


def _made(scenario: str) -> Landscape:
    (a, b), (c, d), steep, flat = DIRECTIONS[scenario]
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(-12.0, -6), np.arange(-8.0, 1), indexing="ij"))

    def decayed(cell: np.ndarray | int, tokens: np.ndarray) -> np.ndarray:
        octaves = np.log2(np.maximum(tokens, 1) / MADE_BUDGETS[-1])
        u, v = x[cell] + 9.0 + 0.3 * octaves, y[cell] + 4.2 + 0.3 * octaves
        bowl = steep * (a * u + b * v) ** 2 + flat * (c * u + d * v) ** 2
        return 1.3 + 0.2 * 2.0 ** (-0.4 * octaves) + bowl

    losses = np.column_stack([decayed(np.arange(len(x)), np.array(float(budget))) for budget in MADE_BUDGETS])
    return Landscape.from_losses(
        x,
        y,
        MADE_BUDGETS,
        losses,
        MADE_DECAY_TOKENS,
        curve=_at_constant_lr(decayed, x + y),
        noise=MADE_NOISE,
        tokens_per_step=256,
        name=scenario,
    )


def _at_constant_lr(
    decayed: Callable[[int, np.ndarray], np.ndarray], log2_elr: np.ndarray
) -> Callable[[int, np.ndarray], np.ndarray]:
    def loss(cell: int, tokens: np.ndarray) -> np.ndarray:
        return decayed(cell, np.maximum(tokens, MADE_DECAY_TOKENS)) + 0.06 * 2.0 ** (0.3 * (log2_elr[cell] + 13))

    return loss
