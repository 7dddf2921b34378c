"""The loop: limits, interruptions, and a tuning that is killed and started again."""

import math
from dataclasses import astuple, replace

import pytest
from surfaces import TOKENS, TOKENS_PER_STEP, failing_above, nano_like

from isotune.errors import InputError
from isotune.objectives.function import FunctionObjective
from isotune.objectives.journal import Journal
from isotune.tune import Answer, Goal, Limits, Question, Space, loop, suggest, tune
from isotune.tune.loop import MAX_FAILURES, MAX_FORGIVEN, grid_size

CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-12, -7) for wd in (-8, -5, -2))
GOAL = Goal(
    tokens=TOKENS, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=TOKENS_PER_STEP, tolerance=0.0025
)


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


def test_it_ends_when_the_regret_is_small_enough():
    objective = FunctionObjective(nano_like)
    tuned = tune(objective, GOAL)
    assert tuned.stopped == "good enough" and tuned.recommendation.regret <= GOAL.tolerance
    assert tuned.spent_tokens == sum(answer.question.tokens for answer in objective.answers())
    assert tuned.grid_tokens == len(CELLS) * TOKENS
    losses = [nano_like(lr, wd, TOKENS) for lr, wd in CELLS]
    best = tuned.recommendation
    assert nano_like(best.learning_rate, best.weight_decay, TOKENS) <= 1.0025 * min(losses)


def test_killed_anywhere_it_asks_what_it_would_have_asked(tmp_path):
    whole = FunctionObjective(nano_like)
    tune(whole, GOAL)
    asked = [entry.question for entry in whole.entries]
    for killed_at in range(1, len(asked)):
        journal = tmp_path / f"{killed_at}.jsonl"
        with pytest.raises(Killed):
            tune(FunctionObjective(killed_after(killed_at), journal), GOAL)
        continued = FunctionObjective(nano_like, journal)
        tune(continued, GOAL)
        assert [entry.question for entry in continued.entries] == asked


def killed_after(num_calls):
    calls = []

    def train(**settings):
        if len(calls) == num_calls:
            raise Killed
        calls.append(settings)
        return nano_like(**settings)

    return train


def test_a_torn_last_line_is_dropped_and_damage_elsewhere_is_said(tmp_path):
    path = tmp_path / "answers.jsonl"
    objective = FunctionObjective(nano_like, path)
    tune(objective, GOAL, limits=Limits(max_tokens=TOKENS))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + lines[0][:30])
    again = Journal(path)
    assert len(again.entries) == len(lines)
    again.add(again.entries[0])
    assert len(Journal(path).entries) == len(lines) + 1
    path.write_text("".join(lines).rstrip("\n"))  # the last line is whole, but for its end
    Journal(path).add(again.entries[0])
    assert len(Journal(path).entries) == len(lines) + 1
    whole = "".join(lines)
    for damaged, number in (
        ("nonsense\n" + whole, 1),
        (whole + lines[0].replace('"format": 1', '"format": 99'), len(lines) + 1),
        (whole + lines[0].replace('"finished"', '"thriving"'), len(lines) + 1),
        (whole + lines[0].replace('"format": 1', '"format": 99').rstrip("\n"), len(lines) + 1),
        (whole + "nonsense\n", len(lines) + 1),
    ):
        path.write_text(damaged)
        with pytest.raises(InputError, match=f"line {number} cannot be read by this version"):
            Journal(path)


