"""Grids of decayed losses and the noise of their seeds, against brute force and what was planted."""

import math

import numpy as np
import pytest
from made_rows import BUDGETS, LAST, RULES, SMALL_LR, SMALL_WD, WARMUP, MadeTables, bowl, make_run, surface_tables

from isotune.analyze.seed_noise import SeedNoise
from isotune.claims import Rows
from isotune.claims.grids import _cells, _levelled, error_root, grid_losses, seed_interval, table_noise


@pytest.mark.parametrize("has_diverged", [False, True])
def test_seed_means_are_taken_out_of_a_grid_of_unequal_seeds(has_diverged):
    true = bowl(-9, -5)
    shift = {0: 0.02, 1: -0.01, 2: 0.0, 3: -0.03, 4: 0.02}
    runs = [
        make_run(lr, wd, seed=seed, final={b: true(lr, wd, b) + shift[seed] for b in BUDGETS})
        for lr in SMALL_LR
        for wd in SMALL_WD
        for seed in (range(5) if -11 <= lr <= -9 and wd <= -6 else [0])
    ]
    if has_diverged:
        runs[-1].decays[LAST[0]].final_val_loss = None
    found = grid_losses(Rows(MadeTables({"nano-small": runs})), "small_decays", BUDGETS)
    truth = np.array([true(x, y, 0) for x, y in zip(found.log2_lr, found.log2_wd, strict=True)])
    levels = found.loss - truth[:, None]
    assert np.isnan(levels).sum() == has_diverged
    assert np.nanmax(levels) - np.nanmin(levels) < 1e-3  # one level, whichever seeds a cell has
    assert found.num_seeds.sum() == 54 + 9 * 4
    assert np.sqrt(np.diag(found.covariance(0))) == pytest.approx(0.0, abs=1e-6)


def test_the_schedulers_noise_is_its_own_or_else_the_large_batchs():
    plain = bowl(-9, -4)
    made = surface_tables(plain, plain, plain).made
    own = grid_losses(Rows(MadeTables(made)), "type2_common", LAST)
    without = made | {"nano-type2": [run for run in made["nano-type2"] if run.seed == 0]}
    others = grid_losses(Rows(MadeTables(without)), "type2_common", LAST)
    large = grid_losses(Rows(MadeTables(made)), "large_decays", LAST)
    assert own.num_seeds.max() == 3 and others.num_seeds.max() == 1
    noise = table_noise(MadeTables(made), "nano-large", LAST)
    runs = [run for run in without["nano-type2"] if run.cell in set(zip(others.log2_lr, others.log2_wd, strict=True))]
    assert others.covariance(0) == pytest.approx(noise_covariance(noise, runs, LAST)[0], rel=0.02)
    assert np.diag(others.covariance(0)) != pytest.approx(np.diag(own.covariance(0)), rel=0.05)
    assert large.num_seeds.max() == 3


def noise_covariance(noise, runs, budgets):
    """Of cells at each budget, if every cell has one run of one seed."""
    places = np.array([run.cell for run in runs])
    steps = [np.interp(budgets, run.trajectory.tokens, run.trajectory.columns["step"]) for run in runs]
    z = np.log2(1 + 2.0 ** places.sum(axis=1)[:, None] * (np.array(steps) - WARMUP / (64 * 4)))
    return [noise.deviations[j] ** 2 * noise.nearness(places[:, 0], z[:, j]) for j in range(len(budgets))]


def test_errors_of_unequal_seeds_are_what_levels_and_means_leave_of_their_noise():
    """Oracle: each number behind a seed's noise goes by itself through the levels and means of the losses."""
    budgets = BUDGETS[-2:]
    noise = SeedNoise(np.array([0.01, 0.02]), np.array([[1.0, 0.6], [0.6, 1.0]]), 0.8, 0.35, 0.1, 1.0, -10.0)
    runs = [
        make_run(lr, wd, seed=seed)
        for lr in (-11, -10, -9)
        for wd in (-6, -3)
        for seed in (range(3) if lr == -10 else (0,))
    ]
    places, cell, z = _cells(runs, budgets)
    root = noise.root(places[:, 0], z).reshape(2, len(places), -1)
    covariance = np.zeros((12, 12))
    for seed in range(3):
        for number in range(root.shape[2]):
            of_runs = np.array([root[:, at, number] * (run.seed == seed) for run, at in zip(runs, cell, strict=True)])
            levelled = _levelled(runs, of_runs)
            means = np.array([levelled[cell == at].mean(axis=0) for at in range(len(places))]).ravel()
            covariance += np.outer(means, means)
    found = error_root(noise, runs, budgets).reshape(12, -1)
    assert found @ found.T == pytest.approx(covariance, abs=1e-9)


def test_a_drawn_seed_moves_the_wds_of_one_lr_together():
    """Planted: noise that all WDs of an LR share, another for the next LR; so it must be drawn."""
    rng = np.random.default_rng(5)
    noise = {(lr, seed): 0.01 * rng.standard_normal() for lr in SMALL_LR for seed in range(5)}
    runs = [
        make_run(lr, wd, seed=seed, final={b: bowl(-9, -5)(lr, wd, b) + noise[lr, seed] for b in LAST})
        for lr in SMALL_LR
        for wd in SMALL_WD
        for seed in (range(5) if wd in (-8, -7) else (0,))
    ]
    grid = grid_losses(Rows(MadeTables({"nano-small": runs})), "small_decays", LAST, more_seeds=False)
    drawn = grid.drawn(RULES.claims["C17"])[:, :, 0]
    assert drawn.mean(axis=0) == pytest.approx(grid.loss[:, 0], abs=0.001)
    assert drawn.std(axis=0) == pytest.approx(0.01, rel=0.35)
    like = np.corrcoef(drawn.T)
    low = grid.log2_wd <= -6  # n << 1
    same_lr = (grid.log2_lr[:, None] == grid.log2_lr) & low & low[:, None]
    far = np.abs(grid.log2_lr[:, None] - grid.log2_lr) >= 2
    assert like[same_lr].min() > 0.9 and np.abs(like[far]).max() < 0.3


def test_a_tenth_of_failed_draws_is_the_most():
    drawn = np.arange(100.0)
    drawn[:10] = np.nan
    assert seed_interval(50.0, drawn, 0.9).low == pytest.approx(np.quantile(drawn[10:], 0.05))
    drawn[10] = np.nan
    assert math.isnan(seed_interval(50.0, drawn, 0.9).value)
