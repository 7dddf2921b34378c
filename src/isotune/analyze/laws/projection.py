"""Variable projection: linear fits at given exponents, and the search for the exponent that fits best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from isotune.analyze.laws.points import Points
from isotune.analyze.laws.scatter import Interval
from isotune.errors import InputError
from isotune.recipe.quantities import show

Kind = Literal["log power", "power", "saturating"]
Objective = Callable[[np.ndarray], np.ndarray]  # exponents -> weighted sums of squares
MAX_SPREAD = 12.0  # |exponent| * log(largest x / smallest x): beyond, a single point decides
_NUM_SEARCHED = 241  # exponents of the first search
_NUM_ACCEPTED = 301  # exponents that a union is taken over
ZERO_EXPONENT = 1e-7  # closer to 0 the floor is at infinity


@dataclass(frozen=True)
class Projection:
    """Linear fits at given exponents, a row each: y = level + slope * (column - mean of column)."""

    level: np.ndarray
    slope: np.ndarray
    column_mean: np.ndarray
    level_variance: np.ndarray  # in units of the errors' variance
    slope_variance: np.ndarray
    square_sum: np.ndarray

    def floors(self, exponents: np.ndarray) -> np.ndarray:
        """Of a saturating law at these exponents, from y = level + slope * ((e^qz - 1)/q - mean); infinite at 0.

        What has no slope is its own floor.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            floors = self.level - self.slope * (self.column_mean + 1 / exponents)
        return np.where(self.slope == 0, self.level, floors)


def project(kind: Kind, data: Points, exponents: np.ndarray) -> Projection:
    """The linear fits at the exponents; level and slope are independent because the column is centred."""
    z, w = data.log_x - data.reference, data.weight
    total = float(w.sum())
    column = slope_column(kind, exponents, z)
    if kind == "power":  # through the origin: no level
        square = (column**2) @ w
        slope = (column * data.y) @ w / square
        nothing = np.zeros(len(exponents))
        square_sum = (data.y - slope[:, None] * column) ** 2 @ w
        return Projection(nothing, slope, nothing, nothing, 1 / square, square_sum)
    response = data.y - (exponents[:, None] * z if kind == "log power" else np.zeros((len(exponents), 1)))
    level = response @ w / total
    residual = response - level[:, None]
    mean = column @ w / total
    slope = slope_variance = np.zeros(len(exponents))
    if kind == "saturating":
        centred = column - mean[:, None]
        square = centred**2 @ w
        slope, slope_variance = (centred * residual) @ w / square, 1 / square
        residual = residual - slope[:, None] * centred
    return Projection(level, slope, mean, np.full(len(exponents), 1 / total), slope_variance, residual**2 @ w)


def slope_column(kind: Kind, exponents: np.ndarray, z: np.ndarray) -> np.ndarray:
    """What the slope multiplies, a row per exponent: e^qz, or (e^qz - 1)/q, which is z at q = 0."""
    q = exponents[:, None]
    if kind == "log power":
        return np.zeros((len(exponents), len(z)))
    if kind == "power":
        return np.exp(q * z)
    safe = np.where(np.abs(q) < ZERO_EXPONENT, 1.0, q)
    return np.where(np.abs(q) < ZERO_EXPONENT, z + q * z**2 / 2, np.expm1(safe * z) / safe)


def searched_range(log_x: np.ndarray, bounds: Interval | None) -> Interval:
    if bounds is None:
        largest = MAX_SPREAD / float(np.ptp(log_x))
        return -largest, largest
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"exponent_bounds={show(bounds)} must be two numbers that go up")
    return float(low), float(high)


def best_exponent(kind: Kind, data: Points, bounds: Interval) -> float:
    """The exponent with the least sum of squares; in log space the slope of a straight line."""
    if kind == "log power":
        centred, square = _centred(data)
        return float((data.weight * centred) @ data.y) / square
    return search_exponent(lambda exponents: project(kind, data, exponents).square_sum, bounds)


def accepted_exponents(kind: Kind, data: Points, best: float, ceiling: float, bounds: Interval) -> np.ndarray:
    """Exponents with a sum of squares up to the ceiling; in log space that sum is a parabola."""
    if kind == "log power":
        half = math.sqrt(max(ceiling - float(project(kind, data, np.array([best])).square_sum[0]), 0.0))
        return best + half / math.sqrt(_centred(data)[1]) * np.linspace(-1, 1, _NUM_ACCEPTED)
    return exponents_below(lambda exponents: project(kind, data, exponents).square_sum, best, ceiling, bounds)


def _centred(data: Points) -> tuple[np.ndarray, float]:
    centred = data.log_x - float(data.weight @ data.log_x) / float(data.weight.sum())
    return centred, float(data.weight @ centred**2)


def search_exponent(objective: Objective, bounds: Interval) -> float:
    """The exponent with the least sum of squares: the best of a grid, of two finer ones, then where the slope is 0.

    The slope gives the last digits: at a minimum the sum itself is flat to half of all digits.
    """
    from scipy.optimize import brentq

    grid = np.linspace(*bounds, _NUM_SEARCHED)
    for _ in range(3):
        best = int(np.argmin(objective(grid)))
        low, found, high = (float(grid[min(max(best + k, 0), len(grid) - 1)]) for k in (-1, 0, 1))
        grid = np.linspace(low, high, 33)
    if not low < found < high:  # at a bound
        return found
    step = (high - low) / 8

    def slope(q: float) -> float:
        around = objective(q + step * np.array([-2.0, -1.0, 1.0, 2.0]))
        return float(around @ [1.0, -8.0, 8.0, -1.0])

    return float(brentq(slope, low, high, xtol=1e-14, rtol=1e-13)) if slope(low) < 0 < slope(high) else found


def exponents_below(objective: Objective, best: float, ceiling: float, bounds: Interval) -> np.ndarray:
    """Exponents from the lowest to the highest whose sum of squares is below the ceiling, close together."""
    from scipy.optimize import brentq

    grid = np.linspace(*bounds, _NUM_SEARCHED)
    inside = objective(grid) <= ceiling

    def above(q: float) -> float:
        return float(objective(np.array([q]))[0]) - ceiling

    def end(outward: np.ndarray, limit: float) -> float:
        """The last accepted exponent on this side: between the outermost accepted grid point and its neighbour."""
        last = float(outward[inside_of(outward)][-1]) if inside_of(outward).any() else best
        beyond = outward[(outward - last) * np.sign(limit - best or 1.0) > 0]
        if len(beyond) == 0:
            return limit
        return float(brentq(above, last, float(beyond[0]), xtol=1e-11)) if above(last) < 0 else last

    def inside_of(outward: np.ndarray) -> np.ndarray:
        return np.isin(outward, grid[inside])

    low = end(grid[grid < best][::-1], bounds[0])
    high = end(grid[grid > best], bounds[1])
    near_zero = np.array([-ZERO_EXPONENT / 2, ZERO_EXPONENT / 2])
    between = np.union1d(np.linspace(low, high, _NUM_ACCEPTED), [best])
    between = np.union1d(between, near_zero[(low <= near_zero) & (near_zero <= high)])
    kept = between[objective(between) <= ceiling]
    return np.union1d(kept, [low, high])


def exponent_interval(exponents: np.ndarray, bounds: Interval, cut: tuple[bool, bool]) -> Interval:
    """Lowest and highest exponent, infinite at a bound of the search that only our grid sets."""
    low, high = float(exponents[0]), float(exponents[-1])
    return (
        -math.inf if cut[0] and low <= bounds[0] else low,
        math.inf if cut[1] and high >= bounds[1] else high,
    )
