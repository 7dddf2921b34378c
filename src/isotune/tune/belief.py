"""What is believed of the loss over LR, WD and budget: rival Gaussian processes, between which evidence decides.

That WD matters through n alone (kernels.py) is the prior; a rival without it, smooth in log LR and log WD, stands
beside it, and what is observed decides between them by their marginal likelihoods. So do two more, under which WD
matters through n alone, too. By one it may help by much: where runs are short n is small, and nothing that was seen
speaks against it. By the other the surface is less smooth: where seeds scatter much, evidence is slow to say so, and a
smooth bowl would be sure of LRs that hardly ran. How steep the bowl is and how much seeds scatter are matters of
evidence, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from isotune.tune.evidence import JITTERS, Contest, Prepared, Rival, Solved, Trials, slices_by_view
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
MIN_FOR_LUCK = 4  # observations, by which others can be expected
MAX_AT_ONCE = 1 << 20  # numbers of covariances that are made at once, by rival, place and observation

# A suggestion takes and frees some MB, which glibc returns to the system each time, and a fifth of the time goes into
# getting it back. It keeps more from the moment that something large was freed.
np.empty(1 << 20)


@dataclass(frozen=True)
class Belief:
    """The rivals with their probabilities, given what was observed."""

    rivals: tuple[Rival, ...]
    observations: Observations
    _places: Places = field(repr=False)  # of the observations
    _solved: tuple[Solved, ...] = field(repr=False)  # the same, by rival

    def beside(self, points: Points | Places) -> Beside:
        """What these points share with the observations."""
        kernels = {rival.kernel.view: rival.kernel for rival in self.rivals}
        places = points if isinstance(points, Places) else Places.of(kernels.values(), points)
        if not len(self.observations):
            return Beside(places, {}, 0.0)
        shared = {view: kernel.shared(places, self._places) for view, kernel in kernels.items()}
        return Beside(places, shared, self.observations.seed_covariance(self._places, places))

    def at(self, points: Points | Places | Beside) -> Posterior:
        """The log losses at these points."""
        beside = points if isinstance(points, Beside) else self.beside(points)
        places, n = beside.places, len(self.observations)
        means = np.empty((len(self.rivals), len(places)))
        known = np.empty((len(places), len(self.rivals), n))
        by_rival = known.transpose(1, 0, 2)
        for its in slices_by_view(self.rivals, _at_once(len(places) * n)):
            rivals, solved = self.rivals[its], self._solved[its]
            means[its] = expected_losses([(one.kernel, one.size) for one in rivals], places) + self.observations.level
            if n:
                roots = np.sqrt([one.weight for one in rivals])
                covariances = _covariances(rivals, beside.shared[rivals[0].kernel.view], beside.of_seeds)
                whitening = np.array([root * one.inverse.T for root, one in zip(roots, solved, strict=True)])
                np.matmul(covariances, whitening, out=by_rival[its])
                residuals = np.array([one.residual for one in solved]) / roots[:, None]
                means[its] += np.matmul(by_rival[its], residuals[:, :, None])[:, :, 0]
        return Posterior(self.rivals, places, means, known.reshape(len(places), len(self.rivals) * n))

    def expected(self, points: Points | Places | Beside) -> np.ndarray:
        """The mean of the log losses at these points: the same as that of `at`, in a fraction of the time."""
        beside = points if isinstance(points, Beside) else self.beside(points)
        n = len(self.observations)
        means, seeds = np.full(len(beside.places), self.observations.level), np.zeros(n)
        for its in slices_by_view(self.rivals):
            view = self.rivals[its.start].kernel.view
            own, others = beside.places.views[view].terms, self._places.views[view].terms
            terms, departures = np.zeros(own.shape[1]), np.zeros(n)
            for rival, solved in zip(self.rivals[its], self._solved[its], strict=True):
                weights = rival.kernel.weights(rival.size)
                explains = rival.weight * (solved.residual @ solved.inverse) if n else seeds
                terms += rival.weight * rival.kernel.coefficients(rival.size)
                terms += weights.squares * (explains @ others)
                departures += weights.departures * explains
                seeds += rival.scatter**2 * explains
            means += own @ terms
            if n:
                means += beside.shared[view].departures @ departures
        if isinstance(beside.of_seeds, np.ndarray):
            means += beside.of_seeds @ seeds
        return means

    def likeliest(self) -> Belief:
        """That of the likeliest rival alone."""
        best = max(range(len(self.rivals)), key=lambda index: self.rivals[index].weight)
        return replace(self, rivals=(replace(self.rivals[best], weight=1.0),), _solved=(self._solved[best],))

    @property
    def views(self) -> tuple[str, ...]:
        """How the rivals see points, each once."""
        return tuple(dict.fromkeys(rival.kernel.view for rival in self.rivals))


@dataclass(frozen=True)
class Beside:
    """Places, and what they share with the observations under the rivals of each view."""

    places: Places = field(repr=False)
    shared: dict[str, Shared] = field(repr=False)
    of_seeds: np.ndarray | float = field(repr=False)


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
        ends = np.rint(self.weights.cumsum() * len(normals)).astype(int)
        begins = np.concatenate([[0], ends[:-1]])
        for its in slices_by_view(self.rivals, _at_once(len(self.places.points[chosen]) ** 2)):
            parts = self._left_of(its, chosen), self._means[its, chosen], begins[its].tolist(), ends[its].tolist()
            for covariance, mean, begin, end in zip(*parts, strict=True):
                np.matmul(normals[begin:end], _root(covariance).T, out=drawn[begin:end])
                drawn[begin:end] += mean
        return drawn

    def _left_of(self, its: slice, chosen: slice) -> np.ndarray:
        """[rivals x chosen x chosen]: the covariances that the observations leave under some rivals of one view."""
        rivals, n = self.rivals[its], self._known.shape[1] // len(self.rivals)
        known = self._known[chosen, its.start * n : its.stop * n]
        known = known.reshape(len(known), len(rivals), n).transpose(1, 0, 2)
        left = np.matmul(known, known.transpose(0, 2, 1))
        left /= -self.weights[its, None, None]
        left += _covariances(
            rivals, self.places.shared(rivals[0].kernel, chosen, chosen), self._of_seeds(chosen, chosen)
        )
        return left

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
    contest = Contest.of(kernels, sizes, scatters)
    prepared = Prepared(contest, observed)
    trials = Trials(contest, observed, prepared)
    if len(observed) >= MIN_FOR_LUCK:
        trials.first()
        luck = trials.likeliest().luck()
        if luck.any():
            observed = replace(observed, noise=np.hypot(observed.noise, luck))
            trials = Trials(contest, observed, prepared)
    trials.worthwhile()
    rivals, solved = zip(*trials.rivals(), strict=True)
    return Belief(rivals, observed, prepared.places, solved)


def _at_once(size: int) -> int:
    """Of so many numbers each, how many rivals."""
    return max(1, MAX_AT_ONCE // max(1, size))


def _covariances(rivals: Sequence[Rival], shared: Shared, of_seeds: np.ndarray | float) -> np.ndarray:
    """[rivals x first x second] of what is shared under rivals of one view, before anything is observed."""
    found = shared.covariance(Weights.of([(one.kernel, one.size) for one in rivals]))
    if isinstance(of_seeds, np.ndarray):
        found += np.square([one.scatter for one in rivals])[:, None, None] * of_seeds
    return found


def _root(covariance: np.ndarray) -> np.ndarray:
    """The Cholesky factor of a covariance that rounding may have made slightly indefinite; its diagonal is raised."""
    diagonal = covariance.reshape(-1)[:: len(covariance) + 1]
    diagonal += 1e-10
    for share in (0.0, *JITTERS):
        if share:
            diagonal += share * float(diagonal.max())
        root, failed = lapack.dpotrf(covariance.T, lower=1)
        if not failed:
            return np.asarray(root)
    raise np.linalg.LinAlgError("the covariance of the losses is not positive definite")
