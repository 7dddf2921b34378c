"""Answers on disk, one JSON line each: what was asked of a trainer that is not ours, and what came of it.

A line is written when a run has ended, and synced; a kill can tear the last one, which is dropped when it is read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from isotune.errors import InputError
from isotune.tune.questions import Answer, Question

FORMAT = 1
NOT_POSITIVE = "losses must be above 0, since their logarithms are compared; add a constant"
Ending = Literal["finished", "diverged", "failed"]


@dataclass(frozen=True)
class Entry:
    """How a run for a question ended; a failed one has no loss and a reason."""

    question: Question
    status: Ending
    loss: float = math.nan
    seconds: float = 0.0
    reason: str = ""
    out: str = ""
    resumed_tokens: int = 0  # of a shorter run, which this one continued
    reached_tokens: int | None = None  # how far a run came, which may be farther than asked; None: nobody knows

    @property
    def trained_tokens(self) -> int:
        """What it cost; where nobody knows how far a run came, it counts as a whole one."""
        end = self.question.tokens if self.reached_tokens is None else self.reached_tokens
        return max(0, end - self.resumed_tokens)

    @property
    def answer(self) -> Answer | None:
        if self.status == "failed":
            return None
        return Answer(self.question, self.loss, self.status)


class Journal:
    """Appends entries to a file, and reads them back; None keeps them in memory."""

    def __init__(self, path: Path | None):
        self.path = path
        self.entries: list[Entry] = list(_read(path)) if path is not None else []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(self.path)
        with open(self.path, "a") as file:
            file.write(json.dumps(_plain(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def spent_tokens(self) -> int:
        return sum(entry.trained_tokens for entry in self.entries)

    def failed(self) -> list[Question]:
        """What was asked in vain, each once, and not answered later."""
        known = {entry.question for entry in self.entries if entry.status != "failed"}
        return list(dict.fromkeys(entry.question for entry in self.entries if entry.question not in known))

    def last_failure(self) -> str:
        """Why the last run that failed did, in words; nothing if none did."""
        return next((entry.reason for entry in reversed(self.entries) if entry.status == "failed"), "")

    def answers(self) -> list[Answer]:
        return [answer for entry in self.entries if (answer := entry.answer) is not None]


def _plain(entry: Entry) -> dict[str, Any]:
    question = entry.question
    return {
        "format": FORMAT,
        "learning_rate": question.learning_rate,
        "weight_decay": question.weight_decay,
        "tokens": question.tokens,
        "seed": question.seed,
        "status": entry.status,
        "loss": entry.loss if math.isfinite(entry.loss) else None,
        "seconds": round(entry.seconds, 3),
        "reason": entry.reason,
        "out": entry.out,
        "resumed_tokens": entry.resumed_tokens,
        "reached_tokens": entry.reached_tokens,
    }


def _read(path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    lines = path.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if number == len(lines) and not _is_json(line):  # torn by a kill: it has no end
            continue
        try:
            value = json.loads(line)
            if value["format"] != FORMAT or value["status"] not in get_args(Ending):
                raise ValueError
            yield Entry(
                Question(
                    float(value["learning_rate"]),
                    float(value["weight_decay"]),
                    int(value["tokens"]),
                    int(value["seed"]),
                ),
                value["status"],
                math.nan if value["loss"] is None else float(value["loss"]),
                float(value["seconds"]),
                value["reason"],
                value["out"],
                int(value.get("resumed_tokens", 0)),
                None if value.get("reached_tokens") is None else int(value["reached_tokens"]),
            )
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path} line {number} cannot be read by this version: delete that line, its run will be repeated"
            ) from None


def _end_last_line(path: Path) -> None:
    """Ends a last line that has no end, or cuts it off, if a kill tore it."""
    if not path.exists() or not path.stat().st_size:
        return
    content = path.read_bytes()
    if content.endswith(b"\n"):
        return
    begins = content.rfind(b"\n") + 1
    with open(path, "r+b") as file:
        if _is_json(content[begins:]):
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        else:
            file.truncate(begins)


def _is_json(line: str | bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
