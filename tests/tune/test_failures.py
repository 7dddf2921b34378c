"""What failed runs tell, and what they do not."""

import math

import pytest
from surfaces import TOKENS, TOKENS_PER_STEP, failing_above

from isotune.objectives.function import FunctionObjective
from isotune.tune import Answer, Goal, Question, Space, tune
from isotune.tune.failures import (
    FAILING,
    doubtful_end,
    ends_beside,
    failing_like_divergence,
    failing_sides,
    without_failing_sides,
)

CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-12, -7) for wd in (-8, -5, -2))
GOAL = Goal(
    tokens=TOKENS, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=TOKENS_PER_STEP, tolerance=0.0025
)


def question(lr, wd, tokens=1000):
    return Question(2.0**lr, 2.0**wd, tokens)


def test_a_few_failures_beside_runs_that_finish_do_not_count_as_divergence():
    high, higher = Question(2.0**-9, 0.25, TOKENS), Question(2.0**-8, 0.25, TOKENS)
    finished = Answer(high, 2.0)
    failed = [Question(2.0**-8, wd, TOKENS) for wd in (0.25, 0.5, 1.0)]
    assert [answer.question for answer in failing_like_divergence(failed, [finished])] == failed
    assert not failing_like_divergence(failed[:2], [finished])
    assert not failing_like_divergence(failed, [finished, Answer(higher, 2.0)])


def test_a_learning_rate_above_which_everything_fails_is_given_up():
    asked = []
    tuned = tune(FunctionObjective(failing_above(-10.5, asked)), GOAL)
    assert tuned.stopped == "good enough" and tuned.recommendation.learning_rate == 2.0**-11
    failed = [rate for rate in asked if rate > 2.0**-10.5]
    assert FAILING <= len(failed) <= 2 * FAILING


def test_a_low_end_where_everything_fails_does_not_end_the_tuning():
    """Most of what fails there has WDs that nothing finished with, so that LR and WD could both be the reason."""

    def train(learning_rate, weight_decay, tokens, seed):
        if learning_rate < 2.0**-11.5:
            raise RuntimeError("underflow")
        return 2.5 * math.exp(0.01 * (math.log2(learning_rate) + 9) ** 2 + 0.005 * (math.log2(weight_decay) + 3) ** 2)

    space = Space(learning_rate=(2.0**-14, 2.0**-6), weight_decay=(2.0**-6, 1.0))
    tuned = tune(FunctionObjective(train), Goal(tokens=10**8, space=space, tokens_per_step=65536))
    assert tuned.stopped == "good enough"
    assert abs(math.log2(tuned.recommendation.learning_rate) + 9) <= 0.5


def test_ends_of_the_range_where_all_runs_fail_are_given_up():
    answers = [Answer(question(-9, -6), 2.0), Answer(question(-7, -4), 1.9)]
    high = [question(-9, 0), question(-8, -1), question(-7, 0)]
    assert failing_sides(high, answers) == {"WD from": 2.0**-1}
    assert failing_sides(high[:2], answers) == {}, "two may be chance"
    assert failing_sides([*high[:2], question(-5, 0)], answers) == {}, "its LR may be the reason"
    low = [question(-12, -5), question(-11, -4), question(-11, -6)]
    assert failing_sides(low, answers) == {"LR up to": 2.0**-11}
    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-12, 2**-6), weight_decay=(2**-8, 1.0), octaves=1.0))
    left = without_failing_sides(goal, [*high, *low], answers).space.cells
    assert left.min(axis=0).tolist() == [-10, -8] and left.max(axis=0).tolist() == [-6, -2]
    assert without_failing_sides(goal, [], answers) is goal


def test_of_a_corner_where_runs_fail_nothing_else_is_tried_but_its_sides_are():
    answers = [Answer(question(lr, wd), 3.0) for lr in (-10, -9) for wd in (-5, -4)]
    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-13, 2**-8), weight_decay=(2**-6, 1.0), octaves=1.0))
    failing = [question(-13, 0), question(-12, -1), question(-13, -1)]
    assert without_failing_sides(goal, failing[:2], answers) is goal
    left = without_failing_sides(goal, failing, answers).space.cells.tolist()
    assert [-13.0, -2.0] not in left and [-12.0, 0.0] not in left, "LR and WD both lie beyond all that finished"
    assert [-13.0, -4.0] in left and [-11.0, 0.0] in left and [-13.0, -6.0] in left
    more = [*failing, question(-13, -4), question(-13, -5), question(-12, -4)]
    assert without_failing_sides(goal, more, answers).space.cells[:, 0].min() == -11, "LR was the reason"


FAILED = ({1}, {1, 2}, {1, 2, 4}, {1, 2, 4, 5}, {3, 4, 5, 6}, {2, 3, 5, 6, 7})


