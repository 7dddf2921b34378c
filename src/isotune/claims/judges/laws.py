"""C09: the law of a constant-LR curve, and that of its floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from isotune.analyze.curves import steps_at_rows
from isotune.claims.definitions import Window, cell_weights, curves, grid_points, interval, window_means
from isotune.claims.judging import judges
from isotune.claims.rows import Rows, RowSet
from isotune.claims.rules import Entry, Estimate, Measured

ALPHAS = np.geomspace(0.02, 3.0, 400)
EXPONENTS = np.concatenate([np.linspace(-2.0, -0.01, 100), np.linspace(0.01, 4.0, 400)])


@dataclass(frozen=True)
class CurveFits:
    """val_loss = L0 + A (LR * step)^-alpha of each run at every alpha that is tried."""

    square_sums: np.ndarray  # [runs x alphas]
    floors: np.ndarray  # L0, [runs x alphas]
    relative_errors: np.ndarray  # root mean square of fit / loss - 1, [runs x alphas]

    def best(self, weights: np.ndarray) -> np.ndarray:
        """The alpha, by its number, with the least squares of all runs together, for each row of weights."""
        return np.argmin(weights @ self.square_sums, axis=1)


@judges("C09")
def c09(rows: Rows, entry: Entry) -> Measured:
    """A constant-LR curve is L0 + A (LR t)^-alpha, and L0 is a power law of ELR."""
    late, window = rows["small_late"], rows.window("whole")
    fits = fit_curves(late, window)
    everything = np.ones((1, len(late.runs)))
    alpha = int(fits.best(everything)[0])
    floors = fits.floors[:, alpha]
    elr = 2.0**late.log2_elr
    weights = cell_weights(late, entry)
    drawn = floor_exponents(weights, elr, fits.floors[:, fits.best(weights)].T)
    exponent = float(floor_exponents(everything, elr, floors[None])[0])
    late_means = window_means(late, "val_loss", rows.window("late"))
    drawn_means = floor_exponents(weights, elr, np.broadcast_to(late_means, weights.shape))
    mean_exponent = float(floor_exponents(everything, elr, late_means[None])[0])
    return Measured(
        statistics={
            "exponent": interval(exponent, drawn, entry.level),
            "r_squared": Estimate(predicted_r_squared(elr, floors)),
            "curve_error": Estimate(float(np.median(fits.relative_errors[:, alpha]))),
        },
        num_cells=late.num_cells,
        shown={
            "alpha": float(ALPHAS[alpha]),
            "L0 by log2 ELR": _means(late, floors),
            "R^2 of the fit itself": _fit_r_squared(elr, floors, exponent),
            "exponent of the late mean val_loss": interval(mean_exponent, drawn_means, entry.level),
            "R^2 of the late mean val_loss": predicted_r_squared(elr, late_means),
        },
        would_decide="cells with ELR 2^-6 and 2^-5 (WD 2 and more), which lengthen the range of ELR",
    )


def fit_curves(rows: RowSet, window: Window) -> CurveFits:
    """L0 and A of every run by least squares, for each alpha."""
    losses = curves(rows, "val_loss", window)
    grid = grid_points(window)[: losses.shape[1]]
    shape = (len(rows.runs), len(ALPHAS))
    square_sums, floors, errors = np.empty(shape), np.empty(shape), np.empty(shape)
    for index, run in enumerate(rows.runs):
        step = np.interp(grid, run.trajectory.tokens, steps_at_rows(run.trajectory))
        x = (2.0**run.log2_lr * step)[:, None] ** -ALPHAS
        y = losses[index][:, None]
        centred = x - x.mean(axis=0)
        amplitude = (centred * y).sum(axis=0) / (centred**2).sum(axis=0)
        floor = y.mean(axis=0) - amplitude * x.mean(axis=0)
        rest = y - floor - amplitude * x
        square_sums[index], floors[index] = (rest**2).sum(axis=0), floor
        errors[index] = np.sqrt(((rest / y) ** 2).mean(axis=0))
    return CurveFits(square_sums, floors, errors)


def floor_exponents(weights: np.ndarray, elr: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """c in L0 = a + b ELR^c by weighted least squares, for each row of weights and floors [draws x runs].

    NaN where the drawn cells have fewer than three ELR.
    """
    sums = _square_sums(weights, elr, floors)
    best = np.argmin(sums, axis=1)
    inner = np.clip(best, 1, len(EXPONENTS) - 2)
    draws = np.arange(len(weights))
    before, middle, after = (sums[draws, inner + k] for k in (-1, 0, 1))
    bend = before - 2 * middle + after
    step = (EXPONENTS[inner + 1] - EXPONENTS[inner - 1]) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        moved = np.clip(np.where(bend > 0, (before - after) / (2 * bend), 0.0), -1, 1)
    exponent = np.where(best == inner, EXPONENTS[inner] + moved * step, EXPONENTS[best])
    num_groups = sum((weights[:, elr == value].sum(axis=1) > 0).astype(int) for value in np.unique(elr))
    return np.where(num_groups >= 3, exponent, np.nan)


def predicted_r_squared(elr: np.ndarray, floors: np.ndarray) -> float:
    """R^2 over cells, each ELR group predicted by the law of the others."""
    rest = np.empty(len(floors))
    if len(np.unique(elr)) < 4:  # three groups give a law, the fourth is predicted
        return math.nan
    for value in np.unique(elr):
        out = elr == value
        weights = (~out).astype(float)[None]
        exponent = float(floor_exponents(weights, elr, floors[None])[0])
        slope, level = np.polyfit(elr[~out] ** exponent, floors[~out], 1)
        rest[out] = floors[out] - level - slope * elr[out] ** exponent
    return 1 - float(rest @ rest) / float(((floors - floors.mean()) ** 2).sum())


def _square_sums(weights: np.ndarray, elr: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """What a + b ELR^c leaves, [draws x exponents]."""
    total = weights.sum(axis=1)
    y = floors - ((weights * floors).sum(axis=1) / total)[:, None]
    left = np.empty((len(weights), len(EXPONENTS)))
    square = (weights * y**2).sum(axis=1)
    for index, exponent in enumerate(EXPONENTS):
        x = (elr / elr.max()) ** exponent
        mean = weights @ x / total
        variance = weights @ x**2 - total * mean**2
        together = (weights * y) @ x
        with np.errstate(invalid="ignore", divide="ignore"):
            left[:, index] = square - np.where(variance > 1e-12 * total, together**2 / variance, 0.0)
    return left


def _fit_r_squared(elr: np.ndarray, floors: np.ndarray, exponent: float) -> float:
    if math.isnan(exponent):
        return math.nan
    slope, level = np.polyfit(elr**exponent, floors, 1)
    rest = floors - level - slope * elr**exponent
    return 1 - float(rest @ rest) / float(((floors - floors.mean()) ** 2).sum())


def _means(rows: RowSet, values: np.ndarray) -> dict[str, float]:
    return {f"{elr:g}": float(values[rows.log2_elr == elr].mean()) for elr in np.unique(rows.log2_elr)}
