"""What is believed of the loss over LR, WD and budget: rival Gaussian processes, between which evidence decides.

That WD matters through n alone (kernels.py) is the prior; a rival without it, smooth in log LR and log WD, stands
beside it, and what is observed decides between them by their marginal likelihoods. So do two more, under which WD
matters through n alone, too. By one it may help by much: where runs are short n is small, and nothing that was seen
speaks against it. By the other the surface is less smooth: where seeds scatter much, evidence is slow to say so, and a
smooth bowl would be sure of LRs that hardly ran. How steep the bowl is and how much seeds scatter are matters of
evidence, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy.linalg import lapack

from isotune.tune.kernels import Kernel, Parts, Placed, Points, seed_covariance
from isotune.tune.observations import Observations, fewer

# Odds, before anything is seen. They were set on tables/nano.
INVARIANCE_ODDS = 4.0  # that WD matters through n alone
HELP_ODDS = 2.0  # that it does so, and may help by more than it does on tables/nano
ROUGH_ODDS = 1.0  # that it does so, on a surface that is less smooth
# How steep the loss is against what the kernels' constants say: a run that is short for its model, or a large batch,
# has a deeper bowl. Each size is a rival with these odds, and evidence decides. Departures grow with its root alone:
# near the optimum a deep bowl is not much rougher than a flat one.
SIZES = {0.5: 1.0, 1.0: 2.0, 2.0: 2.0, 4.0: 1.0, 8.0: 0.5}
# How much more seeds scatter than the kernels' constants say, with odds: nano's large batch does so by a factor of 4.6.
SCATTERS = {0.5: 0.3, 1.5: 2.0, 4.5: 1.0}
LUCK, MIN_FOR_LUCK = 4.0, 4  # deviations below the expected, and observations to expect something by
MIN_WEIGHT = 0.01  # rivals below are dropped
HOPELESS = 25.0  # in log likelihood below the best

_MORE_THAN_ANY_RESIDUAL = 1e30
_JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)  # of the largest variance, tried in turn: wide spaces have large ones


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
                known = _solve(solved.root, seen[view].covariance(rival.kernel, rival.size, rival.scatter))
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
        return np.asarray(
            parts[view].covariance(rival.kernel, rival.size, rival.scatter) - known[:, first].T @ known[:, second]
        )


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
    observed = fewer(observations)
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
    """The observations, whatever their noise: placed by each view, and what their covariances are made of."""

    values: np.ndarray
    placed: dict[str, Placed]
    parts: dict[str, Parts]
    seeds: np.ndarray | float
    _noiseless: dict[tuple[Kernel, float], np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(kernels: Iterable[Kernel], observed: Observations) -> _Prepared:
        views = {kernel.view: kernel for kernel in kernels}
        placed = {view: kernel.place(observed.points) for view, kernel in views.items()}
        seeds = observed.seed_covariance_with()
        parts = {view: kernel.parts(placed[view], placed[view], seeds) for view, kernel in views.items()}
        return _Prepared(observed.values, placed, parts, seeds)

    def noiseless(self, kernel: Kernel, size: float) -> np.ndarray:
        """The covariance without seeds and noise, with the residual for a border; made once."""
        if (kernel, size) not in self._noiseless:
            residual = self.values - kernel.expected(self.placed[kernel.view], size)
            covariance = self.parts[kernel.view].without_seeds(kernel, size)
            self._noiseless[kernel, size] = _bordered(covariance, residual, 0.0)
        return self._noiseless[kernel, size]


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
        self._kernels, self._sizes, self._scatters = list(kernels.items()), list(sizes.items()), list(scatters.items())
        self._observed = observed
        self._prepared = prepared
        own = np.diag(observed.noise**2 + 1e-12)
        self._noise = [
            _bordered(own + scatter**2 * prepared.seeds, 0.0, _MORE_THAN_ANY_RESIDUAL) for scatter in scatters
        ]
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
        kernel, odds = self._kernels[place[0]]
        size, size_odds = self._sizes[place[1]]
        scatter, scatter_odds = self._scatters[place[2]]
        solved = _Solved.of(self._prepared.noiseless(kernel, size), self._noise[place[2]])
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
