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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from isotune.tune.kernels import Kernel, Places, Points, Weights, seed_covariance, seed_variance
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
        if not len(self.observations):
            means = [rival.kernel.expected(places, rival.size) for rival in self.rivals]
            return Posterior(self.rivals, places, np.array(means), (np.zeros((len(places), 0)),) * len(means))
        shared = {view: kernel.shared(places, self._places) for view, kernel in kernels.items()}
        of_seeds = self.observations.seed_covariance_with(places.points)
        means, explained = [], []
        for rival, solved in zip(self.rivals, self._solved, strict=True):
            covariance = shared[rival.kernel.view].covariance(rival.kernel.weights(rival.size))
            covariance += rival.scatter**2 * of_seeds
            known = _solve(solved.root, covariance.T).T
            means.append(rival.kernel.expected(places, rival.size) + known @ solved.residual)
            explained.append(known)
        return Posterior(self.rivals, places, np.array(means), tuple(explained))

    def luck(self) -> np.ndarray:
        """Half of what each observation is below what the others lead to expect, where that is more than LUCK
        deviations; else 0. By the likeliest rival."""
        solved = self._solved[int(np.argmax([rival.weight for rival in self.rivals]))]
        inverse = _solve(solved.root, np.eye(len(self.observations)))
        precision = np.einsum("ij,ij->j", inverse, inverse)
        below = -(inverse.T @ solved.residual) / precision
        return np.where(below * np.sqrt(precision) > LUCK, below / 2, 0.0)


@dataclass(frozen=True)
class Posterior:
    """The log losses at some points: each rival's, and of all together."""

    rivals: tuple[Rival, ...]
    places: Places = field(repr=False)
    _means: np.ndarray = field(repr=False)  # [rivals x points]
    _explained: tuple[np.ndarray, ...] = field(repr=False)  # [points x observations], whose squares add up

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
        total = self.weights @ (self._means - self.mean) ** 2 + self._scatter * seed_variance(self.places.points)
        for kernel, weights in self._by_view.values():
            total += kernel.variance(self.places, weights)
        for rival, known in zip(self.rivals, self._explained, strict=True):
            total -= rival.weight * np.einsum("ij,ij->i", known, known)
        return np.sqrt(np.maximum(0.0, total))

    def covariance(self, first: slice, second: slice) -> np.ndarray:
        """[first x second] over all rivals."""
        apart = self._means - self.mean
        total = (self.weights * apart[:, first].T) @ apart[:, second]
        total += self._scatter * seed_covariance(self.places.points[first], self.places.points[second])
        for kernel, weights in self._by_view.values():
            total += self.places.shared(kernel, first, second).covariance(weights)
        for rival, known in zip(self.rivals, self._explained, strict=True):
            total -= (rival.weight * known[first]) @ known[second].T
        return np.asarray(total)

    def draws(self, chosen: slice, count: int, rng: np.random.Generator) -> np.ndarray:
        """[count x chosen] joint draws, each from one of the rivals."""
        drawn = []
        seeds = seed_covariance(self.places.points[chosen], self.places.points[chosen])
        shared = {view: self.places.shared(kernel, chosen, chosen) for view, (kernel, _) in self._by_view.items()}
        for index, share in enumerate(rng.multinomial(count, self.weights)):
            if share:
                rival, known, mean = self.rivals[index], self._explained[index][chosen], self._means[index][chosen]
                own = shared[rival.kernel.view].covariance(rival.kernel.weights(rival.size))
                own += rival.scatter**2 * seeds - known @ known.T
                drawn.append(mean + rng.standard_normal((share, len(mean))) @ _root(own).T)
        return np.concatenate(drawn)

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
    prepared = _Prepared.of(kernels, sizes, observed)
    trials = _Trials(kernels, sizes, scatters, observed, prepared)
    if len(observed) >= MIN_FOR_LUCK:
        trials.first()
        luck = _belief(trials, observed, prepared).luck()
        if luck.any():
            observed = replace(observed, noise=np.hypot(observed.noise, luck))
            trials = _Trials(kernels, sizes, scatters, observed, prepared)
    trials.worthwhile()
    return _belief(trials, observed, prepared)


