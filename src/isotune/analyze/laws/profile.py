"""A fitted law with profile intervals: its exponent, the accepted ones, and what they say about the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from isotune.analyze.laws.acceptance import AtEstimate, CommonError, accept, fit_at_estimates
from isotune.analyze.laws.points import Points
from isotune.analyze.laws.projection import (
    ZERO_EXPONENT,
    Kind,
    Projection,
    exponent_interval,
    project,
    searched_range,
    slope_column,
)
from isotune.analyze.laws.robust import pulled_in
from isotune.analyze.laws.scatter import NO_INTERVAL, ErrorScale, Interval, error_scale

FEW_POINTS_ROBUST = 8


@dataclass(frozen=True)
class ProfileFit:
    """A fitted law: its exponent, the accepted exponents with their linear fits, and how much room each leaves."""

    kind: Kind
    reference: float
    range: Interval  # of log x
    bounds: Interval  # of the exponent
    exponent: float
    exponent_interval: Interval
    square_sum: float
    residual_deviation: float
    point_variance: float  # of a new point, in units of the errors' variance
    scale: ErrorScale
    at_best: Projection
    exponents: np.ndarray  # accepted ones
    accepted: Projection
    room: np.ndarray  # reach + R(exponent) - R(q): 0 at the ends of the accepted exponents
    confidence: float
    warnings: tuple[str, ...]

    def fitted(self, log_x: np.ndarray) -> np.ndarray:
        """The fit's values, in its space."""
        z = log_x - self.reference
        offset = self.exponent * z if self.kind == "log power" else 0.0
        column = slope_column(self.kind, np.array([self.exponent]), z)[0]
        return self.at_best.level[0] + self.at_best.slope[0] * (column - self.at_best.column_mean[0]) + offset

    def value(self, log_x: float) -> float:
        """The fit's value at one x, in its space."""
        return float(self.fitted(np.array([log_x]))[0])

    def value_weights(self, log_x: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The value at x as weights of level and slope, and an offset, for each accepted exponent."""
        z = np.array([log_x - self.reference])
        column = slope_column(self.kind, self.exponents, z)[:, 0]
        offset = self.exponents * z if self.kind == "log power" else np.zeros(len(self.exponents))
        return _level_weight(self.kind, self.exponents), column - self.accepted.column_mean, offset

    def interval(
        self, level_weight: np.ndarray, slope_weight: np.ndarray, offset: np.ndarray, noise: float = 0.0
    ) -> Interval:
        """The union over accepted exponents of the intervals of a linear combination; `noise` of a new point."""
        if not math.isfinite(self.scale.reach):
            return NO_INTERVAL
        fits = self.accepted
        with np.errstate(over="ignore", invalid="ignore"):
            middle = level_weight * fits.level + slope_weight * fits.slope + offset
            variance = level_weight**2 * fits.level_variance + slope_weight**2 * fits.slope_variance
            half = np.sqrt((variance + noise) * self.room)
            low, high = float(np.nanmin(middle - half)), float(np.nanmax(middle + half))
        return low, high

    def natural(self) -> tuple[float, float]:
        """(floor, amplitude) of a saturating law, from y = level + slope * ((e^qz - 1)/q - mean)."""
        q, fits = self.exponent, self.at_best
        if abs(q) < ZERO_EXPONENT:
            return math.nan, math.nan
        return float(fits.floors(np.array([q]))[0]), float(fits.slope[0] / q * math.exp(-q * self.reference))

    def natural_intervals(self) -> tuple[Interval, Interval]:
        """Intervals of floor and amplitude; infinite where exponents on the way to 0 are accepted."""
        q = self.exponents
        safe = np.where(np.abs(q) < ZERO_EXPONENT, np.nan, q)
        nothing = np.zeros(len(q))
        floor = self.interval(np.ones(len(q)), -(self.accepted.column_mean + 1 / safe), nothing)
        amplitude = self.interval(nothing, np.exp(-safe * self.reference) / safe, nothing)
        if np.abs(q).min() >= ZERO_EXPONENT:
            return floor, amplitude
        # At exponent 0 floor and amplitude run off to infinity, in opposite directions, each on the slope's side.
        rising = float(self.at_best.slope[0]) > 0
        from_above, from_below = bool(np.any(q > 0)), bool(np.any(q < 0))
        floor_falls = (from_above and rising) or (from_below and not rising)
        floor_rises = (from_above and not rising) or (from_below and rising)
        return (
            (-math.inf if floor_falls else floor[0], math.inf if floor_rises else floor[1]),
            (-math.inf if floor_rises else amplitude[0], math.inf if floor_falls else amplitude[1]),
        )


def fit_profile(
    kind: Kind,
    data: Points,
    *,
    level: float,
    robust: bool = False,
    bounds: Interval | None = None,
    common: CommonError | None = None,
) -> ProfileFit:
    warnings = []
    limits = searched_range(data.log_x, bounds)
    if robust:
        data = pulled_in(kind, data, limits)
        if len(data.y) < FEW_POINTS_ROBUST:
            warnings.append(f"{len(data.y)} points are too few to tell an outlier from the law")

    is_bounded = common is None or common.is_bounded
    fits = fit_at_estimates(kind, data, limits, common if is_bounded else None)
    best, square_sum = fits[0].exponent, fits[0].square_sum
    num_free = len(data.y) - (3 if kind == "saturating" else 2)
    scale = _scale(fits, num_free, level, data.has_known_errors)
    if scale.is_misfit:
        times = math.sqrt(scale.variance)
        warnings.append(f"points scatter {times:.1f} times as much as their standard errors say: intervals are widened")
    if num_free <= 0 and not data.has_known_errors:
        warnings.append("as many parameters as points: no intervals")
    if kind != "log power" and min(best - limits[0], limits[1] - best) < 1e-3 * (limits[1] - limits[0]):
        warnings.append(f"the exponent {best:.3g} is at the end of the range searched: no power law fits these points")
    if not is_bounded:
        warnings.append("an estimate that all points share leaves them anywhere: no intervals")
        scale = replace(scale, quantile=math.inf)
    accepted = accept(kind, fits, scale.reach if math.isfinite(scale.reach) else 0.0, limits)
    interval = NO_INTERVAL
    if math.isfinite(scale.reach):
        free = bounds is None and kind != "log power"
        interval = exponent_interval(accepted.exponents, limits, cut=(free, free))
    return ProfileFit(
        kind=kind,
        reference=data.reference,
        range=(float(data.log_x.min()), float(data.log_x.max())),
        bounds=limits,
        exponent=best,
        exponent_interval=interval,
        square_sum=square_sum,
        residual_deviation=_deviation(square_sum, num_free, data.weight),
        point_variance=1 / float(data.weight.mean()),
        scale=scale,
        at_best=project(kind, data, np.array([best])),
        exponents=accepted.exponents,
        accepted=accepted.fits,
        room=accepted.room,
        confidence=level,
        warnings=tuple(warnings),
    )


def _scale(fits: Sequence[AtEstimate], num_free: int, level: float, known: bool) -> ErrorScale:
    """From the least scatter at any estimate that the points share: finding it takes a degree of freedom."""
    if len(fits) == 1 or num_free < 2:
        return error_scale(fits[0].square_sum, num_free, level, known=known)
    return error_scale(min(fit.square_sum for fit in fits), num_free - 1, level, known=known)


def _level_weight(kind: Kind, exponents: np.ndarray) -> np.ndarray:
    return np.zeros(len(exponents)) if kind == "power" else np.ones(len(exponents))


def _deviation(square_sum: float, num_free: int, weight: np.ndarray) -> float:
    """The deviation of a point of average weight; nan where nothing is left to estimate it from."""
    return math.sqrt(square_sum / num_free / float(weight.mean())) if num_free > 0 else math.nan
