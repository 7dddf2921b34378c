"""What is believed of the loss over LR, WD and budget: a Gaussian process whose prior knows the trajectory invariance.

The logarithm of the loss at (LR, WD, D') is a trend plus two smooth departures. Per observation x, relative to the
budget D that is tuned for:

    d = log2 D'/D            how far from the target budget: 0 there, negative below
    u = log2 LR - reference  - drift * d            LR, along the drift of its optimum with the budget
    z = log2(1 + n)          n = LR * WD * steps:   0 where memory has not turned over (n << 1), so that WD cannot
                                                    matter; log2 ELR plus a constant where it has (n >> 1)

    log L = trend(w, z, d) + departure(u, z, d) + gap(u, z; d) + what the seed does + noise

where w = u - LR_PER_MEMORY * z: with a higher WD the best LR is higher, wherever it lies. The trend is a cubic in w and
a quadratic in z and d with Gaussian coefficients, so everything is linear and exact. The
gap grows with the distance from the target budget (Brownian in d): a short run says less about a long one. That WD
matters through z alone is the prior; a rival without it, smooth in log LR and log WD, stands beside it, and what is
observed decides between them by their marginal likelihoods. So do two more, under which WD matters through z alone,
too. By one it may help by much: where runs are short n is small, and nothing that was seen speaks against it. By the
other the surface is less smooth: where seeds scatter much, evidence is slow to say so, and a smooth bowl would be sure
of LRs that hardly ran.

What a seed does to a run it does to its neighbours too: runs with equal LR and n << 1 see the same data and take the
same way, whatever their WD. So other WDs do not average it out, and it is no part of what is asked for; a second seed
does, but has a level of its own. Points carry the seed; those without one (NaN) are the losses that seeds scatter
about. How much they scatter is a matter of evidence, too. One run of a new seed tells nothing, since its level is not
known, and two of them do: so that this is seen by who looks one run ahead, a NEW seed's level is taken as known.

The model is local: far above the best of its budget a loss says that it is bad, not how the bowl bends, so its noise
is raised with its excess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.linalg import lapack

# Constants of the prior. They describe relative losses (log L) per octave and were set on tables/nano.
CURVATURE = 0.009  # per octave^2 of LR
DRIFT, DRIFT_DEVIATION = -0.15, 0.2  # octaves of the best LR per octave of budget: nano has -.25, the paper about 0
DRIFT_BEND = 0.05  # octaves of the best LR per octave^2 of budget
LR_PER_MEMORY = 1 / 3  # octaves of the best LR per octave of 1 + n
DEPARTURE, PLAIN_DEPARTURE = 0.004, 0.01
GAP = 0.006  # per square root of an octave of budget
NOISE = 0.0015  # of a loss, by itself
SEED_NOISE = 0.0045  # shared by runs of one seed that are near each other in log2 LR, z and d
SEED_SCALES = (0.5, 0.6)  # in log2 LR and z
SEED_OCTAVES = 3.0  # of budget, over which it falls to 1/e: luck is added all along a run and fades step by step
SEED_LEVEL = 0.002  # shared by all runs of one seed
SEED_WD_SCALE = 3.0  # octaves of WD in the place of z where n is unknown
EXCESS, EXCESS_FROM = 0.25, 0.02  # noise per excess over the best of the same budget, from where on
INVARIANCE_ODDS = 4.0  # that WD matters through n alone, before anything is seen
HELP_ODDS = 2.0  # that it does so, and may help by more than it does on tables/nano
ROUGH_ODDS, ROUGHNESS = 1.0, 3.0  # that it does so, on a surface that is so much less smooth
# How steep the loss is against what the constants above say: a run that is short for its model, or a large batch, has a
# deeper bowl. Each size is a rival with these odds, and evidence decides. Departures grow with its root alone: near the
# optimum a deep bowl is not much rougher than a flat one.
SIZES = {0.5: 1.0, 1.0: 2.0, 2.0: 2.0, 4.0: 1.0, 8.0: 0.5}
# How much more seeds scatter than the constants above say, with odds: nano's large batch does so by a factor of 4.6.
SCATTERS = {0.5: 1.0, 1.5: 2.0, 4.5: 1.0}
LUCK, MIN_FOR_LUCK = 4.0, 4  # deviations below the expected, and observations to expect something by
MIN_WEIGHT = 0.01  # rivals below are dropped
HOPELESS = 25.0  # in log likelihood below the best
MAX_OBSERVATIONS = 56  # more take time: seeds of a cell are then taken together, and what says least is left out

_Z = 9  # the place of z among the invariant kernel's terms; z^2 follows
INVARIANT, HELPED, ROUGH, PLAIN = "invariant", "invariant, WD may help", "invariant, rough", "plain"  # kernels' names
Points = np.ndarray  # [points x 5]: log2 LR, log2 WD, log2 steps (NaN if unknown), log2 D'/D, seed (NaN: none)
_MORE_THAN_ANY_RESIDUAL = 1e30
_JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)  # of the largest variance, tried in turn: wide spaces have large ones
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

    def covariance(self, rival: Rival) -> np.ndarray:
        """Before anything is observed."""
        return np.asarray(self.without_seeds(rival.kernel, rival.size) + rival.scatter**2 * self.seeds)

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


@dataclass(frozen=True)
class Repeats:
    """What is left of the seeds of cells that were taken together: which they were, and how much they scattered."""

    seeds: np.ndarray
    shares: np.ndarray  # [observations x seeds], of each observation's mean
    squares: np.ndarray  # of each cell, of what its seeds were off their mean
    freedom: np.ndarray  # how many of these count: at one LR, cells of the same seeds say the same
    variance: np.ndarray  # what its runs have by themselves

    def shares_at(self, points: Points) -> np.ndarray:
        """[points x seeds]: 1 where a point has that seed."""
        return np.asarray(points[:, 4, None] == self.seeds, dtype=float)

    def log_likelihood(self, scatter: float) -> float:
        """Of what they scattered by, for seeds that scatter by so much."""
        variance = scatter**2 * (SEED_NOISE**2 + SEED_LEVEL**2) + self.variance
        return -float((self.freedom * np.log(variance) + self.squares / variance).sum()) / 2


@dataclass(frozen=True)
class Observations:
    """Log losses at points, each with the standard deviation of its noise; or means over seeds of such ones."""

    points: Points
    values: np.ndarray
    noise: np.ndarray
    repeats: Repeats | None = None  # where these are means; the points then have no seeds

    def __len__(self) -> int:
        return len(self.values)

    def some(self, chosen: np.ndarray) -> Observations:
        repeats = self.repeats and replace(self.repeats, shares=self.repeats.shares[chosen])
        return Observations(self.points[chosen], self.values[chosen], self.noise[chosen], repeats)

    def seed_covariance_with(self, points: Points | None = None) -> np.ndarray | float:
        """[observations x points] of what seeds do; without points, of the observations themselves."""
        others = self.points if points is None else points
        if self.repeats is None:
            return seed_covariance(self.points, others)
        shares = self.repeats.shares
        return _shared(self.points, others, shares @ (shares if points is None else self.repeats.shares_at(points)).T)


NOTHING = Observations(np.zeros((0, 5)), np.zeros(0), np.zeros(0))


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
    """The same, but for what WD does through n: it may help by much, where n is not large."""
    mean, deviation = invariant.mean.copy(), invariant.deviation.copy()
    mean[_Z], deviation[_Z] = -0.01, 0.03
    mean[_Z + 1], deviation[_Z + 1] = 0.01, 0.005
    return replace(invariant, name=HELPED, mean=mean, deviation=deviation)


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


@dataclass(frozen=True)
class Rival:
    """One way in which the losses may be: a kernel, how steep the bowl is, and how much seeds scatter."""

    kernel: Kernel
    size: float
    scatter: float  # of seeds
    weight: float  # its probability


@dataclass(frozen=True)
class Belief:
    """The rivals with their probabilities, given what was observed."""

    rivals: tuple[Rival, ...]
    observations: Observations
    _placed: dict[str, Placed] = field(repr=False)  # the observations, by the kernels' views
    _solved: tuple[_Solved, ...] = field(repr=False)  # the same, by rival

    def at(self, points: Points) -> Posterior:
        """The log losses at these points."""
        kernels = {rival.kernel.view: rival.kernel for rival in self.rivals}
        placed = {view: kernel.place(points) for view, kernel in kernels.items()}
        seeds = self.observations.seed_covariance_with(points)
        seen = {view: kernel.parts(self._placed[view], placed[view], seeds) for view, kernel in kernels.items()}
        means, explained = [], []
        for rival, solved in zip(self.rivals, self._solved, strict=True):
            view = rival.kernel.view
            known = np.zeros((0, len(points)))
            if len(self.observations):
                known = _solve(solved.root, seen[view].covariance(rival))
            means.append(rival.kernel.expected(placed[view], rival.size) + known.T @ solved.residual)
            explained.append(known)
        return Posterior(self.rivals, points, placed, np.array(means), tuple(explained))

    def luck(self) -> np.ndarray:
        """Half of what each observation is below what the others lead to expect, where that is more than LUCK
        deviations; else 0. By the likeliest rival."""
        solved = self._solved[int(np.argmax([rival.weight for rival in self.rivals]))]
        inverse = _solve(solved.root, np.eye(len(self.observations)))
        precision = (inverse**2).sum(axis=0)
        below = -(inverse.T @ solved.residual) / precision
        return np.where(below * np.sqrt(precision) > LUCK, below / 2, 0.0)


@dataclass(frozen=True)
class Posterior:
    """The log losses at some points: each rival's, and of all together."""

    rivals: tuple[Rival, ...]
    points: Points = field(repr=False)
    _placed: dict[str, Placed] = field(repr=False)
    _means: np.ndarray = field(repr=False)  # [rivals x points]
    _explained: tuple[np.ndarray, ...] = field(repr=False)  # [observations x points], whose squares add up

    def probability(self, *kernel_names: str) -> float:
        """That one of these kernels is the right one."""
        return min(1.0, float(sum(rival.weight for rival in self.rivals if rival.kernel.name in kernel_names)))

    @cached_property
    def weights(self) -> np.ndarray:
        return np.array([rival.weight for rival in self.rivals])

    @cached_property
    def mean(self) -> np.ndarray:
        return np.asarray(self.weights @ self._means)

    @cached_property
    def deviation(self) -> np.ndarray:
        own = [
            rival.kernel.variance(self._placed[rival.kernel.view], rival.size, rival.scatter) - (known**2).sum(axis=0)
            for rival, known in zip(self.rivals, self._explained, strict=True)
        ]
        return np.sqrt(np.maximum(0.0, self.weights @ (np.array(own) + (self._means - self.mean) ** 2)))

    def covariance(self, first: slice, second: slice) -> np.ndarray:
        """[first x second] over all rivals."""
        apart = self._means - self.mean
        total = (self.weights * apart[:, first].T) @ apart[:, second]
        parts: dict[str, Parts] = {}
        for index, rival in enumerate(self.rivals):
            total += rival.weight * self._own(index, first, second, parts)
        return np.asarray(total)

    def draws(self, chosen: slice, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count x chosen] joint draws, each from one of the rivals."""
        drawn = []
        parts: dict[str, Parts] = {}
        for index, share in enumerate(rng.multinomial(count, self.weights)):
            mean = self._means[index][chosen]
            if share:
                root = _root(self._own(index, chosen, chosen, parts))
                drawn.append(mean + rng.standard_normal((share, len(mean))) @ root.T)
        return np.concatenate(drawn)

    def _own(self, index: int, first: slice, second: slice, parts: dict[str, Parts]) -> np.ndarray:
        """One rival's covariance; `parts` keeps what kernels of the same view share."""
        rival, known = self.rivals[index], self._explained[index]
        view, kernel = rival.kernel.view, rival.kernel
        if view not in parts:
            seeds = seed_covariance(self.points[first], self.points[second])
            parts[view] = kernel.parts(self._placed[view].some(first), self._placed[view].some(second), seeds)
        return np.asarray(parts[view].covariance(rival) - known[:, first].T @ known[:, second])


