"""The truth of a table at a budget: a smooth surface through noisy cells, never their raw minimum.

A Gaussian process over (log2 LR, log2 WD), fitted to the cells within `MARGIN` of the best (farther ones have no say in
where the minimum is, and a cliff would make the surface rough everywhere):

    loss(x) = quadratic(x) with a broad prior + amplitude^2 * Matern 5/2(x / lengths) + noise

The noise of a cell's mean is known where there are seeds, and fitted where there are none; amplitude and lengths have
the largest marginal likelihood. The truth is the posterior mean; farther cells keep their own loss, diverged ones
have an infinite one.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

MARGIN = 0.1
MIN_CELLS = 12  # fewer within the margin: the best so many
TREND_DEVIATION = 100.0  # of the quadratic's coefficients, in units of the losses' spread: all but free
LENGTHS = (0.5, 32.0)  # octaves
AMPLITUDES = (1e-3, 10.0)  # of the losses' spread
NOISES = (1e-3, 0.05)  # of the losses' spread, where no seeds say


def smooth_truth(log2_lr: np.ndarray, log2_wd: np.ndarray, losses: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """The posterior mean at each cell; `errors` are standard errors of the losses, NaN where nobody knows."""
    truth = np.where(np.isfinite(losses), losses, math.inf)
    order = np.argsort(truth)
    count = int(np.sum(truth <= truth[order[0]] * (1 + MARGIN)))
    near = order[: max(count, min(MIN_CELLS, int(np.isfinite(truth).sum())))]
    places = np.column_stack([log2_lr, log2_wd])[near]
    level, spread = float(truth[near].mean()), float(truth[near].std())
    if len(near) < 4 or spread == 0:
        return truth
    values = (truth[near] - level) / spread
    truth[near] = level + spread * _posterior_mean(places, values, errors[near] / spread)
    return truth


def _posterior_mean(places: np.ndarray, values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    is_known = bool(np.isfinite(errors).all())
    trend = _trend(places)
    bounds = [tuple(np.log(AMPLITUDES)), *[tuple(np.log(LENGTHS))] * 2]
    bounds += [] if is_known else [tuple(np.log(NOISES))]

    def covariances(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        amplitude, *lengths = np.exp(logs[:3])
        smooth = trend + amplitude**2 * _matern(places, np.array(lengths))
        variance = errors**2 if is_known else np.full(len(values), math.exp(2 * logs[3]))
        return smooth, smooth + np.diag(variance + 1e-10)

    def minus_likelihood(logs: np.ndarray) -> float:
        factor = cho_factor(covariances(logs)[1], lower=True)
        return float(values @ cho_solve(factor, values)) / 2 + float(np.log(np.diag(factor[0])).sum())

    starts = [np.log([0.3, length, length, *([] if is_known else [0.02])]) for length in (1.5, 6.0)]
    fits = [minimize(minus_likelihood, start, bounds=bounds, method="L-BFGS-B") for start in starts]
    smooth, total = covariances(min(fits, key=lambda fit: fit.fun).x)
    return np.asarray(smooth @ cho_solve(cho_factor(total, lower=True), values))


def _trend(places: np.ndarray) -> np.ndarray:
    x, y = ((places - places.mean(axis=0)) / np.maximum(np.ptp(places, axis=0), 1.0)).T
    columns = np.column_stack([np.ones_like(x), x, y, x * x, x * y, y * y])
    return TREND_DEVIATION**2 * columns @ columns.T


def _matern(places: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    scaled = places / lengths
    distance = math.sqrt(5) * np.sqrt(((scaled[:, None] - scaled[None]) ** 2).sum(axis=2))
    return (1 + distance + distance**2 / 3) * np.exp(-distance)
