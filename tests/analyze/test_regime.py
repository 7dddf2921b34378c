"""Regime and batch on runs whose noise scale is known: small, large, crossing, missing, heavy-tailed; closed forms."""

import itertools
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from isotune.analyze.regime import (
    PROTOTYPE_SHIFT,
    NoiseWindow,
    OptimalRate,
    Regime,
    ShiftPoint,
    batch_regime,
    batch_schedule,
    forecast_direction,
    square_root_rule,
)
from isotune.errors import InputError
from isotune.measure.windows import Estimate
from isotune.recipe.quantities import parse_batch_schedule
from isotune.runs.trajectory import RunInfo, Trajectory

LENGTH = 64
WARMUP_STEPS = 100


def info(**changes):
    settings = {
        "learning_rate": 2**-9,
        "weight_decay": 0.25,
        "batch_size": 8,
        "sequence_length": LENGTH,
        "weight_decay_convention": "coupled",
        "schedule": "constant",
        "seed": 0,
        "status": "finished",
        "source": "made",
    }
    return RunInfo(**settings | changes)


def noisy_run(scale, batch=8, *, steps=4000, every=10, tail=0.5, seed=0, p1_scale=None, **columns):
    """A run whose noise scale at each row is `scale` (a number or a function of the step), measured every ten steps.

    T is log-normal around scale * g2 with mean one; the measured g2 scatters as T/B does, below zero at times.
    """
    rng = np.random.default_rng(seed)
    step = np.arange(every, steps + 1, every)
    size = np.asarray(batch(step) if callable(batch) else np.full(len(step), batch), dtype=float)
    lr = 2.0**-9 * np.minimum(step / WARMUP_STEPS, 1.0)
    rows = {
        "tokens": np.cumsum(size * every * LENGTH),
        "step": step,
        "learning_rate": lr,
        "batch_size": size,
    }
    for suffix, truth in (("", scale), ("_p1", p1_scale)):
        if truth is not None:
            noise = np.asarray(truth(step) if callable(truth) else np.full(len(step), truth), dtype=float)
            heavy = np.exp(tail * rng.standard_normal(len(step)) - tail**2 / 2)
            rows[f"precond_noise_trace{suffix}"] = 3.0 * noise * heavy
            rows[f"precond_gradient_sq_norm{suffix}"] = 3.0 + noise / 20 * rng.standard_normal(len(step))
    return Trajectory(rows | columns, info(batch_size=int(size[-1])))


# The regime


@pytest.mark.parametrize(("scale", "verdict"), [(40, "small"), (2, "large")])
def test_a_constant_noise_scale_is_found_and_compared_with_the_batch(scale, verdict):
    regime = batch_regime(noisy_run(scale))
    assert regime.verdict == verdict
    assert all(window.noise_scale.low <= scale <= window.noise_scale.high for window in regime.windows[1:])
    assert regime.windows[-1].noise_scale.value == pytest.approx(scale, rel=0.2)


def test_intervals_hold_the_true_noise_scale_about_as_often_as_they_say():
    hits = [
        window.noise_scale.low <= 30 <= window.noise_scale.high
        for seed in range(40)
        for window in batch_regime(noisy_run(30, tail=1.0, seed=seed, steps=2000)).windows
    ]
    assert 0.8 < np.mean(hits) <= 0.99


def test_windows_are_octaves_after_the_warm_up():
    run = noisy_run(40)
    windows = batch_regime(run).windows
    end = run.tokens[-1]
    assert windows[0].start_tokens == WARMUP_STEPS * 8 * LENGTH
    assert [window.end_tokens for window in windows[-3:]] == [end / 4, end / 2, end]
    assert [a.end_tokens for a in windows[:-1]] == [b.start_tokens for b in windows[1:]]


def test_a_noise_scale_that_crosses_the_batch_makes_a_mixed_regime():
    regime = batch_regime(noisy_run(lambda step: np.where(step < 1000, 2.0, 60.0)))
    assert regime.verdict == "mixed"
    assert regime.windows[0].verdict == "large" and regime.windows[-1].verdict == "small"
    assert any("large" in reason for reason in regime.reasons) and any("small" in reason for reason in regime.reasons)


def test_a_noise_scale_at_the_batch_is_undecided():
    verdicts = [batch_regime(noisy_run(8, tail=1.0, seed=seed, steps=1000)).verdict for seed in range(20)]
    assert verdicts.count("undecided") >= 12


