"""The belief: against the textbook's formula, and whether evidence moves it."""

import numpy as np
import pytest

from isotune.tune.belief import NOISE, Observations, believe, invariant_kernel, plain_kernel, with_noise

RNG = np.random.default_rng(0)


def points(count, steps=13.4, low=-12.0, high=-7.0):
    return np.column_stack(
        [
            RNG.uniform(low, high, count),
            RNG.uniform(-8, 0, count),
            np.full(count, steps),
            RNG.choice([-3.0, -2.0, -1.0, 0.0], count),
        ]
    )


KERNELS = [invariant_kernel(-9.5, 2.0), plain_kernel(-9.5, -4.0)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_posterior_is_the_textbooks(kernel):
    seen, asked = points(12), points(5)
    values, noise = RNG.normal(0.4, 0.02, 12), RNG.uniform(0.001, 0.01, 12)
    posterior = believe([kernel], [1.0], Observations(seen, values, noise)).at(asked)
    a, b = kernel.place(seen), kernel.place(asked)
    inverse = np.linalg.inv(kernel.covariance(a, a) + np.diag(noise**2))
    cross = kernel.covariance(b, a)
    assert posterior.mean == pytest.approx(b.expected + cross @ inverse @ (values - a.expected), abs=1e-6)
    expected = kernel.covariance(b, b) - cross @ inverse @ cross.T
    assert posterior.covariance(slice(None), slice(None)) == pytest.approx(expected, abs=1e-7)
    assert posterior.deviation == pytest.approx(np.sqrt(np.diag(expected)), abs=1e-5)
    assert kernel.variance(b) == pytest.approx(np.diag(kernel.covariance(b, b)))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_covariance_has_no_negative_eigenvalue(kernel):
    placed = kernel.place(points(60))
    assert np.linalg.eigvalsh(kernel.covariance(placed, placed)).min() > -1e-9


def test_two_kernels_make_the_mixture_of_their_posteriors():
    seen, asked = points(6), points(4)
    observed = Observations(seen, RNG.normal(0.4, 0.02, 6), np.full(6, 0.003))
    both = believe(KERNELS, [4.0, 1.0], observed)
    alone = [believe([kernel], [1.0], observed).at(asked) for kernel in KERNELS]
    mixed = both.at(asked)
    assert mixed.mean == pytest.approx(sum(w * one.mean for w, one in zip(both.weights, alone, strict=True)))
    draws = mixed.draws(slice(None), 200_000, np.random.default_rng(1))
    assert draws.mean(axis=0) == pytest.approx(mixed.mean, abs=2e-3)
    assert np.cov(draws.T) == pytest.approx(mixed.covariance(slice(None), slice(None)), rel=0.05, abs=3e-5)


def test_weight_decay_cannot_matter_where_memory_has_not_turned_over():
    kernel = KERNELS[0]
    early = kernel.place(np.array([[-10.0, -8.0, 8.0, 0.0], [-10.0, -5.0, 8.0, 0.0]]))  # n of .001 and .008
    late = kernel.place(np.array([[-10.0, -3.0, 15.0, 0.0], [-10.0, 0.0, 15.0, 0.0]]))  # n of 4 and 32
    spread = []
    for placed in (early, late):
        c = kernel.covariance(placed, placed)
        spread.append((c[0, 0] + c[1, 1] - 2 * c[0, 1]) ** 0.5)
    assert spread[0] < 1e-3 < 0.01 < spread[1]


def test_evidence_decides_between_the_kernels():
    """Losses that turn with WD where n is tiny refute the invariance; losses that do not turn confirm it."""
    cells = np.array([[lr, wd, 9.0, 0.0] for lr in (-11.0, -10.0, -9.0) for wd in (-8.0, -6.0, -4.0)])
    flat = 0.4 + 0.008 * (cells[:, 0] + 10) ** 2
    tilted = flat + 0.01 * (cells[:, 1] + 6)
    for values, expected in ((flat, "invariant"), (tilted, "plain")):
        belief = believe(KERNELS, [4.0, 1.0], with_noise(cells, values))
        assert belief.kernels[int(np.argmax(belief.weights))].name == expected
        assert belief.weights.max() > 0.9


def test_a_short_run_says_less_than_a_long_one():
    target = np.array([[-10.0, -6.0, 13.4, 0.0]])
    left = []
    for d in (-4.0, -2.0, -1.0, 0.0):
        seen = target.copy()
        seen[0, 2:] = 13.4 + d, d
        others = seen + np.array([[1.0, 0.0, 0.0, 0.0]])
        observed = Observations(np.vstack([seen, others]), np.array([0.5, 0.5]), np.full(2, NOISE))
        belief = believe(KERNELS[:1], [1.0], observed)
        both = belief.at(np.vstack([target, target + np.array([[1.0, 0.0, 0.0, 0.0]])]))
        c = both.covariance(slice(None), slice(None))
        left.append(c[0, 0] + c[1, 1] - 2 * c[0, 1])  # variance of the difference that is asked about
    assert left == sorted(left, reverse=True)


def test_bad_losses_count_less_and_of_very_many_the_best_are_kept():
    cells = points(500)
    values = RNG.normal(0.4, 0.1, 500)
    observed = with_noise(cells, values)
    worst, best = int(np.argmax(values)), int(np.argmin(values))
    assert observed.noise[worst] > 10 * observed.noise[best] and observed.noise[best] == pytest.approx(NOISE)
    kept = believe(KERNELS, [1.0, 1.0], observed).observations
    assert len(kept) == 300 and values[best] in kept.values and values[worst] not in kept.values
