"""CSV, Parquet and JSON lines: a file with many runs and a column that tells them apart, or a file per run.

Settings stand in columns, in a settings file with a row per run, or in the options.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, flatten, shorten, written
from isotune.integrations.importers.grouping import TELLING, Groups, group_by_settings
from isotune.integrations.importers.options import SETTINGS, TOKEN_COUNTS, Options
from isotune.integrations.importers.tables import (
    ENDINGS,
    is_data_file,
    parse_json,
    read_table_file,
    without_suffix,
)
from isotune.recipe import parse_tokens

NAME = "files"
NAMES: Mapping[str, str] = {}

RUN = "run"
# Columns that probably tell runs apart: with one of them and no `run_column`, a file is not taken for one run.
LIKELY_RUN_COLUMNS = ("run_id", "run_name", "runid", "name", "experiment", "trial", "trial_id", "job", "id", "exp")


def recognizes(source: Any) -> bool:
    return isinstance(source, str) and bool(_paths(Path(source), None))


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """A run per value of the run column, or per file."""
    folder = Path(source)
    paths = _paths(folder, options.settings_file)
    if not paths:
        raise InputError(f"{source} has no data files: give files that end in {ENDINGS}")
    settings = _Settings.read(options, notes)
    for path in paths:
        name = without_suffix(path).name if path == folder else str(without_suffix(path.relative_to(folder)))
        try:
            yield from _runs_of(path, name, options, notes, settings)
        except InputError as error:
            if len(paths) == 1:
                raise
            notes.add(f"left out: {error}")
    settings.note_unused(notes)


def _paths(source: Path, settings_file: Path | None) -> list[Path]:
    try:
        if source.is_file():
            return [source] if is_data_file(source) else []
        found = sorted(p for p in source.rglob("*") if is_data_file(p) and p.is_file())
    except OSError:
        return []
    own = None if settings_file is None else settings_file.resolve()
    hidden = [p for p in found if any(part.startswith(".") for part in p.relative_to(source).parts)]
    return [path for path in found if path not in hidden and path.resolve() != own]


def _runs_of(path: Path, name: str, options: Options, notes: Notes, settings: _Settings) -> Iterator[RawRun]:
    table = read_table_file(path, notes, [_name_of_run_column(options)])
    if not table.num_rows:
        notes.add("files without rows, left out", str(path))
        return
    run_column = _run_column(path, table, options)
    numbers, texts = _columns(table, run_column, options, notes, str(path))
    groups = _groups(path, numbers, texts, options, notes) if run_column is None else None
    if run_column is not None:
        numbers, texts, parts = _grouped(table, run_column, numbers, texts, notes, path)
    elif groups is not None:
        numbers, texts, parts = _in_order(groups.codes, groups.names, numbers, texts)
    else:
        parts = [(name, slice(None))]
    is_whole_file = run_column is None and groups is None
    for run, rows in parts:
        own = {column: _last(values[rows]) for column, values in texts.items()}
        stated = {column: value for column, value in own.items() if value is not None}
        yield RawRun(
            name=run,
            source=f"{path}" if is_whole_file else f"{path}:{run}",
            columns={column: values[rows] for column, values in numbers.items()},
            settings=stated | settings.of(name if run_column is None else run, notes),
            run_column=run_column,
        )


def _groups(
    path: Path, numbers: dict[str, np.ndarray], texts: dict[str, np.ndarray], options: Options, notes: Notes
) -> Groups | None:
    """The runs of a file without a run column, if its rows cannot be one run."""
    columns = numbers | texts
    named = {ours: options.mapping.get(ours, ours) for ours in ("tokens", "step", *TELLING)}
    ours = {name: columns[theirs] for name, theirs in named.items() if theirs in columns}
    at = next((ours[name] for name in ("tokens", "step") if name in ours and np.isfinite(ours[name]).any()), None)
    if at is None:
        return None
    try:
        groups = group_by_settings(at, ours)
    except InputError as error:
        raise InputError(
            f"{path} has no column {RUN!r}, and {error}: add one, or name one with run_column= (--run-column)"
        ) from None
    if groups is not None:
        notes.add(
            f"rows differ in {', '.join(groups.by)} and no column names the run: each combination is taken as a run, "
            f"{len(groups.names)} of them (run_column= or --run-column names a column that tells better)",
            str(path),
        )
    return groups


def _run_column(path: Path, table: Any, options: Options) -> str | None:
    """The column that tells runs apart; None if the file is one run."""
    wanted = _name_of_run_column(options)
    if wanted in table.column_names:
        return wanted
    if options.run_column or RUN in options.mapping:
        raise InputError(
            f"{path} has no column {wanted!r} to tell runs apart: its columns are {shorten(table.column_names, 20)}"
        )
    for name in table.column_names:
        if name.lower() in LIKELY_RUN_COLUMNS and len(table.column(name).unique()) > 1:
            raise InputError(
                f"{path} has a column {name!r} with several values and none called {RUN!r}: give run_column={name!r} "
                f"(--run-column {name}) if it tells runs apart, or take it out of the file"
            )
    return None


def _name_of_run_column(options: Options) -> str:
    return options.run_column or options.mapping.get(RUN, RUN)


def _columns(
    table: Any, run_column: str | None, options: Options, notes: Notes, path: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Numbers by column, and the texts of settings."""
    numbers, texts = {}, {}
    for name in table.column_names:
        if name == run_column:
            continue
        if not options.wants(name):
            notes.unused[name] = None
        elif _ours(name, options) in ("schedule", "status", "weight_decay_convention", "setup"):
            texts[name] = np.array(table.column(name).to_pylist(), dtype=object)
        else:
            is_count = _ours(name, options) in TOKEN_COUNTS
            numbers[name] = _numbers(table.column(name), name, is_count, notes, path)
    return numbers, texts