def test_heavy_tails_do_not_turn_a_small_batch_into_a_large_one():
    verdicts = [batch_regime(noisy_run(40, tail=1.5, seed=seed)).verdict for seed in range(10)]
    assert set(verdicts) <= {"small", "undecided"} and verdicts.count("small") >= 8


def test_a_single_wild_step_is_named():
    run = noisy_run(40)
    run.columns["precond_noise_trace"][300] *= 1000
    assert any("a single step makes" in warning for warning in batch_regime(run).warnings)


def test_without_noise_columns_it_is_undecided_with_a_remedy():
    regime = batch_regime(noisy_run(None))
    assert regime.verdict == "undecided" and regime.windows == ()
    assert "precond_noise_trace" in regime.reasons[0] and "docs/gradient-noise.md" in regime.reasons[0]


def test_noise_during_the_warm_up_alone_is_no_noise():
    run = noisy_run(40, steps=100)
    assert batch_regime(run).verdict == "undecided"
    assert "no values where the warm-up is over" in batch_regime(run).reasons[0]


def test_few_readings_are_undecided():
    regime = batch_regime(noisy_run(40, steps=180))
    assert regime.verdict == "undecided" and "too few" in " ".join(regime.warnings)


def test_the_other_power_stands_beside_and_contradiction_is_said():
    agreeing = batch_regime(noisy_run(40, p1_scale=60))
    assert agreeing.beside_verdict == agreeing.agreed_verdict == "small" and not agreeing.warnings
    opposed = batch_regime(noisy_run(40, p1_scale=2))
    assert opposed.verdict == "small" and opposed.beside_verdict == "large" and opposed.agreed_verdict == "undecided"
    assert "p = 0.5 says small, p = 1 says large" in opposed.warnings[-1]
    assert batch_regime(noisy_run(40, p1_scale=2), p=1).verdict == "large"


def test_a_batch_switch_cuts_windows_and_masks_the_steps_after_it():
    def batch(step):
        return np.where(step <= 2000, 8, 128)

    run = noisy_run(40, batch)
    trace = run.columns["precond_noise_trace"]
    right_after = (run.columns["step"] > 2000) & (run.columns["step"] < 2070)
    trace[right_after] = 1e6  # would make the large batch look small
    regime = batch_regime(run)
    assert regime.verdict == "mixed"
    switch = 2000 * 8 * LENGTH
    assert switch in {window.end_tokens for window in regime.windows}
    after = [window for window in regime.windows if window.start_tokens >= switch]
    assert {window.batch_size for window in after} == {128} and {window.verdict for window in after} == {"large"}
    assert all(window.noise_scale.value < 60 for window in after)
    unmasked = batch_regime(run, beta2=0.0).windows
    assert max(window.noise_scale.value for window in unmasked) > 1000  # the mask is what keeps them out


def test_a_switch_is_dated_from_tokens_where_steps_were_not_logged():
    run = noisy_run(40, lambda step: np.where(step <= 2000, 8, 128))
    expected = batch_regime(run)
    del run.columns["step"]
    assert batch_regime(run).windows == expected.windows
    with pytest.raises(InputError, match="add a step column"):
        batch_regime(Trajectory(run.columns, replace(run.info, sequence_length="unknown")))


def test_an_unknown_batch_leaves_the_noise_scale_without_a_verdict():
    run = noisy_run(40)
    del run.columns["batch_size"]
    regime = batch_regime(Trajectory(run.columns, replace(run.info, batch_size="unknown")))
    assert regime.verdict == "undecided" and "batch size is unknown" in regime.reasons[0]
    assert regime.windows[-1].noise_scale.value == pytest.approx(40, rel=0.2)


def test_rows_after_a_divergence_are_left_out():
    run = noisy_run(40)
    run.columns["precond_noise_trace"][350:] = np.inf
    regime = batch_regime(run)
    assert regime.verdict == "small" and "infinite noise at" in regime.warnings[0]


def test_a_warm_up_that_no_column_shows_can_be_said():
    run = noisy_run(40)
    del run.columns["learning_rate"]
    assert any("give warmup_tokens" in warning for warning in batch_regime(run).warnings)
    assert batch_regime(run, warmup_tokens=51_200).windows[0].start_tokens == 51_200


@pytest.mark.parametrize("wrong", [{"p": 2}, {"min_values": 0}, {"warmup_tokens": -1}, {"level": 1.5}])
def test_bad_settings_of_a_regime_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        batch_regime(noisy_run(40), **wrong)


# The direction


