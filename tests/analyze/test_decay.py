"""The decay predictor on trunks whose noise is known."""

import numpy as np
import pytest
from made import made_info

from isotune.analyze.decay import Decay, TrunkReading, calibrate, compare_predictors, read_decay, read_trunk
from isotune.errors import InputError
from isotune.runs import Trajectory


def trunk(lr=2**-9, wd=0.25, slope=-0.1, noise=0.5, clip=1.0):
    """Loss falls on a line in log tokens, evaluated every tenth row; noise is constant: T = noise * B * v / (lr c)."""
    tokens = np.arange(0, 1_000_001, 10_000)
    loss = np.where(np.arange(len(tokens)) % 10 == 0, 3 + slope * np.log(np.maximum(tokens, 1) / 1e5), np.nan)
    columns = {
        "tokens": tokens,
        "val_loss": loss,
        "learning_rate": np.full(len(tokens), lr),
        "batch_size": np.full(len(tokens), 4),
        "clip_factor": np.full(len(tokens), clip),
        "precond_noise_trace": np.full(len(tokens), noise * 4 / (lr * clip)),
        "root_moment_sum": np.full(len(tokens), noise * clip / lr),
    }
    return Trajectory(columns, made_info(learning_rate=lr, weight_decay=wd))


def test_a_trunk_is_read_at_equal_flow_time():
    decay = read_decay(trunk(), branch_tokens=500_000, decay_tokens=200_000, decayed_loss=2.8)
    assert decay.trunk.tokens == 600_000
    assert decay.trunk.loss == pytest.approx(3 - 0.1 * np.log(6))
    assert decay.gain == pytest.approx(0.2 - 0.1 * np.log(6))


def test_the_loss_before_training_is_no_part_of_an_early_reading():
    early = trunk()
    early.columns["val_loss"][0] = 9.0
    assert read_trunk(early, 150_000).loss == pytest.approx(3 - 0.1 * np.log(1.5))


@pytest.mark.parametrize("clip", [1.0, 0.2])
def test_noise_is_read_corrected_for_clipping(clip):
    reading = read_trunk(trunk(noise=0.7, clip=clip), 900_000)
    assert reading.scaled_noise == pytest.approx(0.7) and reading.free_noise == pytest.approx(0.7)


def test_a_run_without_noise_still_has_a_loss():
    bare = trunk()
    del bare.columns["precond_noise_trace"], bare.columns["root_moment_sum"]
    reading = read_trunk(bare, 500_000)
    assert (
        reading.loss == pytest.approx(3 - 0.1 * np.log(5))
        and np.isnan(reading.scaled_noise)
        and np.isnan(reading.free_noise)
    )


def test_a_position_that_the_run_does_not_reach_is_refused():
    with pytest.raises(InputError, match="train it further"):
        read_trunk(trunk(), 2_000_000)


def made_decays(coefficient, exponent, error, num_groups=6, seed=0):
    """Noise grows with ELR, the gain is `coefficient` times it."""
    rng = np.random.default_rng(seed)
    decays = []
    for group in range(num_groups):
        for _ in range(4):
            elr = 2.0 ** (group - 14)
            noise = 10 * elr**exponent * np.exp(0.3 * rng.normal())
            reading = TrunkReading(500_000, 2 + rng.normal(), noise, 1.1 * noise, elr)
            gain = coefficient * noise + error * rng.normal()
            decays.append(Decay(reading, reading.loss - gain, group))
    return decays


def test_the_coefficient_comes_back():
    assert calibrate(made_decays(0.25, 0.36, 0.0), "noise").coefficient == pytest.approx(0.25)
    assert calibrate(made_decays(0.25, 0.36, 0.0)).coefficient == pytest.approx(0.25 / 1.1)
    assert calibrate(made_decays(0.25, 0.36, 0.0)[:1], "noise").coefficient == pytest.approx(0.25), "one is enough"


def test_a_power_of_elr_comes_back():
    readings = [TrunkReading(1.0, 2.0, np.nan, np.nan, 2.0**-k) for k in range(8, 14)]
    decays = [Decay(r, 2.0 - 3 * r.effective_learning_rate**0.4) for r in readings]
    predictor = calibrate(decays, "power")
    assert (predictor.coefficient, predictor.exponent) == (pytest.approx(3.0, rel=1e-3), pytest.approx(0.4, abs=1e-3))
    assert predictor(readings[0]) == pytest.approx(decays[0].decayed_loss, abs=1e-4)


def test_where_noise_explains_the_gain_it_beats_its_rivals():
    comparison = compare_predictors(made_decays(0.25, 0.36, 0.002), against="constant")
    assert comparison.best in ("noise", "free")
    assert comparison.rmse_ratio_intervals["noise"][1] < 0.5
    assert comparison.scores["noise"].kendall_tau > comparison.scores["nothing"].kendall_tau


def test_where_the_gain_is_constant_noise_does_not_win():
    decays = made_decays(0.0, 0.36, 0.0)
    decays = [Decay(d.trunk, d.trunk.loss - 0.1, d.group) for d in decays]
    comparison = compare_predictors(decays)
    assert comparison.best == "constant" and comparison.scores["constant"].rmse == pytest.approx(0, abs=1e-9)


def test_a_group_is_never_scored_by_its_own_decays():
    """One group with a wild gain: its own prediction must not know it."""
    decays = made_decays(0.25, 0.36, 0.0)
    wild = [Decay(d.trunk, d.decayed_loss - 5, "wild") if d.group == 0 else d for d in decays]
    predicted = compare_predictors(wild).scores["noise"].predicted
    for d, p in zip(wild, predicted, strict=True):
        if d.group == "wild":
            assert p == pytest.approx(d.trunk.loss - 0.25 * d.trunk.scaled_noise)


def test_too_few_decays_or_groups_are_refused():
    with pytest.raises(InputError, match="branch a decay off"):
        calibrate([])
    with pytest.raises(InputError, match="at least 3"):
        compare_predictors(made_decays(0.25, 0.3, 0.0, num_groups=2))


def test_a_kind_that_some_runs_lack_is_left_out_in_words():
    decays = made_decays(0.25, 0.36, 0.0)
    bare = TrunkReading(500_000, 2.0, np.nan, np.nan, 2.0**-12)
    comparison = compare_predictors([*decays, Decay(bare, 1.9, 3)])
    assert "noise" not in comparison.scores and len(comparison.warnings) == 2
