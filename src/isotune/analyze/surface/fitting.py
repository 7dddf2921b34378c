"""The loss surface: a fitted paraboloid with its minimum, directions and flat set."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws import NO_INTERVAL, Interval, is_constant
from isotune.analyze.surface.cells import Cell, cells_within, loss_limit, usable_cells
from isotune.analyze.surface.directions import (
    Factor,
    active_direction,
    named_factor,
    ratio_interval,
    salient_direction,
)
from isotune.analyze.surface.flat_set import TOLERANCE, FlatSet, find_flat_set
from isotune.analyze.surface.hull import hull_chains
from isotune.analyze.surface.minimum import loss_at_minimum, minimum_interval
from isotune.analyze.surface.paraboloid import NUM_COEFFICIENTS, Paraboloid, basis, fit_warnings, least_squares
from isotune.errors import InputError
from isotune.recipe.quantities import show

LARGEST_LOSS = 1e100  # squares of squares of larger ones are no numbers
MARGIN = 0.06  # DESIGN 6.11: cells within 6 % of the best


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
        """The one of LR, ELR and WD that the direction of the largest curvature is near to."""
        return named_factor(self.salient_direction_interval)

    @property
    def active_factor(self) -> Factor | None:
        """The one of LR, ELR and WD that the direction in which the loss changes most over the cells is near to."""
        return named_factor(self.active_direction_interval)

    def loss_at(self, log2_learning_rate: ArrayLike, log2_weight_decay: ArrayLike) -> np.ndarray:
        """The fitted loss at points."""
        x = np.asarray(log2_learning_rate, dtype=float) - self.center[0]
        y = np.asarray(log2_weight_decay, dtype=float) - self.center[1]
        return basis(x, y) @ np.array(self.coefficients)

    def contains(self, log2_learning_rate: ArrayLike, log2_weight_decay: ArrayLike) -> np.ndarray:
        """Whether points are in the hull of the fitted cells; elsewhere `loss_at` extrapolates."""
        x, y = np.asarray(log2_learning_rate, dtype=float), np.asarray(log2_weight_decay, dtype=float)
        lower, upper = hull_chains(self.fitted_cells)
        inside = (lower[0, 0] <= x) & (x <= lower[-1, 0])
        slack = 1e-9 * max(1.0, float(np.ptp(self.fitted_cells[:, 1])))
        return inside & (np.interp(x, *lower.T) - slack <= y) & (y <= np.interp(x, *upper.T) + slack)

    def flat_set(self, tolerance: float = TOLERANCE, factor: Factor | None = None) -> FlatSet:
        """The points as good as the lowest, `tolerance` relative, told in one factor.

        Without a factor it is the salient one; where none is, the fitted direction itself, as a product LR * WD^power.
        """
        return find_flat_set(self, tolerance, factor)


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
    cells, weight, warnings = usable_cells(log2_learning_rate, log2_weight_decay, loss, weights, standard_errors)
    if (largest := float(np.abs(cells[:, 2]).max())) > LARGEST_LOSS:
        raise InputError(f"a loss is {largest:.3g}, whose square is no number: leave out runs that exploded")
    if is_constant(cells[:, 2]):
        raise InputError(f"all {len(cells)} cells have the loss {cells[0, 2]:g}: nothing depends on LR or WD")
    used_margin, chosen = cells_within(cells, margin)
    if used_margin > margin:
        count = int(np.sum(cells[:, 2] <= loss_limit(cells, margin)))
        warnings.append(
            f"{count} cells are within {margin:.3g} of the best: the margin was widened to {used_margin:.3g}"
        )
    known = standard_errors is not None
    fit = least_squares(cells[chosen], weight[chosen], known, level)
    warnings += fit_warnings(fit, known)
    return _surface(cells, fit, used_margin, level, intervals, warnings)


def _surface(
    cells: np.ndarray, fit: Paraboloid, margin: float, level: float, intervals: bool, warnings: list[str]
) -> LossSurface:
    with_intervals = intervals and fit.has_errors
    top, other = (float(value) for value in np.linalg.eigvalsh(fit.hessian)[::-1])
    is_convex = other > 0
    place = np.linalg.solve(fit.hessian, -fit.coefficients[1:3]) if is_convex else np.full(2, math.nan)
    ends = [NO_INTERVAL] * 3
    if is_convex and with_intervals:
        ends = [minimum_interval(fit, cells, place, factor) for factor in ("LR", "WD", "ELR")]
    minimum = place + fit.center
    lowest, loss_interval = loss_at_minimum(fit, place, with_intervals)
    salient, salient_interval = salient_direction(fit, with_intervals)
    active, active_interval = active_direction(fit, with_intervals)
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
        eigenvalue_ratio_interval=ratio_interval(fit, salient, salient_interval, with_intervals),
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