@dataclass(frozen=True)
class _Solved:
    """The observations under one rival: Cholesky factor of their covariance, and their residual whitened by it."""

    root: np.ndarray
    residual: np.ndarray

    @staticmethod
    def of(noiseless: np.ndarray, noise: np.ndarray) -> _Solved:
        """Of two covariances that add up, each with a border. That of the first is the residual; whitened it is the
        last row of the factor of the whole."""
        n = len(noise) - 1
        for share in _JITTERS:
            bordered = noiseless + noise
            if share:
                bordered[:n, :n] += _jitter(noiseless[:n, :n], share)
            root, failed = lapack.dpotrf(bordered, lower=1, overwrite_a=1, clean=0)
            if not failed:
                return _Solved(root[:n, :n], root[n, :n])
        raise np.linalg.LinAlgError("the covariance of the observations is not positive definite")

    def log_likelihood(self) -> float:
        """Up to a constant."""
        return -float(self.residual @ self.residual) / 2 - float(np.log(self.root.diagonal()).sum())

    def for_lapack(self) -> _Solved:
        """The same in one piece, which LAPACK would make of it with every call."""
        return _Solved(np.asfortranarray(self.root), self.residual)


def believe(
    kernels: Mapping[Kernel, float],
    observations: Observations,
    sizes: Mapping[float, float] | None = None,
    scatters: Mapping[float, float] | None = None,
) -> Belief:
    """The posterior; kernels, sizes and scatters come with their odds, up to a factor. Rivals without a chance are
    dropped. A loss far below what all others lead to expect is taken for luck, until another seed says the same."""
    sizes, scatters = SIZES if sizes is None else sizes, SCATTERS if scatters is None else scatters
    observed = _fewer(observations)
    prepared = _Prepared.of(kernels, observed)
    trials = _Trials(kernels, sizes, scatters, observed, prepared)
    if len(observed) >= MIN_FOR_LUCK:
        luck = _belief(trials.first(), observed, prepared).luck()
        if luck.any():
            observed = replace(observed, noise=np.hypot(observed.noise, luck))
            trials = _Trials(kernels, sizes, scatters, observed, prepared)
    return _belief(trials.worthwhile(), observed, prepared)


