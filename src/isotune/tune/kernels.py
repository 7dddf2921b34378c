"""What losses over LR, WD and budget may be like: kernels of Gaussian processes, one of which knows the trajectory
invariance.

The logarithm of the loss at (LR, WD, D') is a trend plus two smooth departures. Per point x, relative to the budget D
that is tuned for:

    d = log2 D'/D            how far from the target budget: 0 there, negative below
    u = log2 LR - reference  - drift * d            LR, along the drift of its optimum with the budget
    z = log2(1 + n)          n = LR * WD * steps:   0 where memory has not turned over (n << 1), so that WD cannot
                                                    matter; log2 ELR plus a constant where it has (n >> 1)

    log L = trend(w, z, d) + departure(u, z, d) + gap(u, z; d) + what the seed does + noise

where w = u - LR_PER_MEMORY * z: with a higher WD the best LR is higher, wherever it lies. The trend is a cubic in w and
a quadratic in z and d with Gaussian coefficients, so everything is linear and exact. The gap grows with the distance
from the target budget (Brownian in d): a short run says less about a long one.

What a seed does to a run it does to its neighbours too: runs with equal LR and n << 1 see the same data and take the
same way, whatever their WD. So other WDs do not average it out, and it is no part of what is asked for; a second seed
does, but has a level of its own. Points carry the seed; those without one (NaN) are the losses that seeds scatter
about. One run of a new seed tells nothing, since its level is not known, and two of them do: so that this is seen by
who looks one run ahead, a NEW seed's level is taken as known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

# Constants of the prior. They describe relative losses (log L) per octave and were set on tables/nano.
CURVATURE = 0.009  # per octave^2 of LR
DRIFT, DRIFT_DEVIATION = -0.15, 0.2  # octaves of the best LR per octave of budget: nano has -.25, the paper about 0
DRIFT_BEND = 0.05  # octaves of the best LR per octave^2 of budget
LR_PER_MEMORY = 1 / 3  # octaves of the best LR per octave of 1 + n
DEPARTURE, PLAIN_DEPARTURE = 0.004, 0.01
GAP = 0.006  # per square root of an octave of budget
ROUGHNESS = 3.0  # how much larger departures are where the surface is not smooth
SEED_NOISE = 0.0045  # shared by runs of one seed that are near each other in log2 LR, z and d
SEED_SCALES = (0.5, 0.6)  # in log2 LR and z
SEED_OCTAVES = 3.0  # of budget, over which it falls to 1/e: luck is added all along a run and fades step by step
SEED_LEVEL = 0.002  # shared by all runs of one seed
SEED_WD_SCALE = 3.0  # octaves of WD in the place of z where n is unknown

_Z = 9  # the place of z among the invariant kernel's terms; z^2 follows
INVARIANT, HELPED, ROUGH, PLAIN = "invariant", "invariant, WD may help", "invariant, rough", "plain"  # kernels' names
Points = np.ndarray  # [points x 5]: log2 LR, log2 WD, log2 steps (NaN if unknown), log2 D'/D, seed (NaN: none)
Chosen = slice | np.ndarray  # some of them
NEW = math.inf  # the seed of a run that could be asked for, where that seed was not asked yet


@dataclass(frozen=True, eq=False)
class Kernel:
    """A trend with Gaussian coefficients, and departures from it that are smooth in some coordinates."""

    name: str
    view: str  # kernels of one view differ in their coefficients alone
    coordinates: Callable[[Points], np.ndarray] = field(repr=False)  # [points x 3], the last one d
    terms: Callable[[np.ndarray], np.ndarray] = field(repr=False)  # coordinates -> [points x terms]
    mean: np.ndarray = field(repr=False)
    deviation: np.ndarray = field(repr=False)
    powers: np.ndarray = field(repr=False)  # how each term grows with the size of the loss's bowl
    scales: np.ndarray = field(repr=False)  # lengths over which departures change
    departure: float
    gap: float
    roughness: float = 1.0  # of its departures, against those of other kernels of its view

    def view_of(self, points: Points) -> View:
        """The points as this kernel, and all others of its view, see them."""
        coordinates = self.coordinates(points)
        return View(self.terms(coordinates), _for_nearness(coordinates[:, :2] / self.scales[:2]))

    def weights(self, size: float) -> Weights:
        """At such a size of the bowl."""
        return _weights(self, size)

    def coefficients(self, size: float) -> np.ndarray:
        """Of the terms, before anything is observed, at such a size of the bowl."""
        return _coefficients(self, size)

    def shared(self, first: Places, second: Places) -> Shared:
        """What the covariance of two sets of points is made of, for all kernels of this view and at any size."""
        first_view, second_view = first.views[self.view], second.views[self.view]
        departures = _along(self, first.budgets.tobytes(), second.budgets.tobytes())[:, second.which][first.which]
        departures *= _nearness(first_view.across, second_view.across)
        return Shared(first_view.terms, second_view.terms, departures)

    def variance(self, places: Places, weights: Weights) -> np.ndarray:
        """The diagonal of what points share with themselves, without seeds."""
        departures = self.departure**2 + self.gap**2 * np.maximum(-places.budgets, 0.0)
        return np.asarray(
            places.views[self.view].squares @ weights.squares + (weights.departures * departures)[places.which]
        )


@lru_cache(maxsize=64)
def _along(kernel: Kernel, first_budgets: bytes, second_budgets: bytes) -> np.ndarray:
    """How much departures share by the budgets alone, of which there are few."""
    first, second = np.frombuffer(first_budgets)[:, None], np.frombuffer(second_budgets)
    near = kernel.departure**2 * np.exp(((first - second) / kernel.scales[2]) ** 2 / -2)
    return np.asarray(near + kernel.gap**2 * np.maximum(0.0, np.minimum(-first, -second)))


def expected_losses(rivals: Sequence[tuple[Kernel, float]], places: Places) -> np.ndarray:
    """[rivals x points]: the log losses before anything is observed, by kernels of one view and the bowl's size."""
    coefficients = np.array([kernel.coefficients(size) for kernel, size in rivals])
    return np.asarray(coefficients @ places.views[rivals[0][0].view].terms.T)


