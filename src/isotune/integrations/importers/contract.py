"""What an importer is, and what passes between importers and the assembly of trajectories."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.options import Options
from isotune.integrations.importers.restarts import abandoned_rows
from isotune.runs.trajectory import Status, Trajectory


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What a source holds, and what was dropped, merged, sorted, converted or is not known, a sentence each."""

    kind: str
    source: str
    loss: str  # the column that the user named, `val_loss` if none
    trajectories: tuple[Trajectory, ...] = field(repr=False)
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RawRun:
    """A run as its tool wrote it: nothing sorted, converted or renamed.

    Columns are float64 and of equal length. A NaN was not written; an infinity was written, but is no finite number
    (see `written`). Settings have the tool's names, nested ones joined by dots.
    """

    name: str
    source: str
    columns: Mapping[str, np.ndarray]
    settings: Mapping[str, object] = field(default_factory=dict)
    status: Status | None = None  # None: the source does not say
    run_column: str | None = None  # the column whose value tells it from other runs; not among `columns`


class Importer(Protocol):
    """One file per kind; a module will do."""

    NAME: str
    NAMES: Mapping[str, str]  # the tool's own fixed names for ours, used where the user's mapping is silent

    def recognizes(self, source: Any) -> bool:
        """Whether the source is of this kind; must not raise and import nothing optional."""

    def read(self, source: Any, options: Options, notes: Notes) -> Iterable[RawRun | Trajectory]:
        """The runs of the source."""


class Notes:
    """Collects what happened, so that the same thing in a thousand runs is one sentence."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._runs: dict[str, dict[tuple[int, str], None]] = {}  # runs of different files may have one name
        self._num_begun = 0
        self.unused: dict[str, None] = {}  # columns that isotune has no name for
        self.no_numbers: dict[str, str] = {}  # a word of each column that should have held numbers alone

    def begin_run(self) -> None:
        """From here on a name is that of another run."""
        self._num_begun += 1

    def add(self, sentence: str, run: str | None = None) -> None:
        """Something that happened to a run, or to the source."""
        self._note(sentence, 0, run)

    def count(self, what: str, number: int, run: str | None = None) -> None:
        """Something that happened a number of times; nothing for 0."""
        if number:
            self._note(what, number, run)

    def not_numbers(self, name: str, words: Sequence[str], run: str) -> None:
        """Values of a column that should have been numbers."""
        self.count(f"values of {name} that are not numbers, read as not measured", len(words), run)
        if words:
            self.no_numbers.setdefault(name, words[0])

    def sentences(self) -> tuple[str, ...]:
        sentences = [self._sentence(what) for what in self._runs]
        with_comma = [name for name, word in self.no_numbers.items() if has_decimal_comma(word)]
        if with_comma:
            example = self.no_numbers[with_comma[0]]
            words = f"a decimal comma is not read, nor one between thousands: {example} is no number"
            sentences.insert(0, f"{words} (in {shorten(with_comma)})")
        if self.unused:
            remedy = "mapping={'val_loss': 'their name'} or --map val_loss=THEIR_NAME takes one in"
            sentences.append(f"columns that isotune has no name for, left out: {shorten(self.unused)}; {remedy}")
        return tuple(sentences)

    def _note(self, what: str, number: int, run: str | None) -> None:
        self._numbers[what] = self._numbers.get(what, 0) + int(number)
        runs = self._runs.setdefault(what, {})
        if run is not None:
            runs[self._num_begun, run] = None

    def _sentence(self, what: str) -> str:
        runs = [name for _, name in self._runs[what]]
        sentence = f"{what}: {self._numbers[what]}" if self._numbers[what] else what
        if not runs:
            return sentence
        number = f"{len(runs)} runs: " if len(runs) > 3 else ""
        return f"{sentence} ({number}{shorten(runs, 3)})"


def written(values: np.ndarray, is_missing: np.ndarray | None = None) -> np.ndarray:
    """Values as `RawRun` has them: what is there but not finite becomes infinite, what is not there NaN."""
    values = np.asarray(values, dtype=np.float64)
    values = np.where(np.isfinite(values), values, np.inf)
    return values if is_missing is None else np.where(is_missing, np.nan, values)


def columns_of_rows(
    rows: Sequence[Mapping[str, Any]], options: Options, notes: Notes, run: str
) -> dict[str, np.ndarray]:
    """Rows with whatever each has, as columns; what is not a number is not taken."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        if not options.wants(name):
            notes.unused[name] = None
            continue
        numbers = [number(row.get(name)) for row in rows]
        refused = [row.get(name) for row, value in zip(rows, numbers, strict=True) if value is None]
        notes.not_numbers(name, [str(value) for value in refused if value is not None], run)
        columns[name] = np.array([np.nan if value is None else value for value in numbers], dtype=np.float64)
    return columns


