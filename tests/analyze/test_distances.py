"""Distances between curves: exact to the last digits, groups that mean something, floors made of chance."""

import doctest
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from synthetic import grid, sweep

from isotune.analyze import distances
from isotune.analyze.curves import common_curves
from isotune.analyze.distances import (
    bootstrap_interval,
    corrected_distances,
    floor_of_pairs,
    group_distances,
    group_labels,
    overlap_share,
    relative_distances,
    same_up_to,
    seed_pairs,
)
from isotune.errors import InputError


def double_loop(values):
    return np.array(
        [[np.sqrt(((a - b) ** 2).sum()) / np.sqrt(((a**2).sum() + (b**2).sum()) / 2) for b in values] for a in values]
    )


def assert_same(values):
    expected, found = double_loop(values), relative_distances(values)
    apart = expected > 0
    assert np.abs(found[apart] / expected[apart] - 1).max() < 1e-9
    assert (found[~apart] == 0).all()
    assert (found == found.T).all()


def test_distances_agree_with_a_double_loop():
    assert_same(np.random.default_rng(0).normal(size=(30, 50)))


def test_distances_keep_their_digits_where_curves_are_nearly_equal():
    rng = np.random.default_rng(1)
    spread = 10.0 ** rng.uniform(-12, 0, (40, 1))
    assert_same(5 + spread * rng.normal(size=(40, 50)))


def test_distances_keep_their_digits_in_tight_groups_that_lie_far_apart():
    rng = np.random.default_rng(2)
    centres = np.repeat(rng.normal(size=(4, 60)), 8, axis=0)
    assert_same(centres + 1e-8 * rng.normal(size=centres.shape))


def test_distances_keep_their_digits_far_from_zero_and_between_twins():
    rng = np.random.default_rng(9)
    values = 1e6 + rng.normal(size=(12, 40))
    values[1] = values[0] * (1 + 1e-9 * rng.normal(size=40))
    values[3] = values[2]
    assert_same(values)
    assert relative_distances(values)[2, 3] == 0


def test_distances_keep_their_digits_beside_a_curve_a_million_times_as_large():
    values = np.random.default_rng(10).normal(size=(12, 40))
    values[5] *= 1e6
    assert_same(values)


def test_distances_neither_overflow_nor_vanish():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(5, 9))
    for size in (1e-200, 1e200):
        np.testing.assert_allclose(relative_distances(size * values), relative_distances(values), rtol=1e-12)
    assert relative_distances(np.zeros((3, 4))).tolist() == np.zeros((3, 3)).tolist()


def many_curves():
    """Twenty groups of curves that lie .2 apart, within a group .02: more than are multiplied in double precision."""
    rng = np.random.default_rng(11)
    level = rng.normal(scale=0.1, size=20)[rng.integers(0, 20, 450)]
    slope = rng.normal(scale=0.1, size=(450, 1)) * np.linspace(-1, 1, 400)
    return 2 + level[:, None] + slope + 0.01 * rng.normal(size=(450, 400))


def largest_error(values):
    found = relative_distances(values)
    squares = (np.linalg.norm(values, axis=1) ** 2)[:, None] + np.linalg.norm(values, axis=1) ** 2
    expected = squareform(pdist(values)) / np.sqrt(squares / 2)
    apart = expected > 0
    assert (found == found.T).all() and (found[~apart] == 0).all()
    return np.abs(found[apart] / expected[apart] - 1).max()


def test_many_curves_in_single_precision_keep_four_digits():
    values = many_curves()
    assert relative_distances(values).dtype == np.float32
    assert largest_error(values) < 1e-4
    for size in (1e-30, 1e30):
        assert largest_error(size * values) < 1e-4


def test_many_curves_with_some_close_ones_keep_four_digits():
    values = many_curves()
    values[1:60:2] = values[0:60:2] + 1e-7 * np.random.default_rng(12).normal(size=(30, 400))
    values[60] = values[61]
    assert relative_distances(values).dtype == np.float32
    assert largest_error(values) < 1e-4


def test_many_curves_that_are_nearly_all_close_get_double_precision():
    values = 5 + 1e-6 * np.random.default_rng(13).normal(size=(450, 400))
    values[0] *= np.linspace(1, 1e3, 400)  # one of those whose mean is taken off
    assert relative_distances(values).dtype == np.float64
    assert largest_error(values) < 1e-9


def test_distances_are_scipys_up_to_the_curves_size():
    values = np.random.default_rng(4).normal(size=(12, 30))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    np.testing.assert_allclose(relative_distances(values), squareform(pdist(values)), atol=1e-12)


def test_curves_with_holes_are_refused():
    with pytest.raises(InputError, match="finite"):
        relative_distances([[1.0, np.nan], [1.0, 2.0]])


def test_group_means_are_means_over_pairs():
    d = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]], dtype=float)
    found = group_distances(d, ["a", "a", "b", "b"], draws=50)
    assert (found.within, found.between) == (3.5, 3.5)
    assert found.groups == ("a", "b")
    assert found.matrix.tolist() == [[1, 3.5], [3.5, 6]]
    assert (found.num_within, found.num_between) == (2, 4)


def test_groups_of_one_are_left_out_unless_asked_for():
    d = squareform(pdist(np.array([[0.0], [1], [10], [11], [50]])))
    labels = [1, 1, 2, 2, 3]
    assert group_distances(d, labels, draws=50).groups == (1, 2)
    assert group_distances(d, labels, draws=50, min_group_size=1).groups == (1, 2, 3)


