"""The board: what it keeps is what would be computed anew."""

import numpy as np
import pytest

from isotune.tune.board import Board, kernels_of, whole_board
from isotune.tune.kernels import NEW, Places
from isotune.tune.questions import Answer, Goal, Question, Space
from isotune.tune.tuner import believe_answers

CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-11, -6) for wd in range(-6, 1, 2))
GOAL = Goal(tokens=2_752_512, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=256, seeds=(0, 1, 2))
ANSWERS = [
    Answer(Question(lr, wd, GOAL.rungs[index % len(GOAL.rungs)], index % 2), 1.5 + 0.01 * (index * 7 % 5))
    for index, (lr, wd) in enumerate(CELLS)
]


def test_places_on_the_board_are_those_of_their_points():
    targets, cells = np.array([1, 4, 7]), np.array([0, 0, 5, 19])
    rungs, seeds = np.array([0, 3, 1, 2]), np.array([0.0, 1.0, NEW, 0.0])
    kept = whole_board(GOAL).places_of(targets, cells, rungs, seeds, ["n", "WD"])
    tokens = np.array(GOAL.rungs)[rungs]
    questions = GOAL.points(GOAL.space.cells[cells], tokens, seeds)
    points = np.vstack([GOAL.targets(targets), questions])
    np.testing.assert_array_equal(kept.points, points)

    belief = believe_answers(GOAL, ANSWERS)
    first, second = slice(0, 3), slice(3, None)
    on_board, anew = belief.at(kept), belief.at(points)
    assert on_board.mean == pytest.approx(anew.mean, abs=1e-12)
    assert on_board.deviation == pytest.approx(anew.deviation, abs=1e-12)
    for parts in ((first, first), (first, second), (second, second)):
        assert on_board.covariance(*parts) == pytest.approx(anew.covariance(*parts), abs=1e-14)
    draws = [posterior.draws(first, np.random.default_rng(0).standard_normal((8, 3))) for posterior in (on_board, anew)]
    assert draws[0] == pytest.approx(draws[1], abs=1e-9)


def test_departures_that_are_kept_are_the_kernels():
    board = Board.of(GOAL, np.array([2, 3, 11]))
    for kernel in kernels_of(GOAL):
        targets = Places.of([kernel], GOAL.targets(board.cells))
        expected = kernel.shared(targets, Places.of([kernel], board.places.points)).departures
        assert board.departures[kernel.view] == pytest.approx(expected, abs=1e-15)


def test_a_board_is_made_once_for_goals_that_are_equal():
    again = Goal(tokens=2_752_512, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=256, seeds=(0, 1, 2))
    assert again is not GOAL
    assert whole_board(again) is whole_board(GOAL)
