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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import lapack

from isotune.tune.kernels import (
    Chosen,
    Kernel,
    Places,
    Points,
    Shared,
    Weights,
    expected_losses,
    seed_covariance,
    seed_variance,
)
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
HOPELESS, NEAR = 25.0, 8.0  # in log likelihood below the best: where it is left, and how far its neighbours are tried

# A suggestion takes and frees some MB, which glibc returns to the system each time, and a fifth of the time goes into
# getting it back. It keeps more from the moment that something large was freed.
np.empty(1 << 20)

_MORE_THAN_ANY_RESIDUAL = 1e30
_JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)  # of the largest variance, tried in turn: wide spaces have large ones


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
    _places: Places = field(repr=False)  # of the observations
    _solved: tuple[_Solved, ...] = field(repr=False)  # the same, by rival

    def at(self, points: Points | Places) -> Posterior:
        """The log losses at these points."""
        kernels = {rival.kernel.view: rival.kernel for rival in self.rivals}
        places = points if isinstance(points, Places) else Places.of(kernels.values(), points)
        means = np.empty((len(self.rivals), len(places)))
        for view in kernels:
            its = [index for index, rival in enumerate(self.rivals) if rival.kernel.view == view]
            means[its] = expected_losses(
                [(self.rivals[index].kernel, self.rivals[index].size) for index in its], places
            )
        n = len(self.observations)
        known = np.empty((len(places), len(self.rivals) * n))
        if n:
            shared = {view: kernel.shared(places, self._places) for view, kernel in kernels.items()}
            of_seeds = self.observations.seed_covariance(self._places, places)
            for index, (rival, solved) in enumerate(zip(self.rivals, self._solved, strict=True)):
                covariance = shared[rival.kernel.view].covariance(rival.kernel.weights(rival.size))
                covariance += rival.scatter**2 * of_seeds
                whitening = math.sqrt(rival.weight) * solved.inverse.T
                explained = np.matmul(covariance, whitening, out=known[:, index * n : (index + 1) * n])
                means[index] += explained @ (solved.residual / math.sqrt(rival.weight))
        return Posterior(self.rivals, places, means, known)

    def expected(self, places: Places) -> np.ndarray:
        """The mean of the log losses at these places: the same as that of `at`, in a fraction of the time."""
        n = len(self.observations)
        means, seeds = np.zeros(len(places)), np.zeros(n)
        for view in self.views:
            own, others = places.views[view].terms, self._places.views[view].terms
            terms, departures = np.zeros(own.shape[1]), np.zeros(n)
            its = [one for one in zip(self.rivals, self._solved, strict=True) if one[0].kernel.view == view]
            for rival, solved in its:
                terms += rival.weight * rival.kernel.coefficients(rival.size)
                if n:
                    explains = rival.weight * (solved.residual @ solved.inverse)
                    weights = rival.kernel.weights(rival.size)
                    terms += weights.squares * (explains @ others)
                    departures += weights.departures * explains
                    seeds += rival.scatter**2 * explains
            means += own @ terms
            if n:
                means += its[0][0].kernel.shared(places, self._places).departures @ departures
        of_seeds = self.observations.seed_covariance(self._places, places) if n else 0.0
        return means + (of_seeds @ seeds if isinstance(of_seeds, np.ndarray) else of_seeds)

    def likeliest(self) -> Belief:
        """That of the likeliest rival alone."""
        best = max(range(len(self.rivals)), key=lambda index: self.rivals[index].weight)
        return replace(self, rivals=(replace(self.rivals[best], weight=1.0),), _solved=(self._solved[best],))

    @property
    def views(self) -> tuple[str, ...]:
        """How the rivals see points, each once."""
        return tuple(dict.fromkeys(rival.kernel.view for rival in self.rivals))