def test_seeds_of_a_cell_are_neither_compared_nor_drawn_apart():
    rng = np.random.default_rng(5)
    cells = np.repeat(np.arange(8), 2)
    position = np.repeat(np.arange(8) // 4, 2) * 10.0 + rng.normal(size=16)
    d = np.abs(position[:, None] - position)
    found = group_distances(d, cells // 4, cells=cells, seeds=np.tile([0, 1], 8), draws=200)
    assert found.num_within == 2 * 2 * 6 and found.num_between == 2 * 16
    assert found.low < found.ratio < found.high


def test_the_ratio_of_meaningless_groups_holds_one():
    rng = np.random.default_rng(6)
    held = 0
    for _ in range(100):
        d = relative_distances(rng.normal(size=(20, 3)))
        found = group_distances(d, rng.permutation(np.repeat(np.arange(4), 5)), draws=200)
        held += found.low <= 1 <= found.high
    assert held >= 80


def test_one_group_has_no_ratio_and_says_so():
    found = group_distances(np.ones((4, 4)) - np.eye(4), [1] * 4, draws=20)
    assert math.isnan(found.ratio) and found.within == 1
    assert found.warnings == ("no ratio: all runs are in one group",)
    found = group_distances(np.ones((4, 4)) - np.eye(4), [1, 2, 3, 4], draws=20, min_group_size=1)
    assert found.warnings == ("no ratio: no two runs are in one group",)


def test_labels_by_any_product_of_powers_are_equal_up_to_rounding():
    x, y = grid()
    infos = common_curves(sweep(np.random.default_rng(0), x, y)).infos
    by_elr = group_labels(infos, learning_rate=1, weight_decay=1)
    assert len(set(by_elr)) == 9
    assert len(set(group_labels(infos, learning_rate=1))) == 5
    assert len(set(group_labels(infos, learning_rate=2, weight_decay=1))) == 13
    assert len(set(group_labels(infos, batch_size=1))) == 1
    np.testing.assert_allclose(by_elr, x + y)
    with pytest.raises(InputError, match="nothing to group by"):
        group_labels(infos)


def test_values_a_rounding_apart_are_the_same():
    assert len(set(same_up_to([math.log2(3e-4 * 0.1), math.log2(3e-5), math.log2(1e-4 * 0.3)]))) == 1


def test_a_row_of_close_values_does_not_make_far_ones_the_same():
    steps = 0.009 * np.arange(200)
    labels = same_up_to(np.random.default_rng(0).permutation(steps), 0.01)
    assert len(np.unique(labels)) >= 100
    values = np.random.default_rng(1).uniform(0, 1, 2000)
    labels = same_up_to(values, 0.01)
    for label in np.unique(labels):
        assert values[labels == label].min() == label and np.ptp(values[labels == label]) <= 0.01


def test_a_row_of_close_values_is_cut_where_it_is_thinnest():
    assert same_up_to([0.0, 0.0099, 0.0101], 0.01).tolist() == [0.0, 0.0099, 0.0099]
    assert same_up_to([0.0, 0.001, 0.008, 0.0135, 0.014], 0.01).tolist() == [0.0, 0.0, 0.008, 0.008, 0.008]
    assert same_up_to([], 0.01).tolist() == []


def test_a_floor_is_made_of_twins_and_takes_chance_out():
    rng = np.random.default_rng(7)
    curves = np.repeat(3 + rng.normal(size=(10, 40)), 2, axis=0)
    curves += 0.01 * rng.normal(size=curves.shape)
    floor = floor_of_pairs(curves, [(2 * k, 2 * k + 1) for k in range(10)])
    assert floor.median == pytest.approx(0.01 * math.sqrt(2) / math.sqrt(10), rel=0.1)
    assert floor.median < floor.percentile_95 and not floor.warnings
    assert corrected_distances([0.005, 0.01, 0.05], 0.01).tolist() == [0, 0, pytest.approx(math.sqrt(0.0024))]
    assert "8 are needed" in floor_of_pairs(curves, [(0, 1)]).warnings[0]


def test_pairs_that_differ_by_chance_alone_overlap_and_others_do_not():
    rng = np.random.default_rng(8)
    level = np.repeat([3.0, 3.0, 4.0], 8)
    curves = level[:, None] + 0.01 * rng.normal(size=(24, 40))
    d = relative_distances(curves)
    floor = floor_of_pairs(curves, [(k, k + 1) for k in range(0, 24, 2)])
    alike = level[:, None] == level
    assert overlap_share(d, alike, floor, draws=100).share > 0.7
    assert overlap_share(d, ~alike, floor, draws=100).share == 0
    assert math.isnan(overlap_share(d, alike, floor_of_pairs(curves, [(0, 1)])).share)


def test_seed_pairs_share_everything_else():
    x, y = np.array([-9.0, -9.0, -8.0]), np.zeros(3)
    infos = [run.info for run in sweep(np.random.default_rng(0), x, y)]
    assert seed_pairs(infos) == []
    assert seed_pairs([infos[0], replace(infos[1], seed=1), infos[2]]) == [(0, 1)]


def test_a_bootstrap_that_often_fails_gives_no_interval():
    low, _, warnings = bootstrap_interval(np.r_[np.ones(80), np.full(20, np.nan)], 0.9)
    assert math.isnan(low) and "20%" in warnings[0]


def test_examples_in_docstrings():
    assert doctest.testmod(distances).failed == 0
