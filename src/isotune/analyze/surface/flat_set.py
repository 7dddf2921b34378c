"""Where a fitted surface is flat: the pairs (LR, WD) that are as good as the lowest, told in one factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws import Interval
from isotune.analyze.surface.directions import NAMED_DIRECTIONS, Factor
from isotune.analyze.surface.hull import hull_chains
from isotune.errors import InputError
from isotune.recipe.quantities import show
from isotune.runs.trajectory import WeightDecayConvention

if TYPE_CHECKING:  # it has flat sets: at run time the import would be a circle
    from isotune.analyze.surface.fitting import LossSurface

TOLERANCE = 0.0025  # of the flat set: a loss this much above the lowest is as good
BOX_PARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_FLAT_COLUMNS, _FLAT_ROWS = 401, 101


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
    _to_factor: tuple[float, float] = field(repr=False, compare=False)  # weights of (log2 LR, log2 WD)

    @property
    def is_limited_along(self) -> bool:
        """Whether the other hyperparameter matters too."""
        return self.along is not None

    @property
    def description(self) -> str:
        """The set in a sentence."""
        return self.describe()

    def describe(
        self, convention: WeightDecayConvention = "coupled", moved_by: tuple[float, float] = (0.0, 0.0)
    ) -> str:
        """The set in a sentence, for those whose weight decay is meant like that; `moved_by` octaves of LR and WD."""
        across = sum(weight * octaves for weight, octaves in zip(self._to_factor, moved_by, strict=True))
        words = f"any (LR, WD) of the grid with {self._name(self.factor, convention)} in {_powers(self.across, across)}"
        along_name = self._name(self.along_name, convention)
        if self.along is not None:
            words += f" and {along_name} in {_powers(self.along, moved_by[0 if self.along_name == 'LR' else 1])}"
        words += f" is within {100 * self.tolerance:.3g} % of the lowest fitted loss"
        return words if self.along is None else f"{words}; beyond that {along_name} matters too"

    @staticmethod
    def _name(factor: str, convention: WeightDecayConvention) -> str:
        """An independent WD is an ELR, and over LR what the others call WD."""
        if convention != "independent":
            return factor
        return "WD" if factor == "ELR" else factor.replace("WD", "(WD / LR)") if factor != "WD" else "WD / LR"

    def contains(self, log2_learning_rate: ArrayLike, log2_weight_decay: ArrayLike) -> np.ndarray:
        """Whether points are in the set."""
        inside = self._surface.contains(log2_learning_rate, log2_weight_decay)
        return inside & (self._surface.loss_at(log2_learning_rate, log2_weight_decay) <= self.limit)


def find_flat_set(surface: LossSurface, tolerance: float, factor: Factor | None) -> FlatSet:
    if not tolerance > 0:
        raise InputError(f"tolerance={show(tolerance)} must be above 0, such as 0.0025")
    name, to_factor, along_column = _factor_axes(surface, factor)
    cells = surface.fitted_cells
    lower, upper = hull_chains(np.column_stack([cells @ to_factor, cells[:, along_column]]))
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
        _to_factor=(float(to_factor[0]), float(to_factor[1])),
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


def _powers(interval: Interval, moved_by: float = 0.0) -> str:
    return f"[2^{interval[0] + moved_by:.2f}, 2^{interval[1] + moved_by:.2f}]"