def _ours(name: str, options: Options) -> str:
    return next((ours for ours, theirs in options.mapping.items() if theirs == name), name)


def _numbers(column: Any, name: str, is_count: bool, notes: Notes, path: str) -> np.ndarray:
    """A column as `RawRun` has it; text is read as numbers where it is some."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _numbers_of_text(column, name, is_count, notes, path)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        return written(*_floats(column.cast(pa.float64(), safe=False)))
    if not pa.types.is_null(column.type):
        count = len(column) - column.null_count
        notes.count(f"values of {name} that are not numbers ({column.type}), read as not measured", count, path)
    return np.full(len(column), np.nan)


def _numbers_of_text(column: Any, name: str, is_count: bool, notes: Notes, path: str) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pc.utf8_trim_whitespace(column)
    is_empty = pc.or_kleene(pc.is_null(text), pc.equal(text, ""))
    is_number = pc.match_substring_regex(text, r"^[-+]?(\d+\.?\d*([eE][-+]?\d{1,4})?|\.\d+([eE][-+]?\d{1,4})?)$")
    is_word = pc.match_substring_regex(text, r"^[-+]?(nan|inf|infinity)$", ignore_case=True)
    is_power = pc.match_substring_regex(text, r"^2\^-?\d{1,3}(\.\d+)?$")  # as settings may be written: 2^-10
    is_known = pc.or_(pc.or_(is_number, is_word), is_power)
    digits = pc.utf8_ltrim(pc.if_else(pc.fill_null(is_number, False), text, None), "+")
    values, missing = _floats(digits.cast(pa.float64()))
    powers = _flags(is_power)
    exponents, _ = _floats(pc.utf8_slice_codeunits(pc.if_else(is_power, text, None), 2).cast(pa.float64()))
    numbers = np.where(powers, np.exp2(np.where(powers, exponents, 0.0)), written(values, missing))
    numbers = np.where(_flags(is_word), np.inf, numbers)
    is_other = ~_flags(is_known) & ~_flags(is_empty)
    if is_count and is_other.any():
        numbers[is_other] = _token_counts(text.filter(pa.array(is_other)).to_pylist())
        is_other &= np.isnan(numbers)
    notes.not_numbers(name, text.filter(pa.array(is_other)).to_pylist(), path)
    return numbers


def _token_counts(words: list[str]) -> list[float]:
    """Counts that are written with a suffix, 1M or 2.5B; NaN for other words."""
    counts = {}
    for word in set(words):
        try:
            counts[word] = float(parse_tokens("tokens", word))
        except InputError:
            counts[word] = np.nan
    return [counts[word] for word in words]


def _floats(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """(values, which are missing)."""
    import pyarrow.compute as pc

    missing = _flags(pc.is_null(column))
    return pc.fill_null(column, 0.0).to_numpy().astype(np.float64), missing


def _flags(column: Any) -> np.ndarray:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False), dtype=bool)


def _grouped(
    table: Any, run_column: str, numbers: dict[str, Any], texts: dict[str, Any], notes: Notes, path: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[tuple[str, slice]]]:
    """The columns with the rows of each run together, in their order, and where each run lies."""
    import pyarrow as pa

    column = table.column(run_column)
    if pa.types.is_nested(column.type):
        raise InputError(f"{path}: {run_column!r} cannot tell runs apart, its values are {column.type}: use words")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    if isinstance(column, pa.ChunkedArray):  # several dictionaries become one
        column = column.unify_dictionaries().combine_chunks()
    codes, missing = _floats(column.indices.cast(pa.float64()))
    names = [_run_name(value) for value in column.dictionary.to_pylist()]
    missing |= np.isin(codes, [code for code, name in enumerate(names) if name is None])
    notes.count(f"rows without a value of {run_column}, left out", missing.sum(), str(path))
    codes = np.where(missing, -1, codes).astype(np.int64)
    ordered, texts, parts = _in_order(codes, [name or "" for name in names], numbers, texts)
    if len({name for name, _ in parts}) < len(parts):
        notes.add(f"values of {run_column} that print alike are separate runs of one name", str(path))
    return ordered, texts, parts


def _in_order(
    codes: np.ndarray, names: list[str], numbers: dict[str, Any], texts: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[tuple[str, slice]]]:
    """The columns with the rows of each code together, in their order, and where each name's rows lie."""
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = np.searchsorted(codes, np.arange(len(names)), side="left")
    ends = np.searchsorted(codes, np.arange(len(names)), side="right")
    parts = [(name, slice(a, b)) for name, a, b in zip(names, starts, ends, strict=True) if b > a]
    in_order = {name: values[order] for name, values in numbers.items()}
    return in_order, {name: values[order] for name, values in texts.items()}, parts


