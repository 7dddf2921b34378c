"""Power laws with intervals that cover: y = c x^q, y = floor + a x^q, and training curves L0 + A (LR t)^-alpha.

Once the exponent q is fixed, each of these is a linear fit. So the exponent is searched on a line, the rest follows:

    R(q)      = weighted residual sum of squares of the linear fit at exponent q
    exponent  = argmin R(q)                                    variable projection: no start values, no local minima
    accepted  = all q with R(q) <= R(exponent) + s^2 t^2       s^2 the residual variance, t Student's quantile
    interval of a linear combination g of the other parameters, as the floor or the value at some x:
                the union over accepted q of  g(q) +- sqrt((s^2 t^2 + R(exponent) - R(q)) * var_g(q) / s^2)

These are profile (likelihood ratio) intervals. For y = c x^q in log space they are Student's, exactly; elsewhere they
bend with the model, and they are infinite where the data do not bound a parameter. They draw no random numbers. A
bootstrap was measured beside them: for 5 points, nominal 90 % hold the truth in 70 % of the draws (residuals) or 84 %
(pairs), since residuals are smaller than errors and a resample repeats points; the profile holds it in 90 %. The
numbers are in `proofs/results/analysis_coverage_surface.json`.

Neighbouring points of a training curve resemble each other. There s^2 is multiplied by tau = (1 + rho)/(1 - rho), rho
the neighbours' correlation of the residuals, and n points count as n/tau.

Robust fits are Huber's: residuals beyond 1.345 robust deviations are pulled in, and the intervals come from the values
with their residuals pulled in (Huber's pseudo-values, with his factor for few points). They cost a twentieth of the
precision where nothing is wrong, so they are an option; Theil and Sen's exponent always stands beside a power law.

Assumed: x without error, independent errors (except in training curves) of equal size in the space of the fit, or as
`weights` or `standard_errors` say. Where it fails: with fewer than 8 points a robust fit finds no outliers, and a
one-sided outlier at the end of the range still pulls it; curves of fewer than 60 points were not measured, and a curve
that is no power law has residuals alike over long stretches, which widen intervals but do not undo the bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from isotune.errors import InputError
from isotune.recipe.quantities import require_choice, require_positive, show

Interval = tuple[float, float]
Kind = Literal["log power", "power", "saturating"]
Objective = Callable[[np.ndarray], np.ndarray]  # exponents -> weighted sums of squares

MIN_POINTS_POWER = 3
MIN_POINTS_SATURATING = 4
MIN_POINTS_CURVE = 6
FEW_POINTS_ROBUST = 8
HUBER = 1.345  # robust deviations: 95 % of least squares' precision on Gaussian errors
NORMAL_MAD = 0.6745  # median absolute deviation of a Gaussian with deviation 1
MAX_SPREAD = 12.0  # |exponent| * log(largest x / smallest x): beyond, a single point decides
FAR_FACTOR = 4.0  # outside the data by more: a warning
MISFIT_LEVEL = 0.01  # of the test whether scatter exceeds the given standard errors
MAX_CORRELATION = 0.95
CORRELATION_CAUTION = 0.5  # standard errors 1/sqrt(n) on top of the neighbours' correlation
NO_INTERVAL: Interval = (-math.inf, math.inf)

_NUM_SEARCHED = 241  # exponents of the first search
_NUM_ACCEPTED = 301  # exponents that a union is taken over
_ZERO_EXPONENT = 1e-7  # closer to 0 the floor is at infinity


@dataclass(frozen=True)
class Prediction:
    """A law's value at x, the interval that holds it with probability `level`, and how far outside the data x is."""

    x: float
    value: float
    low: float
    high: float
    level: float
    extrapolation_factor: float  # 1 inside the data, 10 at a tenth of the smallest or ten times the largest x
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient * x^exponent, with intervals."""

    coefficient: float
    coefficient_interval: Interval
    exponent: float
    exponent_interval: Interval
    robust_exponent: float  # Theil and Sen's: the median slope between two points in log space
    r_squared: float  # in the space of the fit
    r_squared_plain: float  # of y itself
    leave_one_out_r_squared: float  # in the space of the fit, each point (or group) predicted from the others
    leave_one_out_errors: tuple[float, ...]  # predicted / measured - 1
    residual_deviation: float  # in the space of the fit
    space: Literal["log", "plain"]
    level: float
    num_points: int
    warnings: tuple[str, ...] = ()
    _fit: _Fit | None = field(default=None, repr=False, compare=False)

    def value_at(self, x: ArrayLike) -> np.ndarray:
        """The law's values."""
        return self.coefficient * np.asarray(x, dtype=float) ** self.exponent

    def predict(self, x: float, *, measurement: bool = False) -> Prediction:
        """The law's value at x with its interval; with `measurement` the interval of a new measured value."""
        assert self._fit is not None
        return _predict(self._fit, x, measurement)


