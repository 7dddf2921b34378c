"""[definitions] of claims.toml against loops over pairs, closed forms, numpy's own fits and `isotune.analyze`."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from planted import RULES

from isotune.analyze.distances import Floor, relative_distances
from isotune.claims import Estimate, RowSet, RowsMissing, Run
from isotune.claims import definitions as d
from isotune.runs import RunInfo, Trajectory

ENTRY = replace(RULES.claims["C05"], numbers=RULES.claims["C05"].numbers | {"bootstrap_draws": 300})


def made_run(log2_lr, log2_wd, seed=0, batch=4, warmup_tokens=24_576, end=2_686_976, **columns):
    """A run with a row every 12,288 tokens; each column is a function of tokens."""
    tokens = np.arange(0, end + 1, 12_288)
    rate = np.where(tokens < warmup_tokens, 2.0**log2_lr / 2, 2.0**log2_lr)
    made = {
        "tokens": tokens,
        "step": tokens // 256,
        "learning_rate": rate,
        "weight_decay": np.full(len(tokens), 2.0**log2_wd),
        "batch_size": np.full(len(tokens), float(batch)),
    }
    made |= {
        name: np.broadcast_to(np.asarray(column(tokens), dtype=float), tokens.shape) for name, column in columns.items()
    }
    info = RunInfo(
        learning_rate=2.0**log2_lr,
        weight_decay=2.0**log2_wd,
        batch_size=batch,
        sequence_length=64,
        weight_decay_convention="coupled",
        schedule="constant",
        seed=seed,
        status="finished",
        source="planted",
    )
    table = SimpleNamespace(trajectory=lambda name: Trajectory(made, info))
    record = SimpleNamespace(run="run", seed=seed)
    return Run(record, log2_lr, log2_wd, table, {})


def made_rows(runs):
    return RowSet("made", "made", tuple(runs), 0, len(runs), "none")


def grid_rows(lr=range(-11, -6), wd=range(-4, 1), seeds=(0,), **columns):
    return made_rows([made_run(x, y, seed, **columns) for x in lr for y in wd for seed in seeds])


def loss_at_evaluations(tokens, value):
    return np.where(tokens % 61_440 == 0, value, np.nan)


# Curves and means


def test_a_curve_is_read_on_multiples_of_61440_after_the_warm_up():
    run = made_run(-10, -2, val_loss=lambda t: loss_at_evaluations(t, 1e-6 * t))
    late = d.curves([run], "val_loss", (1_597_440, 2_686_976))
    assert late.shape == (1, 18)  # the rules: "18 evaluations"
    assert late[0] == pytest.approx(0.06144 * np.arange(26, 44))
    assert d.curves([run], "val_loss", (61_440, 307_200)).shape == (1, 5)  # "five evaluations"
    assert d.curves([run], "val_loss", (0, 307_200)).shape == (1, 5)  # the warm-up is left out


def test_a_curve_is_interpolated_between_evaluations_and_never_continued():
    run = made_run(-10, -2, val_loss=lambda t: np.where((t % 122_880 == 0) & (t < 700_000), t * 1.0, np.nan))
    values = d.curves([run], "val_loss", (61_440, 2_686_976))
    assert values[0] == pytest.approx(61_440 * np.arange(1, 11.0))  # the last evaluation is at 614,400


def test_a_run_with_too_few_evaluations_is_missing():
    run = made_run(-10, -2, val_loss=lambda t: np.where(t % 614_400 == 0, 1.0, np.nan))
    with pytest.raises(RowsMissing, match="2 of 4 values"):
        d.curves([run], "val_loss", (1_597_440, 2_686_976))


def test_scaled_noise_has_its_closed_form_in_bins_of_ten_readings():
    trace, clip = 80.0, 0.5
    run = made_run(-10, -2, precond_noise_trace=lambda t: trace, noise_clip_factor=lambda t: clip)
    bins = d.bin_curves([run], "scaled_noise", (1_597_440, 2_686_976))
    assert bins.shape == (1, 8)
    assert bins == pytest.approx(2.0**-10 / 4 * clip**2 * trace / clip)
    uncorrected = d.noise_over(run.trajectory, "scaled_noise", (1_597_440, 2_686_976), corrected=False)
    assert uncorrected.value == pytest.approx(2.0**-10 / 4 * trace)
    assert d.window_means([run], "scaled_noise", (1_597_440, 2_686_976)) == pytest.approx(2.0**-10 * 10)


def test_noise_right_after_a_batch_switch_is_left_out():
    switch = 1_048_576

    def batch_run():
        run = made_run(-10, -2, noise_clip_factor=lambda t: 1.0)
        columns = run.trajectory.columns
        columns["batch_size"] = np.where(columns["tokens"] <= switch, 4.0, 64.0)
        columns["step"] = np.where(
            columns["tokens"] <= switch, columns["tokens"] / 256, 4096 + (columns["tokens"] - switch) / 4096
        )
        settling = (columns["step"] > 4096) & (columns["step"] < 4096 + 62)
        columns["precond_noise_trace"] = np.where(settling, 1e6, 80.0)
        return run

    run = batch_run()
    value = d.noise_over(run.trajectory, "scaled_noise", (1_000_000, 2_000_000)).value
    assert value < 2.0**-10 * 80 / 4 + 1e-9


def test_means_of_stretches_take_the_rows_that_end_inside():
    run = made_run(-10, -2, train_loss=lambda t: t)
    assert d.window_means([run], "train_loss", (122_880, 167_936))[0] == pytest.approx(
        np.mean([135_168, 147_456, 159_744])
    )


# Pairs


def test_pair_means_equal_a_loop_over_pairs():
    rng = np.random.default_rng(0)
    values = rng.random((6, 6))
    values += values.T
    pairs = rng.random((6, 6)) < 0.6
    pairs = (pairs | pairs.T) & ~np.eye(6, dtype=bool)
    weights = rng.integers(0, 3, size=(4, 6)).astype(float)
    for row, found in zip(weights, d.pair_means(weights, values, pairs), strict=True):
        copies = [index for index, count in enumerate(row) for _ in range(int(count))]
        drawn = [values[i, j] for i in copies for j in copies if pairs[i, j]]
        assert found == pytest.approx(np.mean(drawn))


def test_group_ratio_equals_a_loop_over_pairs():
    rng = np.random.default_rng(1)
    rows = grid_rows(range(-9, -6), range(-2, 1))
    curves = 2 + rng.random((9, 7))
    found = d.group_ratio(curves, rows.log2_elr, rows, ENTRY)
    within, between = [], []
    sizes = {elr: list(rows.log2_elr).count(elr) for elr in rows.log2_elr}
    for i in range(9):
        for j in range(i):
            if min(sizes[rows.log2_elr[i]], sizes[rows.log2_elr[j]]) < 2:
                continue
            a, b = curves[i], curves[j]
            distance = np.linalg.norm(a - b) / np.sqrt((a @ a + b @ b) / 2)
            (within if rows.log2_elr[i] == rows.log2_elr[j] else between).append(distance)
    assert found.value == pytest.approx(np.mean(between) / np.mean(within))
    assert found.low < found.value < found.high


def test_overlap_is_the_share_of_pairs_under_the_floor_and_missing_without_one():
    rows = grid_rows(range(-9, -6), range(-2, 1))
    distances = relative_distances(np.linspace(1, 2, 9)[:, None] * np.ones(5))
    pairs = d.equal_pairs(rows.log2_lr)
    floor = Floor(np.linspace(0, 0.1, 9), 0.05, 0.1)
    expected = np.mean([distances[i, j] <= 0.1 for i in range(9) for j in range(9) if i != j and i // 3 == j // 3])
    assert d.overlap(distances, pairs, floor, rows, ENTRY).value == pytest.approx(expected)
    few = Floor(np.zeros(7), 0.0, 0.0)
    assert math.isnan(d.overlap(distances, pairs, few, rows, ENTRY).value)


def test_twins_are_paired_by_cell_and_seed_and_give_floor_and_noise():
    rng = np.random.default_rng(2)
    noise = rng.standard_normal((2, 5))

    def runs(side):
        return [
            made_run(-10, -index, val_loss=lambda t, e=noise[side, index]: loss_at_evaluations(t, 3 + 0.01 * e))
            for index in range(5)
        ]

    rows, twins = made_rows(runs(0)), made_rows(runs(1)[::-1])
    pairs = d.twin_pairs(rows, twins)
    assert [run.cell for run, _ in pairs] == [twin.cell for _, twin in pairs]
    window = (1_597_440, 2_686_976)
    difference = 0.01 * (noise[0] - noise[1])
    found = d.twin_noise(pairs, lambda runs: d.window_means(runs, "val_loss", window))
    assert (found.variance, found.freedom) == (pytest.approx(np.mean(difference**2) / 2), 5)
    level = np.sqrt(((3 + 0.01 * noise[0]) ** 2 + (3 + 0.01 * noise[1]) ** 2) / 2)
    floor = d.twin_floor(pairs, "val_loss", window)
    assert np.sort(floor.distances) == pytest.approx(np.sort(np.abs(difference) / level))
    with pytest.raises(RowsMissing, match="has no run to compare with"):
        d.twin_pairs(made_rows(runs(0)[:2]), twins)


# Noise of seeds


def test_seed_noise_takes_cell_and_seed_means_out():
    rng = np.random.default_rng(3)
    rows = grid_rows(range(-11, -8), range(-8, -5), seeds=range(5))
    grid = rng.standard_normal((9, 5))
    shifts = 10 * rng.standard_normal((9, 1)) + 3 * rng.standard_normal((1, 5))
    found = d.seed_noise(rows, (grid + shifts).ravel())
    rest = grid - grid.mean(1, keepdims=True) - grid.mean(0) + grid.mean()
    assert found.variance == pytest.approx((rest**2).sum() / 32)
    assert found.freedom == 32


def test_seeds_of_a_cell_that_lacks_one_are_left_out():
    rows = grid_rows(range(-11, -9), range(-8, -6), seeds=range(3))
    fewer = made_rows(rows.runs[1:])
    grid, cells, seeds = d.by_cell_and_seed(fewer, np.arange(11.0))
    assert grid.shape == (3, 3) and len(cells) == 3 and seeds == [0, 1, 2]


def test_a_paired_error_is_that_of_the_windows_differences():
    rng = np.random.default_rng(5)
    common, own = rng.standard_normal(400), 0.1 * rng.standard_normal((2, 400))
    decays = [SimpleNamespace(window_losses=common + each) for each in own]
    assert d.paired_error(*decays) == pytest.approx(np.std(own[0] - own[1], ddof=1) / 20)


# Fits, tests and intervals


def test_weighted_slopes_equal_numpys_fit_of_repeated_rows():
    rng = np.random.default_rng(6)
    design = np.column_stack([rng.random(9), np.ones(9), rng.random(9)])
    values = rng.random(9)
    weights = rng.integers(0, 4, size=(5, 9)).astype(float)
    for row, found in zip(weights, d.weighted_slopes(weights, design, values), strict=True):
        again = np.repeat(np.arange(9), row.astype(int))
        assert found == pytest.approx(np.linalg.lstsq(design[again], values[again], rcond=None)[0][0], rel=1e-6)


def test_a_slope_that_the_drawn_cells_do_not_determine_is_nan():
    design = np.column_stack([np.arange(4.0), np.ones(4)])
    assert np.isnan(d.weighted_slopes(np.array([[3.0, 0, 0, 0]]), design, np.arange(4.0)))[0]


def test_slope_across_elr_has_one_intercept_per_lr():
    rows = grid_rows()
    values = 0.3 * rows.log2_elr + np.sin(7 * rows.log2_lr)
    found = d.slope_across_elr(rows, values, ENTRY)
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3))


def test_few_cells_take_the_t_interval_where_it_is_wider():
    rows = grid_rows(range(-9, -6), range(-2, 0))
    values = np.array([1.0, 2.0, 4.0, 3.0, 5.0, 9.0])
    t = 2.015048373 * values.std(ddof=1) / math.sqrt(6)  # Student's quantile at 5 degrees of freedom, 90 %
    found = d.mean_estimate(values, rows, ENTRY)
    assert (found.low, found.high) == pytest.approx((values.mean() - t, values.mean() + t), rel=1e-6)


def test_many_cells_take_the_bootstrap():
    rows = grid_rows()
    values = np.random.default_rng(7).standard_normal(25)
    narrow = d.wider(Estimate(0.0, -1.0, 1.0), Estimate(0.0, -2.0, 2.0), rows)
    assert (narrow.low, narrow.high) == (-1.0, 1.0)
    assert d.mean_estimate(values, rows, ENTRY).value == pytest.approx(values.mean())


def test_cells_are_drawn_with_all_their_seeds():
    rows = grid_rows(range(-9, -7), range(-1, 1), seeds=(0, 1))
    weights = d.cell_weights(rows, ENTRY)
    assert np.array_equal(weights[:, 0::2], weights[:, 1::2])
    assert np.all(weights.sum(axis=1) == 8)
    assert not np.array_equal(weights, d.cell_weights(rows, ENTRY, stream=1))


def test_explained_is_adjusted_r_squared():
    rng = np.random.default_rng(8)
    groups = np.repeat([0.0, 1.0, 2.0], 4)
    values = groups + rng.standard_normal(12)
    within = sum(((values[groups == g] - values[groups == g].mean()) ** 2).sum() for g in range(3))
    expected = 1 - (within / 9) / (((values - values.mean()) ** 2).sum() / 11)
    assert d.explained(values, groups) == pytest.approx(expected)
    chance = [d.explained(rng.standard_normal(12), groups) for _ in range(2000)]
    assert np.mean(chance) == pytest.approx(0.0, abs=0.02)  # adjusted: nothing explained is 0, not 2/11


def test_pair_slope_finds_a_planted_slope_beside_the_lr_ratio():
    rows = grid_rows(wd=range(-6, 1))
    ratio = np.abs(rows.log2_lr[:, None] - rows.log2_lr)
    middle = (rows.log2_elr[:, None] + rows.log2_elr) / 2
    found = d.pair_slope(-0.4 * middle + 2 * ratio + 7, d.equal_pairs(rows.log2_elr), rows, ENTRY)
    assert (found.value, found.low, found.high) == pytest.approx((-0.4, -0.4, -0.4), abs=1e-6)


def test_an_angle_is_that_of_the_planted_index_and_draws_stay_beside_it():
    rows = grid_rows()
    u = np.cos(np.deg2rad(130)) * rows.log2_lr + np.sin(np.deg2rad(130)) * rows.log2_wd
    degrees, drawn = d.angle(rows, np.exp(u / 4), ENTRY)
    assert degrees == pytest.approx(130, abs=0.3)
    assert np.nanmax(np.abs(drawn - degrees)) < 5  # not -50


def test_shares_are_missing_where_nobody_knows_the_noise():
    rows = grid_rows()
    values = rows.log2_elr + 0.01 * np.random.default_rng(9).standard_normal(25)
    assert math.isnan(d.tests_and_shares(rows, values, d.UNKNOWN_NOISE, ENTRY).elr_share.value)
    assert d.tests_and_shares(rows, values, d.GUESSED_NOISE, ENTRY).elr_share.high < 0.2
    assert d.tests_and_shares(rows, values, d.Noise(1e-4, 10.0), ENTRY).elr_share.high < 0.2
