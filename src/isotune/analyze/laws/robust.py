"""Huber's fit: points whose residuals beyond a limit are pulled in, so that least squares on them is his estimate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from isotune.analyze.laws.points import Points
from isotune.analyze.laws.projection import Kind, best_exponent, project, slope_column
from isotune.analyze.laws.scatter import Interval

HUBER = 1.345  # robust deviations: 95 % of least squares' precision on Gaussian errors
NORMAL_MAD = 0.6745  # median absolute deviation of a Gaussian with deviation 1


def pulled_in(kind: Kind, data: Points, bounds: Interval) -> Points:
    """The points with residuals beyond Huber's limit pulled in: least squares on them is his estimate.

    y* = fit + s psi(r/s) until the fit stays; then psi is enlarged by K / mean(psi'), so that its scatter is the
    estimate's. K = 1 + (p/n)(1 - m)/m, m = mean(psi'), is Huber's correction for n points and p parameters.
    """
    num_parameters = 3 if kind == "saturating" else 2
    root = np.sqrt(data.weight)
    inflation = math.sqrt(len(data.y) / max(len(data.y) - num_parameters, 1))
    pulled, scale = data, 0.0
    for round_number in range(25):
        best = best_exponent(kind, pulled, bounds)
        residual = _residual(kind, pulled, best, data.y) * root
        if round_number < 10:  # then it stays: with few points the median may jump back and forth
            scale = float(np.median(np.abs(residual))) / NORMAL_MAD * inflation
        if scale == 0:
            return data
        fitted = data.y - residual / root
        pulled_residual = np.clip(residual, -HUBER * scale, HUBER * scale)
        before, pulled = pulled.y, replace(data, y=fitted + pulled_residual / root)
        if np.max(np.abs(pulled.y - before) * root) < 1e-6 * scale:
            break
    share = float(np.mean(np.abs(residual) < HUBER * scale))
    correction = 1 + num_parameters / len(residual) * (1 - share) / share
    return replace(data, y=fitted + pulled_residual / root * correction / share)


def _residual(kind: Kind, data: Points, exponent: float, y: np.ndarray) -> np.ndarray:
    """y minus the fit to `data` at this exponent."""
    at_best = project(kind, data, np.array([exponent]))
    z = data.log_x - data.reference
    column = slope_column(kind, np.array([exponent]), z)[0]
    offset = exponent * z if kind == "log power" else 0.0
    return y - at_best.level[0] - at_best.slope[0] * (column - at_best.column_mean[0]) - offset