@dataclass(frozen=True)
class SaturatingPowerLaw:
    """y = floor + amplitude * x^exponent, with intervals; the floor is approached where x^exponent goes to 0."""

    floor: float
    floor_interval: Interval
    amplitude: float
    amplitude_interval: Interval
    exponent: float
    exponent_interval: Interval
    r_squared: float
    leave_one_out_r_squared: float
    leave_one_out_errors: tuple[float, ...]  # predicted / measured - 1
    residual_deviation: float
    level: float
    num_points: int
    warnings: tuple[str, ...] = ()
    _fit: _Fit | None = field(default=None, repr=False, compare=False)

    def value_at(self, x: ArrayLike) -> np.ndarray:
        """The law's values."""
        return self.floor + self.amplitude * np.asarray(x, dtype=float) ** self.exponent

    def predict(self, x: float, *, measurement: bool = False) -> Prediction:
        """The law's value at x with its interval; with `measurement` the interval of a new measured value."""
        assert self._fit is not None
        return _predict(self._fit, x, measurement)


@dataclass(frozen=True)
class TrainingCurve:
    """One run's L(t) = floor + amplitude * (LR t)^-alpha; floor and amplitude at the alpha of all runs."""

    learning_rate: float
    floor: float  # L0
    floor_interval: Interval
    amplitude: float  # A
    amplitude_interval: Interval
    own_alpha: float  # fitted to this run alone
    own_alpha_interval: Interval
    own_floor: float
    own_floor_interval: Interval
    relative_error: float  # root mean square of fit / loss - 1, at the alpha of all runs
    correlation: float  # of neighbouring residuals
    num_points: int
    warnings: tuple[str, ...] = ()
    _fit: _Fit | None = field(default=None, repr=False, compare=False)

    def predict(self, time: float) -> Prediction:
        """The curve's value at this time, in the unit of the times that were fitted, with its interval."""
        assert self._fit is not None
        return _predict(self._fit, time * self.learning_rate, measurement=False)


@dataclass(frozen=True)
class TrainingCurves:
    """Runs that share one alpha in L(t) = L0 + A (LR t)^-alpha."""

    alpha: float
    alpha_interval: Interval
    runs: tuple[TrainingCurve, ...]
    r_squared: float  # of all losses, each around its run's mean
    level: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ErrorScale:
    """What a residual sum says about errors: their variance in units of 1/weight, and the quantile for intervals."""

    variance: float
    quantile: float  # of one estimate over its error: Student's, or Gaussian
    pair_quantile: float  # of a pair's length in units of its errors, sqrt(2 F)
    is_misfit: bool = False  # scatter beyond the given standard errors

    @property
    def reach(self) -> float:
        """How far above its minimum the weighted sum of squares may lie: variance * quantile^2."""
        return self.variance * self.quantile**2


def fit_power_law(
    x: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    standard_errors: ArrayLike | None = None,
    groups: Sequence[object] | None = None,
    space: Literal["log", "plain"] = "log",
    robust: bool = False,
    level: float = 0.9,
) -> PowerLaw:
    """The power law through positive points, y = coefficient * x^exponent.

    log y = log(coefficient) + exponent * log x by least squares; `space="plain"` fits y itself. `weights` say how much
    a point counts (its number of seeds), `standard_errors` how large its error is, in units of y. Points of one group
    are left out together in the leave-one-out errors.

    >>> law = fit_power_law([1, 2, 4, 8], [3, 6, 12, 24])
    >>> round(law.exponent, 6), round(law.predict(80).value, 3), law.predict(80).extrapolation_factor
    (1.0, 240.0, 10.0)
    """
    require_choice("space", space, ("log", "plain"))
    data = _points(x, y, weights, standard_errors, MIN_POINTS_POWER, "power law", log=space == "log")
    fit = _fit("log power" if space == "log" else "power", data, level=level, robust=robust)
    left_out = _left_out(fit, data, groups, robust)
    measured = np.exp(data.y) if space == "log" else data.y
    theil_sen = _theil_sen(data.log_x, np.log(measured)) if np.all(measured > 0) else math.nan
    law = PowerLaw(
        coefficient=float(_inverse(fit, np.asarray(fit.value(0.0)))),
        coefficient_interval=_inverse_interval(fit, fit.interval(*fit.value_weights(0.0))),
        exponent=fit.exponent,
        exponent_interval=fit.exponent_interval,
        robust_exponent=theil_sen,
        r_squared=_r_squared(data.y, fit.fitted(data.log_x), data.weight),
        r_squared_plain=_r_squared(measured, _inverse(fit, fit.fitted(data.log_x)), np.ones_like(measured)),
        leave_one_out_r_squared=_r_squared(data.y, left_out, data.weight),
        leave_one_out_errors=_relative(_inverse(fit, left_out), measured),
        residual_deviation=fit.residual_deviation,
        space=space,
        level=level,
        num_points=len(data.y),
        warnings=(*data.warnings, *fit.warnings),
        _fit=fit,
    )
    low, high = law.exponent_interval
    if not robust and not low <= theil_sen <= high and not math.isnan(theil_sen):
        note = (
            f"the median slope between points, {theil_sen:.3g}, is outside the exponent's interval: look for outliers"
        )
        law = replace(law, warnings=(*law.warnings, note))
    return law