@dataclass(frozen=True)
class Posterior:
    """The log losses at some points: each rival's, and of all together."""

    rivals: tuple[Rival, ...]
    places: Places = field(repr=False)
    _means: np.ndarray = field(repr=False)  # [rivals x points]
    _known: np.ndarray = field(repr=False)  # [points x (rivals x observations)]: squares add up to what is explained

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
        total = self.weights @ (self._means - self.mean) ** 2 + self._scatter * seed_variance(self.places.seeds)
        for kernel, weights in self._by_view.values():
            total += kernel.variance(self.places, weights)
        total -= np.einsum("ij,ij->i", self._known, self._known)
        return np.sqrt(np.maximum(0.0, total))

    def covariance(self, first: Chosen, second: slice) -> np.ndarray:
        """[first x second] over all rivals."""
        apart = self._means - self.mean
        total = (self.weights * apart[:, first].T) @ apart[:, second]
        total += self._scatter * self._of_seeds(first, second)
        for kernel, weights in self._by_view.values():
            total += self.places.shared(kernel, first, second).covariance(weights)
        total -= self._known[first] @ self._known[second].T
        return np.asarray(total)

    def draws(self, chosen: slice, normals: np.ndarray) -> np.ndarray:
        """Joint draws made of standard normal ones, both [draws x chosen]; each rival has its share of them."""
        drawn = np.empty_like(normals)
        seeds = self._of_seeds(chosen, chosen)
        shared = {view: self.places.shared(kernel, chosen, chosen) for view, (kernel, _) in self._by_view.items()}
        n = self._known.shape[1] // len(self.rivals)
        ends = np.rint(self.weights.cumsum() * len(normals)).astype(int).tolist()
        for index, (rival, begin, end) in enumerate(zip(self.rivals, [0, *ends], ends, strict=False)):
            if begin < end:
                known = self._known[chosen, index * n : (index + 1) * n]
                own = shared[rival.kernel.view].covariance(rival.kernel.weights(rival.size))
                own += rival.scatter**2 * seeds - known @ (known / rival.weight).T
                np.matmul(normals[begin:end], _root(own).T, out=drawn[begin:end])
                drawn[begin:end] += self._means[index][chosen]
        return drawn

    def _of_seeds(self, first: Chosen, second: slice) -> np.ndarray | float:
        if np.isnan(self.places.seeds[first]).all():  # targets have none
            return 0.0
        return seed_covariance(self.places.some(first), self.places.some(second))

    @cached_property
    def _by_view(self) -> dict[str, tuple[Kernel, Weights]]:
        """What rivals of one view share is a sum over them."""
        found: dict[str, tuple[Kernel, Weights]] = {}
        for rival in self.rivals:
            kernel, weights = rival.kernel, rival.weight * rival.kernel.weights(rival.size)
            found[kernel.view] = (
                (kernel, found[kernel.view][1] + weights) if kernel.view in found else (kernel, weights)
            )
        return found

    @cached_property
    def _scatter(self) -> float:
        """The mean square of it."""
        return sum(rival.weight * rival.scatter**2 for rival in self.rivals)


@dataclass(frozen=True)
class _Solved:
    """The observations under one rival: Cholesky factor of their covariance, and their residual whitened by it."""

    root: np.ndarray
    residual: np.ndarray

    @cached_property
    def inverse(self) -> np.ndarray:
        """Of the root: products with it take less time than solutions."""
        inverse = lapack.dtrtri(self.root, lower=1)[0]
        inverse *= _lower_triangle(len(inverse))  # what stands above the root's diagonal does not count
        return np.asarray(inverse)

    def luck(self) -> np.ndarray:
        """Half of what each observation is below what the others lead to expect, where that is more than LUCK
        deviations; else 0."""
        precision = np.einsum("ij,ij->j", self.inverse, self.inverse)
        below = -(self.residual @ self.inverse) / precision
        return np.where(below * np.sqrt(precision) > LUCK, below / 2, 0.0)


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
    prepared = _Prepared(kernels, observed)
    trials = _Trials(kernels, sizes, scatters, observed, prepared)
    if len(observed) >= MIN_FOR_LUCK:
        trials.first()
        luck = trials.likeliest().luck()
        if luck.any():
            observed = replace(observed, noise=np.hypot(observed.noise, luck))
            trials = _Trials(kernels, sizes, scatters, observed, prepared)
    trials.worthwhile()
    rivals, solved = zip(*trials.rivals(), strict=True)
    return Belief(rivals, observed, prepared.places, solved)


