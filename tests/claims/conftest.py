import numpy as np
import pytest

from isotune.analyze.seed_noise import SeedNoise


def independent(u, z, by_seed):
    """The noise of tables that were made with noise of each run and budget by itself, from cells with all seeds."""
    losses = np.array(list(by_seed.values()))
    full = losses[:, np.isfinite(losses).all(axis=(0, 2))]
    if min(full.shape[:2]) < 2:
        return None
    rest = full - full.mean(axis=0) - full.mean(axis=1, keepdims=True) + full.mean(axis=(0, 1))
    freedom = (full.shape[0] - 1) * (full.shape[1] - 1)
    return SeedNoise(np.sqrt((rest**2).sum(axis=(0, 1)) / freedom), np.eye(losses.shape[2]))


@pytest.fixture
def independent_noise(monkeypatch):
    """Without the search for how noise is shared, which takes longest for each table; test_grid_losses.py has it."""
    monkeypatch.setattr("isotune.claims.grids.fit_noise", independent)