def _run_name(value: object) -> str | None:
    """The name of a run, 3 for 3.0, as tables make floats of integers; None where there is no value."""
    if value is None or str(value).lower() == "nan":
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return re.sub(r"^(-?\d+)\.0+$", r"\1", str(value))


def _last(values: np.ndarray) -> Any:
    there = [value for value in values[::-1] if value not in (None, "")]
    return there[0] if there else None


@dataclass(frozen=True)
class _Settings:
    """What a settings file says, by run."""

    path: Path | None
    by_run: dict[str, dict[str, object]]
    used: set[str]

    @classmethod
    def read(cls, options: Options, notes: Notes) -> _Settings:
        path = options.settings_file
        if path is None:
            return cls(None, {}, set())
        if not path.is_file():
            raise InputError(f"the settings file {path} does not exist: give a CSV, Parquet, JSON or JSONL file")
        by_run = _settings_json(path, notes) if path.suffix.lower() == ".json" else _settings_rows(path, options, notes)
        return cls(path, by_run, set())

    def of(self, run: str, notes: Notes) -> dict[str, object]:
        if self.path is None:
            return {}
        self.used.add(run)
        if run not in self.by_run:
            notes.add(f"not in {self.path}, so without settings", run)
        return self.by_run.get(run, {})

    def note_unused(self, notes: Notes) -> None:
        for run in self.by_run:
            if run not in self.used:
                notes.add(f"in {self.path}, but without a curve", run)


def _settings_json(path: Path, notes: Notes) -> dict[str, dict[str, object]]:
    """{"run a": {"learning_rate": 0.001, ...}, ...}"""
    try:
        value = parse_json(path.read_text(encoding="utf-8"), path, notes)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}): give {{run: {{setting: value}}}}") from None
    if not isinstance(value, dict) or not all(isinstance(settings, dict) for settings in value.values()):
        raise InputError(f"{path} does not map runs to settings: give {{run: {{setting: value}}}}")
    return {run: dict(flatten(settings)) for run, settings in value.items()}


def _settings_rows(path: Path, options: Options, notes: Notes) -> dict[str, dict[str, object]]:
    """A row per run."""
    column = _name_of_run_column(options)
    table = read_table_file(path, notes, [column])
    if column not in table.column_names:
        raise InputError(
            f"{path} has no column {column!r} that names the run: add one, or give run_column= (--run-column)"
        )
    by_run: dict[str, dict[str, object]] = {}
    for row in table.to_pylist():
        run = _run_name(row.pop(column))
        if run is None:
            notes.count(f"rows of {path} without a run, left out", 1)
            continue
        if run in by_run:
            notes.count(f"runs that are twice in {path}, of which the last row counts", 1)
        by_run[run] = {name: value for name, value in row.items() if value is not None}
    left_out = {name for name in table.column_names if name not in SETTINGS and name not in options.mapping.values()}
    notes.unused.update(dict.fromkeys(sorted(left_out - {column})))
    return by_run
