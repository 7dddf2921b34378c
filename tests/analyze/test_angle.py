"""The angle of the index: against polyfit, against what was put in, and with intervals that hold it."""

import math

import numpy as np
import pytest
from synthetic import grid, index_values

from isotune.analyze.angle import _residuals, bootstrap_angle, index_angle, passing_point


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


def test_pure_noise_has_no_angle():
    x, y = grid()
    found = index_angle(x, y, np.random.default_rng(6).normal(size=25))
    assert found.high - found.low > 90


def test_an_angle_passes_a_boundary_between_windows_at_once_or_never():
    assert passing_point([1e5, 4e5, 16e5], [2.5, 12.5, 32.5]) == 8e5
    assert passing_point([1e5, 4e5], [30, 40]) == pytest.approx(1e5)
    assert math.isnan(passing_point([1e5, 4e5], [3, 4]))
