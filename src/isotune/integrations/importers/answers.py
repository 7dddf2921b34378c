"""What `isotune tune --command` keeps of a trainer that is not ours: the end of each run that it asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun
from isotune.integrations.importers.options import Options

NAME = "answers"
NAMES: Mapping[str, str] = {}
FILE = "answers.jsonl"


def recognizes(source: Any) -> bool:
    return isinstance(source, str) and (Path(source) / FILE).is_file()


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """A run per answer, of which the last loss is known; runs that failed have none."""
    from isotune.objectives.journal import Journal
    from isotune.tune import mark_exploded

    if not recognizes(source):
        raise InputError(f"{source} has no {FILE}: give the folder of `isotune tune --command`")
    journal = Journal(Path(source) / FILE)
    notes.add("the runs are a command's: of each the last loss is known, so nothing is said of their curves")
    notes.count("runs that failed, left out", len(journal.failed()))
    per_step = options.settings.get("tokens_per_step")
    for answer in mark_exploded(journal.answers()):
        question = answer.question
        settings = {
            "learning_rate": question.learning_rate,
            "weight_decay": question.weight_decay,
            "seed": question.seed,
            "weight_decay_convention": "coupled",  # as the tuner's WD is
        }
        columns = {
            "tokens": np.array([float(question.tokens)]),
            "val_loss": np.array([np.inf if answer.has_diverged else answer.loss]),
        }
        if per_step is not None:
            columns["step"] = columns["tokens"] / per_step
        yield RawRun(
            name=f"LR {question.learning_rate:.4g} WD {question.weight_decay:.4g} seed {question.seed}",
            source=str(source),
            columns=columns,
            settings=settings,
            status="diverged" if answer.has_diverged else "finished",
        )
