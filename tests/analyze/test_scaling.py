"""The laws of a family: planted exponents come back, and what cannot be fitted says why."""

import math

import numpy as np
import pytest
from made_sweeps import (
    BUDGETS,
    DECAY,
    LR_EXPONENT,
    WD_EXPONENT,
    K,
    best_settings,
    cosine,
    decay_off,
    drifting_optimum,
    planted_decays,
    run,
    with_info,
)
from synthetic import EVERY_TOKENS, TOKENS_PER_STEP, grid, sweep

from isotune.analyze.decay import calibrate
from isotune.analyze.diagnosis import diagnose
from isotune.analyze.families import make_families
from isotune.analyze.laws import fit_saturating_power_law
from isotune.analyze.scaling import CURVE_START, compare_decays, decays_of, fit_laws, with_minimum
from isotune.errors import InputError

# Where n is large: ELR alone, and a curve that falls like a power of flow time.
LATE_LR, LATE_WD = np.arange(-9.0, -5.0), np.arange(-3.0, 1.0)
ALPHA, FLOOR, FLOOR_EXPONENT = 0.5, 1.5, 0.4


def late_loss(x, y, step):
    """L0 + A (LR t)^-alpha with L0 = 1.5 + 2 ELR^0.4."""
    elr, lr = 2.0 ** (x + y)[:, None], 2.0 ** x[:, None]
    return FLOOR + 2 * elr**FLOOR_EXPONENT + 0.1 * (lr * step) ** -ALPHA


def only_family(runs):
    (family,) = make_families(runs)
    return family


@pytest.fixture(scope="module")
def drifting():
    (diagnosis,) = diagnose(drifting_optimum(np.random.default_rng(0)))
    return diagnosis


@pytest.fixture(scope="module")
def drifting_laws(drifting):
    return fit_laws(drifting)


@pytest.fixture(scope="module")
def late_laws():
    runs = sweep(np.random.default_rng(0), *grid(LATE_LR, LATE_WD), late_loss, noise=2e-4, correlation=0.0)
    noisy = [with_noise(with_info(one, decay_tokens=0)) for one in runs]
    (diagnosis,) = diagnose(noisy)
    return fit_laws(diagnosis)


def with_noise(one):
    """scaled_noise = LR / B * T is 3 ELR^0.35."""
    elr = one.info.learning_rate * one.info.weight_decay
    trace = 3 * elr**0.35 * one.info.batch_size / one.info.learning_rate
    one.columns["precond_noise_trace"] = np.full(len(one.tokens), trace)
    return one


# Optima


def test_all_five_budgets_have_their_minimum_inside(drifting):
    assert [finding.tokens for finding in with_minimum(drifting.surfaces)] == list(BUDGETS)


@pytest.mark.parametrize(
    ("name", "exponent"),
    [
        ("optimal_learning_rate", LR_EXPONENT),
        ("optimal_weight_decay", WD_EXPONENT),
        ("optimal_effective_learning_rate", LR_EXPONENT + WD_EXPONENT),
    ],
)
def test_the_drift_of_the_optimum_comes_back(drifting_laws, name, exponent):
    law = getattr(drifting_laws, name)
    assert law.exponent == pytest.approx(exponent, abs=0.03)
    assert law.exponent_interval[0] <= exponent <= law.exponent_interval[1]
    lr, wd, _ = best_settings(BUDGETS[2])
    truth = {"optimal_learning_rate": lr, "optimal_weight_decay": wd}.get(name, lr * wd)
    assert float(law.value_at(BUDGETS[2])) == pytest.approx(truth, rel=0.05)


def test_the_best_loss_falls_as_planted(drifting_laws):
    law = drifting_laws.optimal_loss
    assert law.floor_interval[0] <= 1.0 <= law.floor_interval[1]
    assert law.exponent == pytest.approx(-0.3, abs=0.05)


def test_two_budgets_are_no_law_and_the_reason_counts_them():
    (diagnosis,) = diagnose(drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:2]))
    laws = fit_laws(diagnosis)
    assert laws.optimal_learning_rate is None
    assert "2 of 2 budgets" in laws.reasons["optimal_learning_rate"]
    assert "takes 3" in laws.reasons["optimal_learning_rate"]


# Curves, floors and noise


def test_the_curves_of_late_runs_share_the_planted_alpha(late_laws):
    assert late_laws.curves.alpha == pytest.approx(ALPHA, abs=0.05)


def test_floors_and_late_noise_follow_the_planted_powers_of_elr(late_laws):
    assert late_laws.floors.exponent == pytest.approx(FLOOR_EXPONENT, abs=0.08)
    assert late_laws.floors.floor == pytest.approx(FLOOR, abs=0.02)
    assert late_laws.noise.exponent == pytest.approx(0.35, abs=1e-6)
    assert late_laws.noise.coefficient == pytest.approx(3, rel=1e-6)


def test_the_floors_law_knows_that_all_floors_move_with_alpha():
    """Oracle: straight lines in (LR t)^-alpha at the ends of alpha's interval, and the law of their floors."""
    runs = sweep(np.random.default_rng(0), *grid(LATE_LR, LATE_WD), late_loss, noise=2e-3, correlation=0.0)
    (diagnosis,) = diagnose([with_info(one, decay_tokens=0) for one in runs])
    laws = fit_laws(diagnosis)
    elr, floors = laws.points["floors"]
    at_ends = [
        fit_saturating_power_law(elr, [floor_at(one, alpha) for one in diagnosis.stages[-1].runs]).floor
        for alpha in (laws.curves.alpha, *laws.curves.alpha_interval)
    ]
    low, high = laws.floors.floor_interval
    assert at_ends[0] == pytest.approx(laws.floors.floor, abs=1e-6)
    assert low <= at_ends[1] <= high and low <= at_ends[2] <= high
    alone = fit_saturating_power_law(elr, floors).floor_interval
    assert at_ends[1] < alone[0] or at_ends[2] > alone[1], "else the test could not fail"


