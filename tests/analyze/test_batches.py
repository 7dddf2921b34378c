"""What to do about the batch, on noise scales and optima that are known."""

import math

import numpy as np
import pytest
from made_noise import LENGTH, noisy_run

from isotune.analyze.batches import OptimalRate, batch_schedule, square_root_rule
from isotune.analyze.regime import NoiseWindow, batch_regime
from isotune.errors import InputError
from isotune.measure.windows import Estimate
from isotune.recipe.quantities import parse_batch_schedule

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
