"""Grids of decayed losses out of sets of rows: means over seeds, and the residuals that say what seeds do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isotune.analyze.families import seed_levels
from isotune.claims.definitions import seed_draws, seed_residuals
from isotune.claims.rows import Rows, RowSet, RowsMissing, Run
from isotune.claims.rules import Entry, Estimate

MAX_FAILED_DRAWS = 0.1  # as in cell_bootstrap
# Where a table has no seeds of its own, the noise of another is taken (notes of C17 and C22).
SEED_SETS = {"small": ("small_seeds",), "large": ("large_seeds",), "type2": ("type2_seeds", "large_seeds")}


@dataclass(frozen=True)
class GridLosses:
    """Decayed losses of a grid, [cells x budgets], means over seeds, and residual vectors [k x budgets] of seeds."""

    name: str
    log2_lr: np.ndarray
    log2_wd: np.ndarray
    budgets: tuple[int, ...]
    loss: np.ndarray
    num_seeds: np.ndarray  # of each cell
    residuals: np.ndarray

    @property
    def num_cells(self) -> int:
        return len(self.loss)

    @property
    def errors(self) -> np.ndarray:
        """Standard errors of the losses, [cells x budgets]."""
        return np.sqrt(np.mean(self.residuals**2, axis=0)) / np.sqrt(self.num_seeds)[:, None]

    def drawn(self, entry: Entry, stream: int = 0) -> np.ndarray:
        """The seed bootstrap, [draws x cells x budgets]; other streams are other random numbers."""
        numbers = entry.numbers | {"random_seed": entry.random_seed + stream}
        return seed_draws(self.loss, self.num_seeds, self.residuals, replace(entry, numbers=numbers))


def grid_losses(rows: Rows, name: str, budgets: Sequence[int], *, more_seeds: bool = True) -> GridLosses:
    """The final losses of a set; `small_decays` goes with the seeds of `small_seeds`.

    `more_seeds`: cells are means over the seeds that there are, not over those of the set alone, at the level of the
    average seed: cells of one seed and of five must not differ by what their seeds do to all cells.
    """
    found = rows[name]
    seeded, residuals = seeds_for(rows, name, budgets)
    runs = [*found.runs]
    if more_seeds and seeded.table == found.table:
        cells, there = {run.cell for run in runs}, {run.record.run for run in runs}
        runs += [run for run in seeded.runs if run.cell in cells and run.record.run not in there]
    runs = [run for run in runs if all(budget in run.decays for budget in budgets)]
    by_cell: dict[tuple[float, float], list[np.ndarray]] = {}
    for run, losses in zip(runs, _levelled(runs, _losses_of(runs, budgets)), strict=True):
        by_cell.setdefault(run.cell, []).append(losses)
    if not by_cell:
        raise RowsMissing(found.missing or f"{name} (no decays at {', '.join(f'{each:,}' for each in budgets)} tokens)")
    places = sorted(by_cell)
    return GridLosses(
        found.table,
        np.array([x for x, _ in places]),
        np.array([y for _, y in places]),
        tuple(budgets),
        np.array([np.mean(by_cell[place], axis=0) for place in places]),
        np.array([len(by_cell[place]) for place in places]),
        residuals,
    )


def seeds_for(rows: Rows, name: str, budgets: Sequence[int]) -> tuple[RowSet, np.ndarray]:
    """The set whose seeds tell the noise of this one, and their residuals; RowsMissing where no set does."""
    names = SEED_SETS[name.split("_")[0]]
    if rows.is_replication:
        names = (*names, "small_seeds")  # a large batch without seeds of its own takes the small one's
    for each in names[:-1]:
        try:
            return rows[each], seed_residuals(rows[each], _losses_of(rows[each].runs, budgets))
        except RowsMissing:
            continue
    last = rows[names[-1]]
    return last, seed_residuals(last, _losses_of(last.runs, budgets))


def seed_interval(value: float, drawn: np.ndarray, level: float) -> Estimate:
    """The value with the percentile interval of its draws; missing where more than a tenth gave nothing."""
    valid = np.isfinite(drawn)
    failed = 1 - float(valid.mean())
    if math.isnan(value) or failed > MAX_FAILED_DRAWS:
        return Estimate(math.nan, reason=f"{failed:.0%} of the draws give no value")
    low, high = np.quantile(drawn[valid], [(1 - level) / 2, (1 + level) / 2])
    return Estimate(value, float(low), float(high))


def _losses_of(runs: Sequence[Run], budgets: Sequence[int]) -> np.ndarray:
    """[runs x budgets], NaN where a decay is not there or diverged."""
    return np.array([[run.final_val_loss(b) if b in run.decays else math.nan for b in budgets] for run in runs])


def _levelled(runs: Sequence[Run], losses: np.ndarray) -> np.ndarray:
    """Losses [runs x budgets] with every seed at the level of the average one; diverged decays have no say."""
    levelled = losses.copy()
    for column in levelled.T:
        there = np.isfinite(column)
        column[there] -= seed_levels(
            [run.trajectory.info for run, is_there in zip(runs, there, strict=True) if is_there], column[there]
        )
    return levelled
