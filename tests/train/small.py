"""Runs small enough to be trained a hundred times: a model of 2,000 parameters on tokens that follow a rule."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from isotune.recipe import ModelShape, Setup, constant, recipe_to_table, wsd
from isotune.runs import Evaluation

SOURCE = Path(__file__).parents[2] / "src"
MODEL = ModelShape(width=16, num_layers=1, num_heads=2, ffn_width=32, vocabulary_size=32)
STEP = 4 * 16  # tokens: batches of 4 sequences of 16 tokens
EVALUATION = Evaluation(every_tokens=10 * STEP, windows=8, final_windows=32)
NO_EVALUATION = Evaluation(every_tokens=0, windows=1, final_windows=1)


def write_corpus(folder):
    """Tokens of which each mostly follows from the one before, as nanoGPT's files."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 32, 60_000)
    tokens = np.zeros(60_000, dtype="<u2")
    for i in range(1, len(tokens)):
        tokens[i] = (5 * tokens[i - 1] + 3) % 32 if noise[i] > 8 else noise[i]
    folder.mkdir()
    tokens[:50_000].tofile(folder / "train.bin")
    tokens[50_000:].tofile(folder / "val.bin")
    return str(folder)


def setup(corpus, **changes):
    return Setup(**{"model": MODEL, "corpus": corpus, "sequence_length": 16} | changes)


def small_wsd(corpus, num_steps=160, *, learning_rate=2**-6, batch_size=4, **changes):
    return wsd(
        setup(corpus, **changes),
        tokens=num_steps * STEP,
        learning_rate=learning_rate,
        weight_decay=0.5,
        batch_size=batch_size,
        warmup_tokens=16 * STEP,
        decay_tokens=40 * STEP,
    )


def small_constant(corpus, num_steps=160, *, learning_rate=2**-6, batch_size=4, **changes):
    return constant(
        setup(corpus, **changes),
        tokens=num_steps * STEP,
        learning_rate=learning_rate,
        weight_decay=0.5,
        batch_size=batch_size,
        warmup_tokens=16 * STEP,
    )


def contents(study_folder):
    """Everything that must not depend on how a study came about: states, curves, windows' losses; not the timing."""
    files = [*study_folder.glob("states/*"), *study_folder.glob("segments/*/*")]
    names = ("timing.jsonl", "segment.json")
    return {str(path.relative_to(study_folder)): path.read_bytes() for path in files if path.name not in names}


def rows(trajectory):
    """The trajectory as comparable bytes, NaN included."""
    return {name: column.tobytes() for name, column in trajectory.columns.items()}


class TokenCounter:
    """An observer that counts what is trained."""

    def __init__(self):
        self.tokens = 0

    def __call__(self, step, row):
        self.tokens += step.tokens - step.tokens_before


# Trains a recipe as a user's process would, and may die at the Nth call of a function of os.
SCRIPT = """
import json, os, signal, sys
call = json.loads(sys.argv[1])
name, _, count = call["die_at"].partition(":")
if count:
    original, calls = getattr(os, name), [0]
    def dying(*args, **kwargs):
        calls[0] += 1
        if calls[0] == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(os, name, dying)
from isotune.recipe import recipe_from_table
from isotune.runs import Evaluation
from isotune.train import train
print("started", flush=True)
recipe = recipe_from_table(call["recipe"], "the recipe")
train(recipe, call["study"], evaluation=Evaluation(**call["evaluation"]), save_seconds=call["save_seconds"])
print("done", flush=True)
"""


def start_training(recipe, study, *, die_at="", save_seconds=0.0, evaluation=EVALUATION, processes=1):
    import dataclasses
    import json

    call = {
        "recipe": recipe_to_table(recipe),
        "study": str(study),
        "evaluation": dataclasses.asdict(evaluation),
        "save_seconds": save_seconds,
        "die_at": die_at,
    }
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    if processes == 1:
        command = [sys.executable, "-c", SCRIPT, json.dumps(call)]
    else:
        script = Path(study).parent / "script.py"
        script.write_text(SCRIPT)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command = [*launcher, str(script), json.dumps(call)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