def floor_at(one, alpha):
    late = one.tokens >= CURVE_START * one.tokens[-1]
    flow = one.info.learning_rate * one.tokens[late] / TOKENS_PER_STEP
    return np.polyfit(flow**-alpha, one.columns["val_loss"][late], 1)[1]


def test_every_law_that_is_missing_has_a_reason(drifting_laws):
    missing = [
        name for name in ("curves", "floors", "late_losses", "noise", "decays") if getattr(drifting_laws, name) is None
    ]
    assert "noise" in missing
    assert set(missing) <= drifting_laws.reasons.keys()
    assert all(drifting_laws.reasons[name] for name in missing)


def test_the_law_of_a_constant_lr_is_not_fitted_to_cosine_runs():
    runs = [cosine(2.0**x, 2.0**y, 40 * EVERY_TOKENS) for x, y in zip(*grid(LATE_LR, LATE_WD), strict=True)]
    (diagnosis,) = diagnose(runs)
    laws = fit_laws(diagnosis)
    assert laws.curves is None and "LR falls all the way" in laws.reasons["curves"]
    assert laws.decays is None


# Decays


def test_where_a_decay_gains_k_times_the_noise_the_noise_predicts_best():
    family = only_family(planted_decays(np.random.default_rng(0)))
    comparison = compare_decays(family)
    assert comparison.best == "noise"
    assert comparison.scores["noise"].rmse < 0.1 * comparison.scores["nothing"].rmse
    assert comparison.rmse_ratio_intervals["noise"][1] < 0.2
    assert calibrate(decays_of(family), "noise").coefficient == pytest.approx(K, rel=0.02)


def test_a_trunk_is_read_at_equal_flow_time():
    trunk = run(2**-9, 2**-4)
    end = 10 * EVERY_TOKENS
    (decay,) = decays_of(only_family([trunk, decay_off(trunk, end, 1.5)]))
    assert decay.trunk.tokens == end - DECAY / 2
    assert decay.trunk.loss == pytest.approx(1.0 + 40 * (end - DECAY / 2) ** -0.3, rel=2e-3)
    assert decay.gain == pytest.approx(decay.trunk.loss - 1.5)
    assert decay.trunk.effective_learning_rate == pytest.approx(2**-13)


def test_a_decay_that_is_no_line_is_read_where_its_own_flow_time_ends():
    """LR (1 - s)^2 has a third of the flow time of constant LR."""
    trunk = run(2**-9, 2**-4)
    end = 10 * EVERY_TOKENS
    decayed = decay_off(trunk, end, 1.5)
    falls = decayed.tokens > end - DECAY
    rate = decayed.columns["learning_rate"]
    decayed.columns["learning_rate"] = np.where(falls, rate**2 / trunk.info.learning_rate, rate)
    (decay,) = decays_of(only_family([trunk, decayed]))
    assert decay.trunk.tokens == pytest.approx(end - DECAY * 2 / 3, abs=0.01 * DECAY)


def test_a_decay_without_a_trunk_that_goes_on_is_no_decay_to_learn_from():
    assert decays_of(only_family([decay_off(run(2**-9, 2**-4), 10 * EVERY_TOKENS, 1.5)])) == []


def test_runs_whose_lr_falls_all_the_way_have_no_trunk():
    assert decays_of(only_family([cosine(2.0**-k, 0.1, 20 * EVERY_TOKENS) for k in range(6, 12)])) == []


def test_decays_of_two_lengths_are_not_pooled():
    trunks = [run(2.0**-k, 2**-4) for k in range(6, 12)]
    short = [decay_off(trunk, 8 * EVERY_TOKENS, 1.5) for trunk in trunks]
    long = [decay_off(trunk, 16 * EVERY_TOKENS, 1.5, length=4 * EVERY_TOKENS) for trunk in trunks[:5]]
    assert {decay.trunk.tokens for decay in decays_of(only_family([*trunks, *short, *long]))} == {
        8 * EVERY_TOKENS - DECAY / 2
    }


def test_decays_whose_trunk_was_not_metered_do_not_keep_the_noise_from_being_compared():
    runs = planted_decays(np.random.default_rng(0))
    for one in runs[:4]:
        one.columns["precond_noise_trace"][:] = math.nan
    comparison = compare_decays(only_family(runs))
    assert "noise" in comparison.scores
    assert any("2 of 25 decays left out" in warning for warning in comparison.warnings)


def test_a_few_decays_are_refused_with_their_number():
    trunk = run(2**-9, 2**-4)
    with pytest.raises(InputError, match="1 decays of one length .* it takes 6"):
        compare_decays(only_family([trunk, decay_off(trunk, 10 * EVERY_TOKENS, 1.5)]))


def test_steps_are_made_of_tokens_where_there_is_no_column(late_laws):
    runs = sweep(np.random.default_rng(0), *grid(LATE_LR, LATE_WD), late_loss, noise=2e-4, correlation=0.0)
    for one in runs:
        del one.columns["step"]
    (diagnosis,) = diagnose([with_info(one, decay_tokens=0) for one in runs])
    curves = fit_laws(diagnosis).curves
    assert curves.runs[0].amplitude == pytest.approx(late_laws.curves.runs[0].amplitude, rel=1e-6)
    assert TOKENS_PER_STEP == 256
