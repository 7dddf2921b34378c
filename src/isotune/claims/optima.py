"""Where the minimum of a decayed loss is at each budget, and what law it follows; with draws of the seed bootstrap.

The measured losses are fitted by `isotune.analyze.surface`, which also says where a minimum is censored. For thousands
of draws the same paraboloid is fitted to all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from isotune.analyze.surface import LossSurface, fit_surface
from isotune.analyze.surface.paraboloid import COMFORTABLE_CELLS, basis
from isotune.analyze.truth import smooth_surface
from isotune.claims.grids import GridLosses
from isotune.claims.rules import Entry
from isotune.errors import InputError

CENSORING_LEVEL = 0.9
MIN_ERROR = 1e-3  # octaves: the ends of a minimum's interval are not searched for more finely


@dataclass(frozen=True)
class Paraboloids:
    """The paraboloids of many draws; NaN where one could not be fitted, and in minima where one is not convex."""

    minimum: np.ndarray  # [draws x 2]: log2 LR, log2 WD
    lowest: np.ndarray
    angle: np.ndarray  # degrees of the first eigenvector, in (-90, 90]
    eigenvalue_ratio: np.ndarray  # |first / second|


def fit_paraboloids(
    log2_lr: np.ndarray, log2_wd: np.ndarray, losses: np.ndarray, weights: np.ndarray, margin: float
) -> Paraboloids:
    """The paraboloids of losses [draws x cells], each through its own cells within the margin of its best."""
    centre = np.array([log2_lr.mean(), log2_wd.mean()])
    columns = basis(log2_lr - centre[0], log2_wd - centre[1])
    size = np.abs(columns).max(axis=0)
    losses = np.where(np.isfinite(losses), losses, np.inf)
    ordered = np.sort(losses, axis=1)
    count = np.sum(losses <= (ordered[:, 0] + margin * np.abs(ordered[:, 0]))[:, None], axis=1)
    count = np.maximum(count, min(COMFORTABLE_CELLS, losses.shape[1]))
    c = np.full((len(losses), 6), np.nan)
    left = np.arange(len(losses))
    while len(left):  # cells that do not fix a paraboloid: one more
        limit = ordered[left, count[left] - 1][:, None]
        used = (losses[left] <= limit) & np.isfinite(losses[left])
        c[left] = _least_squares(columns / size, np.where(used, losses[left], 0.0), used * weights) / size
        count[left] += 1
        left = left[np.isnan(c[left, 0]) & (count[left] <= losses.shape[1])]
    hessian = np.stack([np.stack([2 * c[:, 3], c[:, 4]], -1), np.stack([c[:, 4], 2 * c[:, 5]], -1)], -2)
    angle = np.degrees(np.arctan2(c[:, 4], c[:, 3] - c[:, 5])) / 2
    middle, half = c[:, 3] + c[:, 5], np.hypot(c[:, 3] - c[:, 5], c[:, 4])
    top, other = middle + half, middle - half
    is_convex = other > 0
    place = _solved(np.where(is_convex[:, None, None], hessian, np.nan), -c[:, 1:3])
    lowest = c[:, 0] + np.einsum("di,di->d", c[:, 1:3], place) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(top / other)
    return Paraboloids(place + centre, lowest, np.where(angle == -90, 90.0, angle), ratio)


@dataclass(frozen=True)
class BudgetOptimum:
    """A budget's fitted surface, and the same paraboloid in every draw."""

    tokens: int
    surface: LossSurface
    drawn: Paraboloids

    def optimum(self, factor: str) -> tuple[float, np.ndarray]:
        """log2 of the factor at the minimum, measured and drawn."""
        x, y = self.drawn.minimum.T
        drawn = {"learning_rate": x, "weight_decay": y, "effective_learning_rate": x + y}[factor]
        return float(getattr(self.surface, f"minimum_log2_{factor}")), drawn

    def error(self, factor: str) -> float:
        """The standard error of that."""
        low, high = getattr(self.surface, f"minimum_log2_{factor}_interval")
        return max(float(high - low) / (2 * float(ndtri((1 + self.surface.level) / 2))), MIN_ERROR)


@dataclass(frozen=True)
class OptimumLaw:
    """log2 optimum = a + exponent * log2 tokens: measured, and in each draw."""

    exponent: float
    exponent_drawn: np.ndarray
    intercept: float  # at 1 token
    intercept_drawn: np.ndarray
    budgets: tuple[int, ...]  # uncensored ones

    def at(self, tokens: float) -> tuple[float, np.ndarray]:
        """log2 of the optimum by the law, measured and drawn."""
        x = math.log2(tokens)
        return self.intercept + self.exponent * x, self.intercept_drawn + self.exponent_drawn * x