@dataclass(frozen=True)
class _Prepared:
    """The observed points, whatever their noise: placed by each view, and what their covariances are made of."""

    placed: dict[str, Placed]
    parts: dict[str, Parts]
    seeds: np.ndarray | float

    @staticmethod
    def of(kernels: Iterable[Kernel], observed: Observations) -> _Prepared:
        views = {kernel.view: kernel for kernel in kernels}
        placed = {view: kernel.place(observed.points) for view, kernel in views.items()}
        seeds = observed.seed_covariance_with()
        parts = {view: kernel.parts(placed[view], placed[view], seeds) for view, kernel in views.items()}
        return _Prepared(placed, parts, seeds)


_Place = tuple[int, int, int]  # of a kernel, a size and a scatter among those that are considered


@dataclass(frozen=True)
class _Tried:
    """A rival with its odds for a weight, and the logarithm of what it would weigh by the observations."""

    rival: Rival
    solved: _Solved
    log: float


class _Trials:
    """The rivals, each tried when it is asked for, since that takes most of the time."""

    def __init__(
        self,
        kernels: Mapping[Kernel, float],
        sizes: Mapping[float, float],
        scatters: Mapping[float, float],
        observed: Observations,
        prepared: _Prepared,
    ):
        self._kernels, self._sizes, self._scatters = (list(odds.items()) for odds in (kernels, sizes, scatters))
        self._observed = observed
        self._prepared = prepared
        own = np.diag(observed.noise**2 + 1e-12)
        self._noise = [
            _bordered(own + scatter**2 * prepared.seeds, 0.0, _MORE_THAN_ANY_RESIDUAL) for scatter in scatters
        ]
        self._noiseless: dict[tuple[int, int], np.ndarray] = {}
        self._tried: dict[_Place, _Tried] = {}

    def first(self) -> list[_Tried]:
        """Every second size and scatter, which is enough to see what is luck."""
        places = product(range(len(self._kernels)), _every_second(len(self._sizes)), _every_second(len(self._scatters)))
        return self._try(places)

    def worthwhile(self) -> list[_Tried]:
        """Those that may have a chance: all kernels but those that are hopeless from the first; of each the sizes and
        scatters beside one that is not hopeless among its own."""
        first = self.first()
        least = max(tried.log for tried in first) - HOPELESS
        worth: dict[_Place, _Tried] = {}
        for kernel in {tried.rival.kernel: None for tried in first if tried.log > least}:
            worth |= self._climb(kernel)
        return [worth[place] for place in sorted(worth)]

    def _climb(self, kernel: Kernel) -> dict[_Place, _Tried]:
        while True:
            its = {place: tried for place, tried in self._tried.items() if tried.rival.kernel is kernel}
            least = max(tried.log for tried in its.values()) - HOPELESS
            beside = {place for at, tried in its.items() if tried.log > least for place in self._beside(at)}
            if beside <= its.keys():
                return its
            self._try(beside)

    def _beside(self, place: _Place) -> Iterator[_Place]:
        kernel, size, scatter = place
        for other in (size - 1, size + 1):
            if 0 <= other < len(self._sizes):
                yield kernel, other, scatter
        for other in (scatter - 1, scatter + 1):
            if 0 <= other < len(self._scatters):
                yield kernel, size, other

    def _try(self, places: Iterable[_Place]) -> list[_Tried]:
        asked = sorted(places)
        self._tried |= {place: self._of(place) for place in asked if place not in self._tried}
        return [self._tried[place] for place in asked]

    def _of(self, place: _Place) -> _Tried:
        (kernel, odds), (size, size_odds), (scatter, scatter_odds) = (
            options[at] for options, at in zip((self._kernels, self._sizes, self._scatters), place, strict=True)
        )
        if place[:2] not in self._noiseless:
            residual = self._observed.values - kernel.expected(self._prepared.placed[kernel.view], size)
            covariance = self._prepared.parts[kernel.view].without_seeds(kernel, size)
            self._noiseless[place[:2]] = _bordered(covariance, residual, 0.0)
        solved = _Solved.of(self._noiseless[place[:2]], self._noise[place[2]])
        rival = Rival(kernel, size, scatter, odds * size_odds * scatter_odds)
        log = math.log(rival.weight) + solved.log_likelihood()
        if self._observed.repeats is not None:
            log += self._observed.repeats.log_likelihood(scatter)
        return _Tried(rival, solved, log)


