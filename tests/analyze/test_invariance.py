"""What runs are invariant to: the truth that was put in comes out, and where there is none a reason does."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats
from synthetic import WIDE_LR, WIDE_WD, grid, index_values, round_bowl, shuffled, sweep

from isotune.analyze.curves import common_curves
from isotune.analyze.distances import SAME_OCTAVES
from isotune.analyze.invariance import _powers, _stratified_test, _strength, invariance, invariance_of_curves
from isotune.errors import InputError

NUM_DRAWS = 60  # proofs/analysis_controls.py has the thousand
MOST_FALSE = 8  # of 60, were the rate 7.1 %: exceeded once in 40


def verdicts(draw, x, y, num_draws=NUM_DRAWS):
    found = [
        invariance(x, y, draw(np.random.default_rng(seed)), permutations=199, random_seed=seed)
        for seed in range(num_draws)
    ]
    assert all(one.reasons for one in found)
    return Counter(one.verdict for one in found)


# The truth comes out


@pytest.mark.parametrize(("degrees", "verdict"), [(45, "ELR"), (0, "LR"), (90, "WD"), (22.5, "another")])
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_the_index_that_was_put_in_comes_out(degrees, verdict, noise):
    x, y = grid(WIDE_LR, WIDE_WD)
    found = verdicts(lambda rng: index_values(rng, x, y, degrees, noise), x, y, 20)
    assert found[verdict] >= 19


@pytest.mark.parametrize("degrees", [45, 0, 90])
def test_under_strong_noise_the_answer_is_open_rather_than_wrong(degrees):
    x, y = grid()
    found = verdicts(lambda rng: index_values(rng, x, y, degrees, 0.4), x, y)
    right = {45: "ELR", 0: "LR", 90: "WD"}[degrees]
    assert NUM_DRAWS - found[right] - found["undecided"] <= MOST_FALSE


def test_a_minimum_inside_the_grid_does_not_hide_the_direction():
    x, y = grid(WIDE_LR, WIDE_WD)
    found = verdicts(lambda rng: (x + y + 13) ** 2 + 0.2 * rng.standard_normal(len(x)), x, y, 10)
    assert found["ELR"] == 10


def test_a_sweep_is_lr_invariant_early_and_elr_invariant_late():
    x, y = grid(WIDE_LR, WIDE_WD)
    runs = sweep(np.random.default_rng(0), x, y, noise=0.003)
    early = common_curves(runs, tokens=(61_440, 307_200), memory_times=(0, 0.3))
    assert invariance_of_curves(early, permutations=999).verdict == "LR"
    late = common_curves(runs, tokens=(1_597_440, 2_641_920), memory_times=(3, np.inf))
    assert invariance_of_curves(late, permutations=999).verdict == "ELR"


def test_a_change_that_is_far_larger_at_one_end_of_the_grid_does_not_hide_the_invariance():
    """Early losses against LR: steep at low LR, flat at high LR, as in tables/nano."""
    x, y = grid(np.arange(-12.0, -7.0), WIDE_WD)
    found = verdicts(lambda rng: 2.2 + 0.4 * 2.0 ** (-12 - x) + 0.001 * rng.standard_normal(len(x)), x, y, 10)
    assert found["LR"] == 10


def test_a_test_of_many_cells_is_made_in_parts_and_gives_the_same(monkeypatch):
    x, y = grid(WIDE_LR, WIDE_WD)
    value = index_values(np.random.default_rng(0), x, y, 45, 0.4)
    whole = invariance(x, y, value, permutations=999)
    for module in ("invariance", "angle"):
        monkeypatch.setattr(f"isotune.analyze.{module}.VALUES_AT_A_TIME", 7 * len(x))
    parts = invariance(x, y, value, permutations=999)
    assert (parts.p_wd, parts.p_lr, parts.verdict) == (whole.p_wd, whole.p_lr, whole.verdict)
    assert parts.angle.degrees == pytest.approx(whole.angle.degrees)


# Negative controls


@pytest.mark.parametrize("noise", [0.8, 1.2, 2.0])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_noise_does_not_make_neither_of_another_index(noise, num_seeds):
    """What the noise leaves unexplained says nothing against the index."""
    x, y = (np.repeat(column, num_seeds) for column in grid(range(-12, -7), range(-6, -1)))
    found = verdicts(lambda rng: index_values(rng, x, y, 26.6, noise * np.sqrt(num_seeds), curvature=0.0), x, y)
    assert found["neither"] <= MOST_FALSE
    assert found["another"] + found["undecided"] + found["neither"] >= NUM_DRAWS - MOST_FALSE


def test_with_too_few_cells_for_an_index_its_absence_is_not_claimed():
    x, y = (np.repeat(column, 3) for column in grid(range(-11, -8), (-4, -3)))
    draw = np.random.default_rng(0).normal(0, 0.001, len(x))
    found = invariance(x, y, 3 + 0.05 * (x + 0.3 * y) + draw)
    assert found.verdict == "undecided"
    assert any("too few for an angle" in reason for reason in found.reasons)


def test_no_invariance_is_neither():
    x, y = grid()
    found = verdicts(lambda rng: round_bowl(rng, x, y, 0.1), x, y)
    assert found["neither"] >= NUM_DRAWS - MOST_FALSE
    assert found["neither"] + found["undecided"] >= NUM_DRAWS - MOST_FALSE


def test_shuffled_labels_are_undecided():
    x, y = grid()
    found = verdicts(lambda rng: shuffled(rng, x, y, 45, 0.1), x, y)
    assert found["undecided"] >= NUM_DRAWS - MOST_FALSE


def test_dependence_on_wd_alone_passes_for_neither_lr_nor_elr():
    x, y = grid()
    found = verdicts(lambda rng: index_values(rng, x, y, 90, 0.2), x, y)
    assert found["LR"] + found["ELR"] + found["neither"] + found["another"] <= MOST_FALSE


@pytest.mark.parametrize(
    ("x", "y", "value", "words"),
    [
        ([-9.0] * 6, range(6), range(6), "all runs have one LR"),
        (range(6), [0.0] * 6, range(6), "all runs have one WD"),
        ([-9, -8], [0, 1], [2, 3], "2 settings say nothing"),
        ([-9, -8, -9, -8], [0, 0, 1, 1], [1, 2, 3, 5], "4 cells are too few: it takes 6"),
        ([-9, -8, -7] * 3, np.repeat([0, 1, 2], 3), [3.25] * 9, "all values are equal"),
    ],
)
def test_what_cannot_be_said_is_refused_with_a_reason(x, y, value, words):
    found = invariance(list(x), list(y), list(value))
    assert found.verdict == "undecided" and math.isnan(found.angle.degrees)
    assert words in found.reasons[0]


def test_runs_off_any_grid_get_an_angle_and_a_reason():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-11, -7, 20), rng.uniform(-4, 0, 20)
    found = invariance(x, y, index_values(rng, x, y, 45, 0.02))
    assert found.verdict == "undecided" and abs(found.angle.degrees - 45) < 3
    assert sum("too few neighbouring cells" in reason for reason in found.reasons) == 3


def test_values_that_are_missing_are_an_error():
    with pytest.raises(InputError, match="finite"):
        invariance([1, 2], [1, 2], [1, np.nan])
    with pytest.raises(InputError, match="rows of one length"):
        invariance([1, 2], [1, 2], [1, 2, 3])


# The parts


def test_the_permutation_test_agrees_with_f_tests_by_brute_force():
    rng = np.random.default_rng(1)
    strata = np.repeat([0.0, 1.0], 4)
    position = np.tile([0.0, 1, 2, 3], 2)
    value = rng.normal(size=8) + 0.5 * position

    def f(values):
        dummies = np.column_stack([strata == 0, strata == 1]).astype(float)
        full = np.column_stack([dummies, position, position**2])
        rest = [np.linalg.lstsq(design, values, rcond=None)[1][0] for design in (dummies, full)]
        return (rest[0] - rest[1]) / rest[1]

    shuffles = [
        np.concatenate([value[list(a)], value[list(b)]])
        for a in itertools.permutations(range(4))
        for b in itertools.permutations(range(4, 8))
    ]
    expected = np.mean([f(shuffle) >= f(value) * (1 - 1e-9) for shuffle in shuffles])
    assert _stratified_test(value, strata, _powers(position), 999, 0).p == pytest.approx(expected)


def test_with_few_shuffles_a_straight_lines_f_test_takes_its_place():
    value = np.array([1.0, 2.1, 3.9, 5.2, 1.3])
    strata = np.array([0, 0, 1, 1, 2.0])
    position = np.array([0, 1, 0, 1, 0.0])
    found = _stratified_test(value, strata, _powers(position), 999, 0)
    design = np.column_stack([strata == 0, strata == 1, strata == 2, position]).astype(float)
    full = value - design @ np.linalg.lstsq(design, value, rcond=None)[0]
    means = value - np.array([1.55, 1.55, 4.55, 4.55, 1.3])
    assert found.p == pytest.approx(stats.f.sf((means @ means - full @ full) / (full @ full), 1, 1))
    assert "F test of a straight line" in found.warning


def test_permutation_p_values_are_uniform_under_the_null():
    rng = np.random.default_rng(2)
    x, y = grid()
    p = [_stratified_test(rng.normal(size=25) + 5 * x, x, _powers(x + y), 199, seed).p for seed in range(200)]
    assert stats.kstest(p, "uniform").pvalue > 0.001


def test_shares_of_a_plane_are_ratios_of_slopes():
    x, y = grid(WIDE_LR, WIDE_WD)
    found = invariance(x, y, 1.0 * x + 0.5 * y, cell_noise=0.0, permutations=99)
    assert found.lr_share.value == pytest.approx(0.5)  # slope of WD at equal LR over that of LR at equal WD
    assert found.wd_share.value == pytest.approx(2.0)
    assert found.elr_share.value == pytest.approx(1.0)  # LR at equal ELR: 1 - .5; WD at equal LR: .5


def test_noise_is_taken_out_of_shares():
    x, y = grid(WIDE_LR, WIDE_WD)
    noises = [
        invariance(x, y, index_values(np.random.default_rng(seed), x, y, 45, 0.2), permutations=99)
        for seed in range(30)
    ]
    assert np.mean([found.cell_noise for found in noises]) == pytest.approx(0.04, rel=0.15)
    assert np.median([found.elr_share.value for found in noises]) < 0.15


def test_seeds_say_how_noisy_a_cell_is():
    rng = np.random.default_rng(3)
    x, y = (np.repeat(column, 4) for column in grid())
    found = invariance(x, y, index_values(rng, x, y, 45, 0.2), permutations=99)
    assert found.num_cells == 25
    assert found.cell_noise == pytest.approx(0.04 / 4, rel=0.4)


def test_two_cells_that_share_lr_and_elr_up_to_rounding_are_no_neighbours():
    """Three WDs in a row, too wide for one group: two of them differ, but not their ELRs. Warnings are errors here."""
    x, y = grid()
    x, y = np.append(x, [x[0], x[0]]), np.append(y, y[0] + SAME_OCTAVES * np.array([0.7, 1.3]))
    found = invariance(x, y, index_values(np.random.default_rng(0), x, y, 45, 0.03), permutations=199)
    assert found.num_cells == 26 and found.verdict in ("ELR", "undecided")
    strata, position, value = np.zeros(4), np.array([0.0, 0.0, 1.0, 3.0]), np.array([5.0, 1.0, 2.0, 6.0])
    strength, per_noise = _strength(value, (strata, position), np.ones(4, dtype=bool), 0.1)
    assert per_noise == pytest.approx(-(1 + 1 / 4))
    assert strength == pytest.approx((1**2 + 2**2) / 2 + 0.1 * per_noise)
