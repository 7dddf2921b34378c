"""Questions answered by a command: whatever trains, in whatever language, that writes its metrics as JSON lines.

    python train.py --lr {learning_rate} --wd {weight_decay} --max-tokens {tokens} --out {out}

Metrics are rows with `tokens` and `val_loss`; the last loss is the answer. A loss that ends with NaN is a run that
diverged; an exit code, a time-out or missing metrics are failures, which are noted with the command's last words and
not repeated by this call.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import string
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from isotune.errors import InputError
from isotune.objectives.journal import Ending, Entry, Journal
from isotune.recipe.quantities import require_choice, require_positive
from isotune.tune.questions import Answer, Question
from isotune.tune.readings import Trunk

PLACEHOLDERS = ("learning_rate", "weight_decay", "tokens", "seed", "out", "resume")
NEEDED = ("learning_rate", "weight_decay", "tokens", "out")
POLL_SECONDS = 0.1
KILL_SECONDS = 10.0  # between asking a command to end and making it
REACHED = 0.98  # of the tokens that were asked for: a run that ends before has not answered
LAST_WORDS = 300


class CommandObjective:
    """Runs a command for every question, several at once; everything lies in a folder, one subfolder per run."""

    def __init__(
        self,
        command: str,
        folder: str | Path,
        *,
        metrics: str,
        weight_decay_convention: Literal["coupled", "independent"],
        num_parallel: int = 1,
        timeout_hours: float | None = None,
        loss: str = "val_loss",
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.command, self.folder, self.metrics = command, Path(folder), metrics
        require_choice("weight_decay_convention", weight_decay_convention, ("coupled", "independent"))
        _require_placeholders("--command", command, NEEDED)
        _require_placeholders("--metrics", metrics, ("out",))
        self.convention, self.loss = weight_decay_convention, loss
        self.num_parallel = num_parallel
        self._timeout = math.inf if timeout_hours is None else 3600 * require_positive("timeout_hours", timeout_hours)
        self._should_stop = should_stop
        self._journal = Journal(self.folder / "answers.jsonl")

    @property
    def entries(self) -> list[Entry]:
        """Everything that was tried, failures too."""
        return list(self._journal.entries)

    def answers(self) -> list[Answer]:
        return self._journal.answers()

    def prices(self, questions: Sequence[Question]) -> list[int]:
        return [question.tokens - self._resumed_tokens(question) for question in questions]

    def spent_tokens(self) -> int:
        return self._journal.spent_tokens()

    def trunks(self) -> list[Trunk]:
        return []

    def ask(self, questions: Sequence[Question]) -> None:
        waiting, running = list(questions), list[_Run]()
        try:
            while waiting or running:
                while waiting and len(running) < self.num_parallel and not self._should_stop():
                    running.append(self._start(waiting.pop(0)))
                if self._should_stop():
                    waiting.clear()
                    break
                running = [run for run in running if not self._has_ended(run)]
                time.sleep(POLL_SECONDS if running else 0.0)
        finally:
            for run in running:
                run.kill()

    def _start(self, question: Question) -> _Run:
        out = self.folder / "runs" / _name(question)
        number = 1
        while out.exists():  # an earlier attempt: what it left is kept
            number += 1
            out = out.with_name(f"{_name(question)}.{number}")
        out.mkdir(parents=True)
        values = self._values(question, out)
        words = [word.format(**values) for word in shlex.split(self.command)]
        words = [word for word in words if word]
        try:
            with open(out / "log.txt", "ab") as log:
                process = subprocess.Popen(
                    words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
                )
        except OSError as error:
            raise InputError(f"{words[0]} cannot be started ({error.strerror}): check --command") from None
        return _Run(question, out, process, time.monotonic())

    def _values(self, question: Question, out: Path) -> dict[str, str]:
        decay = question.weight_decay
        if self.convention == "independent":
            decay *= question.learning_rate
        resumed = self._resumable(question)
        return {
            "learning_rate": f"{question.learning_rate:.8g}",
            "weight_decay": f"{decay:.8g}",
            "tokens": str(question.tokens),
            "seed": str(question.seed),
            "out": str(out),
            "resume": "" if resumed is None else resumed.out,
        }

    def _has_ended(self, run: _Run) -> bool:
        return_code = run.process.poll()
        seconds = time.monotonic() - run.began
        if return_code is None and seconds <= self._timeout:
            return False
        if return_code is None:
            run.kill()
            entry = Entry(run.question, "failed", reason=f"still running after {seconds:.0f} s: killed")
        else:
            entry = self._settle(run, return_code)
        noted = replace(entry, seconds=seconds, out=str(run.out), resumed_tokens=self._resumed_tokens(run.question))
        self._journal.add(noted)
        return True

    def _settle(self, run: _Run, return_code: int) -> Entry:
        """What a command that has ended leaves behind."""
        tokens, loss = _last_loss(Path(self.metrics.format(out=run.out)), self.loss)
        status: Ending = "failed"
        if not math.isnan(tokens) and not math.isfinite(loss):
            status, reason = "diverged", ""
        elif return_code:
            reason = f"exit code {return_code}"
        elif math.isnan(tokens):
            reason = f"no {self.loss} in {self.metrics.format(out=run.out)}"
        elif tokens < REACHED * run.question.tokens:
            reason = f"its metrics end at {tokens:.0f} of {run.question.tokens} tokens"
        else:
            return Entry(run.question, "finished", loss)
        words = _last_words(run.out / "log.txt") if status == "failed" else ""
        return Entry(run.question, status, reason=f"{reason}: {words}" if words else reason)

    def _resumable(self, question: Question) -> Entry | None:
        """The longest finished run with these settings and fewer tokens, for commands that can continue one."""
        if "{resume}" not in self.command:
            return None
        shorter = [
            entry
            for entry in self._journal.entries
            if entry.status == "finished"
            and entry.question.tokens < question.tokens
            and _settings(entry.question) == _settings(question)
        ]
        return max(shorter, key=lambda entry: entry.question.tokens, default=None)

    def _resumed_tokens(self, question: Question) -> int:
        entry = self._resumable(question)
        return 0 if entry is None else entry.question.tokens


@dataclass(frozen=True)
class _Run:
    question: Question
    out: Path
    process: subprocess.Popen[bytes]
    began: float

    def kill(self) -> None:
        """Ends the command and all that it started."""
        for number, patience in ((signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(patience)
                return
            except subprocess.TimeoutExpired:
                continue


def _settings(question: Question) -> tuple[float, float, int]:
    return question.learning_rate, question.weight_decay, question.seed


def _name(question: Question) -> str:
    lr, wd = f"{question.learning_rate:.6g}", f"{question.weight_decay:.6g}"
    return f"lr{lr}-wd{wd}-tokens{question.tokens}-seed{question.seed}"


def _require_placeholders(option: str, text: str, needed: Sequence[str]) -> None:
    try:
        found = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise InputError(f"{option} {text!r} cannot be read ({error}): write {{{{ and }}}} for braces") from None
    missing = [name for name in needed if name not in found]
    if missing:
        raise InputError(f"{option} lacks {', '.join(f'{{{name}}}' for name in missing)}: put it where it belongs")
    unknown = [name for name in found if name not in PLACEHOLDERS]
    if unknown:
        names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise InputError(f"{option} has {{{unknown[0]}}}, which is none of {names}: write {{{{ and }}}} for braces")


def _last_loss(path: Path, name: str) -> tuple[float, float]:
    """(tokens, loss) of the last row with a loss, NaN if there is none; torn and foreign lines are passed over."""
    tokens = loss = math.nan
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return tokens, loss
    for line in lines:
        try:
            row = json.loads(line)
            if row.get(name) is not None:
                tokens, loss = float(row["tokens"]), float(row[name])
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return tokens, loss


def _last_words(path: Path) -> str:
    try:
        text = path.read_bytes()[-4 * LAST_WORDS :].decode(errors="replace").strip()
    except OSError:
        return ""
    return text.splitlines()[-1][-LAST_WORDS:] if text else ""