def _every_second(count: int) -> range:
    return range(1, count, 2) if count > 1 else range(count)


def _belief(tried: Sequence[_Tried], observed: Observations, prepared: _Prepared) -> Belief:
    """The rivals that have a chance, with their probabilities."""
    logs = np.array([one.log for one in tried])
    weights = np.exp(logs - logs.max())
    weights = np.where(weights < MIN_WEIGHT * weights.sum(), 0.0, weights)
    weights /= weights.sum()
    kept = [(one, weight) for one, weight in zip(tried, weights.tolist(), strict=True) if weight]
    rivals = tuple(replace(one.rival, weight=weight) for one, weight in kept)
    return Belief(rivals, observed, prepared.placed, tuple(one.solved.for_lapack() for one, _ in kept))


def _bordered(symmetric: np.ndarray, border: np.ndarray | float, corner: float) -> np.ndarray:
    """The matrix with one more row, in the order that LAPACK wants, which reads nothing above the diagonal."""
    n = len(symmetric)
    result = np.zeros((n + 1, n + 1), order="F")
    result[:n, :n] = symmetric.T  # the same, in the order of the result
    result[n, :n], result[n, n] = border, corner
    return result


def _root(covariance: np.ndarray) -> np.ndarray:
    """The Cholesky factor of a covariance that rounding may have made slightly indefinite."""
    for share in _JITTERS:
        jitter = 1e-10 * np.eye(len(covariance)) + (_jitter(covariance, share) if share else 0.0)
        root, failed = lapack.dpotrf(covariance + jitter, lower=1, clean=1)
        if not failed:
            return np.asarray(root)
    raise np.linalg.LinAlgError("the covariance of the losses is not positive definite")