def test_limits_hold():
    tuned = tune(FunctionObjective(nano_like), GOAL, limits=Limits(max_tokens=TOKENS // 2))
    assert tuned.stopped == "max_tokens" and tuned.spent_tokens <= TOKENS // 2
    # An hour passes before every look at the clock. After the first round, which took two, a second one as long would
    # end at four.
    for max_hours, num_rounds in ((0.5, 0), (3.9, 1), (4.1, 2)):
        clock = iter(range(0, 10**6, 3600))
        tuned = tune(
            FunctionObjective(nano_like),
            GOAL,
            limits=Limits(max_hours=max_hours),
            clock=lambda clock=clock: float(next(clock)),
        )
        assert tuned.stopped == "max_hours" and tuned.num_rounds == num_rounds
    tuned = tune(FunctionObjective(nano_like), GOAL, should_stop=lambda: True)
    assert tuned.stopped == "interrupted" and tuned.num_rounds == 0


class ManyWorkers(FunctionObjective):
    def __init__(self, train, num_parallel):
        super().__init__(train)
        self.num_parallel = num_parallel


@pytest.mark.parametrize("num_parallel", [8, 32])
def test_of_a_large_round_what_the_limit_pays_for_is_asked(num_parallel):
    goal = Goal(tokens=TOKENS, space=GOAL.space, tokens_per_step=TOKENS_PER_STEP, tolerance=0.0001)
    objective, limit, rounds = ManyWorkers(nano_like, num_parallel), 4 * TOKENS, []
    tuned = tune(objective, goal, limits=Limits(max_tokens=limit), on_round=rounds.append)
    assert tuned.stopped == "max_tokens" and limit - TOKENS < tuned.spent_tokens <= limit
    for asked in rounds:
        assert len(asked.prices) == len(asked.suggestion.questions) == len(asked.suggestion.reasons)
        assert asked.spent_tokens + sum(asked.prices) <= limit
    assert min(len(asked.prices) for asked in rounds) < num_parallel
    assert [entry.question for entry in objective.entries] == [
        question for asked in rounds for question in asked.suggestion.questions
    ]


def tuned_in_time(max_runs, time_of_round):
    """A tuning with eight workers that has time for some runs of the full length, where a token takes a second: how it
    ended, its rounds, and how long it took."""

    class Timed(ManyWorkers):
        seconds = 0.0

        def ask(self, questions):
            self.seconds += time_of_round(question.tokens for question in questions)
            super().ask(questions)

    objective, rounds = Timed(nano_like, 8), []
    goal = Goal(tokens=TOKENS, space=GOAL.space, tokens_per_step=TOKENS_PER_STEP, tolerance=0.0001)
    limits = Limits(max_hours=max_runs * TOKENS / 3600)
    tuned = tune(objective, goal, limits=limits, clock=lambda: objective.seconds, on_round=rounds.append)
    return tuned, rounds, objective.seconds


@pytest.mark.parametrize("max_runs", [0.7, 1.2, 2.0])
@pytest.mark.parametrize("time_of_round", [max, sum])  # all at once, or one after the other
def test_no_round_is_begun_that_would_end_too_late(max_runs, time_of_round):
    tuned, rounds, seconds = tuned_in_time(max_runs, time_of_round)
    first = time_of_round(rounds[0].prices)  # of which nobody knows how long it will take
    assert tuned.stopped == "max_hours" and seconds <= max(first, max_runs * TOKENS)


def test_of_a_large_round_what_there_is_time_for_is_asked():
    _, rounds, _ = tuned_in_time(1.45, max)
    assert any(len(asked.prices) < 8 for asked in rounds), "long runs are left out, short ones are not"


def test_a_clock_that_stands_still_tells_nothing():
    goal = Goal(tokens=TOKENS, space=GOAL.space, tokens_per_step=TOKENS_PER_STEP, tolerance=0.005)
    tuned = tune(FunctionObjective(nano_like), goal, limits=Limits(max_hours=1.0), clock=lambda: 0.0)
    assert tuned.stopped == "good enough" and tuned.num_rounds > 1


def test_what_earlier_calls_spent_counts_against_the_limit(tmp_path):
    limits, journal = Limits(max_tokens=TOKENS), tmp_path / "answers.jsonl"
    whole = tune(FunctionObjective(nano_like, journal), GOAL, limits=limits)
    again = tune(FunctionObjective(nano_like, journal), GOAL, limits=limits)
    assert whole.stopped == again.stopped == "max_tokens" and again.num_rounds == 0
    assert again.recommendation == whole.recommendation
    assert (again.spent_before, again.spent_tokens) == (whole.spent_tokens, whole.spent_tokens)
    assert again.more.suggestion.questions and again.spent_tokens + sum(again.more.prices) > TOKENS


def test_the_order_of_answers_makes_no_difference():
    class Shuffled(FunctionObjective):
        def answers(self):
            return super().answers()[::-1]

    goal = Goal(tokens=TOKENS, space=GOAL.space, tokens_per_step=TOKENS_PER_STEP, tolerance=0.001)
    first, second = FunctionObjective(nano_like), Shuffled(nano_like)
    assert tune(first, goal).recommendation == tune(second, goal).recommendation
    assert [entry.question for entry in first.entries] == [entry.question for entry in second.entries]


def test_what_can_be_read_off_trunks_is_taken_into_account(monkeypatch):
    whole = tune(FunctionObjective(nano_like), GOAL)
    seen = []

    def read_everything(trunks, answers, rungs, decay_tokens):
        seen.append((list(trunks), rungs, decay_tokens))
        asked = {answer.question for answer in answers}
        questions = [Question(lr, wd, TOKENS) for lr, wd in CELLS] if answers else []
        return [
            Answer(one, nano_like(one.learning_rate, one.weight_decay, TOKENS), "read", 0.002)
            for one in questions
            if one not in asked
        ]

    monkeypatch.setattr(loop, "read_off", read_everything)
    told = tune(FunctionObjective(nano_like), GOAL)
    assert told.num_rounds < whole.num_rounds and seen[0] == ([], GOAL.rungs, GOAL.decay_tokens)


def test_the_grid_of_comparison_is_no_finer_than_octaves():
    ends = {"learning_rate": (2.0**-10, 2.0**-8), "weight_decay": (0.25, 1.0)}
    assert [grid_size(Space(octaves=step, **ends)) for step in (0.25, 0.5, 1.0, 2.0)] == [9, 9, 9, 4]
    assert grid_size(Space(only=CELLS, octaves=0.5)) == len(CELLS)


def test_failures_are_left_out_and_divergence_is_learned_from():
    def train(learning_rate, weight_decay, tokens, seed):
        if learning_rate > 2.0**-9:
            return math.nan
        if weight_decay == 2.0**-5:
            raise RuntimeError("out of memory")
        return nano_like(learning_rate, weight_decay, tokens)

    objective = FunctionObjective(train)
    tuned = tune(objective, GOAL)
    assert tuned.stopped == "good enough"
    assert {entry.status for entry in objective.entries} == {"finished", "diverged", "failed"}
    failed = [entry for entry in objective.entries if entry.status == "failed"]
    assert all("out of memory" in entry.reason for entry in failed)
    assert len({entry.question for entry in failed}) == len(failed), "none is asked again"
    assert set(tuned.unanswered) == {entry.question for entry in failed}


def test_where_nothing_answers_it_gives_up_and_recommends_nothing():
    def train(**settings):
        raise RuntimeError("no such device")

    tuned = tune(FunctionObjective(train), GOAL)
    assert tuned.stopped == "no answers"
    with pytest.raises(InputError, match="no run has finished .* RuntimeError: no such device"):
        tuned.recommendation  # noqa: B018


def test_what_limits_leave_is_spent_on_what_is_worth_asking():
    """Where the best question is too dear, a cheaper one may help nearly as much; but none is asked for being cheap."""
    least_left = TOKENS
    for most in range(TOKENS, 6 * TOKENS, TOKENS // 4):
        objective = FunctionObjective(nano_like)
        tuned = tune(objective, replace(GOAL, tolerance=1e-6), limits=Limits(max_tokens=most))
        left = most - tuned.spent_tokens
        assert left >= 0
        if tuned.stopped != "max_tokens":
            continue
        evidence = sorted(objective.answers(), key=lambda answer: astuple(answer.question))
        assert not suggest(replace(GOAL, tolerance=1e-6), evidence, most_tokens=left).questions
        least_left = min(least_left, left)
    assert least_left < TOKENS // 8, "some end with less left than any run costs"


def test_where_the_first_run_fails_a_lower_learning_rate_is_tried():
    asked = []
    assert tune(FunctionObjective(failing_above(-11.5, asked)), GOAL).stopped == "good enough"
    assert asked[0] > asked[1] > asked[2] or asked[1] < 2.0**-11.5
    asked = []
    assert tune(FunctionObjective(failing_above(-20, asked)), GOAL).stopped == "no answers"
    assert asked[0] > asked[1] > asked[2] == 2.0**-12 and len(asked) == 3


def test_it_stops_where_one_run_after_another_fails():
    calls = []

    def train(learning_rate, weight_decay, tokens, seed):
        calls.append(learning_rate)
        if len(calls) > 2:
            raise RuntimeError("the disk is full")
        return nano_like(learning_rate, weight_decay, tokens)

    tuned = tune(FunctionObjective(train), GOAL)
    assert tuned.stopped == "too many failures" and len(calls) == 2 + len(tuned.unanswered)
    assert MAX_FAILURES <= len(tuned.unanswered) <= MAX_FAILURES + MAX_FORGIVEN


def test_what_earlier_calls_asked_in_vain_is_not_asked_again():
    asked = []
    first = tune(FunctionObjective(failing_above(-10.5, asked)), GOAL)
    again = []
    second = tune(FunctionObjective(failing_above(-10.5, again)), GOAL, leave_out=first.unanswered)
    assert max(asked) > 2.0**-10.5 > max(again)
    assert set(second.unanswered) == set(first.unanswered)


def test_where_all_runs_diverge_this_is_the_reason_to_stop():
    calls = []
    tuned = tune(FunctionObjective(lambda **settings: calls.append(settings) or math.nan), GOAL)
    assert tuned.stopped == "all diverged"
    assert min(settings["learning_rate"] for settings in calls) == 2.0**-12 and len(calls) >= 3


def test_a_loss_that_is_not_positive_is_a_failure_with_words():
    objective = FunctionObjective(lambda **settings: -1.0)
    assert tune(objective, GOAL).stopped == "no answers"
    assert "losses must be above 0" in objective.entries[-1].reason


def test_what_was_interrupted_has_not_failed():
    stop = []

    class Interrupted(FunctionObjective):
        num_parallel = 4

        def ask(self, questions):
            if self.answers():
                stop.append(True)
            else:
                super().ask(questions[:1])

    tuned = tune(Interrupted(nano_like), GOAL, should_stop=lambda: bool(stop))
    assert tuned.stopped == "interrupted" and len(tuned.unanswered) == 3, "those of the round before"


def test_a_function_that_failed_is_not_called_again_by_a_later_call(tmp_path):
    called = []

    def train(learning_rate, weight_decay, tokens, seed):
        called.append((learning_rate, weight_decay, tokens, seed))
        if weight_decay > 0.3:
            raise RuntimeError("no")
        return 2 + 0.01 * math.log2(learning_rate / 0.001) ** 2

    goal = Goal(tokens=1000, space=Space(learning_rate=(2**-12, 2**-8), weight_decay=(0.25, 1.0), octaves=1.0))
    for _ in range(12):  # every call ends after two more runs
        objective, before = FunctionObjective(train, tmp_path / "journal.jsonl"), len(called)
        tune(objective, goal, should_stop=lambda before=before: len(called) >= before + 2)
    assert len(called) == len(set(called))
