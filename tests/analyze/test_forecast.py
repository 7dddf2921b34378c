"""The direction that n forecasts, against closed forms and the angles that were measured."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from isotune.analyze.forecast import PROTOTYPE_SHIFT, ShiftPoint, forecast_direction
from isotune.analyze.regime import Regime
from isotune.errors import InputError


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
