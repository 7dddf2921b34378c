"""What rivals are tried by: covariances as sums of a few matrices, against the kernels' own."""

import itertools

import numpy as np
import pytest
from scipy import stats

from isotune.tune.belief import SCATTERS, SIZES
from isotune.tune.evidence import Contest, Prepared, Trials, slices_by_view
from isotune.tune.kernels import (
    Places,
    expected_losses,
    helped_kernel,
    invariant_kernel,
    plain_kernel,
    rough_kernel,
    seed_covariance,
)
from isotune.tune.observations import Observations

INVARIANT = invariant_kernel(-9.5, 2.0)
# Kernels of one view do not stand together here.
ODDS = {INVARIANT: 4.0, plain_kernel(-9.5, -4.0): 1.0, helped_kernel(INVARIANT): 2.0, rough_kernel(INVARIANT): 1.0}


def observed(count, seed=0):
    rng = np.random.default_rng(seed)
    columns = [rng.uniform(-12, -7, count), rng.uniform(-8, 0, count), np.full(count, 13.4)]
    points = np.column_stack([*columns, rng.choice([-2.0, -1.0, 0.0], count), rng.choice([0.0, 1.0, np.nan], count)])
    return Observations(points, rng.normal(0.4, 0.02, count), rng.uniform(0.001, 0.01, count))


def by_itself(kernel, size, scatter, seen):
    """(the covariance without runs' own noise, the residual), as the kernel says."""
    places = Places.of([kernel], seen.points)
    covariance = kernel.shared(places, places).covariance(kernel.weights(size))
    covariance += scatter**2 * seed_covariance(places, places)
    return covariance, seen.values - expected_losses([(kernel, size)], places)[0]


@pytest.mark.parametrize("count", [1, 7, 30])
def test_covariances_and_residuals_of_all_rivals_are_those_of_their_kernels(count):
    seen, contest = observed(count), Contest.of(ODDS, SIZES, SCATTERS)
    every = np.indices(contest.log_odds.shape).reshape(3, -1)
    bordered = Prepared(contest, seen).bordered(tuple(every))
    settings = itertools.product(ODDS, SIZES, SCATTERS)
    for found, (kernel, size, scatter) in zip(bordered, settings, strict=True):
        covariance, residual = by_itself(kernel, size, scatter, seen)
        assert found[:-1, :-1] == pytest.approx(covariance, rel=1e-9, abs=1e-13)
        assert found[:-1, -1] == pytest.approx(residual, abs=1e-12)


def test_weights_are_odds_times_the_likelihood_of_what_was_observed():
    seen, contest = observed(9), Contest.of(ODDS, SIZES, SCATTERS)
    trials = Trials(contest, seen, Prepared(contest, seen))
    trials.worthwhile()
    rivals = [rival for rival, _ in trials.rivals()]
    logs = []
    for one in rivals:
        covariance, residual = by_itself(one.kernel, one.size, one.scatter, seen)
        likelihood = stats.multivariate_normal.logpdf(residual, cov=covariance + np.diag(seen.noise**2))
        logs.append(likelihood + np.log(ODDS[one.kernel] * SIZES[one.size] * SCATTERS[one.scatter]))
    expected = np.exp(np.array(logs) - max(logs))
    assert len(rivals) > 3
    assert [one.weight for one in rivals] == pytest.approx((expected / expected.sum()).tolist(), rel=1e-3)


def test_rivals_of_one_view_stand_together():
    seen, contest = observed(3), Contest.of(ODDS, SIZES, SCATTERS)
    trials = Trials(contest, seen, Prepared(contest, seen))
    trials.worthwhile()
    rivals = [rival for rival, _ in trials.rivals()]
    for most in (None, 1, 3):
        slices = slices_by_view(rivals, most)
        assert [place for its in slices for place in range(*its.indices(len(rivals)))] == list(range(len(rivals)))
        assert all(len({one.kernel.view for one in rivals[its]}) == 1 for its in slices)
        assert most is None or max(len(rivals[its]) for its in slices) == most
    assert len(slices_by_view(rivals)) == 2


def test_a_covariance_that_is_not_quite_positive_definite_is_factorised_all_the_same():
    """The same run twice, without any noise of its own."""
    once = observed(6)
    twice = Observations(*(np.concatenate([part, part]) for part in (once.points, once.values)), np.zeros(12))
    contest = Contest.of({INVARIANT: 1.0}, {8.0: 1.0}, {4.5: 1.0})
    trials = Trials(contest, twice, Prepared(contest, twice))
    trials._variances = np.full(12, -1e-13)
    trials.first()
    root = trials.likeliest().root
    covariance, _ = by_itself(INVARIANT, 8.0, 4.5, twice)
    assert np.tril(root) @ np.tril(root).T == pytest.approx(covariance, abs=1e-4)
