"""What is asked next: a pure function, the knowledge gradient by brute force, and what it must never do."""

import math
from dataclasses import replace

import numpy as np
import pytest
from surfaces import CELLS, GOAL, TOKENS, TOKENS_PER_STEP, nano_like, play, regret, round_bowl

from isotune.errors import InputError
from isotune.tune import Answer, Goal, Question, Space, make_rungs, mark_exploded, recommend_now, suggest
from isotune.tune.candidates import expected_gains
from isotune.tune.last import ACTING_MEMORY
from isotune.tune.observations import MAX_NOISE, MAX_OBSERVATIONS, NOISE, NOISE_GROWTH, own_noise
from isotune.tune.told import Told, not_hopeless, observations
from isotune.tune.tuner import believe_answers


def ask(surface, lr, wd, tokens=TOKENS):
    return Answer(Question(2.0**lr, 2.0**wd, tokens), surface(2.0**lr, 2.0**wd, tokens))


def test_it_finds_the_best_cell_for_a_twentieth_of_the_grid():
    answers, suggestions = play(nano_like)
    assert suggestions[-1].is_done
    assert regret(nano_like, GOAL, suggestions[-1].recommendation) <= GOAL.tolerance
    spent = sum(answer.question.tokens for answer in answers)  # nothing shared
    assert spent < 0.08 * len(CELLS) * TOKENS


def test_it_finds_the_best_cell_where_its_prior_is_wrong():
    _, suggestions = play(round_bowl)
    assert regret(round_bowl, GOAL, suggestions[-1].recommendation) <= 2 * GOAL.tolerance
    assert suggestions[-1].recommendation.invariance_weight < 0.5, "evidence against the invariance was taken in"


def test_it_finds_the_way_in_a_space_of_many_decades():
    goal = replace(GOAL, space=Space(learning_rate=(1e-12, 1.0), weight_decay=(1e-12, 1.0)), tolerance=0.005)
    assert len(goal.space.cells) > 6000
    answers, suggestions = play(nano_like, goal, most=40)
    assert len(answers) < 40 and regret(nano_like, goal, suggestions[-1].recommendation) < 0.02


def test_it_is_a_pure_function_of_what_is_known_in_any_order():
    answers, _ = play(nano_like, most=6)
    first = suggest(GOAL, answers, count=2)
    again = suggest(GOAL, answers[::-1], count=2)
    assert first.questions == again.questions
    assert first.recommendation.regret == pytest.approx(again.recommendation.regret, rel=1e-4)  # rounding alone


@pytest.mark.parametrize("optimum", [-8.5, -11.5])
def test_of_very_many_answers_none_is_left_out_for_its_place_in_the_list(optimum):
    """A flat bowl, in which all losses are good: what is used must not depend on the order of the answers."""
    space = Space(learning_rate=(2**-12, 2**-8), weight_decay=(2**-8, 1.0))
    goal = Goal(tokens=TOKENS, rungs=(TOKENS,), tokens_per_step=256, space=space)
    rng = np.random.default_rng(0)
    answers = [
        Answer(Question(lr, wd, TOKENS), math.exp(0.0015 * (math.log2(lr) - optimum) ** 2 + rng.normal(scale=0.001)))
        for lr, wd in space.settings.tolist()
    ]
    found = [
        suggest(goal, ordered)
        for ordered in (answers, answers[::-1], [answers[i] for i in rng.permutation(len(answers))])
    ]
    assert len(answers) > 2 * MAX_OBSERVATIONS
    assert len({one.recommendation.learning_rate for one in found}) == 1 and len({one.questions for one in found}) == 1
    assert abs(math.log2(found[0].recommendation.learning_rate) - optimum) <= 0.5