class _Prepared:
    """The observations, whatever their noise: where they are, what seeds do to them, and the rest of their
    covariance."""

    def __init__(self, kernels: Iterable[Kernel], observed: Observations):
        self.places = Places.of(kernels, observed.points)
        self.of_seeds = observed.seed_covariance(self.places)
        self._values = observed.values
        self._shared: dict[str, Shared] = {}
        self._noiseless: dict[tuple[Kernel, float], np.ndarray] = {}

    def noiseless(self, rivals: Sequence[tuple[Kernel, float]]) -> list[np.ndarray]:
        """The covariances by kernel and size without noise and seeds, with the residual for a border; made when they
        are asked for."""
        missing: dict[str, list[tuple[Kernel, float]]] = {}
        for rival in dict.fromkeys(rivals):
            if rival not in self._noiseless:
                missing.setdefault(rival[0].view, []).append(rival)
        n = len(self.places)
        for its in missing.values():
            bordered = np.empty((len(its), n + 1, n + 1))
            self._shared_by(its[0][0]).covariance(Weights.of(its), out=bordered[:, :n, :n])
            bordered[:, n, :n] = bordered[:, :n, n] = self._values - expected_losses(its, self.places)
            bordered[:, n, n] = _MORE_THAN_ANY_RESIDUAL
            self._noiseless.update(zip(its, bordered, strict=True))
        return [self._noiseless[rival] for rival in rivals]

    def noise(self, observed: Observations, scatters: Sequence[float]) -> np.ndarray:
        """[scatters x observations + 1 x observations + 1]: what seeds and runs by themselves add to it."""
        n = len(self.places)
        noise = np.zeros((len(scatters), n + 1, n + 1))
        np.multiply(np.square(scatters)[:, None, None], self.of_seeds, out=noise[:, :n, :n])
        noise.reshape(len(scatters), -1)[:, : -n - 1 : n + 2] += observed.noise**2 + 1e-12
        return noise

    def _shared_by(self, kernel: Kernel) -> Shared:
        if kernel.view not in self._shared:
            self._shared[kernel.view] = kernel.shared(self.places, self.places)
        return self._shared[kernel.view]