@pytest.mark.parametrize("failed", FAILED, ids=str)
@pytest.mark.parametrize("best_log2_lr", [-11, -9.5, -8])
def test_failures_for_a_time_close_no_part_of_the_range_that_matters(failed, best_log2_lr):
    """A full disk fails whatever LR and WD are; where it has been mended before the end, nothing is lost by it."""
    calls = []

    def loss(learning_rate, weight_decay):
        wd = math.log2(weight_decay)
        return 2 * math.exp(0.01 * (math.log2(learning_rate) - best_log2_lr) ** 2 + 0.003 * (wd + 4) ** 2)

    def train(learning_rate, weight_decay, tokens, seed):
        calls.append(learning_rate)
        if len(calls) in failed:
            raise OSError("no space left on device")
        return loss(learning_rate, weight_decay) * (tokens / 10**8) ** -0.07

    space = Space(learning_rate=(2.0**-13, 2.0**-6), weight_decay=(2.0**-8, 1.0))
    tuned = tune(FunctionObjective(train), Goal(tokens=10**8, space=space, tokens_per_step=65536))
    best = tuned.recommendation
    lowest = min(loss(lr, wd) for lr, wd in space.settings.tolist())
    assert tuned.stopped == "good enough" and len(tuned.unanswered) == len(failed)
    assert loss(best.learning_rate, best.weight_decay) / lowest - 1 < 0.005


def test_what_always_fails_beside_the_best_is_tried_a_few_times_and_then_believed():
    finished = [Answer(question(lr, -4), 2.0 + 0.1 * abs(lr + 9)) for lr in (-12, -11, -10)]
    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-12, 2**-6), weight_decay=(2**-6, 1.0), octaves=1.0))
    best = (2.0**-10, 2.0**-4)
    failed = [question(lr, -4) for lr in (-6, -7, -8)]
    assert [end.words for end in ends_beside(goal, failed, finished, best)] == [], "2^-9 may be asked"
    failed.append(question(-9, -4))
    asked = []
    while (doubtful := doubtful_end(goal, failed, finished, best)) is not None:
        one, end = doubtful
        assert end.words == "LR from" and one.learning_rate == 2.0**-9 and one not in failed
        failed.append(one)
        asked.append(one)
    assert len(asked) == FAILING - 1, "with the one that had failed there before"
    assert asked[0] == Question(2.0**-9, 2.0**-4, min(goal.rungs)), "the shortest, with the best WD"
    assert doubtful_end(goal, failed, finished, (2.0**-11, 2.0**-4)) is None, "the best lies elsewhere"


def test_where_the_next_lr_has_diverged_as_well_nothing_is_doubtful():
    finished = [Answer(question(lr, -4), 2.0) for lr in (-12, -11)]
    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-12, 2**-6), weight_decay=(2**-6, 1.0), octaves=1.0))
    failed = [question(-10, wd) for wd in (-4, -3, -2)] + [question(-9, -4)]
    assert ends_beside(goal, failed, finished, (2.0**-11, 2.0**-4))
    diverged = Answer(question(-10, -5), math.nan)
    assert not ends_beside(goal, failed, [*finished, diverged], (2.0**-11, 2.0**-4))


def test_ends_of_wd_and_low_lrs_are_doubted_as_high_ones_are():
    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-12, 2**-6), weight_decay=(2**-8, 1.0), octaves=1.0))
    answers = [Answer(question(-9, -6), 2.0), Answer(question(-7, -4), 1.9)]
    failed = [question(-9, 0), question(-8, -1), question(-7, 0), question(-12, -5), question(-11, -4)]
    failed.append(question(-11, -6))
    one, end = doubtful_end(goal, failed, answers, (2.0**-8, 2.0**-2))
    assert (end.words, one.weight_decay, one.learning_rate) == ("WD from", 2.0**-1, 2.0**-8) and one not in failed
    one, end = doubtful_end(goal, failed, answers, (2.0**-10, 2.0**-5))
    assert (end.words, one.learning_rate) == ("LR up to", 2.0**-11) and one not in failed
    assert doubtful_end(goal, failed, answers, (2.0**-8, 2.0**-5)) is None


def test_a_check_that_diverges_counts_and_is_not_asked_again():
    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-12, 2**-6), weight_decay=(2**-8, 1.0), octaves=1.0))
    answers = [Answer(question(-9, -6), 2.0), Answer(question(-7, -4), 1.9)]
    failed = [question(-9, 0), question(-8, -1), question(-7, 0)]
    asked = []
    while (doubtful := doubtful_end(goal, failed, answers, (2.0**-8, 2.0**-2))) is not None:
        asked.append(doubtful[0])
        answers.append(Answer(doubtful[0], math.nan, "diverged"))
    assert len(asked) == len(set(asked)) == FAILING - 1


def test_a_tuning_whose_checks_diverge_ends():
    asked = []

    def train(learning_rate, weight_decay, tokens, seed):
        asked.append((learning_rate, weight_decay, tokens, seed))
        if weight_decay > 0.2:
            if len(asked) < 12:
                raise RuntimeError("overflow")
            return math.nan
        wd = math.log2(weight_decay)
        return 2 * math.exp(0.01 * (math.log2(learning_rate) + 9) ** 2 + 0.01 * wd**2)

    space = Space(learning_rate=(2.0**-12, 2.0**-6), weight_decay=(2.0**-6, 1.0), octaves=1.0)
    tuned = tune(FunctionObjective(train), Goal(tokens=10**8, space=space))
    assert tuned.stopped in ("good enough", "nothing left to ask") and len(set(asked)) == len(asked)