@dataclass(frozen=True)
class Surfaces:
    """The surfaces of all budgets of a grid."""

    grid: GridLosses
    drawn: np.ndarray  # losses, [draws x cells x budgets]
    optima: dict[int, BudgetOptimum | None]  # None where no paraboloid can be fitted

    def law(self, factor: str, min_budgets: float) -> OptimumLaw | None:
        """The law of the factor's optimum over the uncensored budgets; None where these are too few."""
        return fit_law(list(self.optima.values()), factor, int(min_budgets))

    def best(self, budget: int) -> BestLoss:
        """The best loss at a budget: the surface's minimum or, where that is censored, the lowest posterior mean."""
        optimum = self.optima[budget]
        if optimum is not None and not optimum.surface.is_censored:
            return BestLoss(optimum.surface.minimum_loss, optimum.drawn.lowest, "surface")
        grid, index = self.grid, self.grid.budgets.index(budget)
        smooth = smooth_surface(grid.log2_lr, grid.log2_wd, grid.loss[:, index], grid.covariance(index))
        measured = float(smooth.truth(grid.loss[:, index]).min())
        return BestLoss(measured, smooth.truth(self.drawn[:, :, index]).min(axis=1), "posterior mean")

    @property
    def last(self) -> BudgetOptimum | None:
        """The surface of the longest budget."""
        return self.optima[self.grid.budgets[-1]]

    @property
    def num_inside(self) -> int:
        """How many budgets have their minimum inside the grid."""
        return sum(_is_inside(one) for one in self.optima.values())


@dataclass(frozen=True)
class BestLoss:
    value: float
    drawn: np.ndarray
    source: str


def fit_surfaces(grid: GridLosses, entry: Entry, stream: int = 0) -> Surfaces:
    """The surfaces of each budget, as measured and in every draw."""
    drawn = grid.drawn(entry, stream)
    x, y, weights, margin = grid.log2_lr, grid.log2_wd, grid.num_seeds.astype(float), entry["surface_margin"]
    optima: dict[int, BudgetOptimum | None] = {}
    for index, budget in enumerate(grid.budgets):
        try:
            surface = fit_surface(x, y, grid.loss[:, index], weights=weights, margin=margin, level=CENSORING_LEVEL)
        except InputError:
            optima[budget] = None
            continue
        optima[budget] = BudgetOptimum(budget, surface, fit_paraboloids(x, y, drawn[:, :, index], weights, margin))
    return Surfaces(grid, drawn, optima)


def fit_law(optima: Sequence[BudgetOptimum | None], factor: str, min_budgets: int) -> OptimumLaw | None:
    """The law of the uncensored optima, weighted by their errors; None where there are too few of them.

    A draw leaves out the budgets at which its paraboloid is not convex; with too few left it is NaN.
    """
    inside = [one for one in optima if one is not None and _is_inside(one)]
    if len(inside) < min_budgets:
        return None
    log_tokens = np.log2([one.tokens for one in inside])
    weights = np.array([one.error(factor) ** -2.0 for one in inside])
    found = [one.optimum(factor) for one in inside]
    measured = _weighted_line(log_tokens, np.array([[value for value, _ in found]]), weights, min_budgets)
    drawn = _weighted_line(log_tokens, np.column_stack([values for _, values in found]), weights, min_budgets)
    budgets = tuple(one.tokens for one in inside)
    return OptimumLaw(float(measured[1][0]), drawn[1], float(measured[0][0]), drawn[0], budgets)


def _is_inside(one: BudgetOptimum | None) -> bool:
    return one is not None and not one.surface.is_censored


def _weighted_line(x: np.ndarray, y: np.ndarray, weights: np.ndarray, min_points: int) -> tuple[np.ndarray, np.ndarray]:
    """(intercepts, slopes) of y [draws x points] on x."""
    there = np.isfinite(y)
    weight = np.where(there, weights, 0.0)
    total = weight.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        x_mean = (weight @ x)[:, None] / total
        y_mean = np.sum(weight * np.where(there, y, 0.0), axis=1, keepdims=True) / total
        dx, dy = x - x_mean, np.where(there, y - y_mean, 0.0)
        slope = np.sum(weight * dx * dy, axis=1) / np.sum(weight * dx**2, axis=1)
    slope = np.where(there.sum(axis=1) >= min_points, slope, np.nan)
    return y_mean[:, 0] - slope * x_mean[:, 0], slope


def _least_squares(columns: np.ndarray, losses: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The coefficients of each draw, NaN where the cells with a weight do not fix them."""
    products = (columns[:, :, None] * columns[:, None, :]).reshape(len(columns), -1)
    matrix = (weights @ products).reshape(len(losses), columns.shape[1], columns.shape[1])
    return _solved(matrix, (losses * weights) @ columns)


def _solved(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solutions of many small systems; NaN where there is none."""
    solution = np.full(right.shape, np.nan)
    usable = np.isfinite(matrix).all(axis=(1, 2))
    usable[usable] = np.linalg.cond(matrix[usable]) < 1e14
    solution[usable] = np.linalg.solve(matrix[usable], right[usable][..., None])[..., 0]
    return solution