def _jitter(covariance: np.ndarray, share: float) -> np.ndarray:
    return share * float(np.diag(covariance).max()) * np.eye(len(covariance))


def _solve(root: np.ndarray, right: np.ndarray) -> np.ndarray:
    # The same as scipy.linalg.solve_triangular, whose checks take longer than small systems do.
    return np.asarray(lapack.dtrtrs(root, right, lower=1)[0])


def with_noise(points: Points, values: np.ndarray, noise: float | np.ndarray = NOISE) -> Observations:
    """Observations whose noise is raised where their cell is far above the best of its budget.

    It is a cell's mean that is held against the best: of several seeds the lucky one would else be believed, and the
    others not.
    """
    noise = np.broadcast_to(np.asarray(noise, dtype=float), values.shape)
    means = values
    if len(points) and np.any(points[:, 4] != points[0, 4]):
        cell = np.unique(points[:, (3, 0, 1)].round(5), axis=0, return_inverse=True)[1].ravel()
        means = (np.bincount(cell, weights=values) / np.bincount(cell))[cell]
    return Observations(points, values, raised_noise(points, means, noise))


def raised_noise(points: Points, expected: np.ndarray, noise: float | np.ndarray = NOISE) -> np.ndarray:
    """The noise of observations at points of which this is expected: what is bad says little."""
    excess = np.zeros(len(points))
    for d in np.unique(points[:, 3].round(6)) if len(points) else ():
        here = np.abs(points[:, 3] - d) < 1e-5
        excess[here] = expected[here] - expected[here].min()
    return np.hypot(noise, EXCESS * np.maximum(0.0, excess - EXCESS_FROM))