def test_n_is_elr_times_steps_in_both_conventions():
    coupled = forecast_direction(2**-9, 0.25, 4, 64, 256 * 10_000)
    assert coupled.steps == 10_000 and coupled.memory_times == pytest.approx(2**-9 * 0.25 * 10_000)
    independent = forecast_direction(2**-3, 2**-11, 4, 64, 256 * 10_000, convention="independent")
    assert independent.memory_times == pytest.approx(coupled.memory_times)
    assert independent.degrees == pytest.approx(coupled.degrees)


def test_n_counts_from_the_end_of_the_warm_up():
    forecast = forecast_direction(2**-9, 0.25, 4, 64, "2.56M", warmup_tokens="0.56M")
    assert forecast.steps == 2_000_000 / 256


@pytest.mark.parametrize(
    ("n", "direction"), [(0.02, "LR"), (0.27, "LR"), (0.29, "mixed"), (1.3, "mixed"), (3.5, "mixed"), (3.7, "ELR")]
)
def test_the_direction_follows_n(n, direction):
    forecast = forecast_direction(n, 1.0, 1, 1, 1)
    assert forecast.memory_times == pytest.approx(n) and forecast.direction == direction


def test_the_angle_goes_from_lr_to_elr_and_is_half_way_in_slope_at_the_shift():
    degrees = [forecast_direction(2.0**power, 1.0, 1, 1, 1).degrees for power in range(-12, 8)]
    assert all(a < b for a, b in itertools.pairwise(degrees))
    assert degrees[0] < 0.1 and degrees[-1] == pytest.approx(45, abs=0.01)
    at_shift = forecast_direction(PROTOTYPE_SHIFT.memory_times, 1.0, 1, 1, 1)
    assert math.tan(math.radians(at_shift.degrees)) == pytest.approx(0.5)
    assert 0 <= at_shift.degrees_low < at_shift.degrees < at_shift.degrees_high <= 45


def test_the_band_holds_most_of_the_angles_that_were_measured():
    # (n of the middle cell, degrees): three windows of the 133K-parameter sweep, three budgets of the 42K one, and its
    # large batch, which lies at 0 degrees.
    elr, longer = 2**-11.5, 2**-13
    measured = [(400 * elr, 7), (800 * elr, 25), (7500 * elr, 42)]
    measured += [(2500 * longer, 15), (10_000 * longer, 40), (40_000 * longer, 45), (2500 * longer, 0)]
    forecasts = [(forecast_direction(n, 1.0, 1, 1, 1), degrees) for n, degrees in measured]
    inside = [forecast.degrees_low <= degrees <= forecast.degrees_high for forecast, degrees in forecasts]
    assert sum(inside) >= 5
    errors = [forecast.degrees - degrees for forecast, degrees in forecasts]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(10, abs=1)  # what ANGLE_ERROR says


def test_a_fitted_shift_replaces_the_prototypes():
    fitted = ShiftPoint(5.0, 4.8, 5.2, "a sweep")
    assert forecast_direction(1.0, 1.0, 1, 1, 1).direction == "mixed"
    forecast = forecast_direction(1.0, 1.0, 1, 1, 1, shift=fitted)
    assert forecast.direction == "LR" and "a sweep" in forecast.reason
    assert "42K and 133K parameters" in forecast_direction(1.0, 1.0, 1, 1, 1).reason


def test_without_weight_decay_lr_alone_matters():
    forecast = forecast_direction(1.0, 0.0, 1, 1, "100B")
    assert forecast.direction == "LR" and forecast.degrees == 0 and "nothing is ever forgotten" in forecast.warnings[0]


def test_a_large_batch_warns_where_n_forecasts_elr():
    large = Regime("large", (), 0.5, 0.9, ())
    assert "check with a run" in forecast_direction(10, 1.0, 1, 1, 1, regime=large).warnings[0]
    assert forecast_direction(10, 1.0, 1, 1, 1, regime=replace(large, verdict="small")).warnings == ()
    assert forecast_direction(0.1, 1.0, 1, 1, 1, regime=large).warnings == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"weight_decay": -1}, "weight_decay=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"tokens": "many"}, "tokens='many'"),
        ({"warmup_tokens": 256_000}, "give more tokens"),
        ({"convention": "decoupled"}, "coupled, independent"),
        ({"shift": ShiftPoint(1.3, 2.0, 1.8, "")}, "that go up"),
        ({"shift": ShiftPoint(1.3, 1.1, math.inf, "")}, "prototype"),
    ],
)
def test_a_forecast_refuses_bad_settings_in_words(wrong, words):
    settings = {"learning_rate": 0.01, "weight_decay": 0.1, "batch_size": 4, "sequence_length": 64, "tokens": 256_000}
    with pytest.raises(InputError, match=words):
        forecast_direction(**settings | wrong)