@lru_cache(maxsize=256)
def _coefficients(kernel: Kernel, size: float) -> np.ndarray:
    return np.asarray(kernel.mean * size**kernel.powers)


@lru_cache(maxsize=256)
def _weights(kernel: Kernel, size: float) -> Weights:
    return Weights((kernel.deviation * size**kernel.powers) ** 2, size * kernel.roughness**2)


@dataclass(frozen=True)
class Weights:
    """Variances of a trend's coefficients, and a factor of the departures; of one kernel, of a sum over several of one
    view, or of several one after the other."""

    squares: np.ndarray
    departures: np.ndarray | float

    @staticmethod
    def of(rivals: Sequence[tuple[Kernel, float]]) -> Weights:
        """One after the other, by kernel and the bowl's size."""
        weights = [kernel.weights(size) for kernel, size in rivals]
        return Weights(np.array([one.squares for one in weights]), np.array([one.departures for one in weights]))

    def __rmul__(self, factor: float) -> Weights:
        return Weights(factor * self.squares, factor * self.departures)

    def __add__(self, other: Weights) -> Weights:
        return Weights(self.squares + other.squares, self.departures + other.departures)


@dataclass(frozen=True)
class Shared:
    """What the points of two sets, [first x second], share under the kernels of a view, seeds apart."""

    first_terms: np.ndarray
    second_terms: np.ndarray
    departures: np.ndarray

    def covariance(self, weights: Weights) -> np.ndarray:
        """Before anything is observed; for several weights [weights x first x second]."""
        total = np.matmul(self.first_terms * weights.squares[..., None, :], self.second_terms.T)
        total += np.asarray(weights.departures)[..., None, None] * self.departures
        return total


@dataclass(frozen=True)
class View:
    """Points under the kernels of a view: the trend's terms, and where departures are shared."""

    terms: np.ndarray
    across: np.ndarray  # for _nearness

    @cached_property
    def squares(self) -> np.ndarray:
        """Of the terms."""
        return self.terms**2

    def some(self, chosen: Chosen) -> View:
        return View(self.terms[chosen], self.across[chosen])


