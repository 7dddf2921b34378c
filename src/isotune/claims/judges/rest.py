"""C28, C31 and C32: the norm of the weights, other beta2, and the size of Adam's steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from isotune.claims.definitions import (
    Noise,
    cell_weights,
    interval,
    mean_estimate,
    slope_estimate,
    t_slope,
    weighted_slopes,
    wider,
    window_means,
)
from isotune.claims.judges.curves import noise_and_floor
from isotune.claims.judging import judges
from isotune.claims.rows import Rows, RowSet
from isotune.claims.rules import Entry, Estimate, Measured

NOT_HIDDEN = ("embedding", "head")
NORM = "parameter_norm."


@judges("C28")
def c28(rows: Rows, entry: Entry) -> Measured:
    """The parameter norm is invariant with ELR, as the loss is; or it goes with sqrt(LR / WD)."""
    late, window = rows["small_late"], rows.window("late")
    matrices = hidden_matrices(late)
    norms = np.log2([window_means(late, NORM + name, window) for name in matrices])
    design = _contrast_design(late)
    each = {name: slope_estimate(design, values, late, entry) for name, values in zip(matrices, norms, strict=True)}
    contrasts = np.array([found.value for found in each.values()])
    weights = cell_weights(late, entry)
    drawn = np.median([weighted_slopes(weights, design, values) for values in norms], axis=0)
    middle = _middle(contrasts)
    found = interval(float(np.median(contrasts)), drawn, entry.level)
    of_middle = t_slope(design, norms[middle].mean(axis=0), entry)
    together = slope_estimate(design, np.log2(window_means(late, "parameter_norm", window)), late, entry)
    near = [name for name, one in each.items() if abs(one.value - 1) <= entry["premise_margin"]]
    return Measured(
        {"contrast": wider(found, of_middle, late)},
        late.num_cells,
        {f"contrast of {name}": one for name, one in each.items()} | {"contrast of all parameters": together},
        (f"{len(near)} of {len(each)} hidden matrices have a contrast near 1, the premise's: {', '.join(near)}",),
    )


@judges("C31")
def c31(rows: Rows, entry: Entry) -> Measured:
    """The invariance to ELR persists under other beta2."""
    window = rows.window("late")
    found = _joined([rows[name] for name in ("beta2", "beta2_second") if name == "beta2" or rows.has(name)])
    values = window_means(found, "val_loss", window)
    noise, _ = noise_and_floor(rows, "perturbed_late", "val_loss", window)
    usual = rows["small_late"]
    usual_values = window_means(usual, "val_loss", window)
    design = np.column_stack([found.log2_elr, _per_value(found.log2_lr)])
    usual_design = np.column_stack([usual.log2_elr, _per_value(usual.log2_lr)])
    shown: dict[str, Any] = {
        "mean val_loss by log2 LR, log2 WD": {
            f"{run.log2_lr:g}, {run.log2_wd:g}": float(value) for run, value in zip(found.runs, values, strict=True)
        },
        "across_slope at the usual beta2": t_slope(usual_design, usual_values, entry),
    }
    return Measured(
        {
            "elr_share": elr_share_of_few(found, values, noise, entry),
            "across_slope": _across_slope(design, values, found, entry),
        },
        found.num_cells,
        shown,
    )


@judges("C32")
def c32(rows: Rows, entry: Entry) -> Measured:
    """Adam's update RMS is about 0.2 at the small batch and smaller at the large one."""
    small, large, window = rows["small_common"], rows["large_common"], rows.window("late")
    cells = {run.cell for run in small.runs} & {run.cell for run in large.runs}
    small, large = (each.where(lambda run: run.cell in cells) for each in (small, large))
    sizes, large_sizes = (np.log2(window_means(each, "update_rms", window)) for each in (small, large))
    mean = mean_estimate(sizes, small, entry)
    return Measured(
        {
            "small_rms": Estimate(2.0**mean.value, 2.0**mean.low, 2.0**mean.high),
            "rms_change": mean_estimate(large_sizes - sizes, small, entry),
        },
        len(cells),
        {
            "update_rms at batch 4, smallest, largest": [float(2.0 ** sizes.min()), float(2.0 ** sizes.max())],
            "update_rms at batch 64, geometric mean": float(2.0 ** large_sizes.mean()),
        },
    )


def hidden_matrices(rows: RowSet) -> list[str]:
    """The names of the matrices between embedding and head."""
    columns = rows.runs[0].trajectory.columns
    names = [column.removeprefix(NORM) for column in columns if column.startswith(NORM)]
    return [name for name in names if name not in NOT_HIDDEN]