# The square-root rule


def test_the_rule_quadruples_lr_at_sixteen_times_the_batch():
    rule = square_root_rule(2**-10, 512, 8192, weight_decay=0.1, sequence_length=1024, tokens="100B")
    n = 2**-10 * 0.1 * 100e9 / (512 * 1024)
    assert rule.learning_rate == 2**-8 and rule.rule_octaves == 2
    assert rule.memory_times == pytest.approx(n)
    assert rule.new_memory_times == pytest.approx(n / 4) and rule.kept_memory_times == pytest.approx(n / 16)
    assert rule.verdict == "undecided" and "sweep LR at both" in rule.reason


def test_with_independent_decay_the_rule_does_not_change_n_beyond_the_steps():
    rule = square_root_rule(
        2**-10, 4, 64, weight_decay=1e-4, sequence_length=64, tokens="2.56M", convention="independent"
    )
    assert rule.memory_times == pytest.approx(1.0) and rule.new_memory_times == pytest.approx(1 / 16)


def octaves(value, low, high):
    return OptimalRate(2.0**value, 2.0**low, 2.0**high)


@pytest.mark.parametrize(
    ("new", "verdict", "words"),
    [
        (octaves(-8, -8.3, -7.7), "supported", "+2"),
        (octaves(-10.5, -10.8, -10.2), "contradicted", "the other way"),
        (octaves(-9, -9.3, -8.7), "contradicted", "+1 octaves"),
        (octaves(-9, -12, -6), "undecided", "no move at all"),
        (OptimalRate(2**-9, 0, math.inf), "undecided", "no move at all"),
    ],
)
def test_optima_at_two_batches_judge_the_rule(new, verdict, words):
    rule = square_root_rule(2**-10, 4, 64, optimum=octaves(-10, -10.2, -9.8), new_optimum=new)
    assert rule.verdict == verdict and words in rule.reason
    assert rule.octaves == pytest.approx(math.log2(new.learning_rate) + 10)


def test_intervals_of_two_optima_combine_as_independent_errors():
    rule = square_root_rule(2**-10, 4, 64, optimum=octaves(-10, -10.3, -9.6), new_optimum=octaves(-8, -8.3, -7.6))
    assert rule.octaves_low == pytest.approx(2 - 0.5) and rule.octaves_high == pytest.approx(2 + 0.5)


def test_an_optimum_outside_its_interval_is_refused():
    with pytest.raises(InputError, match="new_optimum"):
        square_root_rule(2**-10, 4, 64, optimum=octaves(-10, -11, -9), new_optimum=octaves(-8, -7, -6))


# The batch schedule


def window(start, end, low, high=None, batch=8):
    high = 2 * low if high is None else high
    return NoiseWindow(start, end, batch, Estimate((low + high) / 2, low, high, 0.9, 50), "small")


RISING = [window(0, 1e6, 16, 40), window(1e6, 2e6, 32, 80), window(2e6, 4e6, 70, 200), window(4e6, 8e6, 130, 400)]


def test_a_rising_noise_scale_gives_a_rising_batch_in_powers_of_two():
    plan = batch_schedule(RISING, tokens=7_680_000, sequence_length=64)
    step = 32 * 64
    expected = [(0, 8), (math.ceil(2e6 / step) * step, 16), (math.ceil(4e6 / step) * step, 32)]
    assert [(stage.from_tokens, stage.batch_size) for stage in plan.stages] == expected
    assert parse_batch_schedule(plan.text) == expected
    assert not plan.refused and {stage.learning_rate_factor for stage in plan.stages} == {1.0}


def test_saved_steps_are_counted_against_the_constant_batch():
    plan = batch_schedule(RISING, tokens=7_680_000, sequence_length=64)
    (_, at16, at32), budget = [stage.from_tokens for stage in plan.stages], 7_680_000
    steps = at16 / 512 + (at32 - at16) / 1024 + (budget - at32) / 2048
    assert plan.constant_steps == 15_000 and plan.steps == pytest.approx(steps)
    assert plan.saved_steps == pytest.approx(15_000 - steps)