@dataclass(frozen=True)
class Places:
    """Points, and how the kernels of each view see them; made once, and taken apart where some are wanted."""

    points: Points
    budgets: np.ndarray  # log2 D'/D, each once
    which: np.ndarray  # of them, by point
    views: dict[str, View] = field(repr=False)
    luck: np.ndarray = field(repr=False)  # for _nearness: where what a seed does is shared, by LR and n, or WD
    departures: dict[str, np.ndarray] = field(default_factory=dict, repr=False)  # of the first ones with all, if known

    @staticmethod
    def of(kernels: Iterable[Kernel], points: Points) -> Places:
        points = np.asarray(points, dtype=float)
        budgets, which = distinct(points[:, 3])
        by_view = {kernel.view: kernel for kernel in kernels}
        views = {view: kernel.view_of(points) for view, kernel in by_view.items()}
        return Places(points, budgets, which, views, _luck_places(points))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def seeds(self) -> np.ndarray:
        """NaN: none."""
        return self.points[:, 4]

    def some(self, chosen: Chosen, view_names: Iterable[str] | None = None) -> Places:
        """Some of the places, as all views see them or only these."""
        names = self.views if view_names is None else view_names
        views = {name: self.views[name].some(chosen) for name in names}
        return Places(self.points[chosen], self.budgets, self.which[chosen], views, self.luck[chosen])

    def with_seeds(self, seeds: np.ndarray, departures: dict[str, np.ndarray]) -> Places:
        """The same with seeds; and what kernels share of departures between the first places and all."""
        points = self.points.copy()
        points[:, 4] = seeds
        return replace(self, points=points, departures=departures)

    def shared(self, kernel: Kernel, first: Chosen, second: slice) -> Shared:
        """What a kernel makes of the covariance of two parts of these places."""
        known = self.departures.get(kernel.view)
        if known is None or _end(first, len(self)) > len(known):
            return kernel.shared(self.some(first), self.some(second))
        terms = self.views[kernel.view].terms
        return Shared(terms[first], terms[second], known[first, second])


def _end(chosen: Chosen, length: int) -> int:
    """One more than the last of what is chosen, of so many."""
    return chosen.indices(length)[1] if isinstance(chosen, slice) else int(chosen.max(initial=-1)) + 1


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(each value once, ascending; which of them each is): the same as np.unique, whose checks take longer."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    found = ordered[is_first]
    return found, np.searchsorted(found, values)


def invariant_kernel(reference_log2_lr: float, deviation_octaves: float) -> Kernel:
    """WD matters through n alone: not at all where n << 1, as ELR where n >> 1."""

    def coordinates(points: Points) -> np.ndarray:
        lr, wd, steps, d, _ = points.T
        return _stacked(lr - reference_log2_lr - DRIFT * d, np.log2(1 + np.exp2(lr + wd + steps)), d)

    def terms(c: np.ndarray) -> np.ndarray:
        u, z, d = c.T
        columns = _stacked(np.ones(len(u)), d, u - LR_PER_MEMORY * z, z)
        return _products(columns, "1 d dd w ww www wd wdd wwd z zz zw zd", "1dwz")

    prior = np.array(
        [  # mean, deviation, power of the size
            (0.0, 3.0, 0.0),  # 1
            (-0.07, 0.05, 0.5),  # d
            (0.012, 0.012, 1.0),  # d^2
            (0.0, 2 * CURVATURE * deviation_octaves, 1.0),  # w
            (CURVATURE, 0.5 * CURVATURE, 1.0),  # w^2
            (-0.0007, 0.002, 1.0),  # w^3
            (0.0, 2 * CURVATURE * DRIFT_DEVIATION, 1.0),  # w d: how much the optimum drifts
            (0.0, 2 * CURVATURE * DRIFT_BEND, 1.0),  # w d^2: that it drifts less, or more, with the budget
            (-0.001, 0.003, 1.0),  # w^2 d
            (0.004, 0.006, 0.5),  # z
            (0.007, 0.003, 0.5),  # z^2
            (0.0, 0.003, 1.0),  # z w
            (0.0, 0.008, 1.0),  # z d: that WD helps short runs, or long ones
        ]
    )
    return Kernel(INVARIANT, "n", coordinates, terms, *_columns(prior), np.array([1.5, 1.2, 1.5]), DEPARTURE, GAP)


def helped_kernel(invariant: Kernel) -> Kernel:
    """The same, but for what WD does through n: it may help by much, where n is not large, however steep the bowl of LR
    is: a short run at a large batch has a steep one, and there WD helps."""
    mean, deviation, powers = invariant.mean.copy(), invariant.deviation.copy(), invariant.powers.copy()
    mean[_Z], deviation[_Z] = -0.01, 0.03
    mean[_Z + 1], deviation[_Z + 1] = 0.01, 0.0075
    powers[_Z : _Z + 2] = 0.0
    return replace(invariant, name=HELPED, mean=mean, deviation=deviation, powers=powers)


