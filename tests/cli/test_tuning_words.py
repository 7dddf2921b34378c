"""What a tuning's words say: of ends of ranges, of flat sets, of limits."""

import doctest
from dataclasses import replace

import click
import pytest
from surfaces import TOKENS, TOKENS_PER_STEP, nano_like

from isotune.cli import tuning_words
from isotune.cli.tuning_words import DEFAULT_RUNS, price_words, result_facts, result_words, round_words
from isotune.objectives.function import FunctionObjective
from isotune.tune import Goal, Limits, Question, Space, tune

LIMITS = Limits(max_tokens=4 * TOKENS)
GOAL = Goal(
    tokens=TOKENS,
    space=Space(learning_rate=(2.0**-12, 2.0**-7), weight_decay=(2.0**-8, 1.0), octaves=1.0),
    decay_tokens=131_072,
    tokens_per_step=TOKENS_PER_STEP,
)


@pytest.fixture(scope="module")
def tuning():
    objective, rounds = FunctionObjective(nano_like), []
    return tune(objective, GOAL, limits=LIMITS, on_round=rounds.append), objective, rounds


def recommending(tuned, **changes):
    """The same with parts of the recommendation replaced."""
    suggestion = tuned.more.suggestion
    changed = replace(suggestion, recommendation=replace(suggestion.recommendation, **changes))
    return replace(tuned, more=replace(tuned.more, suggestion=changed))


def words_of(tuning, **changes):
    """The result's words with parts of the recommendation replaced."""
    tuned, objective, _ = tuning
    changed = recommending(tuned, **changes)
    return click.unstyle(
        result_words(changed, GOAL, LIMITS, objective.answers(), "isotune tune it", ("next {lr} {wd}",))
    )


def test_the_result_begins_with_the_settings_and_ends_with_what_to_paste(tuning):
    lines = words_of(tuning, learning_rate=2.0**-10, weight_decay=0.125).splitlines()
    assert lines[0] == "LR 2^-10, WD 0.125 for 2.75M tokens"
    assert "  next 0.0009765625 0.125" in lines and any("weight_decay=0.125" in line for line in lines)


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ((2.0**-7, 0.125), "LR is at the upper end of its range: widen --lr"),
        ((2.0**-12, 0.125), "LR is at the lower end of its range: widen --lr"),
        ((2.0**-10, 1.0), "WD is at the upper end of its range: widen --wd"),
        ((2.0**-10, 2.0**-8), ""),  # so low that it does not matter
        ((2.0**-10, 0.125), ""),
    ],
)
def test_an_end_of_a_range_is_warned_of_where_something_may_lie_behind(tuning, settings, warning):
    words = words_of(tuning, learning_rate=settings[0], weight_decay=settings[1])
    assert warning in words and ("warning" in words) is bool(warning)


def test_settings_beside_what_was_given_up_are_warned_of(tuning):
    tuned, objective, _ = tuning
    answers = [answer for answer in objective.answers() if answer.question.learning_rate <= 2.0**-9]
    failed = tuple(Question(2.0**-8, wd, TOKENS) for wd in (0.125, 0.25, 0.5))
    for log2_lr, is_beside in ((-9, True), (-11, False)):
        best = recommending(replace(tuned, unanswered=failed), learning_rate=2.0**log2_lr, weight_decay=0.125)
        words = click.unstyle(result_words(best, GOAL, LIMITS, answers, "isotune tune it", ()))
        assert ("LR lies beside what was given up (LR from 2^-8)" in words) is is_beside


def test_of_a_round_of_many_a_few_are_listed(tuning):
    tuned, objective, _ = tuning
    questions = tuple(Question(2.0**-8, 2.0**-wd, TOKENS) for wd in range(9))
    suggestion = replace(tuned.more.suggestion, questions=questions, reasons=("",) * 9)
    many = replace(tuned, stopped="max_tokens", more=replace(tuned.more, suggestion=suggestion, prices=(TOKENS,) * 9))
    words = click.unstyle(result_words(many, GOAL, LIMITS, objective.answers(), "isotune tune it", ()))
    assert "; and 6 more)" in words


def facts_of(tuning, **changes):
    """The result's facts with parts of the recommendation replaced."""
    tuned, objective, _ = tuning
    changed = recommending(tuned, **changes)
    return result_facts(changed, GOAL, objective.answers())


def test_the_facts_have_what_the_words_say(tuning):
    facts = facts_of(tuning, learning_rate=2.0**-7, weight_decay=0.125)
    assert facts["warnings"] == ["LR is at the upper end of its range: widen --lr"]
    assert facts["n"] == pytest.approx(2.0**-7 * 0.125 * TOKENS / TOKENS_PER_STEP)
    assert facts["evidence"]["runs"] == len(tuning[1].answers()) >= facts["evidence"]["full_length"]
    assert facts["failed"] == {"runs": 0, "given_up_from_learning_rate": None, "given_up_ends": {}}


def test_a_lower_wd_is_said_to_do_as_well_only_where_one_is_among_what_is_as_good(tuning):
    settings = {"learning_rate": 2.0**-12, "weight_decay": 2.0**-6}
    assert "a lower one would do as well" in words_of(tuning, **settings, as_good=((2.0**-12, 2.0**-8),))
    assert "a lower one would do as well" not in words_of(tuning, **settings, as_good=((2.0**-12, 2.0**-4),))