def _fewer(observations: Observations) -> Observations:
    """No more observations than can be used: of very many, whatever their order, the means of cells over their seeds;
    of these those with the least noise, and of equal ones those where a bowl through all of them is lowest."""
    if len(observations) <= MAX_OBSERVATIONS:
        return observations
    merged = _means_of_cells(observations)
    if len(merged) <= MAX_OBSERVATIONS:
        return merged
    order = np.lexsort((*merged.points.T, merged.values, _height(merged), merged.noise.round(6)))
    return merged.some(order[:MAX_OBSERVATIONS])


def _means_of_cells(observations: Observations) -> Observations:
    """Runs of one cell and budget as one, which has a share of each of their seeds."""
    points, values, noise = observations.points, observations.values, observations.noise
    if np.all(points[:, 4] == points[0, 4]):
        return observations
    _, first, cell = np.unique(points[:, (3, 0, 1)].round(5), axis=0, return_index=True, return_inverse=True)
    cell = cell.ravel()
    seeds, seed = np.unique(points[:, 4], return_inverse=True)
    weights = noise**-2.0
    total = np.bincount(cell, weights=weights)
    means = np.bincount(cell, weights=weights * values) / total
    shares = np.zeros((len(first), len(seeds)))
    np.add.at(shares, (cell, seed.ravel()), np.where(np.isnan(points[:, 4]), 0.0, weights / total[cell]))
    merged = points[first].copy()
    merged[:, 4] = np.nan
    repeats = Repeats(seeds, shares, *_scatter(points, values, noise, cell))
    return Observations(merged, means, np.sqrt(1 / total), repeats)


def _scatter(
    points: Points, values: np.ndarray, noise: np.ndarray, cell: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(squares, freedom, variance) of the seeds of each cell about their mean. Cells of one LR, budget and seed share
    its luck: together they count as one."""
    number = np.bincount(cell)
    off = values - (np.bincount(cell, weights=values) / number)[cell]
    alike = np.unique(points[:, (3, 0, 4)].round(5), axis=0)
    share = (len(alike) - len(np.unique(alike[:, :2], axis=0))) / max(1, len(values) - len(number))
    squares = np.bincount(cell, weights=off**2)
    return share * squares, share * (number - 1), np.bincount(cell, weights=noise**2) / number


def _height(observations: Observations) -> np.ndarray:
    """How far each lies above the lowest of its budget on the quadratic surface that fits all best."""
    lr, wd, _, d, _ = (observations.points - observations.points.mean(axis=0)).T
    surface = np.column_stack([np.ones(len(d)), d, d * d, lr, lr * lr, lr * d, wd, wd * wd, wd * lr, wd * d])
    weighed = surface * (observations.noise**-2.0)[:, None]
    fitted = surface @ np.linalg.lstsq(weighed.T @ surface, weighed.T @ observations.values, rcond=None)[0]
    budgets, which = np.unique(observations.points[:, 3].round(6), return_inverse=True)
    lowest = np.full(len(budgets), np.inf)
    np.minimum.at(lowest, which.ravel(), fitted)
    return np.asarray(fitted - lowest[which.ravel()])


def seed_covariance(first: Points, second: Points) -> np.ndarray | float:
    """[first x second] of what seeds do; points without a seed have none of it."""
    if np.isnan(first[:, 4]).all() or np.isnan(second[:, 4]).all():
        return 0.0
    return _shared(first, second, first[:, 4, None] == second[:, 4])


def _shared(first: Points, second: Points, same: np.ndarray) -> np.ndarray:
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
