"""Windows of measured steps: intervals that cover, ratios that refuse, masks and missing values."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from isotune.errors import InputError
from isotune.measure import windows
from isotune.measure.windows import (
    MIN_VALUES,
    after_switch_mask,
    batch_verdict,
    noise_scale,
    per_window,
    scaled_gradient,
    scaled_noise,
    scaled_noise_value,
    steps_of_tokens,
    window_mean,
    window_ratio,
    window_trimmed_mean,
)

NUM_DRAWS = 400
# Three standard errors of a coverage of 90 % over 400 draws, around the bands of proofs/noise_coverage.py.
SLACK = 3 * math.sqrt(0.9 * 0.1 / NUM_DRAWS)


def ar1(rng, shape, correlation):
    z = rng.standard_normal(shape)
    for step in range(1, shape[1]):
        z[:, step] = correlation * z[:, step - 1] + math.sqrt(1 - correlation**2) * z[:, step]
    return z


def microbatch_estimates(rng, shape, num_microbatches, batch_size, dimension, trace, noise_factor=1.0):
    """T and g2 by their definitions, from gradients drawn around a true gradient of length 1."""
    sequences = batch_size / num_microbatches
    deviation = np.sqrt(np.broadcast_to(noise_factor, shape) * trace / dimension / sequences)
    gradients = deviation[..., None, None] * rng.standard_normal((*shape, num_microbatches, dimension))
    gradients[..., 0] += 1.0
    squares = (gradients**2).sum(axis=(-1, -2))
    mean_sq = (gradients.mean(axis=-2) ** 2).sum(axis=-1)
    noise_trace = sequences * (squares - num_microbatches * mean_sq) / (num_microbatches - 1)
    return noise_trace, mean_sq - noise_trace / batch_size


def coverage(estimates, truth):
    return np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])


# Coverage


@pytest.mark.parametrize("num_microbatches", [2, 8])
@pytest.mark.parametrize("num_steps", [20, 50])
def test_intervals_cover_for_gaussian_gradients(num_microbatches, num_steps):
    rng = np.random.default_rng(num_steps + num_microbatches)
    trace, signal = microbatch_estimates(rng, (NUM_DRAWS, num_steps), num_microbatches, 16, 20, trace=40.0)
    assert abs(trace.mean() - 40) < 0.5
    assert abs(signal.mean() - 1) < 0.05
    rows = list(zip(trace, signal, strict=True))
    assert 0.87 - SLACK < coverage([window_mean(t) for t in trace], 40) < 0.93 + SLACK
    assert 0.87 - SLACK < coverage([noise_scale(t, g) for t, g in rows], 40) < 0.93 + SLACK
    assert 0.87 - SLACK < coverage([batch_verdict(t, g, 16).margin for t, g in rows], 40 - 16) < 0.93 + SLACK


@pytest.mark.parametrize("correlation", [0.0, 0.6])
@pytest.mark.parametrize("num_steps", [20, 200])
def test_intervals_cover_for_heavy_tails_with_drift_and_correlation(correlation, num_steps):
    rng = np.random.default_rng(int(10 * correlation) + num_steps)
    ramp = 2.0 ** np.linspace(-0.5, 0.5, num_steps)
    values = ramp * np.exp(ar1(rng, (NUM_DRAWS, num_steps), correlation) - 0.5)
    estimates = [window_mean(row) for row in values]
    truth = ramp.mean()
    assert 0.85 - SLACK < coverage(estimates, truth) < 0.95 + SLACK
    # Both ends do their share: the truth is not always missed on the heavy side.
    assert np.mean([estimate.high < truth for estimate in estimates]) < 0.15


def test_the_t_interval_fails_where_ours_covers():
    rng = np.random.default_rng(5)
    values = np.exp(ar1(rng, (NUM_DRAWS, 50), 0.6) - 0.5)
    student = [stats.t.interval(0.9, 49, row.mean(), stats.sem(row)) for row in values]
    assert np.mean([low <= 1 <= high for low, high in student]) < 0.7
    assert coverage([window_mean(row) for row in values], 1) > 0.83


def test_a_wrong_truth_is_not_covered():
    rng = np.random.default_rng(6)
    values = rng.lognormal(-0.125, 0.5, (NUM_DRAWS, 200))  # mean 1
    assert coverage([window_mean(row) for row in values], 1.3) < 0.1


@pytest.mark.parametrize("side", ["lower", "upper"])
def test_one_sided_bounds_hold_with_their_level(side):
    rng = np.random.default_rng(7)
    estimates = [window_mean(row, side=side) for row in rng.lognormal(-0.125, 0.5, (NUM_DRAWS, 50))]
    assert 0.86 - SLACK < coverage(estimates, 1.0) < 0.94 + SLACK
    assert all(math.isinf(e.high if side == "lower" else e.low) or e.low == 0 for e in estimates)


def test_a_trimmed_mean_covers_the_distributions_trimmed_mean_and_ignores_a_wild_step():
    rng = np.random.default_rng(8)
    truth = stats.lognorm.expect(lambda x: x, (1.0,), lb=math.exp(-1.2816), ub=math.exp(1.2816)) / 0.8
    assert coverage([window_trimmed_mean(row) for row in rng.lognormal(0, 1, (NUM_DRAWS, 100))], truth) > 0.85 - SLACK
    values = rng.lognormal(0, 0.3, 100)
    wild = values.copy()
    wild[40] = 1e6
    assert window_trimmed_mean(wild).value == pytest.approx(window_trimmed_mean(values).value, rel=0.02)
    assert window_trimmed_mean(values).value == pytest.approx(stats.trim_mean(values, 0.1), rel=1e-12)


# Closed forms


def test_gaussian_values_give_students_width():
    # E[(half width)^2] = t^2 * sigma^2 / n with t of 6 waves' degrees of freedom; caution adds some.
    rng = np.random.default_rng(9)
    widths = [window_mean(row).high - window_mean(row).low for row in rng.standard_normal((NUM_DRAWS, 300))]
    expected = stats.t.ppf(0.95, 6) / math.sqrt(300)
    assert 1.0 < math.sqrt(np.mean(np.square(widths))) / 2 / expected < 1.1


def test_a_drift_is_not_scatter():
    rng = np.random.default_rng(10)
    noise = 0.01 * rng.standard_normal(100)
    drifting = window_mean(noise + np.linspace(1, 3, 100) ** 2)
    still = window_mean(noise)
    assert drifting.high - drifting.low == pytest.approx(still.high - still.low, rel=1e-9)


def test_a_ratio_to_a_constant_is_a_mean():
    values = np.random.default_rng(11).lognormal(0, 1, 60)
    mean, ratio = window_mean(values), window_ratio(values, np.full(60, 4.0))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((mean.value / 4, mean.low / 4, mean.high / 4))


def test_a_ratio_turned_over_is_the_inverse():
    rng = np.random.default_rng(12)
    a, b = rng.lognormal(0, 0.5, 60), rng.lognormal(1, 0.3, 60)
    ratio, inverse = window_ratio(a, b), window_ratio(b, a)
    assert (ratio.low, ratio.high) == pytest.approx((1 / inverse.high, 1 / inverse.low), rel=1e-5)


def test_a_ratio_is_of_means_and_proportional_columns_have_no_scatter():
    a = np.random.default_rng(13).lognormal(0, 1, 40)
    estimate = window_ratio(3 * a, a)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3, 3, 3), rel=1e-6)
    assert window_ratio(np.arange(1, 21), np.arange(20, 0, -1)).value == 1.0
    assert window_ratio(np.full(20, 6.0), np.full(20, 2.0)).low == pytest.approx(3)


def test_constant_values_have_no_scatter():
    estimate = window_mean(np.full(30, 2.5))
    assert (estimate.low, estimate.value, estimate.high) == (2.5, 2.5, 2.5)
    assert window_mean(np.zeros(30)).high == 0


def test_correlated_values_are_worth_fewer():
    rng = np.random.default_rng(14)
    worth = window_mean(ar1(rng, (1, 4000), 0.6)[0]).effective_number
    assert worth == pytest.approx(4000 * 0.4 / 1.6, rel=0.15)
    assert window_mean(rng.standard_normal(4000)).effective_number > 3700


# Refusals


def test_few_values_give_a_mean_and_no_interval():
    estimate = window_mean([1.0, -2.0, 4.0])
    assert estimate.value == 1.0
    assert (estimate.low, estimate.high) == (-math.inf, math.inf)
    assert estimate.warnings == (f"3 values are too few for an interval: it takes {MIN_VALUES}",)
    assert window_trimmed_mean([1.0, -2.0, 4.0]).warnings == estimate.warnings
    assert math.isnan(window_mean([]).value)
    assert math.isnan(noise_scale([math.nan], [1.0]).value)
    assert noise_scale([4.0], [2.0]).value == 2.0


def test_a_gradient_lost_in_noise_leaves_a_lower_bound():
    rng = np.random.default_rng(15)
    trace = rng.lognormal(3, 0.2, 60)
    estimate = noise_scale(trace, rng.standard_normal(60) + 0.05)
    assert estimate.high == math.inf
    assert 0 < estimate.low < math.inf
    assert estimate.warnings == ("the denominator's interval includes 0: only a lower bound",)


def test_nothing_is_known_where_both_means_may_be_0():
    rng = np.random.default_rng(16)
    estimate = window_ratio(rng.standard_normal(60), rng.standard_normal(60))
    assert (estimate.low, estimate.high) == (-math.inf, math.inf)
    assert "neither mean is told from 0" in estimate.warnings[0]


def test_a_clearly_negative_denominator_is_a_contradiction():
    rng = np.random.default_rng(17)
    estimate = noise_scale(rng.lognormal(0, 0.2, 60), rng.standard_normal(60) - 3)
    assert (estimate.value, estimate.low, estimate.high) == (math.inf, -math.inf, math.inf)
    assert "contradicts" in estimate.warnings[0]
    assert noise_scale(np.ones(20), np.zeros(20)).warnings


def test_one_wild_step_and_strong_correlation_are_named():
    values = np.ones(50)
    values[7] = 100
    assert "a single step makes 67% of the sum" in window_mean(values).warnings[0]
    slow = np.sin(np.arange(20) * 0.9) + 5
    assert "worth" in window_mean(slow).warnings[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: window_mean([1.0, math.inf]), "cut the run before it diverged"),
        (lambda: window_mean(np.ones((3, 3))), "shapes"),
        (lambda: window_ratio(np.ones(3), np.ones(4)), "one length"),
        (lambda: window_mean(np.ones(20), level=90), "level=90"),
        (lambda: window_mean(np.ones(20), level=0.4, side="lower"), "above 0.5"),
        (lambda: window_mean(np.ones(20), side="left"), "side='left'"),
        (lambda: window_trimmed_mean(np.ones(20), trim=0.5), "trim=0.5"),
        (lambda: scaled_noise(np.ones(20), 1e-3, 0), "batch_size=0.0"),
        (lambda: scaled_noise(np.ones(20), 1e-3, 4, np.full(20, 1.5)), "clip_factor=1.5"),
        (lambda: per_window(np.arange(20), [3, 3], window_mean, np.ones(20)), "go up"),
        (lambda: after_switch_mask([1, 2], [4, 4], beta2=1.0), "beta2=1.0"),
        (lambda: steps_of_tokens([64, 128], 4, 0), "sequence_length=0"),
        (lambda: after_switch_mask([2, 1], [4, 4], beta2=0.9), "go up"),
    ],
)
def test_bad_input_is_refused_in_words(call, message):
    with pytest.raises(InputError, match=message):
        call()


# Quantities


def test_scaled_noise_is_unchanged_by_a_ten_times_smaller_clip():
    # Clipping always active: c falls by 10, sqrt(v) with it, so T under that preconditioner rises by 10.
    rng = np.random.default_rng(18)
    trace, clip = rng.lognormal(0, 1, 80), rng.uniform(0.2, 0.6, 80)
    before = scaled_noise(trace, 1e-3, 8, clip)
    after = scaled_noise(10 * trace, 1e-3, 8, clip / 10)
    assert (after.value, after.low, after.high) == pytest.approx((before.value, before.low, before.high), rel=1e-6)
    assert before.value == pytest.approx(1e-3 / 8 * np.mean(clip**2 * trace) / np.mean(clip))


def test_the_value_alone_is_the_value_of_the_estimate():
    rng = np.random.default_rng(20)
    trace, clip = rng.lognormal(0, 1, 80), rng.uniform(0.2, 1.0, 80)
    trace[3], clip[7] = np.nan, np.nan
    for clips in (None, clip):
        assert scaled_noise_value(trace, 1e-3, 8, clips) == scaled_noise(trace, 1e-3, 8, clips).value


def test_without_clipping_the_correction_changes_nothing():
    rng = np.random.default_rng(19)
    signal = rng.standard_normal(50)
    plain, corrected = scaled_gradient(signal, 0.01), scaled_gradient(signal, 0.01, np.ones(50))
    assert (plain.value, plain.low, plain.high) == pytest.approx((corrected.value, corrected.low, corrected.high))
    trace = rng.lognormal(0, 1, 50)
    assert scaled_noise(trace, 0.01, 4).value == pytest.approx(0.01 / 4 * trace.mean())


@pytest.mark.parametrize(("trace", "verdict"), [(64.0, "small"), (4.0, "large")])
def test_a_batch_of_16_is_judged_against_the_noise_scale(trace, verdict):
    rng = np.random.default_rng(20)
    columns = microbatch_estimates(rng, (200,), 4, 16, 50, trace=trace)
    assert batch_verdict(*columns, 16).verdict == verdict


def test_a_batch_at_the_noise_scale_is_seldom_judged():
    rng = np.random.default_rng(21)
    trace, signal = microbatch_estimates(rng, (NUM_DRAWS, 50), 4, 16, 20, trace=16.0)
    verdicts = [batch_verdict(t, g, 16).verdict for t, g in zip(trace, signal, strict=True)]
    assert 0.87 - SLACK < verdicts.count("undecided") / NUM_DRAWS < 0.93 + SLACK


# Missing values, windows and masks


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.integers(-300, 300))
def test_missing_rows_are_dropped_and_counted_wherever_they_are(seed, num_missing, power):
    rng = np.random.default_rng(seed)
    values = rng.lognormal(0, 1, 30)
    column = np.full(30 + num_missing, np.nan)
    column[np.sort(rng.permutation(len(column))[:30])] = values
    with_gaps, without = window_mean(column), window_mean(values)
    assert with_gaps.num_missing == num_missing
    assert (with_gaps.value, with_gaps.low, with_gaps.high) == (without.value, without.low, without.high)
    # A change of units changes the units only.
    scaled = window_mean(np.ldexp(values, power))
    assert (scaled.value, scaled.high) == (math.ldexp(without.value, power), math.ldexp(without.high, power))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-100, 100), st.sampled_from([0.5, 0.9, 0.99]))
def test_intervals_hold_their_value_move_with_it_and_grow_with_the_level(seed, shift, level):
    values = np.random.default_rng(seed).standard_t(2, 40)
    estimate, moved, mirrored = (window_mean(x, level=level) for x in (values, values + shift, -values))
    assert estimate.low <= estimate.value <= estimate.high
    assert (moved.low, moved.high) == pytest.approx((estimate.low + shift, estimate.high + shift), abs=1e-9)
    assert (mirrored.low, mirrored.high) == pytest.approx((-estimate.high, -estimate.low), abs=1e-12)
    wider = window_mean(values, level=0.995)
    assert wider.low < estimate.low
    assert wider.high > estimate.high


def test_a_ratio_drops_rows_where_either_is_missing():
    rng = np.random.default_rng(22)
    a, b = rng.lognormal(0, 1, 40), rng.lognormal(0, 1, 40)
    a[3] = b[5] = np.nan
    there = ~(np.isnan(a) | np.isnan(b))
    estimate = noise_scale(a, b)
    assert (estimate.num_values, estimate.num_missing) == (38, 2)
    assert estimate.low == noise_scale(a[there], b[there]).low


def test_windows_end_with_their_edges_row_and_may_be_empty():
    tokens = np.arange(1, 41) * 10
    values = np.where(tokens <= 200, 1.0, 3.0)
    first, second, third = per_window(tokens, [0, 200, 400, 600], window_mean, values)
    assert (first.estimate.value, first.estimate.num_values) == (1.0, 20)
    assert (second.start, second.end, second.estimate.value) == (200, 400, 3.0)
    assert third.estimate.num_values == 0


def test_sixty_steps_after_a_batch_switch_are_masked_at_beta2_95():
    steps = np.arange(1, 301)
    batch = np.where(steps <= 100, 4, 64)
    mask = after_switch_mask(steps, batch, beta2=0.95)
    assert steps[mask].tolist() == list(range(101, 161))
    assert not after_switch_mask(steps, np.full(300, 4), beta2=0.95).any()


def test_sparse_rows_missing_batches_and_tokens_are_masked_alike():
    steps = np.arange(10, 310, 10)
    batch = np.where(steps <= 100, 4.0, 8.0)
    expected = after_switch_mask(steps, batch, beta2=0.95)
    assert steps[expected].tolist() == [110, 120, 130, 140, 150, 160]
    with_gaps = batch.copy()
    with_gaps[[0, 4, 15]] = np.nan
    assert (after_switch_mask(steps, with_gaps, beta2=0.95) == expected).all()
    tokens = np.cumsum(batch * 10 * 64)
    counted = steps_of_tokens(tokens, batch, sequence_length=64)
    assert np.diff(counted) == pytest.approx(np.full(29, 10.0))
    assert (after_switch_mask(counted, batch, beta2=0.95) == expected).all()


def test_the_examples_give_what_they_show():
    results = doctest.testmod(windows)
    assert results.attempted > 0
    assert results.failed == 0
