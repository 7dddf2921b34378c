"""The regime of runs whose noise scale is known: small, large, crossing, missing, heavy-tailed."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from made_noise import LENGTH, WARMUP_STEPS, noisy_run

from isotune.analyze.regime import batch_regime
from isotune.errors import InputError
from isotune.runs.trajectory import Trajectory


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


def test_it_imports_without_torch():
    code = "import sys; sys.modules['torch'] = None; import isotune.analyze.batches, isotune.analyze.rules_of_thumb"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
