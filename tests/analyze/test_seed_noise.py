"""The noise of seeds: found as it was planted, from seeds and from the roughness of one seed along WD."""

import math

import numpy as np
import pytest

from isotune.analyze.seed_noise import SeedNoise, fit_noise

LEVELS = [0.0, 0.5, -0.3, 0.2, 0.1]


def cells(num_rates=6, num_decays=6):
    axes = np.arange(-12.0, -12.0 + num_rates), np.linspace(0, 1.5, num_decays)
    u, z = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    return u, np.column_stack([z, z])


def drawn(planted, losses, u, z, rng):
    root = planted.root(u, z)
    shape = losses.shape[::-1]
    return {
        seed: losses + level + (root @ rng.standard_normal(losses.size)).reshape(shape).T
        for seed, level in enumerate(LEVELS)
    }


def test_noise_is_found_as_it_was_planted():
    """Levels of seeds and losses of cells are free; what near cells share and what each has by itself is told apart."""
    rng = np.random.default_rng(0)
    u, z = cells()
    planted = SeedNoise(np.array([0.01, 0.02]), np.array([[1.0, 0.6], [0.6, 1.0]]), 0.8, 0.35, 0.03, 0.5, -10.0)
    losses = rng.normal(size=(36, 2))
    best = int(np.argmin(losses[:, 1]))
    losses[[best, 12]] = losses[[12, best]]  # an LR of 2^-10 has the lowest: deviations are told for that one
    by_seed = drawn(planted, losses, u, z, rng)
    by_seed[3][7:] = math.nan  # a seed that is there for few cells
    found = fit_noise(u, z, by_seed)
    assert found.reference == -10.0 and found.deviations == pytest.approx(planted.deviations, rel=0.2)
    assert (found.lr_length, found.memory_length) == (0.8, 0.35)
    assert 0.01 <= found.own <= 0.1 and 0.25 <= found.growth <= 0.75
    assert found.correlations[0, 1] == pytest.approx(0.6, abs=0.25)
    assert fit_noise(u, z, {0: losses}) is None, "one seed tells nothing"


@pytest.mark.parametrize("memory_length", [0.2, 1.0])
def test_seeds_at_one_weight_decay_and_a_rough_or_smooth_line_tell_how_far_noise_is_shared(memory_length):
    rng = np.random.default_rng(1)
    u, z = cells(6, 16)
    planted = SeedNoise(np.array([0.01, 0.01]), np.ones((2, 2)), 0.5, memory_length, 0.001, 0.0, -10.0)
    losses = 2.0 + 0.02 * (u + 10)[:, None] ** 2 + 0.015 * z**2
    by_seed = drawn(planted, losses, u, z, rng)
    for seed in list(by_seed)[1:]:
        by_seed[seed][z[:, 0] > 0] = math.nan
    found = fit_noise(u, z, by_seed)
    assert found.memory_length / memory_length in (0.6, 1.0, 0.35 / 0.2)


def test_noise_is_not_extrapolated_to_learning_rates_without_seeds():
    noise = SeedNoise(np.ones(1), np.ones((1, 1)), growth=1.0, reference=-10.0, last=-9.0)
    u = np.array([-11.0, -10.0, -9.0, -7.0])
    assert np.diag(noise.nearness(u, np.zeros(4))) == pytest.approx([0.25, 1.0, 4.0, 4.0])
