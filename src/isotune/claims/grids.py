"""Grids of decayed losses out of sets of rows: means over seeds, and draws of what other seeds would have given.

Runs of one seed share their noise (decision 0010): a seed is drawn for all cells at once, with the covariance that
`isotune.analyze.seed_noise` fits to the table's seeds, and goes the same way through levels and means as the losses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from isotune.analyze.curves import memory_times
from isotune.analyze.families import seed_levels
from isotune.analyze.seed_noise import SeedNoise, fit_noise
from isotune.claims.rows import Rows, RowSet, RowsMissing, Run, Tables
from isotune.claims.rules import Entry, Estimate

MAX_FAILED_DRAWS = 0.1  # as in cell_bootstrap
# Where a table has no seeds of its own, the noise of another is taken (notes of C17 and C22).
SEED_SETS = {"small": ("small_seeds",), "large": ("large_seeds",), "type2": ("type2_seeds", "large_seeds")}


@dataclass(frozen=True)
class GridLosses:
    """Decayed losses of a grid, [cells x budgets], means over seeds, and a root of their errors' covariance."""

    name: str
    log2_lr: np.ndarray
    log2_wd: np.ndarray
    budgets: tuple[int, ...]
    loss: np.ndarray
    num_seeds: np.ndarray  # of each cell
    root: np.ndarray  # [cells x budgets x numbers]

    @property
    def num_cells(self) -> int:
        return len(self.loss)

    def covariance(self, index: int) -> np.ndarray:
        """Of the errors of the losses at a budget, [cells x cells]."""
        return np.asarray(self.root[:, index] @ self.root[:, index].T)

    def drawn(self, entry: Entry, stream: int = 0) -> np.ndarray:
        """The seed bootstrap, [draws x cells x budgets]; other streams are other random numbers."""
        rng = np.random.default_rng(entry.random_seed + stream)
        numbers = rng.standard_normal((entry.draws, self.root.shape[2]))
        return self.loss + np.tensordot(numbers, self.root, axes=(1, 2))


def grid_losses(rows: Rows, name: str, budgets: Sequence[int], *, more_seeds: bool = True) -> GridLosses:
    """The final losses of a set; `small_decays` goes with the seeds of `small_seeds`.

    `more_seeds`: cells are means over the seeds that there are, not over those of the set alone, at the level of the
    average seed: cells of one seed and of five must not differ by what their seeds do to all cells.
    """
    found = rows[name]
    seeded, noise = seeds_for(rows, name, budgets)
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
        error_root(noise, runs, budgets),
    )


def error_root(noise: SeedNoise, runs: Sequence[Run], budgets: Sequence[int]) -> np.ndarray:
    """Of the errors of the cells' levelled means over these runs, [cells x budgets x numbers]; cells in their order."""
    places, cell, z = _cells(runs, budgets)
    seeds, seed = np.unique([run.seed for run in runs], return_inverse=True)
    of_a_seed = noise.root(places[:, 0], z).reshape(len(budgets), len(places), -1)
    levels = np.eye(len(seeds))[seed] - 1 / len(seeds)
    means = np.linalg.pinv(np.hstack([np.eye(len(places))[cell], levels]))[: len(places)]  # least squares, cell + seed
    size = z.size
    covariance = np.zeros((size, size))
    for each in range(len(seeds)):
        part = np.einsum("cr,jrk->cjk", means[:, seed == each], of_a_seed[:, cell[seed == each]]).reshape(size, -1)
        covariance += part @ part.T
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).reshape(*z.shape, -1))


def seeds_for(rows: Rows, name: str, budgets: Sequence[int]) -> tuple[RowSet, SeedNoise]:
    """The set whose seeds tell the noise of this one, and that noise; RowsMissing where no set does."""
    names = SEED_SETS[name.split("_")[0]]
    if rows.is_replication:
        names = (*names, "small_seeds")  # a large batch without seeds of its own takes the small one's
    for each in names:
        noise = table_noise(rows.tables, rows[each].table, tuple(budgets)) if rows.has(each) else None
        if noise is not None:
            return rows[each], noise
    raise RowsMissing(rows[names[-1]].missing or f"{names[-1]} (too few seeds tell the noise)")


@lru_cache(maxsize=16)  # a fit takes a second, and many claims ask for the same one
def table_noise(tables: Tables, table: str, budgets: tuple[int, ...]) -> SeedNoise | None:
    """The noise of seeds in a table, by its runs with finished decays at these budgets; None where seeds are few."""
    runs = [run for run in tables.finished(table) if np.isfinite(_losses_of([run], budgets)).all()]
    if not any(run.seed == 0 for run in runs):
        return None
    places, cell, z = _cells(runs, budgets)
    by_seed = {seed: np.full_like(z, math.nan) for seed in sorted({run.seed for run in runs})}
    for run, place, losses in zip(runs, cell, _losses_of(runs, budgets), strict=True):
        by_seed[run.seed][place] = losses
    return fit_noise(places[:, 0], z, by_seed)


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


def _cells(runs: Sequence[Run], budgets: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(the cells [cells x 2], the cell of each run, log2(1 + n) of cells x budgets, at most that of the trunk's end)"""
    places, cell = np.unique([run.cell for run in runs], axis=0, return_inverse=True)
    n = np.zeros((len(places), len(budgets)))
    n[cell.ravel()] = [np.interp(budgets, run.trajectory.tokens, memory_times(run.trajectory)) for run in runs]
    return places, cell.ravel(), np.log2(1 + n)


def _levelled(runs: Sequence[Run], losses: np.ndarray) -> np.ndarray:
    """Losses [runs x budgets] with every seed at the level of the average one; diverged decays have no say."""
    levelled = losses.copy()
    for column in levelled.T:
        there = np.isfinite(column)
        column[there] -= seed_levels(
            [run.trajectory.info for run, is_there in zip(runs, there, strict=True) if is_there], column[there]
        )
    return levelled
