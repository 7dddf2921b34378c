"""The truth of a grid at a budget: a smooth surface through noisy cells, never their raw minimum.

A Gaussian process over (log2 LR, log2 WD), fitted to the cells within `MARGIN` of the best (farther ones have no say in
where the minimum is, and a cliff would make the surface rough everywhere):

    loss(x) = quadratic(x) with a broad prior + amplitude^2 * Matern 5/2(x / lengths) + seeds' noise + the rest

The noise is given where it is known, as standard errors or as a covariance (seed_noise.py: runs of one seed share it).
The rest is what a run has by itself beyond that: few cells have several seeds, and what they say of single runs is
little. Amplitude, lengths and the rest have the largest marginal likelihood. Without the rest a surface had to go
through the luck of single cells, and took lengths shorter than the grid's step to do so. The truth is the posterior
mean, which is linear in the losses: it is found once for the measured ones and can be applied to draws. Farther cells
keep their own loss, diverged ones have an infinite one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

MARGIN = 0.1
MIN_CELLS = 12  # fewer within the margin: the best so many
TREND_DEVIATION = 100.0  # of the quadratic's coefficients, in units of the losses' spread: all but free
LENGTHS = (1.0, 32.0)  # octaves; what is rougher than a grid's step is no shape
AMPLITUDES = (1e-3, 10.0)  # of the losses' spread
RESTS = (1e-3, 0.3)  # of the losses' spread


@dataclass(frozen=True)
class SmoothSurface:
    """The map from losses to posterior means."""

    near: np.ndarray  # cells that are smoothed
    level: float
    smoother: np.ndarray  # [near x near]
    rest: float = 0.0  # standard deviation of what a single loss has beyond the surface and the noise that was given

    def truth(self, losses: np.ndarray) -> np.ndarray:
        """The posterior means of losses [..., cells]."""
        truth = np.where(np.isfinite(losses), losses, math.inf)
        truth[..., self.near] = self.level + (truth[..., self.near] - self.level) @ self.smoother.T
        return truth


def smooth_surface(
    log2_lr: np.ndarray, log2_wd: np.ndarray, losses: np.ndarray, noise: np.ndarray | None
) -> SmoothSurface:
    """The smooth surface of measured losses; `noise` are their standard errors, or the covariance of their errors."""
    order = np.argsort(np.where(np.isfinite(losses), losses, math.inf))
    num_finite = int(np.isfinite(losses).sum())
    count = int(np.sum(losses[order[:num_finite]] <= losses[order[0]] * (1 + MARGIN)))
    near = order[: max(count, min(MIN_CELLS, num_finite))]
    level, spread = float(losses[near].mean()), float(losses[near].std())
    if len(near) < 4 or spread == 0:
        return SmoothSurface(near, level, np.eye(len(near)))
    places = np.column_stack([log2_lr, log2_wd])[near]
    covariance = None
    if noise is not None:
        covariance = (np.diag(noise[near] ** 2) if noise.ndim == 1 else noise[np.ix_(near, near)]) / spread**2
    smoother, rest = _smoother(places, (losses[near] - level) / spread, 0.0 if covariance is None else covariance)
    return SmoothSurface(near, level, smoother, spread * rest)


def _smoother(places: np.ndarray, values: np.ndarray, noise: np.ndarray | float) -> tuple[np.ndarray, float]:
    trend, each = _trend(places), np.eye(len(values))

    def parts(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The smooth part's covariance, and that of the losses."""
        amplitude, *lengths = np.exp(logs[:3])
        smooth = trend + amplitude**2 * _matern(places, np.array(lengths))
        return smooth, smooth + math.exp(2 * logs[3]) * each + noise

    def minus_likelihood(logs: np.ndarray) -> float:
        factor = cho_factor(parts(logs)[1], lower=True)
        return float(values @ cho_solve(factor, values)) / 2 + float(np.log(np.diag(factor[0])).sum())

    bounds = [tuple(np.log(ends)) for ends in (AMPLITUDES, LENGTHS, LENGTHS, RESTS)]
    starts = [np.log([0.3, length, length, rest]) for length in (1.5, 6.0) for rest in (0.005, 0.05)]
    fits = [minimize(minus_likelihood, start, bounds=bounds, method="L-BFGS-B") for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun)).x
    smooth, total = parts(best)
    return np.asarray(cho_solve(cho_factor(total, lower=True), smooth).T), math.exp(best[3])


def _trend(places: np.ndarray) -> np.ndarray:
    x, y = ((places - places.mean(axis=0)) / np.maximum(np.ptp(places, axis=0), 1.0)).T
    columns = np.column_stack([np.ones_like(x), x, y, x * x, x * y, y * y])
    return TREND_DEVIATION**2 * columns @ columns.T


def _matern(places: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    scaled = places / lengths
    distance = math.sqrt(5) * np.sqrt(((scaled[:, None] - scaled[None]) ** 2).sum(axis=2))
    return (1 + distance + distance**2 / 3) * np.exp(-distance)
