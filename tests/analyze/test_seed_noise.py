"""The noise of seeds: found as it was planted."""

import math

import numpy as np
import pytest

from isotune.analyze.seed_noise import FOR_MEANS, USUAL_LEVEL, SeedNoise, cell_mean_errors, cell_means, fit_noise

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


def all_at_once(u, z, cell, seed, values, noise=None):
    """The generalised least squares of all cells together: (means, covariance of their errors)."""
    noise = noise or SeedNoise(np.ones(1), np.ones((1, 1)), *FOR_MEANS, reference=float(np.median(u)))
    total = (noise.nearness(u, z) + USUAL_LEVEL)[np.ix_(cell, cell)] * (seed[:, None] == seed)
    effects = np.eye(len(u))[cell]
    weights = effects.T @ np.linalg.solve(total, effects)
    return np.linalg.solve(weights, effects.T @ np.linalg.solve(total, values)), np.linalg.inv(weights)


SEEDS = {
    "each its own": lambda rng, cell: [(index, index) for index in cell],
    "one everywhere, others here and there": lambda rng, cell: [
        (index, seed) for index in cell for seed in range(3) if seed == 0 or rng.random() < 0.3
    ],
    "all everywhere": lambda rng, cell: [(index, seed) for index in cell for seed in range(3)],
    "all but a few": lambda rng, cell: [
        (index, seed) for index in cell for seed in range(3) if seed == index % 3 or rng.random() < 0.9
    ],
    "two halves without a common seed": lambda rng, cell: [
        (index, 2 * seed + (index >= 10))
        for index in cell
        for seed in range(2)
        if (seed == 0 and index % 5) or rng.random() < 0.5 or seed == (index % 5 == 0)
    ],
    "several in one cell, none shared": lambda rng, cell: [(index, 3 * index + k) for index in cell for k in range(3)],
}


@pytest.mark.parametrize("noise", [None, SeedNoise(np.ones(1), np.ones((1, 1)), 0.5, 0.35, 0.1, 2.0, reference=-11.0)])
@pytest.mark.parametrize("name", SEEDS)
def test_means_of_cells_are_those_of_all_cells_at_once(name, noise):
    rng = np.random.default_rng(5)
    u, z = cells()
    cell, seed = np.array(SEEDS[name](rng, range(len(u)))).T
    values = rng.normal(size=len(cell)) + 0.3 * seed
    means, errors = all_at_once(u, z[:, 0], cell, seed, values, noise)
    assert cell_means(u, z[:, 0], cell, seed * 10**9 - 7, values, noise) == pytest.approx(means, abs=1e-5)
    assert cell_mean_errors(u, z[:, 0], cell, seed, noise) == pytest.approx(errors, rel=1e-4)


def test_runs_that_agree_in_cell_and_seed_are_averaged_first():
    u, z = cells()
    cell, seed, values = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]), np.array([1.0, 3.0, 4.0, 5.0])
    merged = cell_means(u[:2], z[:2, 0], cell[1:], seed[1:], np.array([2.0, 4.0, 5.0]))
    assert cell_means(u[:2], z[:2, 0], cell, seed, values) == pytest.approx(merged)


def test_where_no_seed_is_in_two_cells_no_cells_are_compared(monkeypatch):
    """Ten thousand cells with a seed each: the work does not grow with their square."""
    monkeypatch.setattr(SeedNoise, "nearness", lambda *_: pytest.fail("cells were compared"))
    rng = np.random.default_rng(7)
    u, z, values = rng.normal(size=(3, 10_000))
    assert np.array_equal(cell_means(u, z, np.arange(10_000), rng.permutation(10_000), values), values)
