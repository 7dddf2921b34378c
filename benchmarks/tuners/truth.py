"""The truth of a table at a budget: a smooth surface through noisy cells, never their raw minimum.

A Gaussian process over (log2 LR, log2 WD), fitted to the cells within `MARGIN` of the best (farther ones have no say in
where the minimum is, and a cliff would make the surface rough everywhere):

    loss(x) = quadratic(x) with a broad prior + amplitude^2 * Matern 5/2(x / lengths) + noise

The noise is that of seeds (noise.py: runs of one seed share it where they are near each other), and fitted, independent
from cell to cell, where no cell has two. What another seed adds to all cells is free. Amplitude and lengths have the
largest marginal likelihood. The truth is the posterior mean, at the level of the first seed; farther cells keep their
own loss, diverged ones have an infinite one.
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


def smooth_truth(
    log2_lr: np.ndarray, log2_wd: np.ndarray, losses: np.ndarray, noise: np.ndarray | None = None
) -> np.ndarray:
    """The posterior mean at each cell, of losses of seeds x cells (NaN: not there); `noise` is the covariance of one
    seed's noise over cells, None where nobody knows."""
    first = np.where(np.isfinite(losses[0]), losses[0], math.inf)
    truth = first.copy()
    order = np.argsort(first)
    count = int(np.sum(first <= first[order[0]] * (1 + MARGIN)))
    near = order[: max(count, min(MIN_CELLS, int(np.isfinite(first).sum())))]
    places = np.column_stack([log2_lr, log2_wd])[near]
    level, spread = float(first[near].mean()), float(first[near].std())
    if len(near) < 4 or spread == 0:
        return truth
    values = (losses[:, near] - level) / spread
    covariance = None if noise is None else noise[np.ix_(near, near)] / spread**2
    truth[near] = level + spread * _posterior_mean(places, values if noise is not None else values[:1], covariance)
    return truth


def _posterior_mean(places: np.ndarray, values: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    seed, cell = np.nonzero(np.isfinite(values))
    seen, same_seed = values[seed, cell], (seed[:, None] == seed).astype(float)
    shared = TREND_DEVIATION**2 * same_seed * (seed > 0)
    if noise is not None:
        shared = shared + same_seed * noise[np.ix_(cell, cell)]
    trend = _trend(places)
    bounds = [tuple(np.log(AMPLITUDES)), *[tuple(np.log(LENGTHS))] * 2]
    bounds += [] if noise is not None else [tuple(np.log(NOISES))]

    def covariances(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        amplitude, *lengths = np.exp(logs[:3])
        smooth = trend + amplitude**2 * _matern(places, np.array(lengths))
        own = 0.0 if noise is not None else math.exp(2 * logs[3])
        return smooth, smooth[np.ix_(cell, cell)] + shared + (own + 1e-10) * np.eye(len(seen))

    def minus_likelihood(logs: np.ndarray) -> float:
        factor = cho_factor(covariances(logs)[1], lower=True)
        return float(seen @ cho_solve(factor, seen)) / 2 + float(np.log(np.diag(factor[0])).sum())

    starts = [np.log([0.3, length, length, *([] if noise is not None else [0.02])]) for length in (1.5, 6.0)]
    fits = [minimize(minus_likelihood, start, bounds=bounds, method="L-BFGS-B") for start in starts]
    smooth, total = covariances(min(fits, key=lambda fit: fit.fun).x)
    return np.asarray(smooth[:, cell] @ cho_solve(cho_factor(total, lower=True), seen))


def _trend(places: np.ndarray) -> np.ndarray:
    x, y = ((places - places.mean(axis=0)) / np.maximum(np.ptp(places, axis=0), 1.0)).T
    columns = np.column_stack([np.ones_like(x), x, y, x * x, x * y, y * y])
    return TREND_DEVIATION**2 * columns @ columns.T


def _matern(places: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    scaled = places / lengths
    distance = math.sqrt(5) * np.sqrt(((scaled[:, None] - scaled[None]) ** 2).sum(axis=2))
    return (1 + distance + distance**2 / 3) * np.exp(-distance)