def fit_saturating_power_law(
    x: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    standard_errors: ArrayLike | None = None,
    groups: Sequence[object] | None = None,
    exponent_bounds: Interval | None = None,
    robust: bool = False,
    level: float = 0.9,
) -> SaturatingPowerLaw:
    """The law y = floor + amplitude * x^exponent through points with positive x, by least squares on y.

    Any signs are allowed: L0 = L01 + L02 ELR^L03 rises from its floor, L(D) = E + B D^-beta falls towards it. An
    exponent near 0 is a straight line in log x, without a floor: where the interval of the exponent reaches 0, the
    floor's is infinite.

    >>> law = fit_saturating_power_law([1, 2, 4, 8, 16], [3, 2, 1.5, 1.25, 1.125])
    >>> round(law.floor, 6), round(law.amplitude, 6), round(law.exponent, 6)
    (1.0, 2.0, -1.0)
    """
    data = _points(x, y, weights, standard_errors, MIN_POINTS_SATURATING, "saturating power law", log=False)
    fit = _fit("saturating", data, level=level, robust=robust, bounds=exponent_bounds)
    left_out = _left_out(fit, data, groups, robust)
    floor, amplitude = fit.natural()
    floor_interval, amplitude_interval = fit.natural_intervals()
    warnings = [*data.warnings, *fit.warnings]
    if math.isinf(floor_interval[0]) or math.isinf(floor_interval[1]):
        warnings.append("the floor is not identified: a power law without bend fits as well; take a wider range of x")
    return SaturatingPowerLaw(
        floor=floor,
        floor_interval=floor_interval,
        amplitude=amplitude,
        amplitude_interval=amplitude_interval,
        exponent=fit.exponent,
        exponent_interval=fit.exponent_interval,
        r_squared=_r_squared(data.y, fit.fitted(data.log_x), data.weight),
        leave_one_out_r_squared=_r_squared(data.y, left_out, data.weight),
        leave_one_out_errors=_relative(left_out, data.y),
        residual_deviation=fit.residual_deviation,
        level=level,
        num_points=len(data.y),
        warnings=tuple(warnings),
        _fit=fit,
    )


def fit_training_curves(
    times: Sequence[ArrayLike],
    losses: Sequence[ArrayLike],
    learning_rates: ArrayLike,
    *,
    level: float = 0.9,
) -> TrainingCurves:
    """The curves L(t) = L0 + A (LR t)^-alpha of runs at constant LR: alpha common to all, L0 and A of each run.

    Times are steps after the start (or anything proportional), in order, warm-up left out. Each run weighs by its own
    scatter, and its points by how independent they are. Fitted alone a run says little about L0: `own_floor` and
    `own_alpha` are there to compare.
    """
    rates = np.atleast_1d(np.asarray(learning_rates, dtype=float))
    if not len(times) == len(losses) == len(rates) or len(times) == 0:
        counts = f"{len(times)} times, {len(losses)} losses and {len(rates)} learning rates"
        raise InputError(f"{counts}: a run needs one of each, and there must be a run")
    alone = [_fit_alone(*run, level) for run in zip(times, losses, rates, strict=True)]
    bounds = (min(run.fit.bounds[0] for run in alone), 0.0)

    def objective(exponents: np.ndarray) -> np.ndarray:
        total = np.zeros(len(exponents))
        for run in alone:
            total += _project("saturating", run.data, exponents).square_sum / run.variance
        return total

    best = _search(objective, bounds)
    lowest = float(objective(np.array([best]))[0])
    excess = max(0.0, lowest - sum(run.fit.square_sum / run.variance for run in alone))
    disagreement, warnings = _disagreement(excess, len(alone))
    num_free = sum(run.num_independent - 2 for run in alone) - 1
    span = _accepted(objective, best, lowest + disagreement * _student(num_free, level) ** 2, bounds)
    reaches = [disagreement * _student(run.num_independent - 2, level) ** 2 for run in alone]
    exponents = _accepted(objective, best, lowest + max(reaches), bounds)
    departures = objective(exponents) - lowest
    fits = [
        _at_shared_exponent(run, best, exponents, departures, reach) for run, reach in zip(alone, reaches, strict=True)
    ]
    alpha_low, alpha_high = _ends(span, bounds, cut=(True, False))
    return TrainingCurves(
        alpha=abs(best),
        alpha_interval=(abs(alpha_high), abs(alpha_low)),
        runs=tuple(_training_curve(run, fit) for run, fit in zip(alone, fits, strict=True)),
        r_squared=_pooled_r_squared(alone, best),
        level=level,
        warnings=warnings if alpha_high < 0 else (*warnings, "alpha may be 0: the curves have no floor yet"),
    )


