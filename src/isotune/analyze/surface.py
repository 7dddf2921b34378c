"""The loss over (log2 LR, log2 WD) as a paraboloid: its minimum, the direction that matters, where it is flat.

Least squares over the cells within `margin` of the best one, x = log2 LR and y = log2 WD measured from their means:

    loss = c0 + c1 x + c2 y + c3 x^2 + c4 x y + c5 y^2,    Hessian H = [[2 c3, c4], [c4, 2 c5]]

Intervals follow from the coefficients' covariance s^2 V, with Student's quantile t, and draw no random numbers:

    minimum      all m for which some point p with coordinate m has  g' (G V G')^-1 g <= s^2 t^2,  where g = G c is the
                 fitted gradient at p: whether p is the minimum is a linear question (Fieller). The same for log2 ELR
    loss at it   value +- t s sqrt(phi' V phi): at a minimum the errors of its place do not matter to first order
    direction    the top eigenvector's angle is half that of the vector (c3 - c5, c4). Accepted are the angles whose
                 perpendicular component is within t standard errors of 0, and all if the vector is not told from 0
    active       the top eigenvector of M = mean over cells of (gradient gradient'), again half the angle of a vector,
                 (M11 - M22, 2 M12), less what errors add to it; needs no minimum and no convexity

A bootstrap of the residuals would be too narrow (with 12 cells and 6 coefficients residuals have half the errors'
variance), and it cannot say "unbounded". Angles are axial: 0 is LR, 45 is ELR, 90 is WD, and 91 is -89. An interval is
given around its angle, so its ends may lie beyond 90 or -90; (angle - 90, angle + 90) is every direction.

Assumed: cells with independent errors of equal size, or as `weights` (numbers of seeds) or `standard_errors` say.

Where it fails: a loss that is no paraboloid within the margin (real ones rise faster at high LR) shifts the minimum,
and no interval knows of it. Cubic terms that make 1.6 % of the loss at the rim of the margin shift it by .7 octaves
along the valley, and nominal 90 % then never hold the truth; an F test of the cubic terms warns, always at a noise of
.2 %, in a third of the cases at .5 %. A smaller margin helps, at the price of noise.
The numbers are in `proofs/results/analysis_coverage_surface.json`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws import NO_INTERVAL, ErrorScale, Interval, error_scale, point_weights
from isotune.errors import InputError
from isotune.recipe.quantities import show

Factor = Literal["LR", "ELR", "WD"]

MARGIN = 0.06  # DESIGN 6.11: cells within 6 % of the best
TOLERANCE = 0.0025  # of the flat set: a loss this much above the lowest is as good
NUM_COEFFICIENTS = 6
COMFORTABLE_CELLS = 9  # fewer within the margin: it is widened
NAMED_DIRECTIONS: dict[Factor, float] = {"LR": 0.0, "ELR": 45.0, "WD": 90.0}
SALIENT_BOUNDARY = 22.5  # degrees: halfway between LR and ELR
MIN_SINGULAR_VALUE = 1e-7  # of the scaled design, over the largest: below, the cells do not fix a paraboloid
CUBIC_LEVEL = 0.01  # of the test whether cubic terms matter
SEARCH_SPANS = 2.0  # grid widths beyond the grid in which the end of a minimum's interval is looked for
BOX_PARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)

_NUM_PLACES = 41
_NUM_ALONG = 81
_FLAT_COLUMNS, _FLAT_ROWS = 401, 101


@dataclass(frozen=True)
class Cell:
    """A pair of hyperparameters and its loss."""

    log2_learning_rate: float
    log2_weight_decay: float
    loss: float


@dataclass(frozen=True)
class FlatSet:
    """Pairs (LR, WD) whose fitted loss is within `tolerance` of the lowest, all inside the hull of the fitted cells.

    `across` says it in one factor: every pair of the hull with log2(factor) in it is in the set, as long as the other
    hyperparameter (`along_name`) is within `along`; None: whatever it is.
    """

    tolerance: float
    limit: float  # the highest loss in the set
    factor: str  # "ELR", "LR", "WD", or a product such as "LR * WD^0.6"
    across: Interval  # of log2(factor)
    along_name: Literal["LR", "WD"]
    along: Interval | None  # of log2; None where the factor alone decides
    extent_across: Interval  # the whole set's, corners included
    extent_along: Interval
    share: float  # of the hull's area
    warnings: tuple[str, ...]
    _surface: LossSurface = field(repr=False, compare=False)

    @property
    def is_limited_along(self) -> bool:
        """Whether the other hyperparameter matters too."""
        return self.along is not None

    @property
    def description(self) -> str:
        """The set in a sentence."""
        words = f"any (LR, WD) of the grid with {self.factor} in {_powers(self.across)}"
        if self.along is not None:
            words += f" and {self.along_name} in {_powers(self.along)}"
        words += f" is within {100 * self.tolerance:.3g} % of the lowest fitted loss"
        return words if self.along is None else f"{words}; beyond that {self.along_name} matters too"

    def contains(self, log2_learning_rate: ArrayLike, log2_weight_decay: ArrayLike) -> np.ndarray:
        """Whether points are in the set."""
        inside = self._surface.contains(log2_learning_rate, log2_weight_decay)
        return inside & (self._surface.loss_at(log2_learning_rate, log2_weight_decay) <= self.limit)


@dataclass(frozen=True)
class LossSurface:
    """A fitted paraboloid with intervals at `level`; the minimum is nan where the fit is not convex."""

    minimum_log2_learning_rate: float
    minimum_log2_learning_rate_interval: Interval
    minimum_log2_weight_decay: float
    minimum_log2_weight_decay_interval: Interval
    minimum_log2_effective_learning_rate: float
    minimum_log2_effective_learning_rate_interval: Interval
    minimum_loss: float
    minimum_loss_interval: Interval
    eigenvalues: tuple[float, float]  # of the Hessian, largest first: loss per octave^2
    eigenvalue_ratio: float  # |first / second|
    eigenvalue_ratio_interval: Interval
    salient_direction: float  # degrees, in (-90, 90]: of the first eigenvector
    salient_direction_interval: Interval
    active_direction: float  # degrees: the top eigenvector of the mean outer product of gradients
    active_direction_interval: Interval
    best_cell: Cell  # lowest measured loss, nothing fitted
    censored: tuple[str, ...]  # what of the minimum its interval does not keep inside the grid
    is_convex: bool
    residual_deviation: float
    r_squared: float
    margin: float  # in use, after widening
    level: float
    num_cells: int  # with a loss
    num_fitted: int
    warnings: tuple[str, ...]
    center: tuple[float, float] = field(repr=False)
    coefficients: tuple[float, ...] = field(repr=False)  # c0..c5, around the center
    fitted_cells: np.ndarray = field(repr=False, compare=False)

    @property
    def is_censored(self) -> bool:
        """Whether the minimum must be left out of laws: not convex, or not known to be inside the grid."""
        return bool(self.censored)

    @property
    def salient_factor(self) -> Factor | None:
        """The one of LR, ELR and WD from which the whole interval of the salient direction is at most 22.5 degrees."""
        low, high = self.salient_direction_interval
        for name, angle in NAMED_DIRECTIONS.items():
            farthest = max(abs(_axial(low - angle)), abs(_axial(high - angle)))
            if high - low < 90 and farthest <= SALIENT_BOUNDARY:
                return name
        return None

    def loss_at(self, log2_learning_rate: ArrayLike, log2_weight_decay: ArrayLike) -> np.ndarray:
        """The fitted loss at points."""
        x = np.asarray(log2_learning_rate, dtype=float) - self.center[0]
        y = np.asarray(log2_weight_decay, dtype=float) - self.center[1]
        return _basis(x, y) @ np.array(self.coefficients)

    def contains(self, log2_learning_rate: ArrayLike, log2_weight_decay: ArrayLike) -> np.ndarray:
        """Whether points are in the hull of the fitted cells; elsewhere `loss_at` extrapolates."""
        x, y = np.asarray(log2_learning_rate, dtype=float), np.asarray(log2_weight_decay, dtype=float)
        lower, upper = _hull(self.fitted_cells)
        inside = (lower[0, 0] <= x) & (x <= lower[-1, 0])
        slack = 1e-9 * max(1.0, float(np.ptp(self.fitted_cells[:, 1])))
        return inside & (np.interp(x, *lower.T) - slack <= y) & (y <= np.interp(x, *upper.T) + slack)

    def flat_set(self, tolerance: float = TOLERANCE, factor: Factor | None = None) -> FlatSet:
        """The points as good as the lowest, `tolerance` relative, told in one factor.

        Without a factor it is the salient one; where none is, the fitted direction itself, as a product LR * WD^power.
        """
        return _flat_set(self, tolerance, factor)


def fit_surface(
    log2_learning_rate: ArrayLike,
    log2_weight_decay: ArrayLike,
    loss: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    standard_errors: ArrayLike | None = None,
    margin: float = MARGIN,
    level: float = 0.9,
    intervals: bool = True,
) -> LossSurface:
    """The paraboloid through the cells within `margin` of the lowest loss, with intervals at `level`.

    `weights` are numbers of seeds (only their ratios count), `standard_errors` the cells' known errors. Losses that are
    not finite (diverged runs) are left out. Fewer than 9 cells within the margin widen it, with a warning. With
    `intervals=False` they are infinite and nothing is censored for them: for callers that bootstrap.

    >>> x, y = np.meshgrid(np.arange(-12.0, -6), np.arange(-8.0, 1))
    >>> loss = 1.5 + 0.004 * (x + y + 13) ** 2 + 0.001 * (x - y + 5) ** 2
    >>> surface = fit_surface(x.ravel(), y.ravel(), loss.ravel())
    >>> round(surface.minimum_log2_learning_rate, 6), round(surface.salient_direction, 6), surface.salient_factor
    (-9.0, 45.0, 'ELR')
    """
    if not margin > 0:
        raise InputError(f"margin={show(margin)} must be above 0, such as 0.06; inf takes every cell")
    cells, weight, warnings = _usable_cells(log2_learning_rate, log2_weight_decay, loss, weights, standard_errors)
    used_margin, chosen = _within(cells, margin)
    if used_margin > margin:
        count = int(np.sum(cells[:, 2] <= _limit(cells, margin)))
        warnings.append(
            f"{count} cells are within {margin:.3g} of the best: the margin was widened to {used_margin:.3g}"
        )
    fit = _least_squares(cells[chosen], weight[chosen], standard_errors is not None, level)
    warnings += _fit_warnings(fit)
    return _surface(cells, fit, used_margin, level, intervals, warnings)


# Cells


def _usable_cells(
    log2_learning_rate: ArrayLike,
    log2_weight_decay: ArrayLike,
    loss: ArrayLike,
    weights: ArrayLike | None,
    standard_errors: ArrayLike | None,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Rows (x, y, loss) with a finite loss, their weights, and what was left out."""
    columns = [np.asarray(column, dtype=float) for column in (log2_learning_rate, log2_weight_decay, loss)]
    if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise InputError(f"learning rates, weight decays and losses must be rows of one length: shapes {shapes}")
    if not (np.isfinite(columns[0]).all() and np.isfinite(columns[1]).all()):
        raise InputError("log2 of learning rates and weight decays must be finite: leave out runs without weight decay")
    cells = np.column_stack(columns)
    weight = point_weights(len(cells), weights, standard_errors)
    usable = np.isfinite(cells[:, 2])
    warnings = []
    if not usable.all():
        warnings.append(f"{int((~usable).sum())} cells without a finite loss are left out")
    cells, weight = cells[usable], weight[usable]
    if len(cells) < NUM_COEFFICIENTS:
        raise InputError(f"{len(cells)} cells with a loss: a paraboloid has 6 coefficients and takes 6 cells at least")
    if not _fixes_paraboloid(cells):
        raise InputError(f"these {len(cells)} cells do not fix a paraboloid: {_degeneracy(cells)}")
    return cells, weight, warnings