def rough_kernel(invariant: Kernel) -> Kernel:
    """The same, but for its departures: the bowl may be much steeper on one side, or bend where none does."""
    return replace(invariant, name=ROUGH, roughness=ROUGHNESS)


def plain_kernel(reference_log2_lr: float, reference_log2_wd: float) -> Kernel:
    """No invariance: smooth in log LR, log WD and log budget."""

    def coordinates(points: Points) -> np.ndarray:
        lr, wd, _, d, _ = points.T
        return _stacked(lr - reference_log2_lr, (wd - reference_log2_wd) / 1.5, d)

    def terms(c: np.ndarray) -> np.ndarray:
        u, v, d = c.T
        return _products(_stacked(np.ones(len(u)), d, u, v), "1 d dd u v uu vv uv ud vd", "1duv")

    prior = np.array(
        [  # mean, deviation, power of the size
            (0.0, 3.0, 0.0),  # 1
            (-0.07, 0.05, 0.5),  # d
            (0.012, 0.012, 1.0),  # d^2
            (0.0, 0.03, 1.0),  # u
            (0.0, 0.03, 1.0),  # v
            (0.006, 0.006, 1.0),  # u^2
            (0.006, 0.006, 1.0),  # v^2
            (0.0, 0.006, 1.0),  # u v
            (0.0, 0.006, 1.0),  # u d
            (0.0, 0.006, 1.0),  # v d
        ]
    )
    scales = np.array([1.5, 1.5, 1.5])
    return Kernel(PLAIN, "WD", coordinates, terms, *_columns(prior), scales, PLAIN_DEPARTURE, GAP)


def _stacked(*columns: np.ndarray) -> np.ndarray:
    """The same as np.column_stack, whose checks take longer than that."""
    return np.array(columns).T


def _products(columns: np.ndarray, products: str, names: str) -> np.ndarray:
    """Products of up to three columns, which have one-letter names, the first of them 1: "d wd" are d and w * d."""
    first, second, third = _factors(products, names)
    rows = columns.T
    return np.asarray((rows[first] * rows[second] * rows[third]).T)


@lru_cache(maxsize=8)
def _factors(products: str, names: str) -> np.ndarray:
    return np.array([[names.index(name) for name in product.ljust(3, "1")] for product in products.split()]).T


def _columns(prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return prior[:, 0], prior[:, 1], prior[:, 2]


# What seeds do


def seed_covariance(first: Places, second: Places) -> np.ndarray | float:
    """[first x second] of what seeds do; points without a seed have none of it."""
    if np.isnan(first.seeds).all() or np.isnan(second.seeds).all():
        return 0.0
    return shared_covariance(first, second, (first.seeds[:, None] == second.seeds).astype(float))


def shared_covariance(first: Places, second: Places, same: np.ndarray) -> np.ndarray:
    """The same, where it is told how far the points have the same seeds."""
    octaves = np.abs(first.budgets[:, None] - second.budgets)
    along = SEED_NOISE**2 * np.exp(octaves / -SEED_OCTAVES)
    shared = _nearness(first.luck, second.luck)
    shared *= along[:, second.which][first.which]
    shared += SEED_LEVEL**2
    shared *= same
    return shared


def seed_variance(seeds: np.ndarray) -> np.ndarray:
    """The diagonal of it; a seed that was not asked yet has a level that is taken as known."""
    levels = np.where(seeds == NEW, SEED_NOISE**2, SEED_NOISE**2 + SEED_LEVEL**2)
    return np.where(np.isnan(seeds), 0.0, levels)


def _luck_places(points: Points) -> np.ndarray:
    lr, wd, steps = points.T[:3]
    memory = np.log2(1 + np.exp2(lr + wd + steps)) / SEED_SCALES[1]
    return _for_nearness(_stacked(lr / SEED_SCALES[0], np.where(np.isnan(memory), wd / SEED_WD_SCALE, memory)))


# exp(-|a - b|^2 / 2) of all pairs is exp of one product of matrices: of (a, -|a|^2 / 2, 1) and (b, 1, -|b|^2 / 2).


def _for_nearness(a: np.ndarray) -> np.ndarray:
    x, y = a.T
    return _stacked(x, y, -(x * x + y * y) / 2, np.ones(len(a)))


def _nearness(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    logs = a @ b[:, (0, 1, 3, 2)].T
    return np.exp(logs, out=logs)