def error_scale(square_sum: float, num_free: float, level: float, *, known: bool) -> ErrorScale:
    """The errors' variance in units of 1/weight and the quantile of intervals, from a weighted residual sum.

    With known standard errors the variance is 1 and the quantile Gaussian, unless the scatter is too large for that
    (chi-squared test at 1 %): the variance is then taken from the scatter, as it is where nothing is known.
    """
    from scipy.special import chdtrc, ndtri

    if not 0 < level < 1:
        raise InputError(f"level={show(level)} must be above 0 and below 1, such as 0.9")
    if known and (num_free <= 0 or chdtrc(num_free, square_sum) >= MISFIT_LEVEL):
        return ErrorScale(1.0, float(ndtri(0.5 + level / 2)), math.sqrt(-2 * math.log1p(-level)))
    if num_free <= 0:
        return ErrorScale(math.nan, math.inf, math.inf)
    pair_quantile = math.sqrt(num_free * math.expm1(-2 / num_free * math.log1p(-level)))  # F with 2 degrees is closed
    return ErrorScale(square_sum / num_free, _student(num_free, level), pair_quantile, is_misfit=known)


def point_weights(count: int, weights: ArrayLike | None, standard_errors: ArrayLike | None) -> np.ndarray:
    """Weights in units of 1/variance: 1/standard_errors^2, or the weights with mean 1, or ones."""
    if weights is not None and standard_errors is not None:
        raise InputError("weights and standard_errors were both given: give one, errors are weights 1/error^2")
    given = weights if standard_errors is None else standard_errors
    name = "weights" if standard_errors is None else "standard_errors"
    array = np.ones(1) if given is None else np.asarray(given, dtype=float)
    if array.shape not in ((), (1,), (count,)) or not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(f"{name} must be positive numbers, one for each of the {count} points")
    array = np.broadcast_to(array, (count,))
    return array**-2.0 if standard_errors is not None else array * (count / float(array.sum() or 1.0))


# Points


@dataclass(frozen=True)
class _Points:
    """What is fitted: log x, y in the space of the fit, weights 1/variance."""

    log_x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    has_known_errors: bool
    warnings: tuple[str, ...] = ()

    @property
    def reference(self) -> float:
        """The middle of log x: exponents act on log x - reference, so that nothing overflows."""
        return float(self.log_x.mean())

    def take(self, rows: np.ndarray) -> _Points:
        return replace(self, log_x=self.log_x[rows], y=self.y[rows], weight=self.weight[rows])


def _points(
    x: ArrayLike,
    y: ArrayLike,
    weights: ArrayLike | None,
    standard_errors: ArrayLike | None,
    min_points: int,
    law: str,
    *,
    log: bool,
) -> _Points:
    x_all, y_all = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if x_all.ndim != 1 or x_all.shape != y_all.shape:
        raise InputError(f"x and y must be rows of one length: these have shapes {x_all.shape} and {y_all.shape}")
    usable = np.isfinite(x_all) & np.isfinite(y_all)
    if np.any(x_all[usable] <= 0) or (log and np.any(y_all[usable] <= 0)):
        what = "x and y" if log else "x"
        raise InputError(
            f"{what} of a {law} must be above 0: leave the other points out" + ' or take space="plain"' * log
        )
    num_usable = int(usable.sum())
    weight = point_weights(len(x_all), weights, standard_errors)[usable]
    x_used, y_used = x_all[usable], y_all[usable]
    if num_usable < min_points or len(np.unique(x_used)) < min_points:
        different = len(np.unique(x_used))
        raise InputError(f"{num_usable} points at {different} different x: a {law} takes {min_points} different x")
    warnings = () if num_usable == len(x_all) else (f"{len(x_all) - num_usable} points are not finite and left out",)
    if log:
        # An error of y is an error dy/y of log y.
        weight = weight * y_used**2 if standard_errors is not None else weight
        y_used = np.log(y_used)
    return _Points(np.log(x_used), y_used, weight, standard_errors is not None, warnings)


