"""Errors of runs around smooth curves: sizes and correlations that were put in come out, draws have them too."""

import numpy as np
import pytest
from synthetic import ar1, grid, scaling_loss

from isotune.analyze.run_noise import run_noise

TOKENS = np.arange(1.0, 61.0)


def curves(rng, deviations, correlation):
    x, y = grid()
    smooth = scaling_loss(x, y, TOKENS)
    return smooth, smooth + deviations[:, None] * ar1(rng, smooth.shape, correlation)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_each_runs_variance_and_the_correlation_of_all_come_out(correlation):
    deviations = np.linspace(0.01, 0.05, 25)
    smooth, values = curves(np.random.default_rng(0), deviations, correlation)
    found = run_noise(TOKENS, values)
    assert found.correlation == pytest.approx(correlation, abs=0.08)
    assert np.mean(found.variances / deviations**2) == pytest.approx(1, abs=0.25)
    assert np.corrcoef(found.variances, deviations**2)[0, 1] > 0.7
    assert np.mean((found.smooth - smooth) ** 2) < np.mean((values - smooth) ** 2)


def test_draws_scatter_around_the_smooth_curves_as_the_runs_do():
    _, values = curves(np.random.default_rng(1), np.full(25, 0.03), 0.6)
    found = run_noise(TOKENS, values)
    errors = found.draw(400, np.random.default_rng(2)) - found.smooth
    np.testing.assert_allclose(errors.var(axis=(0, 2)), found.variances, rtol=0.1)
    neighbours = (errors[..., 1:] * errors[..., :-1]).mean() / (errors**2).mean()
    assert neighbours == pytest.approx(found.correlation, abs=0.02)


def test_curves_without_noise_and_curves_of_few_points_have_little_of_it():
    smooth, _ = curves(np.random.default_rng(3), np.zeros(25), 0.0)
    assert np.sqrt(run_noise(TOKENS, smooth).variances).max() < 1e-9
    short = run_noise(TOKENS[:6], smooth[:, :6])
    assert short.num_free == 4 and np.isfinite(short.variances).all()