class _Trials:
    """The rivals by kernel, size and scatter, each tried when it is asked for, since that takes most of the time."""

    def __init__(
        self,
        kernels: Mapping[Kernel, float],
        sizes: Mapping[float, float],
        scatters: Mapping[float, float],
        observed: Observations,
        prepared: _Prepared,
    ):
        self._kernels, self._sizes, self._scatters = list(kernels), list(sizes), list(scatters)
        by_kernel, by_size, by_scatter = (np.log(list(odds.values())) for odds in (kernels, sizes, scatters))
        if observed.repeats is not None:
            by_scatter = by_scatter + [observed.repeats.log_likelihood(scatter) for scatter in scatters]
        self._odds = by_kernel[:, None, None] + by_size[:, None] + by_scatter
        self._prepared = prepared
        self._noise = prepared.noise(observed, self._scatters)
        self._tried = np.zeros(self._odds.shape, dtype=bool)
        self._logs = np.full(self._odds.shape, -math.inf)  # of what each that was tried weighs, by odds and evidence
        self._roots: dict[tuple[int, ...], np.ndarray] = {}

    def first(self) -> None:
        """Every second size and scatter, which is enough to see what is luck."""
        wanted = np.zeros(self._logs.shape, dtype=bool)
        wanted[:, _every_second(len(self._sizes)), _every_second(len(self._scatters))] = True
        self._try(wanted)

    def worthwhile(self) -> None:
        """Those that may have a chance: of all kernels but those that are hopeless from the first, the sizes and
        scatters beside the best of its own; and what is beside anything that comes near the best of all."""
        self.first()
        bests = self._logs.max(axis=(1, 2), keepdims=True)
        has_a_chance = bests > bests.max() - HOPELESS
        while True:
            wanted = ((self._logs == bests) & has_a_chance) | (self._logs > bests.max() - NEAR)
            wanted = _and_beside(wanted) & ~self._tried
            if not wanted.any():
                return
            self._try(wanted)
            bests = self._logs.max(axis=(1, 2), keepdims=True)

    def likeliest(self) -> _Solved:
        """The observations under the likeliest rival of those that were tried."""
        kernel, size, scatter = map(int, np.unravel_index(self._logs.argmax(), self._logs.shape))
        return self._solved(kernel, size, scatter)

    def rivals(self) -> list[tuple[Rival, _Solved]]:
        """Those of what was tried that have a chance, with their probabilities."""
        weights = np.exp(self._logs - self._logs.max())
        weights[weights < MIN_WEIGHT * weights.sum()] = 0.0
        weights /= weights.sum()
        found = []
        for kernel, size, scatter in np.argwhere(weights).tolist():
            weight = float(weights[kernel, size, scatter])
            rival = Rival(self._kernels[kernel], self._sizes[size], self._scatters[scatter], weight)
            found.append((rival, self._solved(kernel, size, scatter)))
        return found

    def _try(self, wanted: np.ndarray) -> None:
        """All of the wanted ones that were not tried yet, at once."""
        kernels, sizes, scatters = places = (wanted & ~self._tried).nonzero()
        if not len(kernels):
            return
        keys = list(zip(kernels.tolist(), sizes.tolist(), scatters.tolist(), strict=True))
        noiseless = self._prepared.noiseless([(self._kernels[kernel], self._sizes[size]) for kernel, size, _ in keys])
        roots = np.empty((len(keys), *self._noise[0].shape))  # each transposed, which is the order of LAPACK
        for root, covariance, scatter in zip(roots, noiseless, scatters.tolist(), strict=True):
            np.add(covariance, self._noise[scatter], out=root)
            if lapack.dpotrf(root.T, lower=1, overwrite_a=1, clean=0)[1]:
                root.T[:] = _bordered_root(covariance + self._noise[scatter])
        n = roots.shape[1] - 1
        residuals, diagonals = roots[:, :n, n], roots.reshape(len(keys), -1)[:, : -n - 1 : n + 2]
        logs = -np.einsum("ij,ij->i", residuals, residuals) / 2 - np.log(diagonals).sum(axis=1)
        self._logs[places] = self._odds[places] + logs
        self._tried[places] = True
        self._roots.update(zip(keys, roots, strict=True))

    def _solved(self, kernel: int, size: int, scatter: int) -> _Solved:
        root = self._roots[kernel, size, scatter]
        return _Solved(root[:-1, :-1].T, root[:-1, -1])


def _and_beside(chosen: np.ndarray) -> np.ndarray:
    """What is chosen, and its neighbours by size and by scatter."""
    result = chosen.copy()
    result[:, 1:] |= chosen[:, :-1]
    result[:, :-1] |= chosen[:, 1:]
    result[:, :, 1:] |= chosen[:, :, :-1]
    result[:, :, :-1] |= chosen[:, :, 1:]
    return result


def _bordered_root(symmetric: np.ndarray) -> np.ndarray:
    """The lower Cholesky factor of a covariance that is not quite positive definite, with a residual for a border: the
    factor's last row is the residual, whitened. Nothing above the diagonal is set to 0."""
    for share in _JITTERS:
        tried = symmetric.copy()
        tried[:-1, :-1] += _jitter(symmetric[:-1, :-1], share)
        root, failed = lapack.dpotrf(tried, lower=1, clean=0)
        if not failed:
            return np.asarray(root)
    raise np.linalg.LinAlgError("the covariance of the observations is not positive definite")


def _every_second(count: int) -> slice:
    return slice(1, None, 2) if count > 1 else slice(None)


def _root(covariance: np.ndarray) -> np.ndarray:
    """The Cholesky factor of a covariance that rounding may have made slightly indefinite."""
    for share in (0.0, *_JITTERS):
        tried = covariance.T.copy(order="F")
        np.einsum("ii->i", tried)[:] += 1e-10 + share * float(covariance.diagonal().max())
        root, failed = lapack.dpotrf(tried, lower=1, clean=1, overwrite_a=1)
        if not failed:
            return np.asarray(root)
    raise np.linalg.LinAlgError("the covariance of the losses is not positive definite")


def _jitter(covariance: np.ndarray, share: float) -> np.ndarray:
    return share * float(np.diag(covariance).max()) * np.eye(len(covariance))


@lru_cache(maxsize=64)
def _lower_triangle(size: int) -> np.ndarray:
    return np.asfortranarray(np.tri(size))