def elr_share_of_few(rows: RowSet, values: np.ndarray, noise: Noise, entry: Entry) -> Estimate:
    """`elr_share` where two LR alone have neighbours across ELR, fewer than `analyze.invariance` asks for.

    R = mean square slope of LR within ELR strata over that of WD within LR strata, noise taken out of both; jackknife
    over LR. Leaving out one of the two LR leaves one pair across.
    """
    if math.isnan(noise.variance):
        return Estimate(math.nan, reason="the noise of a cell is unknown: no twins")
    lr, wd, elr = rows.log2_lr, rows.log2_wd, rows.log2_elr
    units = np.unique(lr)
    kept = [np.ones(len(lr), dtype=bool), *(lr != unit for unit in units)]
    along = np.array([_strength(values[k], elr[k], lr[k], noise.variance) for k in kept])
    across = np.array([_strength(values[k], lr[k], wd[k], noise.variance) for k in kept])
    if len(units) < 3 or np.isnan(along).any() or np.isnan(across).any():
        return Estimate(math.nan, reason="without a second ELR nothing is known across: rows beta2_second are needed")
    quantile = float(special.stdtrit(len(units) - 1, 0.975))
    num_pairs = len(lr) - len(units)
    chance = abs(across[0, 1]) * noise.variance * math.sqrt(2 / noise.freedom + 3 / num_pairs)
    if across[:, 0].min() - quantile * chance <= 0:
        return Estimate(math.nan, reason="the change across ELR is not told from 0")
    ratios = along[:, 0] / across[:, 0]
    count = len(units)
    jackknife = (count - 1) / count * float(((ratios[1:] - ratios[1:].mean()) ** 2).sum())
    by_noise = (along[0, 1] - ratios[0] * across[0, 1]) / across[0, 0] * noise.variance * math.sqrt(2 / noise.freedom)
    reach = float(special.stdtrit(count - 1, (1 + entry.level) / 2)) * math.hypot(math.sqrt(jackknife), by_noise)
    middle, low, high = (math.sqrt(max(0.0, ratios[0] + turn)) for turn in (0.0, -reach, reach))
    return Estimate(middle, low, high)


def _strength(values: np.ndarray, strata: np.ndarray, position: np.ndarray, noise: float) -> tuple[float, float]:
    """Mean square slope between neighbours of a stratum, noise taken out, and its derivative by the noise."""
    order = np.lexsort((position, np.round(strata, 3)))
    same = np.abs(np.diff(strata[order])) < 1e-3
    if not same.any():
        return math.nan, math.nan
    octaves = np.diff(position[order])[same]
    per_noise = -2 * float(np.mean(1 / octaves**2))
    return float(np.mean((np.diff(values[order])[same] / octaves) ** 2)) + noise * per_noise, per_noise


def _across_slope(design: np.ndarray, values: np.ndarray, rows: RowSet, entry: Entry) -> Estimate:
    if len(np.unique(np.round(rows.log2_elr, 3))) < 2:
        return Estimate(math.nan, reason="one ELR says nothing across: rows beta2_second are needed")
    return t_slope(design, values, entry)


def _contrast_design(rows: RowSet) -> np.ndarray:
    """x log2 LR + y log2 WD = (x - y)(log2 LR - log2 WD)/2 + (x + y) log2 ELR/2: the first coefficient is x - y."""
    return np.column_stack([(rows.log2_lr - rows.log2_wd) / 2, rows.log2_elr / 2, np.ones(len(rows.runs))])


def _middle(values: np.ndarray) -> np.ndarray:
    """The places of the one or two values whose mean is the median."""
    order = np.argsort(values, kind="stable")
    return order[(len(values) - 1) // 2 : len(values) // 2 + 1]


def _joined(sets: Sequence[RowSet]) -> RowSet:
    runs = sorted((run for each in sets for run in each.runs), key=lambda run: (run.log2_lr, run.log2_wd, run.seed))
    first = sets[0]
    wanted, diverged = sum(each.num_wanted for each in sets), sum(each.num_diverged for each in sets)
    return RowSet(first.name, first.table, tuple(runs), diverged, wanted, first.sweep)


def _per_value(labels: np.ndarray) -> np.ndarray:
    """An intercept for each value."""
    rounded = np.round(labels, 3)
    return (rounded[:, None] == np.unique(rounded)).astype(float)
