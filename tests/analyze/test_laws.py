"""Power laws: certified values, peers' fits, intervals that cover, refusals."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import curve_fit

from isotune.analyze import laws
from isotune.analyze.laws import fit_power_law, fit_saturating_power_law, fit_training_curves, power
from isotune.analyze.laws import saturating as saturating_law
from isotune.analyze.laws.acceptance import CommonError
from isotune.analyze.laws.points import usable_points
from isotune.analyze.laws.projection import project
from isotune.errors import InputError

# NIST Statistical Reference Datasets, DanWood (y = b1 x^b2): data and certified values, public domain.
DANWOOD_X = [1.309, 1.471, 1.490, 1.565, 1.611, 1.680]
DANWOOD_Y = [2.138, 3.421, 3.597, 4.340, 4.882, 5.660]
DANWOOD = {"b1": 7.6886226176e-01, "b1_sd": 1.8281973860e-02, "b2": 3.8604055871, "b2_sd": 5.1726610913e-02}
DANWOOD_RESIDUAL_DEVIATION = 3.2853114039e-02

# NIST Statistical Reference Datasets, Norris (a straight line, y = b0 + b1 x): data (y, x) and certified values.
NORRIS = """0.1 0.2 338.8 337.4 118.1 118.2 888.0 884.6 9.2 10.1 228.1 226.5 668.5 666.3 998.5 996.3 449.1 448.6
    778.9 777.0 559.2 558.2 0.3 0.4 0.1 0.6 778.1 775.5 668.8 666.9 339.3 338.0 448.9 447.5 10.8 11.6 557.7 556.0
    228.3 228.1 998.0 995.8 888.8 887.6 119.6 120.2 0.3 0.3 0.6 0.3 557.6 556.8 339.3 339.1 888.0 887.2 998.5 999.0
    778.9 779.0 10.2 11.1 117.6 118.3 228.9 229.2 668.4 669.1 449.2 448.9 0.2 0.5"""
NORRIS_B0, NORRIS_B0_SD = -0.262323073774029, 0.232818234301152
NORRIS_B1, NORRIS_B1_SD = 1.00211681802045, 0.429796848199937e-03
NORRIS_RESIDUAL_DEVIATION = 0.884796396144373

ELR = 2.0 ** np.arange(-15, -6)
RISING = (1.9585, 9.2613, 0.4604)  # the paper's Table 1
BUDGETS = 2.0 ** np.arange(5)


def saturating(x, floor, amplitude, exponent):
    return floor + amplitude * x**exponent


def curves(rng, num_points=60, noise=0.005, correlation=0.0, alphas=(0.5, 0.5, 0.5, 0.5)):
    times = np.linspace(500, 10_000, num_points)
    rates, floors = 2.0 ** np.arange(-11, -7), 1.5 + 0.05 * np.arange(4)
    losses = []
    for rate, floor, alpha in zip(rates, floors, alphas, strict=True):
        z = rng.standard_normal(num_points)
        for row in range(1, num_points):
            z[row] = correlation * z[row - 1] + math.sqrt(1 - correlation**2) * z[row]
        losses.append(floor + 0.8 * (rate * times) ** -alpha + noise * z)
    return [times] * 4, losses, rates, floors


# Certified values and peers


def test_danwood_matches_nists_certified_values():
    law = fit_power_law(DANWOOD_X, DANWOOD_Y, space="plain")
    assert law.coefficient == pytest.approx(DANWOOD["b1"], rel=1e-9)
    assert law.exponent == pytest.approx(DANWOOD["b2"], rel=1e-9)
    assert law.residual_deviation == pytest.approx(DANWOOD_RESIDUAL_DEVIATION, rel=1e-9)
    t = stats.t.ppf(0.95, 4)  # profile intervals bend with the model: near, not equal to, value +- t sd
    for interval, name in ((law.coefficient_interval, "b1"), (law.exponent_interval, "b2")):
        linear = (DANWOOD[name] - t * DANWOOD[f"{name}_sd"], DANWOOD[name] + t * DANWOOD[f"{name}_sd"])
        assert interval == pytest.approx(linear, rel=0.01)


def test_norris_as_a_power_law_matches_nists_certified_values():
    y, x = np.array(NORRIS.split(), dtype=float).reshape(-1, 2).T
    unit = 500.0  # a straight line between logarithms; in this unit their exponentials are of size 1
    law = fit_power_law(np.exp(x / unit), np.exp(y / unit))
    t = stats.t.ppf(0.95, 34)
    assert law.exponent == pytest.approx(NORRIS_B1, rel=1e-11)
    assert law.exponent_interval == pytest.approx(
        (NORRIS_B1 - t * NORRIS_B1_SD, NORRIS_B1 + t * NORRIS_B1_SD), rel=1e-9
    )
    assert unit * math.log(law.coefficient) == pytest.approx(NORRIS_B0, rel=1e-9)
    assert unit * np.ptp(np.log(law.coefficient_interval)) == pytest.approx(2 * t * NORRIS_B0_SD, rel=1e-4)
    assert unit * law.residual_deviation == pytest.approx(NORRIS_RESIDUAL_DEVIATION, rel=1e-9)


def test_the_log_fit_is_scipys_linear_regression_with_its_student_interval():
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-3, 3, 12))
    y = 3 * x**0.4 * np.exp(0.2 * rng.standard_normal(12))
    law, peer = fit_power_law(x, y), stats.linregress(np.log(x), np.log(y))
    t = stats.t.ppf(0.95, 10)
    assert law.exponent == pytest.approx(peer.slope)
    assert law.exponent_interval == pytest.approx((peer.slope - t * peer.stderr, peer.slope + t * peer.stderr))
    ends = (peer.intercept - t * peer.intercept_stderr, peer.intercept + t * peer.intercept_stderr)
    assert np.log(law.coefficient_interval) == pytest.approx(ends, rel=1e-4)
    assert law.r_squared == pytest.approx(peer.rvalue**2)
    assert law.robust_exponent == pytest.approx(stats.theilslopes(np.log(y), np.log(x)).slope)


def test_a_prediction_has_the_textbook_interval_for_the_law_and_for_a_new_measurement():
    rng = np.random.default_rng(1)
    z = np.log(2.0 ** np.arange(8))
    log_y = 1 + 0.5 * z + 0.1 * rng.standard_normal(8)
    law = fit_power_law(np.exp(z), np.exp(log_y))
    peer = stats.linregress(z, log_y)
    deviation = math.sqrt(np.sum((log_y - peer.intercept - peer.slope * z) ** 2) / 6)
    z0 = math.log(300)
    leverage = 1 / 8 + (z0 - z.mean()) ** 2 / np.sum((z - z.mean()) ** 2)
    t = stats.t.ppf(0.95, 6)
    for measurement, extra in ((False, 0), (True, 1)):
        prediction = law.predict(300, measurement=measurement)
        half = t * deviation * math.sqrt(leverage + extra)
        assert math.log(prediction.value) == pytest.approx(peer.intercept + peer.slope * z0)
        width = math.log(prediction.high / prediction.low)
        assert width == pytest.approx(2 * half, rel=1e-4)


@pytest.mark.parametrize(("x", "law"), [(ELR, RISING), (BUDGETS, (1.3, 0.4, -0.35)), (BUDGETS, (2.0, -0.5, -0.8))])
def test_the_saturating_fit_is_scipys_curve_fit(x, law):
    rng = np.random.default_rng(2)
    y = saturating(x, *law) + 0.001 * rng.standard_normal(len(x))
    fit = fit_saturating_power_law(x, y)
    peer, _ = curve_fit(saturating, x, y, p0=law, maxfev=20_000, xtol=1e-14, ftol=1e-14)
    assert (fit.floor, fit.amplitude, fit.exponent) == pytest.approx(tuple(peer), rel=1e-5)
    assert fit.predict(x[-1] * 2).value == pytest.approx(saturating(x[-1] * 2, *peer), rel=1e-6)
    assert np.allclose(fit.value_at(x), saturating(x, *peer), rtol=1e-6)


def test_with_little_noise_profile_intervals_are_those_of_the_covariance():
    rng = np.random.default_rng(3)
    y = saturating(ELR, *RISING) + 1e-4 * rng.standard_normal(len(ELR))
    fit = fit_saturating_power_law(ELR, y)
    _, covariance = curve_fit(saturating, ELR, y, p0=RISING)
    half = stats.t.ppf(0.95, 6) * np.sqrt(np.diag(covariance))
    intervals = (fit.floor_interval, fit.amplitude_interval, fit.exponent_interval)
    assert [high - low for low, high in intervals] == pytest.approx(list(2 * half), rel=0.01)


def test_the_profile_interval_of_the_floor_is_that_of_a_brute_force_search():
    rng = np.random.default_rng(4)
    y = saturating(BUDGETS, 1.3, 0.4, -0.8) + 0.003 * rng.standard_normal(5)
    fit = fit_saturating_power_law(BUDGETS, y)
    reach = fit.residual_deviation**2 * stats.t.ppf(0.95, 2) ** 2
    floors, exponents = np.linspace(0.8, 1.6, 1601), np.linspace(-3, -0.02, 2000)
    column = BUDGETS[None, :] ** exponents[:, None]
    accepted = []
    for floor in floors:
        amplitude = column @ (y - floor) / (column**2).sum(axis=1)
        square_sum = ((y - floor - amplitude[:, None] * column) ** 2).sum(axis=1).min()
        accepted.append(square_sum <= 2 * fit.residual_deviation**2 + reach)
    inside = floors[accepted]
    assert fit.floor_interval == pytest.approx((inside.min(), inside.max()), abs=0.002)


def test_exact_laws_come_back():
    law = fit_power_law(ELR, 15.6582 * ELR**0.3561)
    assert (law.coefficient, law.exponent, law.r_squared) == pytest.approx((15.6582, 0.3561, 1.0))
    fit = fit_saturating_power_law(ELR, saturating(ELR, *RISING))
    assert (fit.floor, fit.amplitude, fit.exponent) == pytest.approx(RISING, rel=1e-6)
    assert max(map(abs, fit.leave_one_out_errors)) < 1e-6


# Invariances


@settings(max_examples=20, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(0, 1000))
def test_units_of_x_and_y_change_no_exponent(x_unit, y_unit, seed):
    rng = np.random.default_rng(seed)
    y = saturating(ELR, *RISING) + 0.01 * rng.standard_normal(len(ELR))
    for fit in (fit_power_law, fit_saturating_power_law):
        plain, scaled = fit(ELR, y), fit(x_unit * ELR, y_unit * y)
        assert scaled.exponent == pytest.approx(plain.exponent, rel=1e-6)
        assert scaled.exponent_interval == pytest.approx(plain.exponent_interval, rel=1e-5)
        assert scaled.predict(x_unit).high == pytest.approx(y_unit * plain.predict(1.0).high, rel=1e-4)


def test_weights_count_as_repeated_points_do():
    rng = np.random.default_rng(5)
    y, seeds = 3 * ELR**0.4 * np.exp(0.1 * rng.standard_normal(9)), rng.integers(1, 4, 9)
    weighted = fit_power_law(ELR, y, weights=seeds)
    assert weighted.exponent == pytest.approx(fit_power_law(np.repeat(ELR, seeds), np.repeat(y, seeds)).exponent)
    assert weighted.exponent_interval == pytest.approx(fit_power_law(ELR, y, weights=10 * seeds).exponent_interval)


# Leaving out, outliers, extrapolation


def test_leave_one_out_errors_are_those_of_refits():
    rng = np.random.default_rng(6)
    y = saturating(BUDGETS, 1.3, 0.4, -0.5) + 0.002 * rng.standard_normal(5)
    for fit in (fit_power_law, fit_saturating_power_law):
        errors = fit(BUDGETS, y).leave_one_out_errors
        for left in range(5):
            rest = np.arange(5) != left
            expected = fit(BUDGETS[rest], y[rest]).value_at(BUDGETS[left]) / y[left] - 1
            assert errors[left] == pytest.approx(float(expected), abs=1e-6)


def test_groups_are_left_out_together():
    rng = np.random.default_rng(7)
    x = np.repeat(ELR, 3)
    y = saturating(x, *RISING) + 0.01 * rng.standard_normal(27)
    law = fit_saturating_power_law(x, y, groups=list(np.log2(x)))
    rest = x != x[0]
    alone = fit_saturating_power_law(x[rest], y[rest])
    assert law.leave_one_out_errors[:3] == pytest.approx(tuple(alone.value_at(x[:3]) / y[:3] - 1), abs=1e-6)
    assert law.leave_one_out_r_squared < law.r_squared


def test_a_robust_fit_shrugs_off_an_outlier_that_moves_least_squares():
    rng = np.random.default_rng(8)
    x = 2.0 ** np.arange(12)
    y = 3 * x**0.4 * np.exp(0.02 * rng.standard_normal(12))
    y[-1] *= 3
    plain, robust = fit_power_law(x, y), fit_power_law(x, y, robust=True)
    assert abs(robust.exponent - 0.4) < 0.02 < abs(plain.exponent - 0.4)
    floor, amplitude, exponent = 1.0, 2.0, -0.7
    y = saturating(x, floor, amplitude, exponent) + 0.002 * rng.standard_normal(12)
    y[3] += 0.2
    assert fit_saturating_power_law(x, y, robust=True).floor == pytest.approx(1.0, abs=0.02)


def test_a_robust_fit_solves_hubers_equations():
    rng = np.random.default_rng(9)
    z = np.log(2.0 ** np.arange(15))
    log_y = 1 + 0.4 * z + 0.1 * rng.standard_t(2, 15)
    law = fit_power_law(np.exp(z), np.exp(log_y), robust=True)
    residual = log_y - math.log(law.coefficient) - law.exponent * z
    scale = np.median(np.abs(residual)) / laws.NORMAL_MAD * math.sqrt(15 / 13)
    psi = np.clip(residual, -laws.HUBER * scale, laws.HUBER * scale)
    assert abs(psi.sum()) < 1e-3 * scale * 15
    assert abs(psi @ (z - z.mean())) < 1e-3 * scale * np.abs(z - z.mean()).sum()


def test_an_outlier_is_pointed_at_by_the_median_slope():
    x = 2.0 ** np.arange(9)
    y = 3 * x**0.4 * np.exp(0.001 * np.random.default_rng(10).standard_normal(9))
    y[:2] *= 1.5
    y[5] *= 0.6
    law = fit_power_law(x, y, level=0.3)
    assert any("outliers" in warning for warning in law.warnings)
    assert not fit_power_law(x, 3 * x**0.4 * np.exp(0.01 * np.cos(x))).warnings


def test_extrapolation_says_how_far_and_widens():
    rng = np.random.default_rng(11)
    law = fit_saturating_power_law(BUDGETS, saturating(BUDGETS, 1.3, 0.4, -0.5) + 1e-3 * rng.standard_normal(5))
    inside, double, far = law.predict(4.0), law.predict(32.0), law.predict(1600.0)
    assert (inside.extrapolation_factor, double.extrapolation_factor, far.extrapolation_factor) == (1.0, 2.0, 100.0)
    assert inside.high - inside.low < double.high - double.low < far.high - far.low
    assert not double.warnings and any("factor of 100" in warning for warning in far.warnings)
    assert law.predict(0.25).extrapolation_factor == 4.0
    assert far.low <= far.value <= far.high


# Negative controls


def test_a_straight_line_in_log_x_has_no_floor():
    rng = np.random.default_rng(12)
    fit = fit_saturating_power_law(ELR, 2 + 0.1 * np.log(ELR) + 0.01 * rng.standard_normal(9))
    assert fit.exponent_interval[0] < 0 < fit.exponent_interval[1]
    assert fit.floor_interval == (-math.inf, math.inf)
    assert any("floor is not identified" in warning for warning in fit.warnings)
    inside = fit.predict(float(ELR[4]))
    assert inside.high - inside.low < 0.1  # the value is known where the floor is not


def test_a_bounded_exponent_leaves_the_floor_open_on_one_side_only():
    rng = np.random.default_rng(13)
    y = 2 - 0.1 * np.log(BUDGETS) + 0.005 * rng.standard_normal(5)
    fit = fit_saturating_power_law(BUDGETS, y, exponent_bounds=(-3, 0))
    assert fit.floor_interval[0] == -math.inf and fit.floor_interval[1] < y.max()
    assert fit.exponent_interval[1] == 0


def test_noise_without_a_law_has_an_exponent_that_may_be_zero():
    rng = np.random.default_rng(14)
    law = fit_power_law(ELR, np.exp(0.2 * rng.standard_normal(9)))
    assert law.exponent_interval[0] < 0 < law.exponent_interval[1]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: fit_power_law([1, 2], [1, 2]), "2 points"),
        (lambda: fit_power_law([1, 1, 1, 2], [1, 2, 3, 4]), "2 different x"),
        (lambda: fit_power_law([1, 2, -3], [1, 2, 3]), "above 0"),
        (lambda: fit_power_law([1, 2, 3], [1, 2, -3]), "above 0"),
        (lambda: fit_power_law([1, 2, 3], [1, 2]), "shapes"),
        (lambda: fit_power_law([1, 2, 3], [1, 2, 3], level=1.5), "level"),
        (lambda: fit_power_law([1, 2, 3], [1, 2, 3], space="cubic"), "space"),
        (lambda: fit_saturating_power_law([1, 2, 3], [3, 2, 1]), "3 points"),
        (lambda: fit_saturating_power_law([1, 2, 3, 4], [4, 3, 2, 1], exponent_bounds=(1, 0)), "exponent_bounds"),
        (lambda: fit_saturating_power_law([1, 2, 3, 4], [4, 3, 2, 1], groups=[1, 2]), "2 groups"),
        (lambda: fit_training_curves([[1, 2, 3]], [[3, 2, 1]], [0.1]), "3 points"),
        (lambda: fit_training_curves([[1, 2, 3]], [[3, 2, 1]], [0.1, 0.2]), "2 learning rates"),
        (lambda: fit_training_curves([[2, 1, 3]], [[3, 2, 1]], [0.1]), "go up"),
        (lambda: fit_power_law([1, 2, 3], [1, 2, 3]).predict(0), "x=0"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(call, reason):
    with pytest.raises(InputError, match=reason):
        call()


def test_points_that_are_not_finite_are_left_out_and_counted():
    law = fit_power_law([1, 2, 4, 8, 16], [1, 2, math.nan, 8, math.inf])
    assert law.num_points == 3 and any("2 points" in warning for warning in law.warnings)


def test_scatter_beyond_the_standard_errors_widens_and_says_so():
    rng = np.random.default_rng(15)
    y = 3 * ELR**0.4 * np.exp(0.2 * rng.standard_normal(9))
    honest, wrong = fit_power_law(ELR, y, standard_errors=0.2 * y), fit_power_law(ELR, y, standard_errors=0.02 * y)
    assert not honest.warnings and any("times as much" in warning for warning in wrong.warnings)
    assert np.ptp(wrong.exponent_interval) > 0.5 * np.ptp(honest.exponent_interval)


# Training curves


def test_exact_curves_come_back():
    times, losses, rates, floors = curves(np.random.default_rng(16), noise=0.0)
    fit = fit_training_curves(times, losses, rates)
    assert fit.alpha == pytest.approx(0.5, abs=1e-6) and fit.r_squared == pytest.approx(1.0)
    for run, floor in zip(fit.runs, floors, strict=True):
        assert (run.floor, run.amplitude) == pytest.approx((floor, 0.8), rel=1e-5)
        assert (run.own_floor, run.own_alpha) == pytest.approx((floor, 0.5), rel=1e-5)
        assert run.relative_error < 1e-6
    far = fit.runs[1].predict(40_000)
    assert far.value == pytest.approx(floors[1] + 0.8 * (rates[1] * 40_000) ** -0.5)
    assert far.extrapolation_factor == pytest.approx(4.0)


def test_losses_that_do_not_change_follow_no_law():
    with pytest.raises(InputError, match="all 6 values are 3: they do not change"):
        fit_saturating_power_law(np.arange(1.0, 7.0), np.full(6, 3.0))
    times = [np.arange(1.0, 40.0)] * 2
    with pytest.raises(InputError, match="the losses do not change along any run"):
        fit_training_curves(times, [np.full(39, 3.0), np.full(39, 2.0)], [0.1, 0.2])


def test_what_does_not_change_is_its_own_floor_whatever_the_exponent():
    exponents = np.array([-1.0, 0.0])
    points = usable_points(np.arange(1.0, 7.0), np.full(6, 3.0), None, None, 4, "law", log=False)
    assert project("saturating", points, exponents).floors(exponents).tolist() == [3.0, 3.0]


def test_the_shared_alpha_is_that_of_one_weighted_least_squares_fit():
    times, losses, rates, _ = curves(np.random.default_rng(17), noise=0.01)
    fit = fit_training_curves(times, losses, rates)
    alone = [
        curve_fit(lambda x, f, a, q: f + a * x**-q, rate * time, loss, p0=(1.5, 0.8, 0.5))[0]
        for time, loss, rate in zip(times, losses, rates, strict=True)
    ]
    assert [run.own_alpha for run in fit.runs] == pytest.approx([values[2] for values in alone], rel=1e-4)
    assert min(run.own_alpha for run in fit.runs) < fit.alpha < max(run.own_alpha for run in fit.runs)


def test_sharing_alpha_narrows_what_is_known_about_a_floor():
    times, losses, rates, _ = curves(np.random.default_rng(18), noise=0.01, correlation=0.5)
    for run in fit_training_curves(times, losses, rates).runs:
        assert np.ptp(run.floor_interval) < np.ptp(run.own_floor_interval)


def test_correlated_neighbours_widen_intervals():
    def width(correlation):
        times, losses, rates, _ = curves(np.random.default_rng(19), noise=0.005, correlation=correlation)
        fit = fit_training_curves(times, losses, rates)
        assert np.mean([run.correlation for run in fit.runs]) == pytest.approx(correlation, abs=0.2)
        return np.ptp(fit.alpha_interval)

    assert width(0.7) > 1.5 * width(0.0)


def test_runs_with_different_alphas_are_told():
    times, losses, rates, _ = curves(np.random.default_rng(20), noise=0.002, alphas=(0.3, 0.5, 0.7, 0.9))
    fit = fit_training_curves(times, losses, rates)
    assert any("own alphas scatter" in warning for warning in fit.warnings)
    times, losses, rates, _ = curves(np.random.default_rng(20), noise=0.002)
    assert not fit_training_curves(times, losses, rates).warnings


def test_an_error_that_all_points_share_is_added_in_quadrature():
    """Closed form: a shift of all points moves the floor by as much, and nothing else."""
    y = saturating(ELR, *RISING) + 0.01 * np.random.default_rng(22).standard_normal(9)
    ends = np.linspace(-1, 1, 41)
    common, none = (CommonError(np.outer(size * ends, np.ones(9)), ends**2) for size in (0.1, 0.0))
    law, alone = (fit_saturating_power_law(ELR, y, common=one) for one in (common, none))
    assert law.exponent_interval == pytest.approx(alone.exponent_interval)
    for end, end_alone in zip(law.floor_interval, alone.floor_interval, strict=True):
        assert abs(end - law.floor) == pytest.approx(math.hypot(end_alone - law.floor, 0.1), rel=1e-2)
    far, far_alone = law.predict(2**-5), alone.predict(2**-5)
    assert far.high - far.value == pytest.approx(math.hypot(far_alone.high - far.value, 0.1), rel=1e-2)


def test_there_is_no_interval_where_what_all_points_share_leaves_them_anywhere():
    unbounded = CommonError(np.array([np.full(9, -math.inf), np.zeros(9)]), np.array([1.0, 0.0]))
    law = fit_saturating_power_law(ELR, saturating(ELR, *RISING), common=unbounded)
    assert law.floor == pytest.approx(RISING[0]) and law.floor_interval == (-math.inf, math.inf)
    assert law.exponent_interval == (-math.inf, math.inf)
    assert any("leaves them anywhere" in warning for warning in law.warnings)


# Coverage: quick versions of proofs/analysis_coverage_surface.py


def band(num_draws, low=0.87, high=0.93):
    slack = 3 * math.sqrt(0.9 * 0.1 / num_draws)
    return low - slack, high + slack


@pytest.mark.parametrize(("num_points", "noise"), [(4, 0.05), (9, 0.3)])
def test_intervals_of_a_power_law_cover(num_points, noise):
    rng, x = np.random.default_rng(num_points), 2.0 ** np.arange(num_points)
    held = []
    for _ in range(300):
        law = fit_power_law(x, 3 * x**0.4 * np.exp(noise * rng.standard_normal(num_points)))
        held.append(law.exponent_interval[0] <= 0.4 <= law.exponent_interval[1])
    low, high = band(300)
    assert low <= np.mean(held) <= high


@pytest.mark.parametrize("noise", [0.005, 0.05])
def test_intervals_of_a_saturating_law_cover(noise):
    rng = np.random.default_rng(int(1000 * noise))
    held = {"floor": [], "exponent": [], "prediction": []}
    for _ in range(100):
        law = fit_saturating_power_law(ELR, saturating(ELR, *RISING) + noise * rng.standard_normal(9))
        far = law.predict(2**-5)
        held["floor"].append(law.floor_interval[0] <= RISING[0] <= law.floor_interval[1])
        held["exponent"].append(law.exponent_interval[0] <= RISING[2] <= law.exponent_interval[1])
        held["prediction"].append(far.low <= saturating(2**-5, *RISING) <= far.high)
    low, high = band(100)
    for name, values in held.items():
        assert low <= np.mean(values) <= high, name


def test_intervals_of_correlated_curves_cover():
    rng, held = np.random.default_rng(21), {"alpha": [], "floor": []}
    for _ in range(40):
        times, losses, rates, floors = curves(rng, noise=0.01, correlation=0.5)
        fit = fit_training_curves(times, losses, rates)
        held["alpha"].append(fit.alpha_interval[0] <= 0.5 <= fit.alpha_interval[1])
        held["floor"].append(fit.runs[1].floor_interval[0] <= floors[1] <= fit.runs[1].floor_interval[1])
    low, _ = band(40, low=0.85)
    for name, values in held.items():
        assert np.mean(values) >= low, name


@pytest.mark.parametrize("module", [power, saturating_law])
def test_the_examples_in_the_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed
