"""C02: how long curves of equal LR stay together."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from isotune.claims.definitions import cell_weights, curves, grid_points, interval, twin_pairs
from isotune.claims.judging import judges
from isotune.claims.rows import Rows, RowSet, RowsMissing
from isotune.claims.rules import Entry, Estimate, Measured

SMALLEST_RATIO = 3  # octaves between the WD of a curve and that of the one it is compared with: 2^-5 against 2^-8
NEWTON_STEPS = 60
RIDGE = 1e-6  # keeps the intercept of a WD whose cells are all censored from running away
MIN_UNCENSORED = 4


@judges("C02")
def c02(rows: Rows, entry: Entry) -> Measured:
    """Curves of equal LR stay together for longer when the LR is smaller."""
    grid, window = rows["small_all"], rows.window("whole")
    thresholds = _thresholds(rows, grid, window, entry)
    judged, log_time, censored = _splits(grid, window, thresholds)
    if judged.num_cells < entry.min_cells:
        needed = f"{judged.num_cells} cells have twins of their LR, {entry.min_cells} are needed"
        raise RowsMissing(f"{needed} (sweep nano-perturbed)")
    lr, wd, one = judged.log2_lr, judged.log2_wd, np.ones(len(judged.runs))
    of_wd = (wd[:, None] == np.unique(wd)).astype(float)

    def plain_slope(*columns: np.ndarray) -> float:
        return float(censored_slopes(one[None], np.column_stack(columns), log_time, censored)[0])

    return Measured(
        statistics={"split_exponent": _slope(judged, np.column_stack([lr, of_wd]), log_time, censored, entry)},
        num_cells=judged.num_cells,
        shown={
            "exponent in WD": plain_slope(wd, lr, one),
            "exponent in LR beside one in WD": plain_slope(lr, wd, one),
            "never split, split at once": [int((censored > 0).sum()), int((censored < 0).sum())],
            "threshold by log2 LR": {f"{key:g}": value for key, value in thresholds.items()},
        },
        notes=("all twins of an LR give its threshold, those of late ELR too",),
        would_decide="longer trunks of the smallest LR, whose curves have not split yet, and more twins",
    )


def three_point_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The relative distance over each evaluation and its two neighbours, for all but the first and the last."""

    def sums(values: np.ndarray) -> np.ndarray:
        return values[:-2] + values[1:-1] + values[2:]

    return np.sqrt(sums((a - b) ** 2) / (sums(a**2 + b**2) / 2))


def splitting_time(points: np.ndarray, apart: np.ndarray, threshold: float) -> tuple[float, int]:
    """(tokens, 0) of the first evaluation past the threshold, as the next one is; 1: never, -1: from the first on."""
    past = (apart[:-1] > threshold) & (apart[1:] > threshold)
    inner = points[1 : 1 + len(apart)]
    if not past.any():
        return float(inner[-1]), 1
    first = int(np.argmax(past))
    return float(inner[first]), -1 if first == 0 else 0