def test_more_seeds_of_the_same_settings_make_their_losses_surer():
    """Also where there are more of them than the belief can hold one by one."""
    rng = np.random.default_rng(1)
    space = Space(learning_rate=(2**-11, 2**-8), weight_decay=(2**-8, 2**-8), octaves=1.0)
    goal = Goal(tokens=TOKENS, rungs=(TOKENS,), tokens_per_step=256, space=space, seeds=tuple(range(60)))
    answers = [
        Answer(Question(2.0**lr, 2**-8, TOKENS, seed), math.exp(0.004 * (lr + 9.6) ** 2 + rng.normal(scale=0.004)))
        for seed in range(60)
        for lr in range(-11, -7)
    ]
    deviations = [
        believe_answers(goal, answers[: 4 * num_seeds]).at(goal.points(space.cells, TOKENS)).deviation.max()
        for num_seeds in (3, 14, 30, 60)
    ]
    assert 4 * 14 <= MAX_OBSERVATIONS < 4 * 30
    assert deviations == sorted(deviations, reverse=True)
    assert deviations[-1] < 1.5 * 0.004 / math.sqrt(60)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Question(2**-10, 0.1, 0), "at least 1"),
        (lambda: Answer(Question(2**-10, 0.1, 1), None), "loss=None must be a number"),
        (lambda: Answer(Question(2**-10, 0.1, 1), "2.3"), "must be a number"),
    ],
)
def test_what_is_no_question_or_no_answer_is_refused_in_words(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_expected_gains_agree_with_brute_force():
    answers, _ = play(nano_like, most=4)
    cells = GOAL.space.cells[::5]
    targets, asked = GOAL.points(cells, TOKENS), GOAL.points(cells[2:5], TOKENS // 4)
    posterior = believe_answers(GOAL, answers).at(np.vstack([targets, asked]))
    gains = expected_gains(posterior, len(targets))
    rng = np.random.default_rng(0)
    mean, every = posterior.mean, slice(None)
    covariance = posterior.covariance(every, every)
    for index in range(len(asked)):
        column = covariance[: len(targets), len(targets) + index]
        deviation = math.hypot(posterior.deviation[len(targets) + index], NOISE)
        node = rng.standard_normal(100_000)
        moved = mean[: len(targets)] + np.outer(np.concatenate([node, -node]), column / deviation)
        assert gains[index] == pytest.approx(mean[: len(targets)].min() - moved.min(axis=1).mean(), rel=0.05, abs=5e-5)


def test_nothing_is_asked_twice_and_what_is_pending_counts_as_asked():
    answers, _ = play(nano_like, most=5)
    asked = {answer.question for answer in answers}
    first = suggest(GOAL, answers, count=3)
    assert len(set(first.questions)) == 3 and not asked & set(first.questions)
    others = suggest(GOAL, answers, count=3, pending=first.questions)
    assert not set(first.questions) & set(others.questions)
    assert suggest(GOAL, answers, leave_out=first.questions[:1]).questions[0] != first.questions[0]


def test_cheap_questions_come_first_and_prices_decide():
    first = suggest(GOAL, []).questions[0]
    assert first.tokens == min(GOAL.rungs)
    answers = [ask(nano_like, -10, -6, first.tokens), ask(nano_like, -8, -6, first.tokens)]
    second = suggest(GOAL, answers).questions[0]
    dear = suggest(GOAL, answers, lambda questions: [10**9 if q == second else q.tokens for q in questions])
    assert dear.questions[0] != second
    cheap = suggest(GOAL, answers, lambda questions: [1 if q == second else 10**9 for q in questions])
    assert cheap.questions[0] == second


@pytest.mark.parametrize(
    ("known", "asked", "words"),
    [
        ((-10, -8, TOKENS // 8, 0), (-10, -6, TOKENS // 8, 0), "checking that WD x4 changes nothing yet (n = 0.02)"),
        ((-9, -2, TOKENS, 0), (-7, -4, TOKENS, 0), "checking that WD /4 at LR x4 changes nothing (n = 5.2)"),
        ((-9, -5, TOKENS // 8, 0), (-7, -7, TOKENS // 8, 0), "another LR"),  # n = .1: ELR is not expected to decide
        ((-10, -6, TOKENS // 8, 0), (-10, -6, TOKENS // 8, 1), "the same with another seed"),
    ],
)
def test_reasons_say_what_is_checked(known, asked, words):
    answer, wanted = (Question(2.0**lr, 2.0**wd, tokens, seed) for lr, wd, tokens, seed in (known, asked))
    answers = [Answer(answer, nano_like(answer.learning_rate, answer.weight_decay, answer.tokens))]
    goal = replace(GOAL, seeds=(0, 1))
    every = [Question(lr, wd, tokens, seed) for lr, wd in CELLS for tokens in goal.rungs for seed in goal.seeds]
    suggestion = suggest(goal, answers, leave_out=[one for one in every if one != wanted])
    assert suggestion.questions == (wanted,) and suggestion.reasons[0].startswith(words)


def test_a_learning_rate_that_diverged_is_not_asked_again_at_that_length_or_above():
    diverged = Answer(Question(2.0**-8, 2.0**-4, TOKENS // 8), math.nan, "diverged")
    answers = [diverged, ask(nano_like, -10, -6, TOKENS // 8)]
    for _ in range(12):
        question = suggest(GOAL, answers).questions[0]
        assert question.learning_rate < 2.0**-8 or question.tokens < TOKENS // 8
        answers.append(Answer(question, nano_like(question.learning_rate, question.weight_decay, question.tokens)))


def test_a_learning_rate_that_finished_short_runs_alone_is_not_asked_where_it_diverged():
    short, longer = TOKENS // 8, TOKENS // 4
    known = [ask(nano_like, lr, -6, short) for lr in (-10, -9, -8)]
    diverged = Answer(Question(2.0**-8, 2.0**-6, longer), math.nan, "diverged")

    def asked(answers):
        told = Told.of(answers)
        rates, tokens = (
            2.0 ** np.array([-9.0, -8.0, -8.0, -7.0, -7.0]),
            np.array([longer, short, TOKENS, short, longer]),
        )
        return not_hopeless(rates, tokens, told).tolist()

    assert asked([*known, diverged]) == [True, True, False, True, False]
    as_long = ask(nano_like, -8, -2, longer)
    assert asked([*known, diverged, as_long]) == [True, True, True, True, False], "with another WD it was as long"


def test_lists_are_as_good_as_tuples():
    listed = Goal(tokens=TOKENS, space=Space(only=[[2.0**-9, 0.1], [2.0**-8, 0.1]]), seeds=[0, 1])
    assert suggest(listed, []).questions[0].weight_decay == 0.1


def test_where_all_runs_diverge_it_goes_down_in_halves_to_the_lowest_learning_rate():
    diverging, suggestions = play(lambda *settings: math.nan)
    rates = [math.log2(answer.question.learning_rate) for answer in diverging[1:]]
    assert rates == [-11, -12] and {answer.question.tokens for answer in diverging} == {min(GOAL.rungs)}
    assert all("no run has finished yet" in suggestion.reasons[0] for suggestion in suggestions[1:3])
    assert not suggest(GOAL, diverging).questions


def test_a_finite_loss_that_exploded_is_a_divergence_and_its_size_tells_nothing():
    high = Question(2.0**-8, 2.0**-6, TOKENS // 8)
    known = [ask(nano_like, lr, -6, TOKENS // 8) for lr in (-12, -10)]
    diverged, exploded, more = (suggest(GOAL, [*known, Answer(high, loss)]) for loss in (math.nan, 100.0, 1e30))
    assert diverged == exploded == more
    _, suggestions = play(lambda lr, wd, tokens: 1e30 if lr > 2.0**-9.5 else nano_like(lr, wd, tokens))
    assert suggestions[-1].is_done and suggestions[-1].recommendation.learning_rate < 2.0**-9.5


def test_a_run_that_learned_nothing_at_a_low_learning_rate_has_not_diverged():
    idle = Answer(Question(2.0**-12, 2.0**-6, TOKENS // 8), 1e4)
    answers = [idle, ask(nano_like, -9, -6, TOKENS // 8)]
    assert mark_exploded(answers) == answers
    worse = replace(idle, loss=1e9)  # how much worse it is says nothing about where the bottom is
    assert suggest(GOAL, answers) == suggest(GOAL, [worse, answers[1]])
    assert suggest(GOAL, answers).recommendation.learning_rate >= 2.0**-11


def test_no_learning_rate_is_recommended_that_is_known_to_diverge():
    # Falls with LR as far as it was run, so that the belief alone would go on upwards.
    falling = [
        Answer(Question(2.0**lr, 2.0**-6, TOKENS // 8), 2 * math.exp(-0.05 * (lr + 12))) for lr in (-12, -11, -10)
    ]
    assert recommend_now(GOAL, falling).learning_rate > 2.0**-10
    diverged = Answer(Question(2.0**-9, 2.0**-6, TOKENS // 4), math.nan, "diverged")
    assert recommend_now(GOAL, [*falling, diverged]).learning_rate == 2.0**-10
    assert suggest(GOAL, [*falling, diverged]).recommendation.learning_rate == 2.0**-10
    # A run that is as long, with that LR or a higher one, says that it can be done.
    finished = Answer(Question(2.0**-8, 2.0**-8, TOKENS // 4), falling[-1].loss * 0.9)
    assert recommend_now(GOAL, [*falling, diverged, finished]).learning_rate > 2.0**-10


def test_settings_that_diverged_are_not_recommended_though_their_learning_rate_is_fine():
    goal = replace(GOAL, space=Space(only=((2**-9, 2**-8), (2**-9, 2**-4), (2**-11, 2**-8), (2**-11, 2**-4))))
    answers = [
        Answer(Question(2**-9, 2**-8, TOKENS // 8), math.nan, "diverged"),
        Answer(Question(2**-9, 2**-4, TOKENS), 1.5),
        Answer(Question(2**-11, 2**-8, TOKENS), 1.7),
    ]
    best = recommend_now(goal, answers)
    assert (best.learning_rate, best.weight_decay) == (2**-9, 2**-4)
    assert (2**-9, 2**-8) not in best.as_good


@pytest.mark.parametrize(("gain", "best_z"), [(0.01, 1.0), (0.02, 2.0), (0.04, 1.0)])
def test_where_weight_decay_helps_it_is_found_though_short_runs_do_not_show_it(gain, best_z):
    """WD matters through n alone, which is small in short runs: they say nothing of the gain."""

    def helped(lr, wd, tokens):
        u, z = math.log2(lr) + 10, math.log2(1 + lr * wd * tokens / TOKENS_PER_STEP)
        return 3 * math.exp(0.01 * u * u + gain * (z / best_z - 1) ** 2 - 0.07 * math.log2(tokens / TOKENS))

    suggestion = play(helped)[1][-1]
    best = suggestion.recommendation
    assert suggestion.is_done
    assert regret(helped, GOAL, best) <= max(best.regret_bound, 0.25 * gain)


@pytest.mark.parametrize(("cost", "gain"), [(0.01, 0.02), (0.005, 0.015), (0.005, 0.02)])
def test_weight_decay_that_helps_short_runs_alone_is_not_taken_over_to_long_ones(cost, gain):
    """At the budget WD costs with n; per octave below it helps by so much more."""

    def early(lr, wd, tokens):
        u, z, d = math.log2(lr) + 10, math.log2(1 + lr * wd * tokens / TOKENS_PER_STEP), math.log2(tokens / TOKENS)
        return 3 * math.exp(0.01 * u * u + (cost + gain * d) * z - 0.07 * d)

    best = play(early)[1][-1].recommendation
    assert regret(early, GOAL, best) <= min(0.005, best.regret_bound)


def test_a_lucky_run_where_seeds_scatter_is_not_believed():
    """At the highest LR runs are chaos: the best of all of them was one of several seeds there."""
    answers = [Answer(Question(2.0**lr, 2**-6, TOKENS), nano_like(2.0**lr, 2**-6, TOKENS)) for lr in range(-12, -7)]
    lowest = min(answer.loss for answer in answers)
    luck = (0.98, 1.13, 1.09, 1.06)
    chaos = [Answer(Question(2**-7, 2**-6, TOKENS, seed), factor * lowest) for seed, factor in enumerate(luck)]
    chaos += [Answer(Question(2**-10, 2**-6, TOKENS, seed), 1.001 * lowest) for seed in (1, 2)]
    chaos.append(Answer(Question(2**-7, 2**-5, TOKENS), 0.985 * lowest))
    assert recommend_now(GOAL, answers + chaos).learning_rate < 2**-7.5


def test_one_lucky_run_is_repeated_before_the_end():
    """A run far below all others, at an LR that has no other: the belief is sure, and another seed is asked."""
    goal = replace(GOAL, seeds=(0, 1, 2), tolerance=0.1)
    answers = [ask(nano_like, lr, wd) for lr, wd in ((-9, -6), (-11, -4), (-8, -8), (-10, -5))]
    lucky = Question(2.0**-7, 2.0**-8, TOKENS)
    suggestion = suggest(goal, [*answers, Answer(lucky, 0.9 * answers[0].loss)])
    best = suggestion.recommendation
    assert best.regret <= goal.tolerance and (best.learning_rate, best.weight_decay) == (2.0**-7, 2.0**-8)
    assert not suggestion.is_done
    (asked,) = suggestion.questions
    assert suggest(goal, [*answers, Answer(lucky, 0.9 * answers[0].loss)], count=2).questions == (asked,), "alone"
    assert (asked.learning_rate, asked.weight_decay, asked.tokens) == (2.0**-7, 2.0**-8, TOKENS), (
        "as long as the lucky one"
    )
    assert asked.seed
    assert suggest(replace(goal, seeds=(0,)), [*answers, Answer(lucky, 0.9 * answers[0].loss)]).is_done
    longer = Answer(replace(lucky, tokens=2 * TOKENS), 0.8 * answers[0].loss)  # of another budget: confirms nothing
    assert suggest(goal, [*answers, Answer(lucky, 0.9 * answers[0].loss), longer]).questions == (asked,)


SHORT = TOKENS // 8
IDLE = [ask(nano_like, lr, -8, tokens) for lr in (-11, -10, -9) for tokens in (SHORT, TOKENS // 4)]  # n below .1
EASY = replace(GOAL, tolerance=0.1)


def test_it_does_not_end_before_weight_decay_was_tried_where_it_acts():
    """Short runs and low WDs could not say what WD does."""
    suggestion = suggest(EASY, IDLE)
    (asked,), best = suggestion.questions, suggestion.recommendation
    assert best.regret <= EASY.tolerance and not suggestion.is_done
    n = asked.learning_rate * asked.weight_decay * asked.tokens / TOKENS_PER_STEP
    assert asked.learning_rate == best.learning_rate and ACTING_MEMORY[0] <= n <= ACTING_MEMORY[1]
    assert asked.tokens == SHORT, "the cheapest that has a run beside it"
    assert abs(math.log2(n / 0.42)) <= 0.5, "of these the one in the middle of where WD acts"
    assert "what does WD do" in suggestion.reasons[0]
    assert suggest(EASY, IDLE, count=2).questions == (asked,), "alone"
    assert suggest(EASY, [*IDLE, Answer(asked, IDLE[0].loss)]).is_done
    low = replace(EASY, space=Space(only=tuple((lr, wd) for lr, wd in CELLS if wd < 2**-6)))
    assert suggest(low, IDLE).is_done, "WD acts nowhere in this space"
    assert suggest(replace(EASY, tokens_per_step=None, tolerance=10.0), IDLE).is_done, "n is unknown"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"seed": 1}, "finished"),  # another seed
        ({"weight_decay": 2.0**-7}, "finished"),  # n is small, too
        ({"weight_decay": 1.0}, "finished"),  # n is too large to tell whether some WD helps
        ({"learning_rate": 2.0**-12}, "finished"),  # another LR
        ({}, "read"),  # nobody ran it
    ],
)
def test_what_is_no_contrast_does_not_count_as_one(change, status):
    (asked,) = suggest(EASY, IDLE).questions
    question = replace(asked, **change)
    other = Answer(question, nano_like(question.learning_rate, question.weight_decay, question.tokens), status)
    suggestion = suggest(EASY, [*IDLE, other])
    assert suggestion.recommendation.learning_rate == asked.learning_rate
    assert not suggestion.is_done


def test_a_contrast_that_is_pending_or_failed_is_not_asked_in_another_way():
    (asked,) = suggest(EASY, IDLE).questions
    assert suggest(EASY, IDLE, leave_out=[asked]).is_done
    (other,) = suggest(EASY, IDLE, pending=[asked]).questions
    assert (other.learning_rate, other.tokens) != (asked.learning_rate, asked.tokens)


def test_a_second_seed_comes_before_the_contrast():
    goal = replace(EASY, seeds=(0, 1))
    (asked,) = suggest(goal, IDLE).questions
    assert asked.seed == 1


def test_a_round_of_several_copes_with_a_rival_that_gets_a_chance_within_it():
    """The belief after four answers has no plain rival, and that of a round's second question has."""
    goal = Goal(tokens=TOKENS, decay_tokens=131_072, tokens_per_step=TOKENS_PER_STEP, seeds=(0, 1, 2, 3))
    runs = [(-9, -4.5, 2.00215), (-10, -3.5, 1.99069), (-10, -8, 1.99836), (-6, -5, 2.18672)]
    answers = [Answer(Question(2.0**lr, 2.0**wd, SHORT), loss) for lr, wd, loss in runs]
    first, second = suggest(goal, answers, count=2).questions
    assert first != second and first == suggest(goal, answers).questions[0]


def test_where_nothing_is_left_to_learn_what_is_expected_best_is_asked(monkeypatch):
    """As in a sampler that is asked for trials without end."""
    monkeypatch.setattr("isotune.tune.candidates.expected_gains", lambda posterior, num_targets, noise: 0 * noise)
    answers = [ask(nano_like, lr, -6) for lr in (-12, -11, -10, -9, -8, -7)]
    asked = suggest(GOAL, answers, count=2).questions
    assert {question.learning_rate for question in asked} == {2.0**-10}
    assert {question.tokens for question in asked} == {TOKENS} and asked[0] != asked[1]


def test_noise_without_end_says_nothing():
    answers = [ask(nano_like, lr, -6) for lr in (-11, -10, -9)]
    blind = Answer(Question(2.0**-8, 2.0**-6, TOKENS), 0.1, noise=math.inf)
    assert suggest(GOAL, [*answers, blind]).recommendation.learning_rate < 2.0**-8
    with pytest.raises(InputError, match="no number"):
        suggest(GOAL, [Answer(Question(2.0**-8, None, TOKENS), 2.0)])


def test_it_does_not_end_on_a_learning_rate_that_nobody_tried():
    """Two runs far apart: what lies between them is recommended, good enough or not, and has to be run first."""
    goal = replace(GOAL, tolerance=0.1)
    answers = [ask(nano_like, lr, -6) for lr in (-12, -7)]
    suggestion = suggest(goal, answers)
    best = suggestion.recommendation
    assert best.regret <= goal.tolerance and best.learning_rate not in (2.0**-12, 2.0**-7)
    assert not suggestion.is_done and suggestion.questions[0].learning_rate == best.learning_rate
    question = suggestion.questions[0]
    loss = nano_like(question.learning_rate, question.weight_decay, question.tokens)
    after = suggest(goal, [*answers, Answer(question, loss)])
    assert after.is_done == (after.recommendation.learning_rate in {2.0**-12, 2.0**-7, question.learning_rate})


def test_losses_that_are_not_positive_are_refused():
    with pytest.raises(InputError, match="above 0"):
        suggest(GOAL, [Answer(Question(2.0**-9, 2.0**-6, TOKENS), -1.5)])


def test_reasons_do_not_speak_of_runs_that_were_not_run():
    answers = [ask(nano_like, -12, -6), ask(nano_like, -9, -6)]
    best = recommend_now(GOAL, answers)
    assert best.learning_rate not in {answer.question.learning_rate for answer in answers}
    every = [Question(lr, wd, tokens) for lr, wd in CELLS for tokens in GOAL.rungs]
    for weight_decay, words in ((best.weight_decay, "settings"), (1.0, "LR")):
        wanted = Question(best.learning_rate, weight_decay, TOKENS)
        suggestion = suggest(GOAL, answers, leave_out=[one for one in every if one != wanted])
        assert suggestion.reasons[0].startswith(f"no run had yet the {words} expected best")


def test_without_n_it_works_with_less():
    goal = Goal(tokens=TOKENS, space=Space(only=CELLS), decay_tokens=131_072)
    _, suggestions = play(nano_like, goal)
    assert math.isnan(suggestions[-1].recommendation.invariance_weight)
    assert regret(nano_like, goal, suggestions[-1].recommendation) <= 0.01


def test_more_seeds_make_a_recommendation_surer():
    noisy = [ask(nano_like, lr, wd) for lr in range(-12, -6) for wd in (-8, -5, -2)]
    more = noisy + [
        Answer(Question(*answer_settings(one), TOKENS, seed), one.loss) for one in noisy for seed in (1, 2, 3)
    ]
    widths = [high - low for low, high in (recommend_now(GOAL, known).loss_interval for known in (more, noisy))]
    assert widths[0] < 0.7 * widths[1]


def noisy(surface, deviation):
    """A surface whose runs scatter: with LR and seed, not with WD, as runs that see the same data do."""

    def loss(question):
        key = [round(-100 * math.log2(question.learning_rate)), question.seed]
        luck, level = np.random.default_rng(key).normal(), np.random.default_rng(question.seed).normal()
        whole = surface(question.learning_rate, question.weight_decay, question.tokens)
        return whole * math.exp(deviation * (luck + level))

    return loss


def test_where_runs_scatter_good_settings_are_repeated_with_other_seeds():
    near = tuple((2.0**lr, 2.0**wd) for lr in np.arange(-11.5, -8, 0.5) for wd in (-8, -5))  # all within 2 %
    goal = replace(GOAL, space=Space(only=near), seeds=tuple(range(6)))
    loss, asked = noisy(nano_like, 0.01), []
    for _ in range(30):
        question = suggest(goal, asked).questions[0]
        asked.append(Answer(question, loss(question)))
    seeds = [answer.question.seed for answer in asked]
    assert len(set(seeds)) >= 3 and set(seeds) == set(range(len(set(seeds)))), "one more seed at a time"
    assert seeds.count(1) >= 2, "a single run of a seed cannot be compared with others"
    first = [answer for answer in asked if answer.question.seed == 0]
    assert recommend_now(goal, asked).regret < recommend_now(goal, first).regret


def test_a_quiet_surface_is_hardly_repeated():
    answers, suggestions = play(nano_like, replace(GOAL, seeds=(3, 4, 5)))
    seeds = [answer.question.seed for answer in answers]
    assert suggestions[-1].is_done and seeds[0] == 3 and seeds.count(3) >= 0.6 * len(seeds)


def answer_settings(answer):
    return answer.question.learning_rate, answer.question.weight_decay


def test_when_everything_is_known_nothing_is_asked():
    goal = Goal(tokens=TOKENS, space=Space(only=CELLS[:2]), rungs=(TOKENS,), tokens_per_step=TOKENS_PER_STEP)
    answers = [ask(nano_like, math.log2(lr), math.log2(wd)) for lr, wd in CELLS[:2]]
    suggestion = suggest(goal, answers)
    assert not suggestion.questions
    assert suggestion.recommendation.loss == pytest.approx(min(answer.loss for answer in answers), rel=0.01)


def test_a_space_is_a_lattice_with_both_ends():
    cells = 2.0 ** Space(learning_rate=(2.0**-10, 3e-3), weight_decay=(0.1, 0.1), octaves=1.0).cells
    assert cells[:, 0] == pytest.approx([2.0**-10, 2.0**-9, 3e-3]) and set(cells[:, 1].round(9)) == {0.1}


def test_rungs_are_octaves_that_hold_two_decays():
    assert make_rungs(1000, 100) == (250, 500, 1000)
    assert make_rungs(1000, 900) == (1000,)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Space(learning_rate=(1e-3, 1e-4)), "low and a high"),
        (lambda: Space(learning_rate=(0.0, 1e-4)), "learning_rate"),
        (lambda: Space(octaves=1e-4), "cells"),
        (lambda: Goal(tokens=0), "tokens"),
        (lambda: Goal(tokens=10, tolerance=0.0), "tolerance"),
        (lambda: Goal(tokens=10, tokens_per_step=0), "tokens_per_step"),
        (lambda: Goal(tokens=10, seeds=()), "seeds"),
        (lambda: Goal(tokens=10, seeds=(1, 1)), "seeds"),
    ],
)
def test_mistakes_are_sentences(make, word):
    with pytest.raises(InputError, match=word):
        make()


def test_settings_come_back_to_the_last_digit_as_they_were_given():
    rates, decays = (1e-4, 2e-4, 3e-4, 6e-4, 5e-3), (0.01, 0.03, 0.05)
    cells = {(lr, wd) for lr in rates for wd in decays}
    goal = replace(GOAL, space=Space(only=tuple(sorted(cells))))
    answers = [Answer(Question(lr, 0.03, TOKENS), 2 + abs(math.log2(lr / 3e-4)) / 50) for lr in rates[:3]]
    suggestion = suggest(goal, answers, count=4)
    asked = {(one.learning_rate, one.weight_decay) for one in suggestion.questions}
    best = suggestion.recommendation
    assert asked | {(best.learning_rate, best.weight_decay), *best.as_good} <= cells


def test_diverged_runs_do_not_bend_the_bowl_of_those_that_finished():
    # Found by an examination: every finished run says that a higher LR is better, and 2^-13 was recommended.
    space = Space(learning_rate=(2**-13, 2**-6), weight_decay=(2**-6, 1.0), octaves=1.0)
    goal = Goal(tokens=10**8, tokens_per_step=65536, tolerance=0.0025, space=space)
    short, longer = 6_250_000, 12_500_000
    runs = [(-9, -3, short, math.nan), (-11, -5, short, 3.402), (-11, -1, short, 3.402), (-13, 0, longer, 3.921)]
    runs += [(-12, -6, short, 3.7), (-10, -3, longer, math.nan), (-11, -6, short, 3.402)]
    answers = [
        Answer(Question(2.0**lr, 2.0**wd, tokens), loss, "diverged" if math.isnan(loss) else "finished")
        for lr, wd, tokens, loss in runs
    ]
    assert suggest(goal, answers).recommendation.learning_rate == 2.0**-11


def test_runs_without_weight_decay_are_evidence_like_others():
    answers = [ask(nano_like, lr, -8) for lr in (-11, -10, -9)]
    without = [Answer(Question(2.0**-10, 0.0, TOKENS), nano_like(2.0**-10, 2.0**-30, TOKENS))]
    assert suggest(GOAL, [*answers, *without]).recommendation.loss > 0
    with_zero = replace(GOAL, space=Space(only=(*CELLS, (2.0**-10, 0.0))))
    assert any(one.weight_decay == 0.0 for one in suggest(with_zero, answers, count=200).questions)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: suggest(GOAL, [Answer(Question(0.0, 0.1, TOKENS), 2.0)]),
        lambda: Space(only=((0.0, 0.1),)),
        lambda: replace(GOAL, level=90),
        lambda: replace(GOAL, rungs=(0, TOKENS)),
        lambda: suggest(GOAL, [], count=0),
    ],
)
def test_what_makes_no_sense_is_refused(mistake):
    with pytest.raises(InputError):
        mistake()


def test_a_short_run_has_not_exploded_because_a_long_one_is_far_better():
    short, long = Question(2.0**-8, 0.1, TOKENS // 16), Question(2.0**-9, 0.1, TOKENS)
    answers = [Answer(short, 4.0), Answer(long, 1.5)]
    assert not any(one.has_diverged for one in mark_exploded(answers))
    plateau = [Answer(short, 4.0), Answer(replace(short, learning_rate=2.0**-9), 1.9)]
    assert [one.has_diverged for one in mark_exploded(plateau)] == [True, False]


def test_a_cell_that_is_given_twice_is_asked_once():
    """Settings that went through a text file and those that did not differ in their last digits."""
    pairs = [(2.0**lr, 0.1) for lr in (-10, -9, -8)]
    space = Space(only=(*pairs, *((lr * (1 + 1e-12), wd) for lr, wd in pairs)))
    goal = Goal(tokens=TOKENS, rungs=(TOKENS,), space=space, tokens_per_step=TOKENS_PER_STEP, tolerance=1e-9)
    answers, suggestions = play(nano_like, goal, most=10)
    assert len(answers) == 3 and not suggestions[-1].questions


def test_a_cell_that_diverged_is_not_recommended_under_its_other_name():
    """Given twice, with other last digits; runs with its LR and a lower one finish, so that its LR is not at fault."""
    pairs = [(2.0**-9, 0.1), (2.0**-8, 0.1), (2.0**-8, 1.0)]
    space = Space(only=(*pairs, *((lr * (1 + 1e-12), wd) for lr, wd in pairs)))
    goal = Goal(tokens=TOKENS, rungs=(TOKENS,), space=space, tokens_per_step=TOKENS_PER_STEP, tolerance=1.0)
    losses = (1.8, 1.5, math.nan)
    answers = [Answer(Question(lr, wd, TOKENS), loss) for (lr, wd), loss in zip(pairs, losses, strict=True)]
    found = recommend_now(goal, answers)
    assert len(found.as_good) == 3, "all that may be recommended are as good, at this tolerance"
    assert {found.weight_decay, *(wd for _, wd in found.as_good)} == {0.1}


def test_a_single_run_at_a_high_lr_is_believed_less():
    """What a run has by itself grows with LR above the middle of the range, beside what its answer's noise is."""
    low, middle, high = (Question(2.0 ** (GOAL.space.middle[0] + octaves), 0.1, TOKENS) for octaves in (-3, 0, 2))
    answers = [Answer(low, 1.5), Answer(middle, 1.5), Answer(high, 1.5), Answer(middle, 1.5, "read", noise=0.002)]
    noise = observations(GOAL, Told.of(answers)).noise
    assert noise[:3] == pytest.approx([NOISE, NOISE, NOISE * 2 ** (2 * NOISE_GROWTH)])
    assert noise[3] == pytest.approx(math.hypot(NOISE, 0.002))
    assert own_noise(np.array([100.0])) == MAX_NOISE


def test_wd_that_helps_is_followed_where_the_bowl_is_steep():
    """A short run at a large batch: 160 steps, losses that double within three octaves below the best LR, and WD that
    takes 1 % per octave of 1 + n off them."""
    space = Space(learning_rate=(2.0**-11, 2.0**-6), weight_decay=(2.0**-7, 2.0), octaves=1.0)
    goal = Goal(tokens=160 * 4096, space=space, rungs=(160 * 4096,), tokens_per_step=4096)
    answers = []
    for lr, wd in [(-9, -4), (-8, -4), (-7, -4), (-6, -4), (-7, -1), (-7, 0)]:
        off = lr + 6.5
        excess = 0.012 * off**2 * (1 + 0.25 * abs(off)) - 0.01 * math.log2(1 + 160 * 2.0 ** (lr + wd))
        answers.append(Answer(Question(2.0**lr, 2.0**wd, goal.tokens), 2 * math.exp(excess)))
    assert recommend_now(goal, answers).weight_decay >= 1.0


@pytest.mark.parametrize("losses", [(), (math.nan,), (1.5, 1.6)], ids=["nothing", "diverged", "finished"])
def test_what_is_asked_costs_no_more_than_there_is(losses):
    """Whatever is known: nothing, that all diverges, or losses."""
    dear = Question(2.0**-9, 2.0**-4, TOKENS)
    answers = [Answer(replace(dear, learning_rate=2.0**-lr), loss) for lr, loss in enumerate(losses, 8)]
    cheap = 2.0**-12

    def prices(questions):
        return [1000 if one.learning_rate == cheap else one.tokens for one in questions]

    (asked,) = suggest(GOAL, answers, prices, most_tokens=2000).questions or (None,)
    assert asked is None or asked.learning_rate == cheap
    assert asked is not None or len(losses) == 2, "only where it would not be worth it"
    assert not suggest(GOAL, answers, prices, most_tokens=999).questions
    several = suggest(GOAL, answers, prices, most_tokens=3500, count=8).questions
    assert len(several) <= 3 and all(question.learning_rate == cheap for question in several)


def test_as_good_stand_from_the_best_on():
    goal = replace(GOAL, tolerance=0.02)
    answers = [Answer(Question(2.0**lr, 2.0**-4, TOKENS), 1.5 + 0.02 * (lr + 9) ** 2) for lr in range(-11, -6)]
    as_good = recommend_now(goal, answers).as_good
    expected = believe_answers(goal, answers).at(goal.points(np.log2(as_good), TOKENS)).mean
    assert len(as_good) > 3
    assert (np.diff(expected) > -1e-9).all()
