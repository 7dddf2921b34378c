"""The paraboloid over (log2 LR, log2 WD): exact ones come back, noise claims nothing, intervals cover."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotune.analyze.surface import fit_surface, fitting
from isotune.errors import InputError

X, Y = (column.ravel() for column in np.meshgrid(np.arange(-12.0, -6.0), np.arange(-8.0, 1.0)))
MINIMUM = (-9.3, -4.2)


def paraboloid(x, y, top=0.016, other=0.004, angle=45.0, minimum=MINIMUM, lowest=1.5):
    cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    dx, dy = x - minimum[0], y - minimum[1]
    along, across = cosine * dx + sine * dy, cosine * dy - sine * dx
    return lowest * (1 + 0.5 * top * along**2 + 0.5 * other * across**2)


def noisy(rng, noise, x=X, y=Y, **shape):
    return paraboloid(x, y, **shape) + 1.5 * noise * rng.standard_normal(len(x))


def axial_distance(a, b):
    return abs(math.remainder(a - b, 180.0))


# Exact paraboloids


@pytest.mark.parametrize("angle", [-60.0, -20.0, 0.0, 30.0, 45.0, 90.0])
def test_an_exact_paraboloid_comes_back(angle):
    surface = fit_surface(X, Y, paraboloid(X, Y, angle=angle))
    assert surface.minimum_log2_learning_rate == pytest.approx(MINIMUM[0], abs=1e-6)
    assert surface.minimum_log2_weight_decay == pytest.approx(MINIMUM[1], abs=1e-6)
    assert surface.minimum_log2_effective_learning_rate == pytest.approx(sum(MINIMUM), abs=1e-6)
    assert surface.minimum_loss == pytest.approx(1.5)
    assert surface.eigenvalues == pytest.approx((1.5 * 0.016, 1.5 * 0.004))
    assert surface.eigenvalue_ratio == pytest.approx(4.0)
    assert axial_distance(surface.salient_direction, angle) < 1e-6
    assert -90 < surface.salient_direction <= 90
    assert surface.is_convex and not surface.is_censored and surface.r_squared == pytest.approx(1.0)


def test_the_coefficients_are_those_of_numpys_least_squares():
    loss = noisy(np.random.default_rng(0), 0.005)
    surface = fit_surface(X, Y, loss, margin=math.inf)
    design = np.column_stack([np.ones_like(X), X, Y, X**2, X * Y, Y**2])
    expected = np.linalg.lstsq(design, loss, rcond=None)[0]
    x, y = -9.7, -3.1
    assert surface.loss_at(x, y) == pytest.approx(np.array([1, x, y, x * x, x * y, y * y]) @ expected)
    assert np.allclose(surface.loss_at(X, Y), design @ expected)


def test_weights_count_as_repeated_cells_do():
    rng = np.random.default_rng(1)
    loss, seeds = noisy(rng, 0.005), rng.integers(1, 4, len(X))
    weighted = fit_surface(X, Y, loss, weights=seeds, margin=math.inf)
    repeated = fit_surface(*(np.repeat(column, seeds) for column in (X, Y, loss)), margin=math.inf)
    assert weighted.minimum_log2_learning_rate == pytest.approx(repeated.minimum_log2_learning_rate)
    assert weighted.salient_direction == pytest.approx(repeated.salient_direction)


def test_only_cells_within_the_margin_are_fitted():
    loss = paraboloid(X, Y)
    far = loss > 1.06 * loss.min()
    wild = np.where(far, loss + 5.0, loss)
    surface = fit_surface(X, Y, wild)
    assert surface.num_fitted == int((~far).sum()) and surface.num_cells == len(X)
    assert surface.minimum_log2_learning_rate == pytest.approx(MINIMUM[0], abs=1e-6)


def test_the_best_cell_is_the_lowest_measured_one():
    loss = noisy(np.random.default_rng(2), 0.005)
    cell, lowest = fit_surface(X, Y, loss).best_cell, np.argmin(loss)
    assert (cell.log2_learning_rate, cell.log2_weight_decay, cell.loss) == (X[lowest], Y[lowest], loss[lowest])


# Invariances


@settings(max_examples=15, deadline=None)
@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_shifted_axes_shift_the_minimum_and_a_scaled_loss_scales_it(dx, dy, scale, seed):
    loss = noisy(np.random.default_rng(seed), 0.003)
    plain, moved = fit_surface(X, Y, loss), fit_surface(X + dx, Y + dy, scale * loss)
    assert moved.minimum_log2_learning_rate == pytest.approx(plain.minimum_log2_learning_rate + dx, abs=1e-5)
    assert moved.minimum_log2_weight_decay_interval == pytest.approx(
        tuple(end + dy for end in plain.minimum_log2_weight_decay_interval), abs=1e-3
    )
    assert moved.minimum_loss == pytest.approx(scale * plain.minimum_loss)
    assert moved.salient_direction_interval == pytest.approx(plain.salient_direction_interval, abs=1e-4)
    assert moved.active_direction_interval == pytest.approx(plain.active_direction_interval, abs=1e-4)
    assert moved.eigenvalue_ratio_interval == pytest.approx(plain.eigenvalue_ratio_interval, rel=1e-4)
    assert moved.censored == plain.censored


def test_swapping_the_axes_mirrors_the_direction():
    loss = noisy(np.random.default_rng(3), 0.003, angle=20.0)
    plain, swapped = fit_surface(X, Y, loss), fit_surface(Y, X, loss)
    assert axial_distance(swapped.salient_direction, 90 - plain.salient_direction) < 1e-6
    assert swapped.minimum_log2_weight_decay_interval == pytest.approx(
        plain.minimum_log2_learning_rate_interval, abs=1e-3
    )


# Directions


def test_the_active_direction_is_the_top_eigenvector_of_the_mean_outer_product():
    surface = fit_surface(X, Y, paraboloid(X, Y, angle=30.0))
    cells, step = surface.fitted_cells, 1e-4
    by_x = (surface.loss_at(cells[:, 0] + step, cells[:, 1]) - surface.loss_at(cells[:, 0] - step, cells[:, 1])) / step
    by_y = (surface.loss_at(cells[:, 0], cells[:, 1] + step) - surface.loss_at(cells[:, 0], cells[:, 1] - step)) / step
    gradients = np.column_stack([by_x, by_y])
    top = np.linalg.eigh(gradients.T @ gradients)[1][:, 1]
    assert axial_distance(surface.active_direction, math.degrees(math.atan2(top[1], top[0]))) < 1e-4


def test_a_plane_has_an_active_direction_though_it_has_no_minimum():
    rng = np.random.default_rng(4)
    loss = 1.5 + 0.01 * (X + Y + 13) + 0.001 * rng.standard_normal(len(X))
    surface = fit_surface(X, Y, loss, margin=math.inf)
    low, high = surface.active_direction_interval
    assert low < 45 < high and high - low < 10
    assert surface.is_censored


def test_a_direction_near_90_degrees_has_an_interval_across_the_wrap():
    angles = []
    for seed in range(20):
        surface = fit_surface(X, Y, noisy(np.random.default_rng(seed), 0.003, angle=90.0), margin=math.inf)
        low, high = surface.salient_direction_interval
        angles.append(surface.salient_direction)
        assert low <= surface.salient_direction <= high and high - low < 30
        assert -90 < surface.salient_direction <= 90
    assert min(angles) < -80 and max(angles) > 80  # both sides of the wrap
    assert surface.salient_factor == "WD"


@pytest.mark.parametrize(("angle", "factor"), [(0.0, "LR"), (45.0, "ELR"), (90.0, "WD"), (-45.0, None), (22.0, None)])
def test_the_salient_factor_is_named_if_the_interval_is_close_to_its_direction(angle, factor):
    loss = noisy(np.random.default_rng(5), 0.001, angle=angle)
    assert fit_surface(X, Y, loss, margin=math.inf).salient_factor == factor


# Negative controls


def test_noise_on_a_flat_loss_rarely_claims_a_direction_and_never_an_inner_minimum():
    claims, inner = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        surface = fit_surface(X, Y, 1.5 * (1 + 0.005 * rng.standard_normal(len(X))))
        low, high = surface.salient_direction_interval
        claims += high - low < 180
        inner += not surface.is_censored
        assert surface.warnings
    assert claims <= 14  # 10 % of 60, and three standard errors
    assert inner <= 3


def test_a_round_bowl_has_no_salient_direction():
    surface = fit_surface(X, Y, noisy(np.random.default_rng(6), 0.005, top=0.01, other=0.01), margin=math.inf)
    low, high = surface.salient_direction_interval
    assert high - low == pytest.approx(180)
    assert any("no direction is salient" in warning for warning in surface.warnings)
    assert surface.salient_factor is None


def test_a_minimum_at_the_edge_is_censored():
    surface = fit_surface(X, Y, noisy(np.random.default_rng(7), 0.002, minimum=(-9.0, -8.0)))
    assert surface.censored == ("weight_decay",) and surface.is_censored
    assert any("extend the grid" in warning for warning in surface.warnings)


def test_a_minimum_outside_the_grid_is_censored():
    assert fit_surface(X, Y, paraboloid(X, Y, minimum=(-9.0, -12.0)), margin=0.5).censored == ("weight_decay",)


def test_a_saddle_has_no_minimum():
    loss = 2.0 + 0.01 * (X + 9) ** 2 - 0.003 * (Y + 4) ** 2
    surface = fit_surface(X, Y, loss, margin=math.inf)
    assert not surface.is_convex and surface.is_censored
    assert math.isnan(surface.minimum_log2_learning_rate) and math.isnan(surface.minimum_loss)
    assert any("not convex" in warning for warning in surface.warnings)


def test_without_intervals_only_the_minimum_itself_is_asked_to_be_inside():
    loss = noisy(np.random.default_rng(8), 0.02)
    surface = fit_surface(X, Y, loss, margin=math.inf, intervals=False)
    assert surface.minimum_log2_learning_rate_interval == (-math.inf, math.inf)
    assert surface.minimum_log2_learning_rate == fit_surface(X, Y, loss, margin=math.inf).minimum_log2_learning_rate
    assert not surface.is_censored


# Refusals and warnings


def test_fewer_than_six_cells_are_refused():
    with pytest.raises(InputError, match="5 cells"):
        fit_surface(X[:5], Y[:5], paraboloid(X, Y)[:5])


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (np.full(9, -9.0), np.arange(9.0), "1 learning rate;"),
        (np.tile([-9.0, -8.0], 5), np.arange(10.0), "2 learning rates"),
        (np.arange(9.0), np.arange(9.0), "one line"),
        (np.cos(np.arange(9.0)), np.sin(np.arange(9.0)), "curve of second order"),
    ],
)
def test_cells_that_fix_no_paraboloid_are_refused_with_the_reason(x, y, reason):
    with pytest.raises(InputError, match=reason):
        fit_surface(x, y, 1.5 + 0.01 * x**2 + 0.01 * y**2)


def test_equal_losses_have_no_minimum_to_look_for():
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(-12.0, -7), np.arange(-4.0, 1)))
    with pytest.raises(InputError, match="all 25 cells have the loss 3: nothing depends on LR or WD"):
        fit_surface(x, y, np.full(25, 3.0))


def test_six_cells_fit_exactly_and_have_no_intervals():
    x, y = np.array([0.0, 1, 2, 0, 1, 0]), np.array([0.0, 0, 0, 1, 1, 2])
    surface = fit_surface(x, y, paraboloid(x, y, minimum=(0.8, 0.6)))
    assert surface.minimum_log2_learning_rate == pytest.approx(0.8)
    assert surface.minimum_log2_learning_rate_interval == (-math.inf, math.inf)
    assert surface.is_censored and any("no intervals" in warning for warning in surface.warnings)


def test_a_margin_with_few_cells_is_widened_and_says_so():
    surface = fit_surface(X, Y, paraboloid(X, Y), margin=0.001)
    assert surface.num_fitted >= 9 and surface.margin > 0.001
    assert any("widened" in warning for warning in surface.warnings)


def test_diverged_cells_are_left_out_and_counted():
    loss = paraboloid(X, Y)
    loss[:3] = math.nan, math.inf, math.nan
    surface = fit_surface(X, Y, loss)
    assert surface.num_cells == len(X) - 3
    assert any("3 cells" in warning for warning in surface.warnings)


def test_a_skewed_loss_is_told_from_a_paraboloid():
    skew = 1.5 * 0.0008 * (X - MINIMUM[0]) ** 3
    rng = np.random.default_rng(10)
    told = [
        any("no paraboloid" in note for note in fit_surface(X, Y, noisy(rng, 0.001) + skew).warnings) for _ in range(9)
    ]
    false = [any("no paraboloid" in note for note in fit_surface(X, Y, noisy(rng, 0.001)).warnings) for _ in range(60)]
    assert all(told) and sum(false) <= 4


def test_scatter_beyond_the_standard_errors_widens_the_intervals_and_says_so():
    loss = noisy(np.random.default_rng(9), 0.01)
    alone = fit_surface(X, Y, loss, margin=math.inf)
    told = fit_surface(X, Y, loss, standard_errors=np.full(len(X), 0.003), margin=math.inf)
    assert any("times as much" in warning for warning in told.warnings)
    assert told.minimum_loss_interval == pytest.approx(alone.minimum_loss_interval)


@pytest.mark.parametrize(
    "bad",
    [
        {"margin": 0.0},
        {"level": 1.0},
        {"weights": np.zeros(len(X))},
        {"weights": np.ones(len(X)), "standard_errors": np.ones(len(X))},
    ],
)
def test_bad_options_are_refused(bad):
    with pytest.raises(InputError):
        fit_surface(X, Y, paraboloid(X, Y), **bad)


# The flat set


def brute_force(surface, count=60_000):
    """Random points of the hull with their fitted losses, and the limit by its definition."""
    rng = np.random.default_rng(0)
    cells = surface.fitted_cells
    points = cells.min(axis=0) + np.ptp(cells, axis=0) * rng.random((count, 2))
    points = points[surface.contains(*points.T)]
    return points, surface.loss_at(*points.T)


@pytest.mark.parametrize("angle", [0.0, 30.0, 45.0, 90.0, -30.0])
@pytest.mark.parametrize("other", [0.0003, 0.004])
@pytest.mark.parametrize("tolerance", [0.0025, 0.02])
def test_every_point_that_the_flat_set_names_is_within_the_tolerance(angle, other, tolerance):
    surface = fit_surface(X, Y, noisy(np.random.default_rng(1), 0.0005, angle=angle, other=other))
    flat = surface.flat_set(tolerance)
    points, loss = brute_force(surface)
    assert flat.limit == pytest.approx(loss.min() * (1 + tolerance), rel=1e-3 * tolerance + 1e-5)
    weights = {"LR": (1, 0), "ELR": (1, 1), "WD": (0, 1)}.get(flat.factor)
    if weights is not None:
        s = points @ weights
        named = (flat.across[0] <= s) & (s <= flat.across[1])
        if flat.along is not None:
            t = points[:, ("LR", "WD").index(flat.along_name)]
            named &= (flat.along[0] <= t) & (t <= flat.along[1])
        assert named.any()
        assert loss[named].max() <= flat.limit * (1 + 1e-5)
    inside = loss <= flat.limit
    assert np.array_equal(flat.contains(*points.T), inside)
    assert flat.share == pytest.approx(inside.mean(), abs=0.01)


def test_a_valley_across_the_whole_grid_is_told_by_one_factor():
    loss = noisy(np.random.default_rng(2), 0.0002, other=0.0)
    surface = fit_surface(X, Y, loss)
    flat = surface.flat_set(0.0025, "ELR")
    assert not flat.is_limited_along and "ELR in" in flat.description and "matters too" not in flat.description
    half = math.sqrt(2 * 0.0025 / 0.016) * math.sqrt(2)  # octaves of ELR are sqrt(2) times those across
    assert flat.across == pytest.approx((sum(MINIMUM) - half, sum(MINIMUM) + half), abs=0.1)


def test_a_bowl_is_limited_in_the_other_direction_and_says_so():
    flat = fit_surface(X, Y, paraboloid(X, Y)).flat_set()
    assert flat.is_limited_along and "LR matters too" in flat.description
    half = math.sqrt(2 * 0.0025 / 0.016) * math.sqrt(2)  # of the whole set; a box inside it is narrower
    assert flat.extent_across == pytest.approx((sum(MINIMUM) - half, sum(MINIMUM) + half), abs=0.05)
    assert 0.6 * half < flat.across[1] - flat.across[0] < 2 * half


def test_a_flat_set_of_a_plane_is_told_in_the_active_direction_and_warns():
    loss = 1.5 + 0.01 * (X + 13) + 1e-4 * np.random.default_rng(5).standard_normal(len(X))
    flat = fit_surface(X, Y, loss, margin=math.inf).flat_set(0.01)
    assert flat.factor.startswith("LR") and not flat.is_limited_along
    assert any("outside" in warning for warning in flat.warnings)
    assert not fit_surface(X, Y, noisy(np.random.default_rng(5), 0.001)).flat_set().warnings


def test_the_hull_is_the_smallest_convex_set_around_the_fitted_cells():
    from scipy.spatial import Delaunay

    surface = fit_surface(X, Y, noisy(np.random.default_rng(3), 0.002))
    points = np.random.default_rng(4).uniform((-13, -9), (-5, 2), (5000, 2))
    expected = Delaunay(surface.fitted_cells).find_simplex(points) >= 0
    assert np.array_equal(surface.contains(*points.T), expected)


# Coverage: quick versions of proofs/analysis_coverage_surface.py


@pytest.mark.parametrize("noise", [0.001, 0.005])
def test_intervals_cover(noise):
    num_draws = 120
    slack = 3 * math.sqrt(0.9 * 0.1 / num_draws)
    rng = np.random.default_rng([int(1000 * noise), 11])
    held = {"lr": 0, "wd": 0, "elr": 0, "loss": 0, "direction": 0, "ratio": 0}
    for _ in range(num_draws):
        surface = fit_surface(X, Y, noisy(rng, noise, top=0.008, other=0.002), margin=math.inf)
        pairs = {
            "lr": (surface.minimum_log2_learning_rate_interval, MINIMUM[0]),
            "wd": (surface.minimum_log2_weight_decay_interval, MINIMUM[1]),
            "elr": (surface.minimum_log2_effective_learning_rate_interval, sum(MINIMUM)),
            "loss": (surface.minimum_loss_interval, 1.5),
            "direction": (surface.salient_direction_interval, 45.0),
            "ratio": (surface.eigenvalue_ratio_interval, 4.0),
        }
        for name, ((low, high), truth) in pairs.items():
            held[name] += low <= truth <= high
    for name, count in held.items():
        assert 0.87 - slack <= count / num_draws <= 0.93 + slack, name


def square(size):
    """(log2 LR, log2 WD) of a square grid around (-10, -3)."""
    side = np.arange(size) - (size - 1) / 2
    return tuple(axis.ravel() for axis in np.meshgrid(side - 10, side - 3))


def share_held(size, noise, num_draws=200):
    """Of the minima that are not censored, the share whose LR lies in its interval."""
    x, y = square(size)
    rng = np.random.default_rng([size, 12])
    found = [fit_surface(x, y, noisy(rng, noise, x, y, top=0.02, minimum=(-10, -3))) for _ in range(num_draws)]
    ends = [one.minimum_log2_learning_rate_interval for one in found if not one.is_censored]
    return np.mean([low <= -10 <= high for low, high in ends])


def test_intervals_of_a_small_grid_are_too_narrow_and_say_so():
    assert share_held(3, 0.006) < 0.8 < 0.88 < share_held(5, 0.006)
    for size, is_warned in ((3, True), (4, False)):
        x, y = square(size)
        losses = noisy(np.random.default_rng(1), 0.0005, x, y, minimum=(-10, -3))
        warned = any("3 degrees of freedom" in one for one in fit_surface(x, y, losses).warnings)
        assert warned is is_warned
        with_errors = fit_surface(x, y, losses, standard_errors=0.00075)
        assert not any("of freedom" in one for one in with_errors.warnings), "the noise is known"


def test_the_examples_in_the_docstrings_run():
    found = doctest.testmod(fitting)
    assert found.attempted and not found.failed
