"""Runs small enough to be trained a hundred times: a model of 2,000 parameters on tokens that follow a rule."""

import numpy as np

from isotune.recipe import ModelShape, Setup, constant, wsd
from isotune.runs import Evaluation

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