def columns_of_series(
    series: Mapping[str, tuple[np.ndarray, np.ndarray]], notes: Notes, run: str
) -> dict[str, np.ndarray]:
    """Series with a step axis each, in the order of writing, joined on it as the column `step`.

    The last writing of a step counts, and what a restart abandoned is left out.
    """
    series = {name: _without_abandoned(*one, name, notes, run) for name, one in series.items()}
    steps = np.unique(np.concatenate([np.zeros(0), *(at for at, _ in series.values())]))
    columns = {"step": steps}
    for name, (at, values) in series.items():
        index = np.searchsorted(steps, at)
        columns[name] = np.full(len(steps), np.nan)
        columns[name][index] = written(values)
        again = len(index) - len(np.unique(index))
        notes.count(f"values of {name} written again at the same step, of which the last is kept", again, run)
    return columns


def _without_abandoned(
    at: np.ndarray, values: np.ndarray, name: str, notes: Notes, run: str
) -> tuple[np.ndarray, np.ndarray]:
    at = np.asarray(at, dtype=np.float64)
    void = abandoned_rows(at, [np.ones(len(at), dtype=bool)])
    void &= ~np.isin(at, at[~void])  # of what was written again the last counts anyway
    notes.count(f"values of {name} that a restart abandoned, left out", void.sum(), run)
    return at[~void], np.asarray(values)[~void]


def number(value: object) -> float | None:
    """A written value as `RawRun` has it; None for what is no number. Tools write NaN as a word where JSON has none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str) and len(value) > 400:
        return None
    try:
        result = float(value)  # type: ignore[arg-type]
    except OverflowError:
        return np.inf
    except (TypeError, ValueError):
        return None
    return result if np.isfinite(result) else np.inf


def has_decimal_comma(word: str) -> bool:
    return re.fullmatch(r"[-+]?\d*,\d+([eE][-+]?\d+)?", word) is not None


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested settings under names joined by dots."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def need(module: str, what: str, extra: str) -> Any:
    """An optional library, or the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = (error.name or module).partition(".")[0]
        raise InputError(f"reading {what} needs {name}: pip install 'isotune[{extra}]'") from None


def reason_of(error: Exception) -> str:
    """What a library complains about, in a line."""
    return " ".join(str(error).split())[:200]


def files_below(source: Any, pattern: str) -> list[Path]:
    """The files of a folder that match, or the source itself if it is such a file; sorted, hidden folders left out."""
    if not isinstance(source, str):
        return []
    path = Path(source)
    try:
        if path.is_file():
            return [path] if path.match(pattern) else []
        found = (found for found in path.rglob(pattern) if found.is_file())
        return sorted(f for f in found if not any(part.startswith(".") for part in f.relative_to(path).parts))
    except OSError:
        return []


def shorten(names: Iterable[str], most: int = 12) -> str:
    """The first names of a list, of long ones (paths) the end."""
    names = list(names)
    shown = [name if len(name) <= 60 else "..." + name[-57:] for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def show_source(source: Any) -> str:
    return source if isinstance(source, str) else type(source).__name__