def test_a_scheduled_batch_never_exceeds_the_lower_end_in_any_later_window():
    rng = np.random.default_rng(0)
    for _ in range(200):
        lows = 2.0 ** rng.uniform(3, 9, 6)
        plan = batch_schedule(
            [window(i * 1e6, (i + 1) * 1e6, low, 1e6) for i, low in enumerate(lows)], tokens=6e6, sequence_length=16
        )
        for stage in plan.stages[1:]:
            later = [low for i, low in enumerate(lows) if (i + 1) * 1e6 > stage.from_tokens]
            assert 2 * stage.batch_size <= min(later)


def test_suffixes_are_used_where_they_lose_nothing():
    windows = [window(0, 30e9, 40_000, batch=500), window(30e9, 60e9, 40_000)]
    assert batch_schedule(windows, tokens="60B", sequence_length=1000).text == "0:500 30B:16000"


def test_limits_of_batch_and_of_the_number_of_switches():
    kwargs = {"tokens": 7_680_000, "sequence_length": 64}
    assert [stage.batch_size for stage in batch_schedule(RISING, max_batch_size=16, **kwargs).stages] == [8, 16]
    assert [stage.batch_size for stage in batch_schedule(RISING, safety=1, **kwargs).stages] == [8, 16, 32, 64]
    few = batch_schedule(RISING, safety=1, max_switches=1, **kwargs)
    assert len(few.stages) == 2 and few.stages[-1].batch_size == 64


def test_the_square_root_scales_lr_only_when_told():
    plan = batch_schedule(RISING, tokens=7_680_000, sequence_length=64, learning_rate="square root")
    assert [stage.learning_rate_factor for stage in plan.stages] == [1, math.sqrt(2), 2]
    assert any("higher loss" in warning for warning in plan.warnings)


def test_a_falling_noise_scale_is_refused():
    plan = batch_schedule([window(0, 1e6, 100, 200), window(1e6, 2e6, 20, 40)], tokens=2e6, sequence_length=64)
    assert plan.refused and "the noise scale falls" in plan.reasons[0]
    assert plan.text == "0:8" and plan.saved_steps == 0


def test_a_run_without_noise_is_refused_with_the_remedy():
    plan = batch_schedule(batch_regime(noisy_run(None)), tokens=1e6, sequence_length=64, batch_size=8)
    assert plan.refused and "docs/gradient-noise.md" in plan.reasons[0]
    with pytest.raises(InputError, match="give batch_size"):
        batch_schedule([], tokens=1e6, sequence_length=64)


def test_a_batch_that_is_large_already_is_refused():
    plan = batch_schedule([window(0, 1e6, 20, 40, batch=64)], tokens=2e6, sequence_length=64)
    assert plan.refused and "begin with fewer" in plan.reasons[0]
    assert not batch_schedule([window(0, 1e6, 20, 40)], tokens=2e6, sequence_length=64, batch_size=4).refused


def test_windows_without_a_lower_end_are_refused():
    plan = batch_schedule([window(0, 1e6, -math.inf, math.inf)], tokens=2e6, sequence_length=64)
    assert plan.refused and "from below" in plan.reasons[0]


def test_beyond_the_measured_tokens_the_batch_is_held_and_said():
    plan = batch_schedule(RISING, tokens="80M", sequence_length=64)
    assert any("up to 8M tokens" in warning for warning in plan.warnings)
    assert plan.stages[-1].batch_size == 64 and plan.stages[-1].from_tokens >= 8e6


def test_a_schedule_comes_out_of_a_measured_run():
    run = noisy_run(lambda step: 20 + step / 10)
    plan = batch_schedule(batch_regime(run), tokens=float(run.tokens[-1]), sequence_length=LENGTH)
    assert not plan.refused and len(plan.stages) >= 2 and plan.saved_steps > 0
    for stage in plan.stages[1:]:
        truth = 20 + stage.from_tokens / (8 * LENGTH) / 10
        assert 2 * stage.batch_size <= truth


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"safety": 0.5}, "safety=0.5"),
        ({"max_batch_size": 4}, "below the first batch 8"),
        ({"tokens": 100}, "less than one step"),
        ({"learning_rate": "linear"}, "keep, square root"),
        ({"max_switches": 0}, "max_switches=0"),
    ],
)
def test_a_schedule_refuses_bad_settings_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        batch_schedule(RISING, **{"tokens": 8e6, "sequence_length": 64} | wrong)


def test_it_imports_without_torch():
    code = "import sys; sys.modules['torch'] = None; import isotune.analyze.regime, isotune.analyze.rules_of_thumb"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
