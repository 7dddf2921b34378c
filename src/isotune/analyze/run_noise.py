"""How far runs scatter around smooth curves: errors that resemble their neighbours, and draws of them.

    value = q0 + q1 l + q2 t + q3 l^2 + q4 l^3 + q5 l t + error,  l = log t;   errors AR(1) from point to point

Each run has its own curve and its own variance, all runs share the neighbours' correlation rho, which maximises their
restricted likelihood: plain residuals would make it too small, since the curve follows slow errors. Where a curve is
not as smooth as this, what it leaves counts as error. What stays with a run from beginning to end is not seen here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MAX_CORRELATION = 0.98
POINTS_PER_COEFFICIENT = 3
_NUM_CORRELATIONS = 50
_ROUNDING = 1e-26  # squared and relative: all that is left of curves without noise


@dataclass(frozen=True)
class RunNoise:
    """Smooth curves [runs x points] and their errors: a variance per run, and the neighbours' correlation."""

    smooth: np.ndarray
    variances: np.ndarray
    correlation: float
    num_free: int  # points less coefficients, of each run

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """The smooth curves with new errors, [count x runs x points]."""
        errors = rng.standard_normal((self.smooth.shape[1], count, len(self.smooth)))
        errors[1:] *= math.sqrt(1 - self.correlation**2)
        for point in range(1, len(errors)):
            errors[point] += self.correlation * errors[point - 1]
        errors *= np.sqrt(self.variances)
        return np.add(self.smooth, errors.transpose(1, 2, 0), order="C")


def run_noise(tokens: np.ndarray, values: np.ndarray) -> RunNoise:
    """The smooth part and the errors of curves [runs x points]."""
    columns = _smooth_columns(tokens)
    num_points, num_columns = columns.shape
    num_free = num_points - num_columns
    best, correlation, variances = -math.inf, 0.0, np.zeros(len(values))
    for rho in np.linspace(0, MAX_CORRELATION, _NUM_CORRELATIONS).tolist():
        orthogonal, triangle = np.linalg.qr(_without_memory(columns, rho))
        errors = _without_memory(values.T, rho)
        errors -= orthogonal @ (orthogonal.T @ errors)
        square_sums = (errors**2).sum(axis=0) + _ROUNDING * (values**2).sum(axis=1)
        determinants = (num_points - 1) * math.log(1 - rho**2) / 2 + np.log(np.abs(np.diagonal(triangle))).sum()
        likelihood = -num_free / 2 * float(np.log(square_sums).sum()) - len(values) * float(determinants)
        if likelihood > best:
            best, correlation, variances = likelihood, rho, square_sums / num_free
    smooth = values @ columns @ columns.T
    return RunNoise(smooth, variances, correlation, num_free)


def _smooth_columns(tokens: np.ndarray) -> np.ndarray:
    """What smooth curves are made of, orthonormal; fewer for few points."""
    t = tokens / tokens[-1]
    log_t = 1 - 2 * np.log(t) / math.log(t[0])  # from -1 to 1
    columns = np.column_stack([np.ones_like(t), log_t, t, log_t**2, log_t**3, log_t * t])
    return np.linalg.qr(columns[:, : max(1, min(6, len(t) // POINTS_PER_COEFFICIENT))])[0]


def _without_memory(columns: np.ndarray, rho: float) -> np.ndarray:
    """Columns [points x k] from which the share of the point before is taken: AR(1) errors become independent."""
    return np.concatenate([columns[:1], (columns[1:] - rho * columns[:-1]) / math.sqrt(1 - rho**2)])