@dataclass(frozen=True)
class _Prepared:
    """The observations, whatever their noise: where they are, what seeds do to them, and the rest of their covariance,
    with the residual for a border: [kernels x sizes x observations + 1 x observations + 1]."""

    places: Places
    of_seeds: np.ndarray | float
    noiseless: np.ndarray

    @staticmethod
    def of(kernels: Mapping[Kernel, float], sizes: Mapping[float, float], observed: Observations) -> _Prepared:
        n, all_sizes = len(observed), tuple(sizes)
        places = Places.of(kernels, observed.points)
        views = {kernel.view: kernel for kernel in kernels}
        shared = {view: kernel.shared(places, places) for view, kernel in views.items()}
        noiseless = np.zeros((len(kernels), len(sizes), n + 1, n + 1))
        for kernel, bordered in zip(kernels, noiseless, strict=True):
            shared[kernel.view].covariance(kernel.weights(all_sizes), out=bordered[:, :n, :n])
            bordered[:, n, :n] = bordered[:, :n, n] = observed.values - kernel.expected(places, all_sizes)
        return _Prepared(places, observed.seed_covariance_with(), noiseless)


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
        self._odds = by_kernel[:, None, None] + by_size[:, None] + by_scatter
        if observed.repeats is not None:
            self._odds = self._odds + [observed.repeats.log_likelihood(scatter) for scatter in scatters]
        self._noiseless = prepared.noiseless
        self._noise = _noise_of(observed, prepared, list(scatters))
        self._logs = np.full(self._odds.shape, math.nan)  # of what each would weigh, by odds and observations
        self._solved: dict[tuple[int, ...], _Solved] = {}

    def first(self) -> None:
        """Every second size and scatter, which is enough to see what is luck."""
        wanted = np.zeros(self._logs.shape, dtype=bool)
        wanted[:, _every_second(len(self._sizes)), _every_second(len(self._scatters))] = True
        self._try(wanted)

    def worthwhile(self) -> None:
        """Those that may have a chance: all kernels but those that are hopeless from the first; of each the sizes and
        scatters beside one that is not hopeless among its own."""
        self.first()
        bests = np.nanmax(self._logs, axis=(1, 2), keepdims=True)
        self._logs[(bests < bests.max() - HOPELESS).ravel()] = -math.inf  # tried enough
        while True:
            bests = np.nanmax(self._logs, axis=(1, 2), keepdims=True)
            wanted = _and_beside(self._logs > bests - HOPELESS) & np.isnan(self._logs)
            if not wanted.any():
                return
            self._try(wanted)

    def rivals(self) -> list[tuple[Rival, _Solved]]:
        """Those of what was tried that have a chance, with their probabilities."""
        logs = np.nan_to_num(self._logs, nan=-math.inf)
        weights = np.exp(logs - logs.max())
        weights[weights < MIN_WEIGHT * weights.sum()] = 0.0
        weights /= weights.sum()
        return [
            (
                Rival(self._kernels[kernel], self._sizes[size], self._scatters[scatter], weight),
                self._solved[kernel, size, scatter],
            )
            for (kernel, size, scatter), weight in zip(
                np.argwhere(weights).tolist(), weights[weights > 0].tolist(), strict=True
            )
        ]

    def _try(self, wanted: np.ndarray) -> None:
        """All of the wanted ones that were not tried yet, at once."""
        kernels, sizes, scatters = places = np.nonzero(wanted & np.isnan(self._logs))
        if not len(kernels):
            return
        roots = np.empty((len(kernels), *self._noise.shape[1:]))  # each transposed, which is the order of LAPACK
        keys = list(zip(kernels.tolist(), sizes.tolist(), scatters.tolist(), strict=True))
        for root, (kernel, size, scatter) in zip(roots, keys, strict=True):
            np.add(self._noiseless[kernel, size], self._noise[scatter], out=root)
            if lapack.dpotrf(root.T, lower=1, overwrite_a=1, clean=0)[1]:
                root.T[:] = _bordered_root(self._noiseless[kernel, size] + self._noise[scatter])
        n = roots.shape[1] - 1
        residuals, diagonals = roots[:, :n, n], roots.reshape(len(keys), -1)[:, : -n - 1 : n + 2]
        logs = -np.einsum("ij,ij->i", residuals, residuals) / 2 - np.log(diagonals).sum(axis=1)
        self._logs[places] = self._odds[places] + logs
        self._solved |= {
            key: _Solved(root[:n, :n].T, residual) for key, root, residual in zip(keys, roots, residuals, strict=True)
        }


def _noise_of(observed: Observations, prepared: _Prepared, scatters: Sequence[float]) -> np.ndarray:
    """[scatters x observations + 1 x observations + 1]: what seeds and runs by themselves add to the covariance."""
    n = len(observed)
    noise = np.zeros((len(scatters), n + 1, n + 1))
    noise[:, :n, :n] = np.square(scatters)[:, None, None] * prepared.of_seeds
    diagonal = np.einsum("kii->ki", noise)
    diagonal[:, :n] += observed.noise**2 + 1e-12
    diagonal[:, n] = _MORE_THAN_ANY_RESIDUAL
    return noise


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


def _belief(trials: _Trials, observed: Observations, prepared: _Prepared) -> Belief:
    rivals, solved = zip(*trials.rivals(), strict=True)
    return Belief(rivals, observed, prepared.places, solved)


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


def _solve(root: np.ndarray, right: np.ndarray) -> np.ndarray:
    # The same as scipy.linalg.solve_triangular, whose checks take longer than small systems do.
    return np.asarray(lapack.dtrtrs(root, right, lower=1)[0])
