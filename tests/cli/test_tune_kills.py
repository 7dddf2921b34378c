"""A tuning that is killed with its worker, and continued, recommends what one does that was left alone.

proofs/tune_kills.py kills it more often, and with two workers.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_this_process import InThisProcess
from small import MODEL, STEP, write_corpus

from isotune.objectives.trainer import TrainerObjective
from isotune.recipe import read_recipe
from isotune.tune import Limits, Question, Space, tune

SPACE = Space(learning_rate=(2.0**-9, 2.0**-4), weight_decay=(0.125, 1.0), octaves=1.0)
LIMITS = Limits(max_tokens=900 * STEP)
WINDOWS = {"every_tokens": 100 * STEP, "windows": 8, "final_windows": 32, "noise_every_tokens": 0}
KILLED_AT = (120 * STEP, 500 * STEP)


@pytest.fixture
def recipe_file(tmp_path):
    model = ", ".join(f"{name} = {value}" for name, value in vars(MODEL).items() if isinstance(value, int))
    path = tmp_path / "tiny.toml"
    path.write_text(
        f"""corpus = "{write_corpus(tmp_path / "corpus")}"
sequence_length = 16
model = {{ {model} }}

[schedule]
kind = "wsd"
tokens = {200 * STEP}
learning_rate = "2^-6"
weight_decay = 0.5
batch_size = 4
warmup_tokens = {10 * STEP}
decay_tokens = {20 * STEP}
"""
    )
    return path


def tune_here(recipe_file, folder):
    recipe = read_recipe(recipe_file)
    with TrainerObjective(
        recipe, folder, num_parallel=1, evaluation=WINDOWS, make_executor=lambda *_: InThisProcess()
    ) as objective:
        tuned = tune(objective, objective.goal(SPACE, tolerance=1e-6), limits=LIMITS)
        return tuned, {answer.question: answer.loss for answer in objective.answers()}, objective.trunks()


def test_a_killed_tuning_ends_with_the_same_recommendation(recipe_file, tmp_path):
    straight, answers, _ = tune_here(recipe_file, tmp_path / "straight")
    study = tmp_path / "killed"
    options = {"--lr": "2^-9..2^-4", "--wd": "0.125..1", "--octaves": 1, "--tolerance": 1e-4, "--workers": 1}
    options |= {"--max-tokens": LIMITS.max_tokens, "--study": study, "--save-seconds": 0.1}
    options |= {"--eval-every": 100 * STEP, "--eval-windows": 8, "--final-windows": 32, "--noise-every": 0}
    flat = [str(part) for option in options.items() for part in option]
    command = [sys.executable, "-m", "isotune", "tune", str(recipe_file), "--quiet", "--no-report", *flat]
    num_kills = 0
    for position in KILLED_AT:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None and num_rows(study) * STEP < position:
            time.sleep(0.01)
        num_kills += process.poll() is None
        kill_with_workers(process)
    assert num_kills == len(KILLED_AT)
    continued, answers_again, trunks = tune_here(recipe_file, study)
    assert continued.recommendation == straight.recommendation
    assert answers_again == answers
    for trunk in trunks:
        longest = max(one.tokens for one in answers if one.learning_rate == trunk.learning_rate)
        assert trunk.curve.tokens[-1] <= longest - 20 * STEP, "a trunk ends where its longest decay begins"
    assert len(trunks) == len({(one.learning_rate, one.weight_decay, one.seed) for one in answers})
    assert continued.spent_tokens == straight.spent_tokens and 0 < continued.spent_before < continued.spent_tokens


def test_a_trunk_that_diverged_is_an_answer_after_a_restart_too(recipe_file, tmp_path, monkeypatch):
    from isotune.train import Trainer

    original = Trainer.step
    monkeypatch.setattr(
        Trainer,
        "step",
        lambda self, windows, step: original(self, windows, step) * (float("nan") if step.tokens >= 50 * STEP else 1),
    )
    recipe, question = read_recipe(recipe_file), Question(2.0**-6, 0.5, 200 * STEP)
    for is_first in (True, False):
        objective = TrainerObjective(
            recipe, tmp_path / "study", num_parallel=1, evaluation=WINDOWS, make_executor=lambda *_: InThisProcess()
        )
        if is_first:
            objective.ask([question])
        (answer,) = objective.answers()
        assert answer.question == question and answer.has_diverged
        assert objective.trunks() == []
        assert objective.spent_tokens() == 50 * STEP


def num_rows(study):
    count = 0
    for curve in [*study.glob("segments/*/curve.jsonl"), *study.glob("attempts/*/curve.jsonl")]:
        with contextlib.suppress(FileNotFoundError):  # published meanwhile
            count += curve.read_bytes().count(b"\n")
    return count


def kill_with_workers(process):
    """Workers have sessions of their own, so each is killed by its id."""
    workers = []
    with contextlib.suppress(OSError):
        process.send_signal(signal.SIGSTOP)  # so that it starts none meanwhile
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, workers)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