def _within(cells: np.ndarray, margin: float) -> tuple[float, np.ndarray]:
    """The margin, widened until the cells within it are enough, and these cells."""
    chosen = cells[:, 2] <= _limit(cells, margin)
    order = np.sort(cells[:, 2])
    count = int(chosen.sum())
    while count < len(cells) and (count < COMFORTABLE_CELLS or not _fixes_paraboloid(cells[chosen])):
        count += 1
        chosen = cells[:, 2] <= order[count - 1]
        count = int(chosen.sum())
    best = float(order[0])
    reached = (float(cells[chosen, 2].max()) - best) / abs(best) if best else math.inf
    return max(margin, reached), chosen


def _limit(cells: np.ndarray, margin: float) -> float:
    best = float(cells[:, 2].min())
    return best + margin * abs(best)


def _fixes_paraboloid(cells: np.ndarray) -> bool:
    if len(cells) < NUM_COEFFICIENTS:
        return False
    place = cells[:, :2] - cells[:, :2].mean(axis=0)
    size = np.abs(place).max(axis=0)
    if np.any(size == 0):
        return False
    values = np.linalg.svd(_basis(*(place / size).T), compute_uv=False)
    return bool(values[-1] > MIN_SINGULAR_VALUE * values[0])


def _degeneracy(cells: np.ndarray) -> str:
    """Why, and what to run."""
    for column, name in enumerate(("learning rate", "weight decay")):
        count = len(np.unique(cells[:, column]))
        if count < 3:
            return f"they have {count} {name}{'s' * (count > 1)}; add runs until there are 3"
    if np.linalg.matrix_rank(cells[:, :2] - cells[:, :2].mean(axis=0), tol=1e-9) < 2:
        return "they lie on one line; add runs beside it"
    return "they lie on one curve of second order, such as two lines; add a run beside it"


