"""Questions answered by a command: whatever trains, in whatever language, that writes its metrics as JSON lines.

    python train.py --lr {learning_rate} --wd {weight_decay} --max-tokens {tokens} --out {out}

Metrics are rows with `tokens` and `val_loss`; the last loss is the answer. A loss that ends with NaN is a run that
diverged; an exit code, a time-out, missing metrics or a length that was not asked for are failures, which are noted
with the command's last words and not repeated by this call. What the answers are answers to lies beside them in
command.json. A run's folder says in run.json what was asked, so that one that was interrupted, and has no answer, still
costs what its metrics show.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from isotune.errors import InputError
from isotune.objectives.journal import NOT_POSITIVE, Entry, Journal
from isotune.objectives.keeper import Keeper, Processes, end_runs, marked, new_mark
from isotune.objectives.placeholders import (
    Value,
    fill_words,
    placeholders_in,
    require_exact,
    require_placeholders,
    split_command,
    values_of,
)
from isotune.recipe.quantities import require_choice, require_positive, require_positive_int, show
from isotune.runs.files import FORMAT, read_json, write_json
from isotune.tune.questions import Answer, Question
from isotune.tune.readings import Trunk

NEEDED = ("learning_rate", "weight_decay", "tokens", "out")
POLL_SECONDS = 0.1
REACHED = 0.98  # of the tokens that were asked for: a run that ends before has not answered
# Nor has one that ends beyond this. Trainers may end with a step or an evaluation, which in a short run is a large part
# of it; the lengths that are asked for lie an octave apart, so that none is taken for another.
PASSED = 1.25
LAST_WORDS = 300
NOTE = "run.json"  # in a run's folder: what was asked
NOTED = ("learning_rate", "weight_decay", "tokens", "seed", "resumed_tokens")


class CommandObjective:
    """Runs a command for every question, several at once; everything lies in a folder, one subfolder per run."""

    def __init__(
        self,
        command: str,
        folder: str | Path,
        *,
        metrics: str,
        weight_decay_convention: Literal["coupled", "independent"],
        tokens_per_step: int | None = None,
        num_parallel: int = 1,
        timeout_hours: float | None = None,
        loss: str = "val_loss",
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self.command, self.folder, self.metrics = command, Path(folder), metrics
        self._runs = self.folder.absolute() / "runs"  # a command may change its directory
        require_choice("weight_decay_convention", weight_decay_convention, ("coupled", "independent"))
        require_placeholders("--command", split_command(command), NEEDED)
        require_placeholders("--metrics", [metrics], ("out",))
        self.convention, self.loss = weight_decay_convention, loss
        self.num_parallel = require_positive_int("num_parallel", num_parallel)
        self._timeout = math.inf if timeout_hours is None else 3600 * require_positive("timeout_hours", timeout_hours)
        self._should_stop = should_stop
        self._can_resume = "resume" in placeholders_in("--command", split_command(command))
        self._journal = Journal(self.folder / "answers.jsonl")
        self.tokens_per_step: int | None = tokens_per_step or self._noted().get("tokens-per-step")
        self._require_same()

    @property
    def entries(self) -> list[Entry]:
        """Everything that was tried, failures too."""
        return list(self._journal.entries)

    def answers(self) -> list[Answer]:
        return self._journal.answers()

    def failed(self) -> list[Question]:
        """What was asked in vain, by earlier calls too."""
        return self._journal.failed()

    def last_failure(self) -> str:
        """Why the last of these failed."""
        return self._journal.last_failure()

    def prices(self, questions: Sequence[Question]) -> list[int]:
        return [question.tokens - self._resumed_tokens(question) for question in questions]

    def spent_tokens(self) -> int:
        return self._journal.spent_tokens() + sum(entry.trained_tokens for entry in self._interrupted())

    def trunks(self) -> list[Trunk]:
        return []

    def ask(self, questions: Sequence[Question]) -> None:
        self.require_exact([_settings(question)[:2] for question in questions])
        waiting, running = list(questions), list[_Run]()
        with _alone(self.folder), Keeper() as keeper:
            self._journal = Journal(self.folder / "answers.jsonl")  # another tuning may have been here since
            self._require_same()
            self._note_what_is_asked()
            try:
                while waiting or running:
                    while waiting and len(running) < self.num_parallel and not self._should_stop():
                        running.append(self._start(waiting.pop(0), keeper))
                    if self._should_stop():
                        waiting.clear()
                        break
                    running = [run for run in running if not self._has_ended(run)]
                    time.sleep(POLL_SECONDS if running else 0.0)
            finally:
                for run in running:
                    run.kill()

    def require_exact(self, settings: Iterable[tuple[float, float]]) -> None:
        """Refuses a command that is written LRs or WDs with too few digits; WD is coupled."""
        pairs = [(lr, self._own_decay(lr, wd)) for lr, wd in settings]
        require_exact("--command", split_command(self.command), pairs)

    # What is asked

    def _definition(self) -> dict[str, Any]:
        """What the answers depend on, besides the questions."""
        return {
            "command": self.command,
            "metrics": self.metrics,
            "loss": self.loss,
            "wd-convention": self.convention,
            "tokens-per-step": self.tokens_per_step,
        }

    def _require_same(self) -> None:
        """Refuses a folder whose answers are those of something else; one without a note is taken to be ours, and so is
        one without an answer: what was asked there has been mended."""
        if (self.folder / "study.json").exists():
            raise InputError(f"{self.folder} is the study of a recipe, not of a command: give another --study")
        noted = self._noted()
        for option, value in self._definition().items():
            before = noted.get(option)
            if before is not None and value is not None and not _is_same(option, before, value):
                raise InputError(
                    f"{self.folder} was begun with another --{option} ({show(before)}): give another --study"
                )
        if self._journal.answers():
            self._note_what_is_asked()

    def _note_what_is_asked(self) -> None:
        noted = self._noted()
        known = {option: value for option, value in self._definition().items() if value is not None}
        if not known.keys() <= noted.keys():
            write_json(self.folder / "command.json", {"format": FORMAT} | known | noted)

    def _noted(self) -> dict[str, Any]:
        """What the answers were answers to; nothing as long as there is none."""
        path = self.folder / "command.json"
        return read_json(path, "give another --study") if path.exists() and self._journal.answers() else {}

    # Runs

    def _start(self, question: Question, keeper: Keeper) -> _Run:
        out = self._runs / _name(question)
        number = 1
        while out.exists():  # an earlier attempt: what it left is kept
            number += 1
            out = out.with_name(f"{_name(question)}.{number}")
        out.mkdir(parents=True)
        resumed = self._resumable(question)
        resumed_tokens = 0 if resumed is None else resumed.question.tokens
        write_json(out / NOTE, {"format": FORMAT} | asdict(question) | {"resumed_tokens": resumed_tokens})
        values = self._values(question, out, "" if resumed is None else str(self._folder_of(resumed)))
        words, mark = fill_words(self.command, values), new_mark()
        try:
            with open(out / "log.txt", "ab") as log:
                process = subprocess.Popen(
                    words,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    env=marked(mark),
                )
        except OSError as error:
            raise InputError(
                f"{words[0]} cannot be started ({error.strerror}): check --command, which no shell reads: write "
                "env NAME=value before it to set a variable, or sh -c '...' around it"
            ) from None
        run = Processes(process.pid, mark)
        keeper.add(run)
        metrics = Path(self.metrics.format(**values))
        return _Run(question, out, metrics, resumed_tokens, process, run, keeper, time.monotonic())

    def _values(self, question: Question, out: Path, resume: str = "") -> dict[str, Value]:
        decay = self._own_decay(question.learning_rate, question.weight_decay)
        return values_of(question, decay, str(out), resume)

    def _own_decay(self, learning_rate: float, weight_decay: float) -> float:
        """WD as the command wants it."""
        return weight_decay * learning_rate if self.convention == "independent" else weight_decay

    def _has_ended(self, run: _Run) -> bool:
        return_code = run.process.poll()
        seconds = time.monotonic() - run.began
        if return_code is None and seconds <= self._timeout:
            return False
        run.kill()  # a launcher may end before its workers; before the metrics are read, which they may still write
        run.keeper.remove(run.processes)
        entry = self._settle(run, return_code, _read_metrics(run.metrics, self.loss), seconds)
        noted = replace(entry, seconds=seconds, out=str(run.out), resumed_tokens=run.resumed_tokens)
        self._journal.add(noted)
        return True

    def _settle(self, run: _Run, return_code: int | None, read: _Metrics, seconds: float) -> Entry:
        """What a command that has ended, or was killed (None), leaves behind."""
        if self._is_too_long(run.question, read):
            reason = f"its metrics end at {read.reached} tokens, {run.question.tokens} were asked for: "
            reason += "let {tokens} be its length, decay included"
            return Entry(run.question, "failed", reason=reason, reached_tokens=read.reached)
        if not math.isnan(read.tokens) and not math.isfinite(read.loss):
            return Entry(run.question, "diverged", reached_tokens=read.reached)
        if return_code is None:
            reason = f"still running after {seconds:.0f} s: killed"
        elif return_code:
            reason = _exit_words(return_code)
        elif math.isnan(read.tokens):
            missing = f"no tokens with the {self.loss}" if read.has_loss else f"no {self.loss}"
            reason = f"{missing} in {run.metrics}" if run.metrics.exists() else f"it wrote no {run.metrics}"
        elif read.tokens < REACHED * run.question.tokens:
            reason = f"its metrics end at {read.tokens:.0f} of {run.question.tokens} tokens"
        elif read.loss <= 0:
            reason = f"{self.loss} is {read.loss:g}: {NOT_POSITIVE}"
        else:
            return Entry(run.question, "finished", read.loss, reached_tokens=read.reached)
        words = "" if return_code is None else _last_words(run.out / "log.txt")
        reason = f"{reason}: {words}" if words else reason
        return Entry(run.question, "failed", reason=reason, reached_tokens=read.reached)

    def _is_too_long(self, question: Question, read: _Metrics) -> bool:
        """Whether a run went on beyond what was asked: a loss that it had there is not one after the decay."""
        return read.reached > max(PASSED * question.tokens, question.tokens + (self.tokens_per_step or 0))

    def _interrupted(self) -> Iterator[Entry]:
        """Runs that left a folder and no answer: they ended with a tuning. Their metrics say how far they came."""
        noted = {Path(entry.out).name for entry in self._journal.entries}
        for path in sorted(self._runs.glob(f"*/{NOTE}")):
            if path.parent.name not in noted:
                question, resumed_tokens = _read_note(path)
                metrics = Path(self.metrics.format(**self._values(question, path.parent)))
                reached = _read_metrics(metrics, self.loss).reached
                yield Entry(question, "failed", resumed_tokens=resumed_tokens, reached_tokens=reached)

    def _resumable(self, question: Question) -> Entry | None:
        """The longest finished run with these settings and fewer tokens, for commands that can continue one; those
        whose folders were deleted cannot be continued."""
        if not self._can_resume:
            return None
        shorter = [
            entry
            for entry in self._journal.entries
            if entry.status == "finished"
            and entry.question.tokens < question.tokens
            and _settings(entry.question) == _settings(question)
            and self._folder_of(entry).is_dir()
        ]
        return max(shorter, key=lambda entry: entry.question.tokens, default=None)

    def _folder_of(self, entry: Entry) -> Path:
        """By its name: the study may have been reached by another path when it was noted."""
        return self._runs / Path(entry.out).name

    def _resumed_tokens(self, question: Question) -> int:
        entry = self._resumable(question)
        return 0 if entry is None else entry.question.tokens


@dataclass(frozen=True)
class _Run:
    question: Question
    out: Path
    metrics: Path
    resumed_tokens: int  # of the run that it continues
    process: subprocess.Popen[bytes]
    processes: Processes
    keeper: Keeper
    began: float

    def kill(self) -> None:
        """Ends the command and all that it started, also where that lives longer than the command itself."""
        end_runs([self.processes], self.process.poll)  # a dead command is in its group until somebody asks for it
        self.process.wait()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder against other tunings, which would train the same runs; a death lets go of it. Where the file
    system knows no locks nothing is held."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another tuning works in {folder}: wait for it to end, or give another --study") from None
        except OSError:
            pass
        yield


def _settings(question: Question) -> tuple[float, float, int]:
    return question.learning_rate, question.weight_decay, question.seed


def _name(question: Question) -> str:
    lr, wd = f"{question.learning_rate:.6g}", f"{question.weight_decay:.6g}"
    return f"lr{lr}-wd{wd}-tokens{question.tokens}-seed{question.seed}"


def _read_note(path: Path) -> tuple[Question, int]:
    """What a run was asked, and the tokens of the run that it continued."""
    note = read_json(path, "delete its folder, what it trained is not counted then")
    try:
        lr, wd, tokens, seed, resumed = (note[name] for name in NOTED)
        return Question(float(lr), float(wd), int(tokens), int(seed)), int(resumed)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({error}): delete its folder, what it trained is not counted then"
        ) from None


def _is_same(option: str, one: Any, other: Any) -> bool:
    return bool(split_command(one) == split_command(other) if option == "command" else one == other)


@dataclass(frozen=True)
class _Metrics:
    """The end of a run's metrics; NaN where they do not say."""

    tokens: float = math.nan  # of the last loss
    loss: float = math.nan
    has_loss: bool = False
    reached: int = 0  # the most tokens of any row