# The fit: variable projection and profile intervals


@dataclass(frozen=True)
class _Projection:
    """Linear fits at given exponents, a row each: y = level + slope * (column - mean of column)."""

    level: np.ndarray
    slope: np.ndarray
    column_mean: np.ndarray
    level_variance: np.ndarray  # in units of the errors' variance
    slope_variance: np.ndarray
    square_sum: np.ndarray


@dataclass(frozen=True)
class _Fit:
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
    at_best: _Projection
    exponents: np.ndarray  # accepted ones
    accepted: _Projection
    room: np.ndarray  # reach + R(exponent) - R(q): 0 at the ends of the accepted exponents
    confidence: float
    warnings: tuple[str, ...]

    def fitted(self, log_x: np.ndarray) -> np.ndarray:
        """The fit's values, in its space."""
        z = log_x - self.reference
        offset = self.exponent * z if self.kind == "log power" else 0.0
        column = _column(self.kind, np.array([self.exponent]), z)[0]
        return self.at_best.level[0] + self.at_best.slope[0] * (column - self.at_best.column_mean[0]) + offset

    def value(self, log_x: float) -> float:
        """The fit's value at one x, in its space."""
        return float(self.fitted(np.array([log_x]))[0])

    def value_weights(self, log_x: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The value at x as weights of level and slope, and an offset, for each accepted exponent."""
        z = np.array([log_x - self.reference])
        column = _column(self.kind, self.exponents, z)[:, 0]
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
        if abs(q) < _ZERO_EXPONENT:
            return math.nan, math.nan
        floor = fits.level[0] - fits.slope[0] * (fits.column_mean[0] + 1 / q)
        return float(floor), float(fits.slope[0] / q * math.exp(-q * self.reference))

    def natural_intervals(self) -> tuple[Interval, Interval]:
        """Intervals of floor and amplitude; infinite where exponents on the way to 0 are accepted."""
        q = self.exponents
        safe = np.where(np.abs(q) < _ZERO_EXPONENT, np.nan, q)
        nothing = np.zeros(len(q))
        floor = self.interval(np.ones(len(q)), -(self.accepted.column_mean + 1 / safe), nothing)
        amplitude = self.interval(nothing, np.exp(-safe * self.reference) / safe, nothing)
        if np.abs(q).min() >= _ZERO_EXPONENT:
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


def _fit(kind: Kind, data: _Points, *, level: float, robust: bool = False, bounds: Interval | None = None) -> _Fit:
    warnings = []
    limits = _bounds(data.log_x, bounds)
    if robust:
        data = _pulled_in(kind, data, limits)
        if len(data.y) < FEW_POINTS_ROBUST:
            warnings.append(f"{len(data.y)} points are too few to tell an outlier from the law")

    best = _best_exponent(kind, data, limits)
    at_best = _project(kind, data, np.array([best]))
    square_sum = float(at_best.square_sum[0])
    num_free = len(data.y) - (3 if kind == "saturating" else 2)
    scale = error_scale(square_sum, num_free, level, known=data.has_known_errors)
    if scale.is_misfit:
        times = math.sqrt(scale.variance)
        warnings.append(f"points scatter {times:.1f} times as much as their standard errors say: intervals are widened")
    if num_free <= 0 and not data.has_known_errors:
        warnings.append("as many parameters as points: no intervals")
    if kind != "log power" and min(best - limits[0], limits[1] - best) < 1e-3 * (limits[1] - limits[0]):
        warnings.append(f"the exponent {best:.3g} is at the end of the range searched: no power law fits these points")
    # Rounding alone leaves this much; a perfect fit then has intervals of about that width.
    rounding = 1e-26 * float(data.weight @ data.y**2)
    ceiling = square_sum + (scale.reach if math.isfinite(scale.reach) else 0.0) + rounding
    exponents = _accepted_exponents(kind, data, best, ceiling, limits)
    accepted = _project(kind, data, exponents)
    interval = NO_INTERVAL
    if math.isfinite(scale.reach):
        free = bounds is None and kind != "log power"
        interval = _ends(exponents, limits, cut=(free, free))
    return _Fit(
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
        at_best=at_best,
        exponents=exponents,
        accepted=accepted,
        room=np.maximum(ceiling - accepted.square_sum, 0.0),
        confidence=level,
        warnings=tuple(warnings),
    )


def _deviation(square_sum: float, num_free: int, weight: np.ndarray) -> float:
    """The deviation of a point of average weight; nan where nothing is left to estimate it from."""
    return math.sqrt(square_sum / num_free / float(weight.mean())) if num_free > 0 else math.nan


def _project(kind: Kind, data: _Points, exponents: np.ndarray) -> _Projection:
    """The linear fits at the exponents; level and slope are independent because the column is centred."""
    z, w = data.log_x - data.reference, data.weight
    total = float(w.sum())
    column = _column(kind, exponents, z)
    if kind == "power":  # through the origin: no level
        square = (column**2) @ w
        slope = (column * data.y) @ w / square
        nothing = np.zeros(len(exponents))
        square_sum = (data.y - slope[:, None] * column) ** 2 @ w
        return _Projection(nothing, slope, nothing, nothing, 1 / square, square_sum)
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
    return _Projection(level, slope, mean, np.full(len(exponents), 1 / total), slope_variance, residual**2 @ w)


def _column(kind: Kind, exponents: np.ndarray, z: np.ndarray) -> np.ndarray:
    """What the slope multiplies, a row per exponent: e^qz, or (e^qz - 1)/q, which is z at q = 0."""
    q = exponents[:, None]
    if kind == "log power":
        return np.zeros((len(exponents), len(z)))
    if kind == "power":
        return np.exp(q * z)
    safe = np.where(np.abs(q) < _ZERO_EXPONENT, 1.0, q)
    return np.where(np.abs(q) < _ZERO_EXPONENT, z + q * z**2 / 2, np.expm1(safe * z) / safe)


def _level_weight(kind: Kind, exponents: np.ndarray) -> np.ndarray:
    return np.zeros(len(exponents)) if kind == "power" else np.ones(len(exponents))


def _bounds(log_x: np.ndarray, bounds: Interval | None) -> Interval:
    if bounds is None:
        largest = MAX_SPREAD / float(np.ptp(log_x))
        return -largest, largest
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"exponent_bounds={show(bounds)} must be two numbers that go up")
    return float(low), float(high)


def _best_exponent(kind: Kind, data: _Points, bounds: Interval) -> float:
    """The exponent with the least sum of squares; in log space the slope of a straight line."""
    if kind == "log power":
        centred, square = _centred(data)
        return float((data.weight * centred) @ data.y) / square
    return _search(lambda exponents: _project(kind, data, exponents).square_sum, bounds)


def _accepted_exponents(kind: Kind, data: _Points, best: float, ceiling: float, bounds: Interval) -> np.ndarray:
    """Exponents with a sum of squares up to the ceiling; in log space that sum is a parabola."""
    if kind == "log power":
        half = math.sqrt(max(ceiling - float(_project(kind, data, np.array([best])).square_sum[0]), 0.0))
        return best + half / math.sqrt(_centred(data)[1]) * np.linspace(-1, 1, _NUM_ACCEPTED)
    return _accepted(lambda exponents: _project(kind, data, exponents).square_sum, best, ceiling, bounds)


def _centred(data: _Points) -> tuple[np.ndarray, float]:
    centred = data.log_x - float(data.weight @ data.log_x) / float(data.weight.sum())
    return centred, float(data.weight @ centred**2)


def _search(objective: Objective, bounds: Interval) -> float:
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


def _accepted(objective: Objective, best: float, ceiling: float, bounds: Interval) -> np.ndarray:
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
    near_zero = np.array([-_ZERO_EXPONENT / 2, _ZERO_EXPONENT / 2])
    between = np.union1d(np.linspace(low, high, _NUM_ACCEPTED), [best])
    between = np.union1d(between, near_zero[(low <= near_zero) & (near_zero <= high)])
    kept = between[objective(between) <= ceiling]
    return np.union1d(kept, [low, high])


def _ends(exponents: np.ndarray, bounds: Interval, cut: tuple[bool, bool]) -> Interval:
    """Lowest and highest exponent, infinite at a bound of the search that only our grid sets."""
    low, high = float(exponents[0]), float(exponents[-1])
    return (
        -math.inf if cut[0] and low <= bounds[0] else low,
        math.inf if cut[1] and high >= bounds[1] else high,
    )


def _pulled_in(kind: Kind, data: _Points, bounds: Interval) -> _Points:
    """The points with residuals beyond Huber's limit pulled in: least squares on them is his estimate.

    y* = fit + s psi(r/s) until the fit stays; then psi is enlarged by K / mean(psi'), so that its scatter is the
    estimate's. K = 1 + (p/n)(1 - m)/m, m = mean(psi'), is Huber's correction for n points and p parameters.
    """
    num_parameters = 3 if kind == "saturating" else 2
    root = np.sqrt(data.weight)
    inflation = math.sqrt(len(data.y) / max(len(data.y) - num_parameters, 1))
    pulled, scale = data, 0.0
    for round_number in range(25):
        best = _best_exponent(kind, pulled, bounds)
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


def _residual(kind: Kind, data: _Points, exponent: float, y: np.ndarray) -> np.ndarray:
    """y minus the fit to `data` at this exponent."""
    at_best = _project(kind, data, np.array([exponent]))
    z = data.log_x - data.reference
    column = _column(kind, np.array([exponent]), z)[0]
    offset = exponent * z if kind == "log power" else 0.0
    return y - at_best.level[0] - at_best.slope[0] * (column - at_best.column_mean[0]) - offset


# What is said about a fit


def _predict(fit: _Fit, x: float, measurement: bool) -> Prediction:
    log_x = math.log(require_positive("x", x))
    low, high = fit.interval(*fit.value_weights(log_x), noise=fit.point_variance if measurement else 0.0)
    outside = max(fit.range[0] - log_x, log_x - fit.range[1], 0.0)
    factor = math.exp(outside)
    warnings = list(fit.warnings)
    if factor > FAR_FACTOR:
        warnings.append(f"x={x:.3g} is outside the data by a factor of {factor:.3g}: the law itself may not hold there")
    value = float(_inverse(fit, np.asarray(fit.value(log_x))))
    ends = _inverse_interval(fit, (low, high))
    factor = float(f"{factor:.12g}")
    return Prediction(float(x), value, *ends, fit.confidence, factor, tuple(warnings))


def _left_out(fit: _Fit, data: _Points, groups: Sequence[object] | None, robust: bool) -> np.ndarray:
    """Each point's value by the law of the other points (or of the other groups), in the space of the fit."""
    if groups is None:
        labels = np.arange(len(data.y))
    else:
        labels = np.unique(np.asarray(groups), return_inverse=True)[1]
        if len(labels) != len(data.y):
            raise InputError(f"{len(labels)} groups for {len(data.y)} usable points: give one for each point")
    fitted_to = _pulled_in(fit.kind, data, fit.bounds) if robust else data
    values = np.full(len(data.y), math.nan)
    num_parameters = 3 if fit.kind == "saturating" else 2
    for label in np.unique(labels):
        rows = labels != label
        rest = fitted_to.take(rows)
        if len(np.unique(rest.log_x)) < num_parameters:
            continue
        best = _best_exponent(fit.kind, rest, fit.bounds)
        at_best = _project(fit.kind, rest, np.array([best]))
        law = replace(fit, exponent=best, at_best=at_best, reference=rest.reference)
        values[~rows] = law.fitted(data.log_x[~rows])
    return values


def _inverse(fit: _Fit, values: np.ndarray) -> np.ndarray:
    """The values in plain space."""
    return np.exp(values) if fit.kind == "log power" else values


def _inverse_interval(fit: _Fit, interval: Interval) -> Interval:
    if fit.kind != "log power":
        return interval
    return math.exp(interval[0]), math.exp(interval[1])


def _relative(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, ...]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return tuple(float(error) for error in predicted / measured - 1)


def _r_squared(y: np.ndarray, fitted: np.ndarray, weight: np.ndarray) -> float:
    """1 - residual over total sum of squares; nan where a value is missing."""
    total = float(weight @ (y - float(weight @ y) / float(weight.sum())) ** 2)
    return 1 - float(weight @ (y - fitted) ** 2) / total if total > 0 else math.nan


def _theil_sen(log_x: np.ndarray, log_y: np.ndarray) -> float:
    first, second = np.triu_indices(len(log_x), 1)
    run = log_x[second] - log_x[first]
    apart = run != 0
    return float(np.median((log_y[second] - log_y[first])[apart] / run[apart]))


def _student(num_free: float, level: float) -> float:
    """Student's quantile, with one degree of freedom at least."""
    from scipy.special import stdtrit

    return float(stdtrit(max(num_free, 1.0), 0.5 + level / 2))


# Training curves


@dataclass(frozen=True)
class _Alone:
    """One run fitted by itself, with the scatter that its points count by."""

    data: _Points
    learning_rate: float
    fit: _Fit
    variance: float  # of an independent point: residual variance times tau
    correlation: float
    num_independent: float


def _fit_alone(times: ArrayLike, losses: ArrayLike, learning_rate: float, level: float) -> _Alone:
    rate = require_positive("learning_rate", float(learning_rate))
    time = np.asarray(times, dtype=float)
    if time.ndim == 1 and np.any(np.diff(time) <= 0):
        raise InputError("times of a run must go up: neighbouring points are taken for neighbours in time")
    data = _points(time * rate, losses, None, None, MIN_POINTS_CURVE, "training curve", log=False)
    limits = (_bounds(data.log_x, None)[0], 0.0)
    fit = _fit("saturating", data, level=level, bounds=limits)
    correlation = _neighbours(data.y - fit.fitted(data.log_x))
    cautious = min(max(correlation + CORRELATION_CAUTION / math.sqrt(len(data.y)), 0.0), MAX_CORRELATION)
    tau = (1 + cautious) / (1 - cautious)
    num_independent = max(len(data.y) / tau, 4.0)
    scale = replace(fit.scale, variance=fit.scale.variance * tau, quantile=_student(num_independent - 3, level))
    ceiling = fit.square_sum + scale.reach

    exponents = _accepted_exponents("saturating", data, fit.exponent, ceiling, limits)
    accepted = _project("saturating", data, exponents)
    fit = replace(
        fit,
        scale=scale,
        exponents=exponents,
        accepted=accepted,
        room=np.maximum(ceiling - accepted.square_sum, 0.0),
        exponent_interval=_ends(exponents, limits, cut=(True, False)),
    )
    rounding = 1e-26 * float(np.mean(data.y**2))
    return _Alone(data, rate, fit, max(scale.variance, rounding), correlation, num_independent)


def _at_shared_exponent(run: _Alone, best: float, exponents: np.ndarray, departures: np.ndarray, reach: float) -> _Fit:
    """The run's fit at the exponent of all runs; accepted are the exponents that all runs together accept."""
    kept = exponents[departures <= reach]
    return replace(
        run.fit,
        exponent=best,
        at_best=_project("saturating", run.data, np.array([best])),
        exponents=kept,
        accepted=_project("saturating", run.data, kept),
        room=(reach - departures[departures <= reach]) * run.variance,
    )


def _neighbours(residual: np.ndarray) -> float:
    """The correlation of neighbouring residuals, corrected for what fitting k = 3 parameters takes from it."""
    k, n = 3, len(residual)
    square_sum = float(residual @ residual)
    correlation = float(residual[1:] @ residual[:-1]) / square_sum if square_sum > 0 else 0.0
    return correlation + (k + (k + 3) * correlation) / n


def _training_curve(run: _Alone, fit: _Fit) -> TrainingCurve:
    floor, amplitude = fit.natural()
    floor_interval, amplitude_interval = fit.natural_intervals()
    own_low, own_high = run.fit.exponent_interval
    fitted = fit.fitted(run.data.log_x)
    warnings = list(run.data.warnings)
    if run.num_independent < 10:
        worth = f"{len(run.data.y)} points are worth {run.num_independent:.0f} independent ones"
        warnings.append(f"{worth}: the intervals may be too narrow")
    return TrainingCurve(
        learning_rate=run.learning_rate,
        floor=floor,
        floor_interval=floor_interval,
        amplitude=amplitude,
        amplitude_interval=amplitude_interval,
        own_alpha=abs(run.fit.exponent),
        own_alpha_interval=(abs(own_high), abs(own_low)),
        own_floor=run.fit.natural()[0],
        own_floor_interval=run.fit.natural_intervals()[0],
        relative_error=float(np.sqrt(np.mean((fitted / run.data.y - 1) ** 2))),
        correlation=run.correlation,
        num_points=len(run.data.y),
        warnings=tuple(warnings),
        _fit=fit,
    )


def _disagreement(excess: float, num_runs: int) -> tuple[float, tuple[str, ...]]:
    """By how much the runs' own exponents scatter more than their errors say, and the warning."""
    from scipy.special import chdtrc

    if num_runs < 2 or chdtrc(num_runs - 1, excess) >= MISFIT_LEVEL:
        return 1.0, ()
    ratio = excess / (num_runs - 1)
    note = f"the runs' own alphas scatter {math.sqrt(ratio):.1f} times as much as their errors: intervals are widened"
    return ratio, (note,)


def _pooled_r_squared(runs: list[_Alone], exponent: float) -> float:
    residual = total = 0.0
    for run in runs:
        residual += float(_project("saturating", run.data, np.array([exponent])).square_sum[0])
        total += float(np.sum((run.data.y - run.data.y.mean()) ** 2))
    return 1 - residual / total if total > 0 else math.nan
