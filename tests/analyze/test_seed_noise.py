"""The noise of seeds: found as it was planted."""

import math

import numpy as np
import pytest

from isotune.analyze.seed_noise import SeedNoise, fit_noise

LEVELS = [0.0, 0.5, -0.3, 0.2, 0.1]


def cells(num_rates=5, num_decays=4):
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
    planted = SeedNoise(np.array([0.01, 0.02]), np.array([[1.0, 0.6], [0.6, 1.0]]), 0.8, 0.35, 0.03)
    losses = rng.normal(size=(20, 2))
    by_seed = drawn(planted, losses, u, z, rng)
    by_seed[3][7:] = math.nan  # a seed that is there for few cells
    found = fit_noise(u, z, by_seed)
    assert found.deviations == pytest.approx(planted.deviations, rel=0.2)
    assert (found.lr_length, found.memory_length) == (0.8, 0.35) and 0.01 <= found.own <= 0.1
    assert found.correlations[0, 1] == pytest.approx(0.6, abs=0.25)
    assert fit_noise(u, z, {0: losses}) is None, "one seed tells nothing"


def test_size_is_what_seeds_scatter_by_though_the_shape_along_weight_decay_is_another():
    """All but shared along WD, with tiny differences that grow with LR: no reason for a larger noise between LRs."""
    rng = np.random.default_rng(2)
    u, z = cells(num_decays=3)
    by_seed = {}
    for seed in range(8):
        between = dict(zip(np.unique(u), rng.normal(0, 0.01, 5), strict=True))
        tiny = 1e-5 * 3.0 ** (u + 12) * rng.normal(size=len(u))
        by_seed[seed] = np.repeat((np.array([between[lr] for lr in u]) + tiny)[:, None], 2, axis=1)
    assert fit_noise(u, z, by_seed).deviations == pytest.approx([0.01, 0.01], rel=0.4)


def test_a_level_is_what_seeds_vary_by_beyond_their_noise():
    rng = np.random.default_rng(3)
    u, z = cells(num_decays=2)
    planted = SeedNoise(np.array([0.01, 0.01]), np.ones((2, 2)), 0.5, 0.6, 0.01)
    losses = np.zeros((10, 2))
    levels = np.array(LEVELS)
    assert fit_noise(u, z, drawn(planted, losses, u, z, rng)).level == pytest.approx(levels.std(ddof=1), rel=0.1)
    without = {seed: one - LEVELS[seed] for seed, one in drawn(planted, losses, u, z, rng).items()}
    assert fit_noise(u, z, without).level < 0.006
