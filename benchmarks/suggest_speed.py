"""How long the tuner thinks before it asks: processor seconds of one suggestion, on one thread.

    python benchmarks/suggest_speed.py [--quick]

54 cells at four budgets, as in tables/nano, with 200 and 5,000 observations; the 255 cells of the default space after
the 200 runs that a tuning asked for there, with one seed and with 16; the same in a wide space of 729 cells; then, in
the same rounds as Optuna's default sampler, both after 200 runs with the same settings and losses. The goals are about
the code, and what else runs on a machine only adds to its time: as timeit does, they are judged by the fastest of many
repeats, each the median of 20 suggestions. A machine has busy minutes, so the repeats of a case are spread over all of
the benchmark, some two minutes. The median of all stands beside it.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import optuna
from harness import circumstances, interleaved, ratio, round_to, summary, write_results

from isotune.tune import Answer, Goal, Question, Space, suggest
from isotune.tune.questions import MAX_SEEDS

CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-12, -6) for wd in range(-8, 1))
TOKENS_PER_STEP = 256
GOAL = Goal(tokens=2_752_512, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=TOKENS_PER_STEP)
DEFAULT_SPACE = replace(GOAL, space=Space())
GOAL_SECONDS = {200: 0.005, 5000: 0.05}
SEED_DEVIATION = 0.006  # of log losses
NUM_REPEATS, PER_REPEAT, NUM_FIRST = 60, 20, 5  # of each repeat the first ones are slow, and do not count


def main() -> None:
    num_repeats, per_repeat = (1, 3) if "--quick" in sys.argv else (NUM_REPEATS, PER_REPEAT)
    about = circumstances()
    known = cases()
    seconds = repeated({name: isotune_suggestion(*case) for name, case in known.items()}, num_repeats, per_repeat)
    results = {}
    for name, (_, answers) in known.items():
        fastest, limit = round_to(np.median(seconds[name], axis=1).min()), GOAL_SECONDS[len(answers)]
        results[name] = summary(seconds[name].ravel()) | {
            "fastest_repeat": fastest,
            "goal": limit,
            "met": fastest <= limit,
        }
    answers = made_answers(200)
    beside = {"isotune": isotune_suggestion(GOAL, answers), "TPE": optuna_suggestion(answers)}
    interleaved(beside, 2 * per_repeat)
    timed = interleaved(beside, 10 * per_repeat, time.process_time)
    results["Optuna's TPE with 200 trials, against isotune"] = ratio(timed["TPE"], timed["isotune"])
    for name, found in results.items():
        print(name, {key: found[key] for key in ("median", "fastest_repeat", "goal", "met") if key in found})
    if "--quick" not in sys.argv:
        write_results("suggest_speed", about, results)


def repeated(contenders: dict[str, Callable[[], object]], num_repeats: int, per_repeat: int) -> dict[str, np.ndarray]:
    """Processor seconds of each, [repeats x suggestions]; every repeat takes all of them in turn."""
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in contenders}
    for _ in range(num_repeats):
        for name, contender in contenders.items():
            timed = interleaved({name: contender}, NUM_FIRST + per_repeat, time.process_time)[name]
            seconds[name].append(timed[NUM_FIRST:])
    return {name: np.array(repeats) for name, repeats in seconds.items()}


def cases() -> dict[str, tuple[Goal, list[Answer]]]:
    """What is tuned for and what was answered, by name."""
    several = replace(DEFAULT_SPACE, seeds=tuple(range(MAX_SEEDS)))
    wide = replace(GOAL, space=Space(learning_rate=(2.0**-16, 2.0**-3), weight_decay=(2.0**-13, 1.0)))
    return {f"{count} observations": (GOAL, made_answers(count)) for count in GOAL_SECONDS} | {
        "200 observations in the default space": (DEFAULT_SPACE, tuned_answers(DEFAULT_SPACE, 200)),
        f"200 observations in the default space, {MAX_SEEDS} seeds": (several, tuned_answers(several, 200)),
        "200 observations in a wide space": (wide, tuned_answers(wide, 200)),
    }


def tuned_answers(goal: Goal, count: int) -> list[Answer]:
    """What a tuning asks for that goes on and on, of a bowl in LR whose bottom rises with n, and seeds that scatter."""
    rng = np.random.default_rng(0)
    answers: list[Answer] = []
    while len(answers) < count:
        question = suggest(goal, answers).questions[0]
        lr, wd = question.learning_rate, question.weight_decay
        z = math.log2(1 + lr * wd * question.tokens / TOKENS_PER_STEP)
        log_loss = 0.4 + 0.009 * (math.log2(lr) + 9.5 - z / 3) ** 2 + 0.004 * z * z
        log_loss -= 0.07 * math.log2(question.tokens / goal.tokens)
        answers.append(Answer(question, math.exp(log_loss + rng.normal(0, SEED_DEVIATION))))
    return answers


def made_answers(count: int) -> list[Answer]:
    """Losses all over the space, so that no two are at one place."""
    rng = np.random.default_rng(0)
    return [
        Answer(
            Question(2.0 ** rng.uniform(-12, -7), 2.0 ** rng.uniform(-8, 0), int(rng.choice(GOAL.rungs))),
            float(np.exp(rng.normal(0.4, 0.02))),
        )
        for _ in range(count)
    ]


def isotune_suggestion(goal: Goal, answers: list[Answer]) -> Callable[[], object]:
    return lambda: suggest(goal, answers)


def optuna_suggestion(answers: list[Answer]) -> Callable[[], object]:
    """One more trial of a study that has these; it is told as failed, so that it changes nothing for the next one."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {
        "learning_rate": optuna.distributions.FloatDistribution(2.0**-12, 2.0**-7, log=True),
        "weight_decay": optuna.distributions.FloatDistribution(2.0**-8, 1.0, log=True),
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    for answer in answers:
        settings = {"learning_rate": answer.question.learning_rate, "weight_decay": answer.question.weight_decay}
        study.add_trial(optuna.trial.create_trial(params=settings, distributions=distributions, value=answer.loss))

    def one_more() -> object:
        trial = study.ask(distributions)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return trial.params

    return one_more


if __name__ == "__main__":
    main()
