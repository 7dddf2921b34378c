"""How long the tuner thinks before it asks: processor seconds of one suggestion, on one thread.

    python benchmarks/suggest_speed.py [--quick]

54 cells at four budgets, as in tables/nano, with 200 and 5,000 observations.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time

import numpy as np
from harness import circumstances, summary, write_results

from isotune.tune import Answer, Goal, Question, Space, suggest

CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-12, -6) for wd in range(-8, 1))
GOAL = Goal(tokens=2_752_512, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=256)
GOAL_SECONDS = {200: 0.005, 5000: 0.05}


def main() -> None:
    num_rounds = 3 if "--quick" in sys.argv else 200
    about = circumstances()
    results = {}
    for count, goal in GOAL_SECONDS.items():
        answers = made_answers(count, np.random.default_rng(0))
        for _ in range(num_rounds):  # the first ones are slow: a processor that idled takes a while to speed up
            suggestion_seconds(answers)
        seconds = summary([suggestion_seconds(answers) for _ in range(num_rounds)])
        results[f"{count} observations"] = seconds | {"goal": goal, "met": seconds["median"] <= goal}
        print(count, seconds["median"])
    if "--quick" not in sys.argv:
        write_results("suggest_speed", about, results)


def made_answers(count: int, rng: np.random.Generator) -> list[Answer]:
    """Losses all over the space, so that no two are at one place."""
    return [
        Answer(
            Question(2.0 ** rng.uniform(-12, -7), 2.0 ** rng.uniform(-8, 0), int(rng.choice(GOAL.rungs))),
            float(np.exp(rng.normal(0.4, 0.02))),
        )
        for _ in range(count)
    ]


def suggestion_seconds(answers: list[Answer]) -> float:
    began = time.process_time()
    suggest(GOAL, answers)
    return time.process_time() - began


if __name__ == "__main__":
    main()
