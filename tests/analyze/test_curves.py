"""Curves on a common grid: no extrapolation, windows in tokens and in n, reasons for what is left out."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic import EVERY_TOKENS, TOKENS_PER_STEP, grid, sweep, trajectory

from isotune.analyze.curves import common_curves, effective_learning_rate, log2_settings, memory_times, warmup_end
from isotune.errors import InputError
from isotune.measure.windows import scaled_noise
from isotune.runs.trajectory import Trajectory

STEPS = np.arange(0, 2001, 10)
TOKENS = STEPS * TOKENS_PER_STEP


def run(log2_lr=-9.0, log2_wd=-2.0, tokens=TOKENS, **changes):
    return trajectory(log2_lr, log2_wd, tokens, 3 - np.asarray(tokens) / 1e6, **changes)


def with_columns(trajectory, **columns):
    return Trajectory(trajectory.columns | columns, trajectory.info)


# The grid


def test_straight_lines_are_interpolated_exactly():
    sparse = run(tokens=TOKENS[::7])
    curves = common_curves([run(), sparse, run(-8)], num_points=11)
    np.testing.assert_allclose(curves.values, np.tile(3 - curves.tokens / 1e6, (3, 1)))


def test_without_a_number_of_points_the_sparsest_run_gives_them():
    sparse = run(tokens=TOKENS[::20])
    curves = common_curves([run(), sparse])
    assert curves.tokens.tolist() == TOKENS[20::20].tolist()


def test_no_run_is_continued_beyond_its_last_point():
    short = run(tokens=TOKENS[:100])
    assert common_curves([run(), short]).tokens[-1] == TOKENS[99]
    curves = common_curves([run(), short, run(-8)], tokens=(1e5, 5e5))
    assert len(curves.infos) == 2
    assert "ends at 253K tokens, before the window's end 500K" in curves.dropped[0]


def test_the_warm_up_is_left_out():
    lr = np.minimum(STEPS / 500, 1.0) * 2.0**-9
    curves = common_curves([with_columns(run(), learning_rate=lr)])
    assert curves.tokens[0] == 500 * TOKENS_PER_STEP


def test_a_jump_of_the_learning_rate_later_is_no_warm_up():
    lr = np.where(STEPS < 1000, 2.0**-10, 2.0**-9)
    assert warmup_end(with_columns(run(), learning_rate=lr)) == 0


def test_a_warm_up_that_no_column_shows_can_be_said():
    columns = {name: column for name, column in run().columns.items() if name != "learning_rate"}
    silent = Trajectory(columns, run().info)
    assert "give warmup_tokens" in common_curves([silent]).warnings[0]
    curves = common_curves([silent], warmup_tokens=100_000)
    assert curves.tokens[0] >= 100_000 and not curves.warnings


# What is left out


def test_every_run_that_is_left_out_has_its_sentence():
    diverged = run(-7, status="diverged")
    lacking = with_columns(run(-10), val_loss=np.full(len(TOKENS), np.nan))
    late = run(-11, tokens=TOKENS[100:])
    sparse = run(-12, tokens=TOKENS[[10, 199]])
    curves = common_curves([run(), diverged, lacking, late, sparse], tokens=(5e4, 5e5))
    assert len(curves.infos) == 1 and len(curves.dropped) == 4
    for words in ("diverged", "has no val_loss", "begins at 256K", "has 0 values in the window, 4 are needed"):
        assert sum(words in sentence for sentence in curves.dropped) == 1
    assert "LR 2^-7, WD 0.25, seed 0" in curves.dropped[0]


def test_nothing_left_is_an_error_with_the_reasons():
    with pytest.raises(InputError, match="no run is left to compare: .* diverged"):
        common_curves([run(status="diverged")])
    with pytest.raises(InputError, match="there are no runs"):
        common_curves([])
    with pytest.raises(InputError, match="start and a later end"):
        common_curves([run()], tokens=(5, 5))


# n


def test_memory_times_is_elr_times_steps_where_nothing_changes():
    constant = with_columns(run(), learning_rate=np.full(len(STEPS), 2.0**-9))
    np.testing.assert_allclose(memory_times(constant), 2.0**-11 * STEPS)


def test_memory_times_by_brute_force_with_a_warm_up_and_a_switch():
    step = np.arange(0, 200)
    lr = np.where(step < 50, np.maximum(step, 1) / 50, 1.0) * 1e-3
    wd = np.where(step <= 120, 0.5, 2.0)
    expected, n = [0.0], 0.0
    for k in range(1, 200):
        n = (0.0 if (lr[k], wd[k]) != (lr[k - 1], wd[k - 1]) else n) + lr[k] * wd[k]
        expected.append(n)
    made = with_columns(run(tokens=step * TOKENS_PER_STEP), learning_rate=lr, weight_decay=wd)
    np.testing.assert_allclose(memory_times(made), expected)


def test_a_change_between_sparse_rows_is_dated_to_the_middle():
    made = with_columns(run(), weight_decay=np.where(STEPS < 1000, 0.5, 0.25))
    n = memory_times(made)
    assert n[100] == pytest.approx(2.0**-11 * 5.5)
    assert n[-1] == pytest.approx(2.0**-11 * 1005.5)


def test_steps_are_read_off_the_tokens_where_they_are_missing():
    columns = {name: column for name, column in run().columns.items() if name != "step"}
    np.testing.assert_allclose(memory_times(Trajectory(columns, run().info)), memory_times(run()))


def test_independent_weight_decay_forgets_wd_a_step():
    coupled, independent = run(), run(convention="independent")
    assert effective_learning_rate(coupled.info) == effective_learning_rate(independent.info) == 2.0**-11
    np.testing.assert_allclose(memory_times(independent)[-1], memory_times(coupled)[-1])
    for settings in zip(log2_settings([coupled.info]), log2_settings([independent.info]), strict=True):
        assert settings[0] == pytest.approx(settings[1])


def test_an_unknown_convention_is_refused_only_where_it_matters():
    unknown = run(convention="unknown")
    assert np.isnan(memory_times(unknown)).all()
    assert common_curves([unknown]).values.shape == (1, len(TOKENS) - 1)
    with pytest.raises(InputError, match="convention of the run with LR 2\\^-9.* is unknown"):
        effective_learning_rate(unknown.info)
    with pytest.raises(InputError, match="no run is left"):
        common_curves([unknown], memory_times=(0, 1))


def test_settings_without_a_logarithm_or_a_value_are_refused():
    with pytest.raises(InputError, match="logarithmic axis"):
        log2_settings([replace(run().info, weight_decay=0.0)])
    with pytest.raises(InputError, match="learning_rate of .* is unknown"):
        log2_settings([replace(run().info, learning_rate="unknown")])


def test_a_window_of_n_drops_runs_that_leave_it_or_finds_their_common_tokens():
    x, y = grid()
    runs = sweep(np.random.default_rng(0), x, y)
    late = common_curves(runs, tokens=(1_597_440, 2_641_920), memory_times=(3, np.inf))
    assert sorted({round(sum(log2_settings([info])[k][0] for k in (0, 1))) for info in late.infos}) == list(
        range(-11, -6)
    )
    assert len(late.infos) == 15 and len(late.dropped) == 10
    assert (late.memory_times > 3).all()
    early = common_curves([one for one in runs if effective_learning_rate(one.info) < 2**-12], memory_times=(0, 0.3))
    assert (early.memory_times < 0.3).all() and early.tokens[
        -1
    ] + EVERY_TOKENS > 0.3 * 2**13 * TOKENS_PER_STEP - EVERY_TOKENS


# Stretches


def test_other_columns_are_averaged_over_stretches():
    curves = common_curves([with_columns(run(), train_loss=np.arange(len(STEPS)) % 2.0)], "train_loss", bins=51_200)
    np.testing.assert_allclose(curves.values, 0.5)
    assert curves.tokens[0] == 1.5 * 51_200 or curves.tokens[0] == 0.5 * 51_200


def test_noise_is_estimated_in_stretches_with_the_clip_factor_of_its_own_steps():
    rng = np.random.default_rng(0)
    noise, clip = rng.chisquare(5, len(STEPS)), rng.uniform(0.3, 1, len(STEPS))
    noise[::2] = np.nan
    made = with_columns(run(), precond_noise_trace=noise, noise_clip_factor=clip, clip_factor=clip**2)
    curves = common_curves([made], "scaled_noise", bins=[51_200, 102_400, 256_000])
    for value, (start, end) in zip(curves.values[0], ((51_200, 102_400), (102_400, 256_000)), strict=True):
        rows = (start < TOKENS) & (end >= TOKENS) & ~np.isnan(noise)
        assert value == scaled_noise(noise[rows], 2.0**-9, 4, clip[rows]).value
    with pytest.raises(InputError, match="give bins"):
        common_curves([made], "scaled_noise")


def test_noise_right_after_a_batch_switch_is_left_out():
    noise = np.where((STEPS >= 1000) & (STEPS < 1060), 1e6, 1.0)
    batch = np.where(STEPS < 1000, 4, 64)
    made = with_columns(run(), precond_noise_trace=noise, batch_size=batch)
    curves = common_curves([made], "scaled_noise", bins=51_200)
    assert curves.values.max() < 1e-3