def censored_slopes(weights: np.ndarray, design: np.ndarray, value: np.ndarray, censored: np.ndarray) -> np.ndarray:
    """The first coefficient of value = design b + normal error by maximum likelihood, for each row of weights.

    `censored` is 1 where the truth is above the value, -1 where it is below. With h = 1/s and d = b/s the
    log-likelihood is concave, sum of log h - (h value - design d)^2 / 2 over exact values and log Phi of the same
    difference, signed, over censored ones; Newton's steps are halved where they overshoot.
    """
    columns = np.column_stack([-design, value])  # times (d, h): the standardised residual
    exact = censored == 0
    num_draws, size = len(weights), columns.shape[1]
    parameters = np.tile(_start(design, value), (num_draws, 1))
    uncensored = (weights * exact).sum(axis=1)

    def likelihood(p: np.ndarray) -> np.ndarray:
        z = p @ columns.T
        terms = np.where(exact, np.log(np.maximum(p[:, -1:], 1e-300)) - z**2 / 2, special.log_ndtr(-censored * z))
        return (weights * terms).sum(axis=1) - RIDGE * (p**2).sum(axis=1) / 2

    best = likelihood(parameters)
    for _ in range(NEWTON_STEPS):
        z = parameters @ columns.T
        u = -censored * z
        hazard = np.exp(-(u**2) / 2 - 0.5 * math.log(2 * math.pi) - special.log_ndtr(u))
        slope = np.where(exact, -z, -censored * hazard)
        curvature = np.where(exact, 1.0, hazard * (hazard + u))
        gradient = (weights * slope) @ columns - RIDGE * parameters
        hessian = np.einsum("dn,np,nq->dpq", weights * curvature, columns, columns, optimize=True)
        hessian += RIDGE * np.eye(size)
        h = parameters[:, -1]
        gradient[:, -1] += uncensored / h
        hessian[:, -1, -1] += uncensored / h**2
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        length = np.ones(num_draws)
        for _ in range(30):
            trial = parameters + length[:, None] * step
            value_there = np.where(trial[:, -1] > 0, likelihood(trial), -np.inf)
            worse = ~(value_there >= best - 1e-12)
            if not worse.any():
                break
            length[worse] /= 2
        parameters = np.where(worse[:, None], parameters, trial)
        moved = np.where(worse, 0.0, value_there - best)
        best = np.where(worse, best, value_there)
        if float(moved.max()) < 1e-10:
            break
    kinds = (weights > 0) & exact
    return np.where(kinds.sum(axis=1) >= MIN_UNCENSORED, parameters[:, 0] / parameters[:, -1], np.nan)


def _splits(
    grid: RowSet, window: tuple[float, float], thresholds: dict[float, float]
) -> tuple[RowSet, np.ndarray, np.ndarray]:
    """The cells whose splitting from the lowest WD of their LR can be told, log2 of its tokens, and the censoring."""
    lowest, places, points = float(grid.log2_wd.min()), grid.by_place(), grid_points(window)
    found: dict[tuple[float, float], tuple[float, int]] = {}
    for run in grid.runs:
        base = places.get((run.log2_lr, lowest, run.seed))
        if run.log2_wd > lowest + SMALLEST_RATIO - 1e-6 and base is not None and run.log2_lr in thresholds:
            apart = three_point_distances(*curves((run, base), "val_loss", window))
            found[run.cell] = splitting_time(points, apart, thresholds[run.log2_lr])
    judged = grid.where(lambda run: run.cell in found)
    times, censored = zip(*found.values(), strict=True) if found else ((), ())
    return judged, np.log2(np.array(times)), np.array(censored)


def _start(design: np.ndarray, value: np.ndarray) -> np.ndarray:
    spread = max(float(value.std()), 0.1)
    return np.append(np.linalg.lstsq(design, value, rcond=None)[0] / spread, 1 / spread)


def _slope(rows: RowSet, design: np.ndarray, value: np.ndarray, censored: np.ndarray, entry: Entry) -> Estimate:
    estimate = float(censored_slopes(np.ones((1, len(value))), design, value, censored)[0])
    if math.isnan(estimate):
        return Estimate(math.nan, reason=f"{int((censored == 0).sum())} cells split in sight: too few for a slope")
    return interval(estimate, censored_slopes(cell_weights(rows, entry), design, value, censored), entry.level)


def _thresholds(rows: Rows, grid: RowSet, window: tuple[float, float], entry: Entry) -> dict[float, float]:
    """The 95th percentile of all three-point distances of the twins of each LR that has enough of them."""
    names = [name for name in ("perturbed_early", "perturbed_late") if rows.has(name)]
    if not names:
        raise RowsMissing("perturbed_early (none; sweep nano-perturbed)")
    found: dict[tuple[float, float], np.ndarray] = {}
    for name in names:
        for run, twin in twin_pairs(grid, rows[name]):
            found[run.cell] = three_point_distances(*curves((run, twin), "val_loss", window))
    thresholds = {}
    for lr in sorted({cell[0] for cell in found}):
        distances = [values for cell, values in found.items() if cell[0] == lr]
        if len(distances) >= entry["min_floor_pairs"]:
            thresholds[lr] = float(np.quantile(np.concatenate(distances), entry["floor_quantile"]))
    return thresholds