def test_runs_that_are_longer_than_the_goal_are_said_not_to_be_used(tuning):
    tuned, objective, _ = tuning
    shorter = replace(GOAL, tokens=TOKENS // 4, rungs=())
    words = click.unstyle(result_words(tuned, shorter, LIMITS, objective.answers(), "isotune tune it", ()))
    longer = sum(answer.question.tokens > TOKENS // 4 for answer in objective.answers())
    assert longer and f"{longer} longer, which are not used" in words


def test_a_limit_above_a_grid_is_told_in_whole_percent():
    assert "160 % of a grid" in price_words("it", GOAL, Limits(max_tokens=round(1.6 * 54 * TOKENS)), None, 0)


def test_the_flat_set_is_told_by_learning_rate(tuning):
    cells = ((2.0**-10, 0.25), (2.0**-10, 0.125), (2.0**-9, 0.125), (2.0**-10, 2.0**-8))
    own = {"learning_rate": 2.0**-10, "weight_decay": 0.5}
    assert "LR 2^-10 with WD 2^-8 to 0.5; LR 2^-9 with WD 0.125" in words_of(tuning, as_good=cells, **own)


def test_a_small_n_says_that_this_weight_decay_hardly_acts(tuning):
    words = "at the end: so little that WD hardly acts, and a lower one would do as well"
    assert words in words_of(tuning, learning_rate=2.0**-10, weight_decay=2.0**-8)
    assert words not in words_of(tuning, learning_rate=2.0**-10, weight_decay=1.0)


@pytest.mark.parametrize(
    ("stopped", "ended", "change"),
    [
        ("good enough", "below 0.1 %, as --tolerance asks", "isotune tune it --tolerance 0.05"),
        ("max_tokens", "would pass --max-tokens (11M)", "isotune tune it --max-tokens "),
        ("max_hours", "--max-hours", "go on with: isotune tune it"),
        ("too many failures", "too many runs in a row failed", "go on with: isotune tune it"),
    ],
)
def test_what_ended_it_and_how_to_go_on(tuning, stopped, ended, change):
    words = words_of((replace(tuning[0], stopped=stopped), *tuning[1:]))
    assert ended in words and change in words


@pytest.mark.parametrize(
    ("again", "runs_allowed", "runs_spent", "change"),
    [
        ("isotune tune it", DEFAULT_RUNS, 4, ""),
        ("isotune tune it", DEFAULT_RUNS, 8, " --max-tokens 34M"),  # 8 runs, and 4 rounds of one run
        ("isotune tune it", 100, 8, f" --max-tokens {100 * TOKENS}"),
        ("isotune tune it", 2, 1, f" --max-tokens {2 * TOKENS}"),  # nobody allowed the default
        ("the same command", 100, 8, ""),
        ("the same command", 8, 8, " --max-tokens 34M"),
    ],
)
def test_what_goes_on_may_train_what_comes_next(tuning, again, runs_allowed, runs_spent, change):
    tuned = replace(
        tuning[0],
        stopped="good enough",
        spent_tokens=runs_spent * TOKENS,
        more=replace(tuning[0].more, prices=(TOKENS,)),
    )
    tuned = recommending(tuned, regret=0.0009)
    limits = Limits(max_tokens=runs_allowed * TOKENS)
    words = click.unstyle(result_words(tuned, GOAL, limits, tuning[1].answers(), again, ()))
    assert f"go on with: {again} --tolerance 0.05{change}\n" in words


def test_what_goes_on_asks_for_less_regret_than_there_is(tuning):
    enough = (replace(tuning[0], stopped="good enough"), *tuning[1:])
    assert "go on with: isotune tune it --tolerance 0.01 " in words_of(enough, regret=0.0002)
    assert "go on with" not in words_of(enough, regret=0.0), "no tolerance is below that"


def test_tokens_of_earlier_calls_are_told(tuning):
    tuned = replace(tuning[0], spent_tokens=1_280_000, spent_before=51_200, seconds=220.0)
    assert "trained       1.28M tokens, 51.2K of them before, in 3 min 40 s: " in words_of((tuned, *tuning[1:]))


def test_the_price_and_the_rounds(tuning):
    price = price_words("it", GOAL, LIMITS, 1e-5, spent=0)
    assert "at most 11M tokens, about 110 s here" in price.replace("1 min 50 s", "110 s")
    assert "20 % of" not in price and f"{100 * 4 / 54:.2g} % of a grid of 54 runs" in price
    _, objective, rounds = tuning
    assert round_words(rounds[0], GOAL, LIMITS).startswith("Round 1: nothing is known yet\n  LR ")
    later = round_words(rounds[-1], GOAL, LIMITS)
    assert "best so far LR" in later and "of 11M tokens trained" in later
    for one in rounds:
        for question, reason in zip(one.suggestion.questions, one.suggestion.reasons, strict=True):
            assert reason in round_words(one, GOAL, LIMITS)
            assert question in {answer.question for answer in objective.answers()}


def test_doctests():
    assert doctest.testmod(tuning_words).failed == 0
