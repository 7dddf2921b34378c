"""How sure a zero of contrasts is: against the closed form of a linear function of runs, and many draws."""

import math

import numpy as np
import pytest

from isotune.analyze.run_noise import RunNoise
from isotune.analyze.shift_errors import MIN_SHARE, Zero, contrasts, zero_errors

TRIANGLES = np.array([[0, 1, 2], [3, 2, 1], [4, 3, 5], [1, 4, 3]])
NUM_RUNS, NUM_POINTS = 6, 12


def made_noise(size, correlation=0.6):
    rng = np.random.default_rng(3)
    smooth = rng.uniform(1, 2, (NUM_RUNS, 1)) + rng.uniform(0.1, 0.3, (NUM_RUNS, 1)) * np.linspace(0, 1, NUM_POINTS)
    return RunNoise(smooth, (size * np.arange(1, NUM_RUNS + 1)) ** 2, correlation, num_free=10)


def made_zero(k=2, leftover=0.0):
    rng = np.random.default_rng(4)
    num_values = len(TRIANGLES) * NUM_POINTS
    influence = rng.standard_normal((k, num_values))
    return Zero(np.zeros(k), influence, leftover * rng.standard_normal((len(TRIANGLES), num_values)))


def covariance(noise):
    """Of all points of all runs: runs are independent, neighbours of a run are not."""
    lags = np.abs(np.subtract.outer(np.arange(NUM_POINTS), np.arange(NUM_POINTS)))
    return np.kron(np.diag(noise.variances), noise.correlation**lags)


def derivative(noise):
    """Of the contrasts with respect to each point of each run, by differences."""
    rows = []
    for place in np.ndindex(noise.smooth.shape):
        step = np.zeros(noise.smooth.shape)
        step[place] = 1e-6
        both = [contrasts(noise.smooth + sign * step, TRIANGLES).ravel() for sign in (1, -1)]
        rows.append((both[0] - both[1]) / 2e-6)
    return np.array(rows)


def errors_of(zero, noise, c=None):
    c = np.zeros((len(TRIANGLES), NUM_POINTS)) if c is None else c
    (found,) = zero_errors([zero], c, TRIANGLES, noise)
    return found


def test_errors_of_small_noise_are_those_of_the_closed_form():
    """A few hundred draws alone would be off by some percent."""
    noise, zero = made_noise(1e-6), made_zero()
    slopes = derivative(noise) @ zero.influence.T
    expected = np.sqrt(np.einsum("vk,vw,wk->k", slopes, covariance(noise), slopes))
    assert errors_of(zero, noise).errors == pytest.approx(expected, rel=1e-3)


def test_errors_of_large_noise_are_those_of_many_draws():
    noise, zero = made_noise(0.1), made_zero()
    values = noise.draw(20_000, np.random.default_rng(5))
    expected = (contrasts(values, TRIANGLES).reshape(len(values), -1) @ zero.influence.T).std(axis=0)
    slopes = derivative(noise) @ zero.influence.T
    linear = np.sqrt(np.einsum("vk,vw,wk->k", slopes, covariance(noise), slopes))
    assert (np.abs(linear / expected - 1) > 0.3).all(), "contrasts are far from linear here: the test can fail"
    assert errors_of(zero, noise).errors == pytest.approx(expected, rel=0.1)


def test_freedom_is_that_of_the_runs_which_decide():
    """Weights of runs in the variance, by hand: num_free (sum)^2 / sum of squares."""
    noise, zero = made_noise(1e-6), made_zero()
    slopes = (derivative(noise) @ zero.influence.T).reshape(NUM_RUNS, NUM_POINTS, -1)
    lags = np.abs(np.subtract.outer(np.arange(NUM_POINTS), np.arange(NUM_POINTS)))
    of_runs = np.einsum("rtk,tu,ruk->rk", slopes, noise.correlation**lags, slopes) * noise.variances[:, None]
    expected = noise.num_free * of_runs.sum(axis=0) ** 2 / (of_runs**2).sum(axis=0)
    assert errors_of(zero, noise).freedom == pytest.approx(expected, rel=0.01)
    assert (expected > noise.num_free).all()


def test_scatter_that_falls_short_counts_as_much_as_scatter_that_exceeds():
    noise, zero = made_noise(1e-4), made_zero(leftover=1.0)
    calm = errors_of(made_zero(), noise).errors ** 2
    values = noise.draw(4000, np.random.default_rng(6))
    drawn = contrasts(values, TRIANGLES).reshape(len(values), -1)
    expected = (drawn @ zero.leftover.T).var(axis=0).sum()
    direction = np.linalg.pinv(zero.leftover) @ np.ones(len(TRIANGLES)) / math.sqrt(len(TRIANGLES))
    less, more = (errors_of(zero, noise, direction * math.sqrt(share * expected)) for share in (0.7, 1.3))
    assert less.offsets < 0 < more.offsets
    assert (less.errors**2 + more.errors**2) / 2 == pytest.approx(calm, rel=0.15)
    assert (less.errors**2 < calm).all() and (calm < more.errors**2).all()
    none = errors_of(zero, noise, 0 * direction)
    assert (none.errors**2 >= MIN_SHARE * calm * (1 - 1e-9)).all()
