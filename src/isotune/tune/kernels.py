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
from collections.abc import Callable
from dataclasses import dataclass, field, replace

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

    def place(self, points: Points) -> Placed:
        """The points as this kernel sees them, computed once."""
        coordinates = self.coordinates(points)
        across = coordinates[:, :2] / self.scales[:2]
        budgets, which = np.unique(points[:, 3], return_inverse=True)
        return Placed(self.terms(coordinates), across, budgets, which, points[:, 4])

    def expected(self, placed: Placed, size: float) -> np.ndarray:
        """The log losses before anything is observed."""
        return np.asarray(placed.terms @ (self.mean * size**self.powers))

    def parts(self, first: Placed, second: Placed, seeds: np.ndarray | float) -> Parts:
        """What the covariance of two sets of points is made of, at any size and for all kernels of this view; `seeds`
        is that of what seeds do, which is the same for all."""
        departures = self._along(first.budgets, second.budgets)[:, second.which][first.which]
        departures *= _nearness(first.across, second.across)
        return Parts(first.terms, second.terms, departures, seeds)

    def variance(self, placed: Placed, size: float, scatter: float) -> np.ndarray:
        """The diagonal of the covariance of these points."""
        levels = np.where(placed.seed == NEW, 0.0, SEED_LEVEL**2)
        of_seeds = np.where(np.isnan(placed.seed), 0.0, levels + SEED_NOISE**2)
        trend = ((placed.terms * self.deviations(size)) ** 2).sum(axis=1)
        departures = self.departure**2 + self.gap**2 * np.maximum(-placed.budgets, 0.0)
        departures *= size * self.roughness**2
        return np.asarray(trend + departures[placed.which] + scatter**2 * of_seeds)

    def deviations(self, size: float) -> np.ndarray:
        return np.asarray(self.deviation * size**self.powers)

    def _along(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """How much departures share by the budgets alone, of which there are few."""
        near = self.departure**2 * np.exp(((first[:, None] - second) / self.scales[2]) ** 2 / -2)
        return np.asarray(near + self.gap**2 * np.maximum(0.0, np.minimum(-first[:, None], -second)))


@dataclass(frozen=True)
class Parts:
    """A covariance [first x second] that is to be had for several kernels and at several sizes."""

    first_terms: np.ndarray
    second_terms: np.ndarray
    departures: np.ndarray
    seeds: np.ndarray | float

    def covariance(self, kernel: Kernel, size: float, scatter: float) -> np.ndarray:
        """Before anything is observed."""
        return np.asarray(self.without_seeds(kernel, size) + scatter**2 * self.seeds)

    def without_seeds(self, kernel: Kernel, size: float) -> np.ndarray:
        squares = kernel.deviations(size) ** 2
        departures = size * kernel.roughness**2 * self.departures
        return np.asarray((self.first_terms * squares) @ self.second_terms.T + departures)


@dataclass(frozen=True)
class Placed:
    """Points under a kernel: the trend's terms, scaled coordinates, budgets and seeds."""

    terms: np.ndarray
    across: np.ndarray
    budgets: np.ndarray  # log2 D'/D, each once
    which: np.ndarray  # of them, by point
    seed: np.ndarray

    def some(self, chosen: slice) -> Placed:
        return Placed(self.terms[chosen], self.across[chosen], self.budgets, self.which[chosen], self.seed[chosen])


def invariant_kernel(reference_log2_lr: float, deviation_octaves: float) -> Kernel:
    """WD matters through n alone: not at all where n << 1, as ELR where n >> 1."""

    def coordinates(points: Points) -> np.ndarray:
        lr, wd, steps, d, _ = points.T
        return np.column_stack([lr - reference_log2_lr - DRIFT * d, np.log2(1 + np.exp2(lr + wd + steps)), d])

    def terms(c: np.ndarray) -> np.ndarray:
        u, z, d = c.T
        w = u - LR_PER_MEMORY * z
        return np.column_stack(
            [np.ones(len(u)), d, d * d, w, w * w, w**3, w * d, w * d * d, w * w * d, z, z * z, z * w, z * d]
        )

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
        return np.column_stack([lr - reference_log2_lr, (wd - reference_log2_wd) / 1.5, d])

    def terms(c: np.ndarray) -> np.ndarray:
        u, v, d = c.T
        return np.column_stack([np.ones(len(u)), d, d * d, u, v, u * u, v * v, u * v, u * d, v * d])

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


def _columns(prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return prior[:, 0], prior[:, 1], prior[:, 2]


# What seeds do


def seed_covariance(first: Points, second: Points) -> np.ndarray | float:
    """[first x second] of what seeds do; points without a seed have none of it."""
    if np.isnan(first[:, 4]).all() or np.isnan(second[:, 4]).all():
        return 0.0
    return shared_covariance(first, second, first[:, 4, None] == second[:, 4])


def shared_covariance(first: Points, second: Points, same: np.ndarray) -> np.ndarray:
    """The same, where it is told how far the points have the same seeds."""
    shared = SEED_NOISE**2 * _nearness(_seed_places(first), _seed_places(second))
    shared *= np.exp(np.abs(first[:, 3, None] - second[:, 3]) / -SEED_OCTAVES)
    shared += SEED_LEVEL**2
    shared *= same
    return shared


def _seed_places(points: Points) -> np.ndarray:
    lr, wd, steps = points.T[:3]
    memory = np.where(np.isnan(steps), wd / SEED_WD_SCALE, np.log2(1 + np.exp2(lr + wd + steps)) / SEED_SCALES[1])
    return np.column_stack([lr / SEED_SCALES[0], memory])


def _nearness(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """exp(-distance^2 / 2) of all pairs."""
    logs = a @ b.T
    logs -= (a**2).sum(axis=1)[:, None] / 2
    logs -= (b**2).sum(axis=1) / 2
    return np.exp(logs, out=logs)