def _read_metrics(path: Path, name: str) -> _Metrics:
    """The last loss and its tokens, which may stand in a row before it; torn and foreign lines are passed over."""
    tokens = at = loss = math.nan
    has_loss, reached = False, 0
    try:
        # Not `splitlines`, which also splits at characters that may stand within a JSON string.
        lines = path.read_text("utf-8", errors="replace").split("\n")
    except OSError:
        return _Metrics()
    for line in lines:
        try:
            row = json.loads(line)
            tokens = tokens if row.get("tokens") is None else float(row["tokens"])
            reached = max(reached, int(tokens) if math.isfinite(tokens) else 0)
            if row.get(name) is not None:
                at, loss, has_loss = tokens, float(row[name]), True
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return _Metrics(at, loss, has_loss, reached)


def _exit_words(return_code: int) -> str:
    """
    >>> _exit_words(3), _exit_words(-11)
    ('exit code 3', 'ended by SIGSEGV')
    """
    if return_code > 0:
        return f"exit code {return_code}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-return_code).name
        return f"ended by {name}" + (", for lack of memory perhaps" if name == "SIGKILL" else "")
    return f"ended by signal {-return_code}"


def _last_words(path: Path) -> str:
    try:
        text = path.read_bytes()[-4 * LAST_WORDS :].decode(errors="replace").strip()
    except OSError:
        return ""
    return text.splitlines()[-1][-LAST_WORDS:] if text else ""