# The fit


@dataclass(frozen=True)
class _Fit:
    cells: np.ndarray
    weight: np.ndarray
    center: np.ndarray
    coefficients: np.ndarray
    unit_covariance: np.ndarray  # V: the covariance is scale.variance times this
    square_sum: float
    scale: ErrorScale

    @property
    def has_errors(self) -> bool:
        return math.isfinite(self.scale.reach)

    @property
    def covariance(self) -> np.ndarray:
        return self.scale.variance * self.unit_covariance

    @property
    def hessian(self) -> np.ndarray:
        _, _, _, c3, c4, c5 = self.coefficients
        return np.array([[2 * c3, c4], [c4, 2 * c5]])


def _basis(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """1, x, y, x^2, xy, y^2 in the last axis."""
    return np.stack([np.ones_like(x * y), x + 0 * y, y + 0 * x, x * x + 0 * y, x * y, y * y + 0 * x], axis=-1)


def _gradient_basis(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """G: the derivatives of the basis by x and by y, in the last two axes."""
    zero, one = np.zeros_like(x * y), np.ones_like(x * y)
    by_x = np.stack([zero, one, zero, 2 * x + zero, y + zero, zero], axis=-1)
    by_y = np.stack([zero, zero, one, zero, x + zero, 2 * y + zero], axis=-1)
    return np.stack([by_x, by_y], axis=-2)


def _least_squares(cells: np.ndarray, weight: np.ndarray, known: bool, level: float) -> _Fit:
    center = cells[:, :2].mean(axis=0)
    x, y = (cells[:, :2] - center).T
    root = np.sqrt(weight)
    design = root[:, None] * _basis(x, y)
    size = np.linalg.norm(design, axis=0)
    orthogonal, triangle = np.linalg.qr(design / size)
    inverse = np.linalg.inv(triangle) / size[:, None]
    coefficients = inverse @ (orthogonal.T @ (root * cells[:, 2]))
    residual = root * cells[:, 2] - design @ coefficients
    square_sum = float(residual @ residual)
    # Rounding leaves about this much of a perfect paraboloid.
    rounding = 1e-28 * float(weight @ cells[:, 2] ** 2)
    scale = error_scale(square_sum + rounding, len(cells) - NUM_COEFFICIENTS, level, known=known)
    return _Fit(cells, weight, center, coefficients, inverse @ inverse.T, square_sum, scale)


def _fit_warnings(fit: _Fit) -> list[str]:
    warnings = []
    num_free = len(fit.cells) - NUM_COEFFICIENTS
    if not fit.has_errors:
        warnings.append("6 cells for 6 coefficients: no intervals")
    elif num_free < COMFORTABLE_CELLS - NUM_COEFFICIENTS:
        warnings.append(f"{len(fit.cells)} cells for 6 coefficients: intervals are wide")
    if fit.scale.is_misfit:
        times = math.sqrt(fit.scale.variance)
        warnings.append(
            f"losses scatter {times:.1f} times as much as their standard errors say: the loss is no paraboloid within "
            "the margin; intervals are widened, a smaller margin may fit better"
        )
    if _cubic_p_value(fit) < CUBIC_LEVEL:
        warnings.append(
            "the loss is no paraboloid within the margin (cubic terms matter): the minimum may lie outside its "
            "interval; a smaller margin may fit better"
        )
    return warnings


def _cubic_p_value(fit: _Fit) -> float:
    """Of the F test whether x^3, x^2 y, x y^2 and y^3 improve the fit; 1 where cells are too few to say."""
    from scipy.special import fdtrc

    x, y = (fit.cells[:, :2] - fit.center).T
    root = np.sqrt(fit.weight)
    loss = root * fit.cells[:, 2]
    num_free = len(x) - NUM_COEFFICIENTS - 4
    if num_free < 3 or fit.square_sum <= 1e-24 * float(loss @ loss):
        return 1.0
    design = root[:, None] * np.column_stack([_basis(x, y), x**3, x**2 * y, x * y**2, y**3])
    columns, sizes, _ = np.linalg.svd(design / np.linalg.norm(design, axis=0), full_matrices=False)
    columns = columns[:, sizes > MIN_SINGULAR_VALUE * sizes[0]]
    num_cubic = columns.shape[1] - NUM_COEFFICIENTS
    if num_cubic < 1:
        return 1.0
    num_free = len(x) - columns.shape[1]
    residual = loss - columns @ (columns.T @ loss)
    left = float(residual @ residual)
    return float(fdtrc(num_cubic, num_free, (fit.square_sum - left) / num_cubic * num_free / left)) if left > 0 else 0.0


def _surface(
    cells: np.ndarray, fit: _Fit, margin: float, level: float, intervals: bool, warnings: list[str]
) -> LossSurface:
    with_intervals = intervals and fit.has_errors
    top, other = (float(value) for value in np.linalg.eigvalsh(fit.hessian)[::-1])
    is_convex = other > 0
    place = np.linalg.solve(fit.hessian, -fit.coefficients[1:3]) if is_convex else np.full(2, math.nan)
    ends = [NO_INTERVAL] * 3
    if is_convex and with_intervals:
        ends = [_minimum_interval(fit, cells, place, factor) for factor in ("LR", "WD", "ELR")]
    minimum = place + fit.center
    lowest, loss_interval = _loss_at_minimum(fit, place, with_intervals)
    salient, salient_interval = _salient_direction(fit, with_intervals)
    active, active_interval = _active_direction(fit, with_intervals)
    censored = _censored(cells, minimum, ends[:2], is_convex, intervals)
    warnings = [*warnings, *_shape_warnings(is_convex, censored, salient_interval, with_intervals)]
    mean_loss = float(fit.weight @ fit.cells[:, 2]) / float(fit.weight.sum())
    total = float(fit.weight @ (fit.cells[:, 2] - mean_loss) ** 2)
    num_free = len(fit.cells) - NUM_COEFFICIENTS
    deviation = math.sqrt(fit.square_sum / num_free / float(fit.weight.mean())) if num_free else math.nan
    best = cells[np.argmin(cells[:, 2])]
    return LossSurface(
        minimum_log2_learning_rate=float(minimum[0]),
        minimum_log2_learning_rate_interval=ends[0],
        minimum_log2_weight_decay=float(minimum[1]),
        minimum_log2_weight_decay_interval=ends[1],
        minimum_log2_effective_learning_rate=float(minimum.sum()),
        minimum_log2_effective_learning_rate_interval=ends[2],
        minimum_loss=lowest,
        minimum_loss_interval=loss_interval,
        eigenvalues=(top, other),
        eigenvalue_ratio=abs(top / other) if other else math.inf,
        eigenvalue_ratio_interval=_ratio_interval(fit, salient, salient_interval, with_intervals),
        salient_direction=salient,
        salient_direction_interval=salient_interval,
        active_direction=active,
        active_direction_interval=active_interval,
        best_cell=Cell(*(float(value) for value in best)),
        censored=censored,
        is_convex=is_convex,
        residual_deviation=deviation,
        r_squared=1 - fit.square_sum / total if total > 0 else math.nan,
        margin=margin,
        level=level,
        num_cells=len(cells),
        num_fitted=len(fit.cells),
        warnings=tuple(warnings),
        center=(float(fit.center[0]), float(fit.center[1])),
        coefficients=tuple(float(value) for value in fit.coefficients),
        fitted_cells=fit.cells[:, :2],
    )


def _censored(
    cells: np.ndarray, minimum: np.ndarray, ends: list[Interval], is_convex: bool, intervals: bool
) -> tuple[str, ...]:
    if not is_convex:
        return "learning_rate", "weight_decay"
    names = []
    for column, name in enumerate(("learning_rate", "weight_decay")):
        low, high = ends[column] if intervals else (minimum[column], minimum[column])
        if low < cells[:, column].min() or high > cells[:, column].max():
            names.append(name)
    return tuple(names)


def _shape_warnings(is_convex: bool, censored: tuple[str, ...], direction: Interval, with_intervals: bool) -> list[str]:
    warnings = []
    if not is_convex:
        warnings.append("the fit is not convex: it has no minimum; the optimum may lie outside the grid")
    elif censored:
        names = " and ".join(name.replace("_", " ") for name in censored)
        warnings.append(f"the minimum is not known to be inside the grid in {names}: extend the grid or add seeds")
    if with_intervals and direction[1] - direction[0] >= 180:
        warnings.append("no direction is salient: the curvatures are not told apart from each other")
    return warnings


# The minimum


def _minimum_interval(fit: _Fit, cells: np.ndarray, place: np.ndarray, factor: Factor) -> Interval:
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


def _end_of_accepted(fit: _Fit, factor: Factor, best: float, end: float, span: float, reach: float) -> float:
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


def _departure(fit: _Fit, factor: Factor, values: np.ndarray, span: float) -> np.ndarray:
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


def _gradient_departure(fit: _Fit, x: np.ndarray, y: np.ndarray) -> np.ndarray:
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


def _loss_at_minimum(fit: _Fit, place: np.ndarray, with_intervals: bool) -> tuple[float, Interval]:
    if np.isnan(place).any():
        return math.nan, NO_INTERVAL
    row = _basis(place[:1], place[1:])[0]
    value = float(row @ fit.coefficients)
    if not with_intervals:
        return value, NO_INTERVAL
    half = math.sqrt(fit.scale.reach * float(row @ fit.unit_covariance @ row))
    return value, (value - half, value + half)


# Directions


def _salient_direction(fit: _Fit, with_intervals: bool) -> tuple[float, Interval]:
    """Half the angle of (c3 - c5, c4): the direction of the largest second derivative."""
    rows = np.array([[0, 0, 0, 1, 0, -1], [0, 0, 0, 0, 1, 0]], dtype=float)
    covariance = rows @ fit.covariance @ rows.T if with_intervals else None
    return _half_angle(rows @ fit.coefficients, covariance, fit.scale)


def _active_direction(fit: _Fit, with_intervals: bool) -> tuple[float, Interval]:
    """Half the angle of (M11 - M22, 2 M12), M = mean of gradient gradient' over the fitted cells.

    Both are quadratic forms c' Q c; errors of c add tr(Q C) to their means, and their covariances are
    4 c' Q1 C Q2 c + 2 tr(Q1 C Q2 C), of which the estimated c makes 4 tr(Q1 C Q2 C) more.
    """
    gradients = _gradient_basis(*(fit.cells[:, :2] - fit.center).T)
    by_x, by_y = gradients[:, 0], gradients[:, 1]
    count = len(gradients)
    cross = by_x.T @ by_y
    forms = [(by_x.T @ by_x - by_y.T @ by_y) / count, (cross + cross.T) / count]
    c = fit.coefficients
    vector = np.array([c @ form @ c for form in forms])
    if not with_intervals:
        return _half_angle(vector, None, fit.scale)
    noise = fit.covariance
    vector = vector - [np.trace(form @ noise) for form in forms]
    covariance = np.empty((2, 2))
    for i, first in enumerate(forms):
        for j, second in enumerate(forms):
            middle = first @ noise @ second
            covariance[i, j] = 4 * c @ middle @ c - 2 * np.trace(middle @ noise)
    values, axes = np.linalg.eigh(covariance)
    smallest = 2 * min(float(np.trace(form @ noise @ form @ noise)) for form in forms)
    covariance = (axes * np.maximum(values, smallest)) @ axes.T
    return _half_angle(vector, covariance, fit.scale)


def _half_angle(vector: np.ndarray, covariance: np.ndarray | None, scale: ErrorScale) -> tuple[float, Interval]:
    """Half the vector's angle in degrees, and the half angles whose perpendicular component may be 0.

    Accepted are unit normals n with n' W n <= 0, W = vector vector' - quantile^2 covariance: those within
    arctan sqrt(-second / first) of the eigenvector of W's second (negative) eigenvalue. All of them if the vector is
    not told from 0: a pair of numbers at once, so by the F test. Noise alone then claims a direction in 1 - level of
    all cases.
    """
    angle = _axial(math.degrees(math.atan2(vector[1], vector[0])) / 2)
    everything = (angle - 90.0, angle + 90.0)
    outer = np.outer(vector, vector)
    # vector' covariance^-1 vector > pair_quantile^2 is the same as a positive eigenvalue here, and divides by nothing.
    if covariance is None or np.linalg.eigvalsh(outer - scale.pair_quantile**2 * covariance)[1] <= 0:
        return angle, everything
    values, axes = np.linalg.eigh(outer - scale.quantile**2 * covariance)
    axis = axes[:, 1] * math.copysign(1.0, float(axes[:, 1] @ vector))
    middle = math.degrees(math.atan2(axis[1], axis[0])) / 2
    half = math.degrees(math.atan(math.sqrt(max(-values[0] / values[1], 0.0)))) / 2
    middle = angle + _axial(middle - angle)
    return angle, (min(middle - half, angle), max(middle + half, angle))


def _axial(degrees: float) -> float:
    """The same direction in (-90, 90]."""
    turned = math.remainder(degrees, 180.0)
    return 90.0 if turned == -90.0 else turned


def _ratio_interval(fit: _Fit, angle: float, direction: Interval, with_intervals: bool) -> Interval:
    """Of |first / second| eigenvalue: Fieller's, at the fitted direction; infinite if the second may be 0."""
    if not with_intervals:
        return 0.0, math.inf
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    rows = np.array(
        [
            [0, 0, 0, 2 * cosine**2, 2 * cosine * sine, 2 * sine**2],
            [0, 0, 0, 2 * sine**2, -2 * cosine * sine, 2 * cosine**2],
        ]
    )
    _, (low, high) = _half_angle(rows @ fit.coefficients, rows @ fit.covariance @ rows.T, fit.scale)
    if high - low >= 180:
        return 0.0, math.inf
    # Twice these angles are arctan(second / first): 45 degrees are equal eigenvalues, 0 is no second one.
    tangents = [abs(math.tan(math.radians(2 * end))) if abs(2 * end) < 90 else math.inf for end in (low, high)]
    largest = max(tangents)
    smallest = 0.0 if low <= 0 <= high else min(tangents)
    lowest_ratio = 1 / largest if largest > 0 else math.inf
    if low > -22.5 and direction[1] - direction[0] < 180:
        lowest_ratio = max(lowest_ratio, 1.0)  # of two positive eigenvalues the first is the larger
    return lowest_ratio, 1 / smallest if smallest > 0 else math.inf


# The flat set


def _flat_set(surface: LossSurface, tolerance: float, factor: Factor | None) -> FlatSet:
    if not tolerance > 0:
        raise InputError(f"tolerance={show(tolerance)} must be above 0, such as 0.0025")
    name, to_factor, along_column = _factor_axes(surface, factor)
    cells = surface.fitted_cells
    lower, upper = _hull(np.column_stack([cells @ to_factor, cells[:, along_column]]))
    s = np.linspace(lower[0, 0], lower[-1, 0], _FLAT_COLUMNS)[:, None]
    bottom, top = np.interp(s, *lower.T), np.interp(s, *upper.T)
    t = bottom + (top - bottom) * np.linspace(0, 1, _FLAT_ROWS)
    loss = surface.loss_at(*_from_axes(s, t, to_factor, along_column))
    lowest = float(loss.min())
    limit = lowest + tolerance * abs(lowest)
    inside = loss <= limit
    middle = int(np.unravel_index(np.argmin(loss), loss.shape)[0])
    has_set = np.any(inside, axis=1)
    num_columns = np.ptp(np.flatnonzero(has_set))
    along: Interval | None = None
    across = _run_around(middle, np.asarray(np.all(inside, axis=1)))
    if across is None or across[1] - across[0] < 0.5 * num_columns:
        boxes = []
        for part in BOX_PARTS:  # of the tolerance, that the other hyperparameter may use up
            ends = t[loss <= lowest + part * (limit - lowest)]
            box = (float(ends.min()), float(ends.max()))
            inner = np.clip(t, *box)
            in_box = (bottom <= inner) & (inner <= top)
            good = ~in_box | (surface.loss_at(*_from_axes(s, inner, to_factor, along_column)) <= limit)
            columns = _run_around(middle, np.asarray(np.all(good, axis=1) & np.any(in_box, axis=1)))
            if columns is not None:
                boxes.append(((columns[1] - columns[0]) * (box[1] - box[0]), columns, box))
        if boxes:
            _, across, along = max(boxes)
    first, last = across if across is not None else (middle, middle)
    chord = (top - bottom)[:, 0]
    return FlatSet(
        tolerance=tolerance,
        limit=limit,
        factor=name,
        across=(float(s[first, 0]), float(s[last, 0])),
        along_name="LR" if along_column == 0 else "WD",
        along=along,
        extent_across=(float(s[has_set].min()), float(s[has_set].max())),
        extent_along=(float(t[inside].min()), float(t[inside].max())),
        share=float(chord @ inside.mean(axis=1) / chord.sum()),
        warnings=_flat_warnings(surface, limit - lowest),
        _surface=surface,
    )


def _flat_warnings(surface: LossSurface, allowed: float) -> tuple[str, ...]:
    warnings = []
    if surface.is_censored:
        warnings.append("the minimum is not known to be inside the grid: better pairs may lie outside")
    low, high = surface.minimum_loss_interval
    if (high - low) / 2 > allowed:
        warnings.append("the lowest loss is known less well than the tolerance: the set's limits are guesses")
    return tuple(warnings)


def _factor_axes(surface: LossSurface, factor: Factor | None) -> tuple[str, np.ndarray, int]:
    """The factor's name, its weights of (log2 LR, log2 WD), and which of the two runs along."""
    factor = factor or surface.salient_factor
    if factor is not None and factor not in NAMED_DIRECTIONS:
        raise InputError(f"factor={show(factor)} must be one of {', '.join(NAMED_DIRECTIONS)}")
    low, high = surface.salient_direction_interval
    fitted = surface.salient_direction if high - low < 180 else surface.active_direction  # a plane has only the latter
    angle = NAMED_DIRECTIONS[factor] if factor is not None else fitted
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    if abs(angle) < 45 - 1e-9:
        power = round(sine / cosine, 2)
        return factor or f"LR * WD^{power:g}", np.array([1.0, power]), 1
    power = round(cosine / sine, 2) if factor != "WD" else 0.0
    return factor or f"LR^{power:g} * WD", np.array([power, 1.0]), 0


def _from_axes(s: np.ndarray, t: np.ndarray, to_factor: np.ndarray, along_column: int) -> tuple[np.ndarray, np.ndarray]:
    """(log2 LR, log2 WD) of points with log2 factor s and the other hyperparameter t."""
    other = s - to_factor[along_column] * t  # its weight is 1
    return (t, other) if along_column == 0 else (other, t)


def _run_around(middle: int, good: np.ndarray) -> tuple[int, int] | None:
    """First and last of the good columns around the middle one."""
    if not good[middle]:
        return None
    bad = np.flatnonzero(~good)
    before, after = bad[bad < middle], bad[bad > middle]
    return int(before[-1]) + 1 if len(before) else 0, int(after[0]) - 1 if len(after) else len(good) - 1


def _hull(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper chain of the convex hull, each from left to right (Andrew's monotone chain)."""
    ordered = np.unique(points, axis=0)
    return _chain(ordered, 1.0), _chain(ordered, -1.0)


def _chain(ordered: np.ndarray, sign: float) -> np.ndarray:
    left, right = ordered[0, 0], ordered[-1, 0]
    # At either end only the outermost point counts.
    edge = min if sign > 0 else max
    ends = {side: edge(float(y) for x, y in ordered if x == side) for side in (left, right)}
    chain: list[tuple[float, float]] = []
    for x, y in [(left, ends[left]), *ordered[(ordered[:, 0] > left) & (ordered[:, 0] < right)], (right, ends[right])]:
        while len(chain) >= 2:
            (x1, y1), (x2, y2) = chain[-2:]
            if sign * ((x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)) > 0:
                break
            chain.pop()
        chain.append((float(x), float(y)))
    return np.array(chain)


def _powers(interval: Interval) -> str:
    return f"[2^{interval[0]:.2f}, 2^{interval[1]:.2f}]"
