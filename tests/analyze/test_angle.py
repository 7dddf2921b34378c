"""The angle of the index: against polyfit, against what was put in, and with intervals that hold it."""

import math

import numpy as np
import pytest
from synthetic import grid, index_values

from isotune.analyze.angle import _chance, _residuals, bootstrap_angle, index_angle, passing_point


def test_residuals_of_the_cubic_agree_with_polyfit():
    rng = np.random.default_rng(4)
    x, y = grid()
    z = rng.normal(size=25)
    weights = rng.integers(0, 4, (3, 25)).astype(float)
    for angle in (0.0, 45.0, 77.5, -33.0):
        u = np.cos(np.deg2rad(angle)) * x + np.sin(np.deg2rad(angle)) * y
        for row, found in zip(weights, _residuals(x, y, z, np.array([angle]), weights)[:, 0], strict=True):
            fit = np.polyval(np.polyfit(u - u.mean(), z, 3, w=np.sqrt(row)), u - u.mean())
            assert found == pytest.approx((row * (z - fit) ** 2).sum(), rel=1e-8)


@pytest.mark.parametrize("degrees", [-40.0, 0.0, 22.5, 45.0, 100.0, 130.0])
def test_the_angle_is_exact_without_noise_and_inside_its_interval(degrees):
    x, y = grid()
    found = index_angle(x, y, index_values(np.random.default_rng(0), x, y, degrees, 0.0))
    assert found.degrees == pytest.approx(degrees, abs=0.03)
    assert found.low <= found.degrees <= found.high


def test_the_angles_intervals_hold_the_truth_about_nine_times_in_ten():
    x, y = grid()
    held = bootstrapped = 0
    for seed in range(100):
        value = index_values(np.random.default_rng([seed, 1]), x, y, 45, 0.3)
        found = index_angle(x, y, value)
        held += found.low <= 45 <= found.high
        if seed < 40:
            found = bootstrap_angle(x, y, value, draws=200)
            bootstrapped += found.low <= 45 <= found.high
    assert 80 <= held <= 98
    assert bootstrapped >= 30


def test_noise_alone_has_an_angle_in_a_tenth_of_all_draws_at_most():
    """Nor have shuffled values: they are noise of another kind."""
    x, y = grid()
    rng = np.random.default_rng(6)
    values = index_values(rng, x, y, 45, 0.1)
    for draw in (lambda: rng.normal(size=25), lambda: rng.permutation(values)):
        found = [index_angle(x, y, draw()) for _ in range(200)]
        told = [one for one in found if one.high - one.low < 175]
        assert len(told) <= 20 + 3 * math.sqrt(200 * 0.1 * 0.9)
        assert all(one.reason for one in found if one not in told)


def test_noise_alone_has_no_bootstrapped_angle_either():
    x, y = grid()
    found = bootstrap_angle(x, y, np.random.default_rng(6).normal(size=25), draws=50)
    assert (found.low, found.high) == (found.degrees - 90, found.degrees + 90)


@pytest.mark.parametrize("num_cells", [7, 10, 25])
def test_the_chance_of_an_angle_is_that_among_shuffled_values(num_cells):
    """Oracle: the least residual of any angle over shuffles of normal values."""
    rng = np.random.default_rng(num_cells)
    x, y = rng.uniform(-3, 3, (2, num_cells))
    angles, least = np.arange(0, 180, 2.0), []
    for _ in range(400):
        z = rng.normal(size=num_cells)
        residuals = _residuals(x, y, z, angles, np.ones((1, num_cells)))
        least.append(1 - residuals.min() / ((z - z.mean()) ** 2).sum())
    for share in (0.5, 0.9):
        assert _chance(x, y, np.quantile(least, share), 0) == pytest.approx(1 - share, abs=0.07)


def test_an_angle_passes_a_boundary_between_windows_at_once_or_never():
    assert passing_point([1e5, 4e5, 16e5], [2.5, 12.5, 32.5]) == 8e5
    assert passing_point([1e5, 4e5], [30, 40]) == pytest.approx(1e5)
    assert math.isnan(passing_point([1e5, 4e5], [3, 4]))
