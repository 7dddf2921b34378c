"""Intervals of the minimum: all places at which the gradient may be 0."""

from __future__ import annotations

import math

import numpy as np

from isotune.analyze.laws import NO_INTERVAL, Interval
from isotune.analyze.surface.directions import Factor
from isotune.analyze.surface.paraboloid import Paraboloid, basis

SEARCH_SPANS = 2.0  # grid widths beyond the grid in which the end of a minimum's interval is looked for
_NUM_PLACES = 41
_NUM_ALONG = 81


def minimum_interval(fit: Paraboloid, cells: np.ndarray, place: np.ndarray, factor: Factor) -> Interval:
    """All values of log2 factor at which some point passes as the minimum; infinite if beyond the searched range."""
    reach = fit.scale.reach
    values = _coordinate(cells[:, :2] - fit.center, factor)
    best = float(_coordinate(place[None], factor)[0])
    span = float(np.ptp(values))
    low_end = min(float(values.min()), best) - SEARCH_SPANS * span
    high_end = max(float(values.max()), best) + SEARCH_SPANS * span
    middle = float(_coordinate(fit.center[None], factor)[0])
    low = _end_of_accepted(fit, factor, best, low_end, span, reach)
    high = _end_of_accepted(fit, factor, best, high_end, span, reach)
    return low + middle, high + middle


def _coordinate(places: np.ndarray, factor: Factor) -> np.ndarray:
    x, y = places.T
    return {"LR": x, "WD": y, "ELR": x + y}[factor]


def _end_of_accepted(fit: Paraboloid, factor: Factor, best: float, end: float, span: float, reach: float) -> float:
    """The outermost accepted value between the best one and the end of the search; infinite if it is the end itself."""
    start = best
    # Each round looks closer at the step behind the outermost accepted value; steps are finer near the best value.
    values = best + (end - best) * np.linspace(0, 1, _NUM_PLACES) ** 3
    for _ in range(4):
        accepted = _departure(fit, factor, values, span) <= reach
        last = int(np.flatnonzero(accepted)[-1]) if accepted.any() else 0
        if last == len(values) - 1:
            return math.copysign(math.inf, end - best)
        start, stop = float(values[last]), float(values[last + 1])
        values = np.linspace(start, stop, 17)
    return start


def _departure(fit: Paraboloid, factor: Factor, values: np.ndarray, span: float) -> np.ndarray:
    """min over points with these coordinates of g' (G V G')^-1 g; in a fine search along, then three closer ones."""
    along = span * np.tan(np.linspace(-1.56, 1.56, _NUM_ALONG))[None, :] + np.zeros((len(values), 1))
    for _ in range(4):
        departure = _gradient_departure(fit, *_points_at(factor, values[:, None], along))
        best = np.argmin(departure, axis=1)
        rows = np.arange(len(values))
        low = along[rows, np.maximum(best - 1, 0)]
        high = along[rows, np.minimum(best + 1, along.shape[1] - 1)]
        along = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 15)
    return departure[rows, best]


def _points_at(factor: Factor, value: np.ndarray, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if factor == "LR":
        return value + 0 * along, along
    if factor == "WD":
        return along, value + 0 * along
    return value / 2 + along, value / 2 - along


def _gradient_departure(fit: Paraboloid, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """g' (G V G')^-1 g at points: how far the gradient is from 0, in squared unit errors."""
    # Each entry of G V G' is a quadratic in (x, y); by hand, as this is where the time goes.
    _, c1, c2, c3, c4, c5 = fit.coefficients
    v = fit.unit_covariance
    gx, gy = c1 + 2 * c3 * x + c4 * y, c2 + c4 * x + 2 * c5 * y
    xx, xy, yy = x * x, x * y, y * y
    a = v[1, 1] + 4 * v[1, 3] * x + 2 * v[1, 4] * y + 4 * v[3, 3] * xx + 4 * v[3, 4] * xy + v[4, 4] * yy
    b = v[2, 2] + 2 * v[2, 4] * x + 4 * v[2, 5] * y + v[4, 4] * xx + 4 * v[4, 5] * xy + 4 * v[5, 5] * yy
    c = v[1, 2] + (v[1, 4] + 2 * v[2, 3]) * x + (2 * v[1, 5] + v[2, 4]) * y
    c = c + 2 * v[3, 4] * xx + (4 * v[3, 5] + v[4, 4]) * xy + 2 * v[4, 5] * yy
    return (b * gx * gx - 2 * c * gx * gy + a * gy * gy) / (a * b - c * c)


def loss_at_minimum(fit: Paraboloid, place: np.ndarray, with_intervals: bool) -> tuple[float, Interval]:
    if np.isnan(place).any():
        return math.nan, NO_INTERVAL
    row = basis(place[:1], place[1:])[0]
    value = float(row @ fit.coefficients)
    if not with_intervals:
        return value, NO_INTERVAL
    half = math.sqrt(fit.scale.reach * float(row @ fit.unit_covariance @ row))
    return value, (value - half, value + half)
