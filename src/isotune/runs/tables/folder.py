"""A table's folder: read and checked against its manifest; written as a whole or not at all.

New files are staged in a folder beside the old ones, which one rename makes valid; from then on readers take what is
staged, and the moves that follow may be interrupted anywhere. Nothing else in the folder is touched.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.recipe import Recipe
from isotune.runs.files import move, read_json, sync, write_json
from isotune.runs.tables.columnar import read_columns, write_columns
from isotune.runs.tables.contents import (
    Contents,
    Curve,
    DecayRecord,
    RunRecord,
    priced,
    unique_tokens,
)
from isotune.runs.tables.coverage import Coverage

RUNS, CURVES, DECAYS, MANIFEST = "runs.parquet", "curves.parquet", "decays.parquet", "manifest.json"
DATA_FILES = (RUNS, CURVES, DECAYS)
REMEDY = "restore it from a copy, or export the table again"

_STAGED = ".staged"
_CURVE_KEYS = {"run": "str", "decay": "str | None", "tokens": "int"}


def write_contents(folder: Path, contents: Contents) -> None:
    """Puts the table into the folder, in place of one that is there."""
    contents = priced(contents)
    folder.mkdir(parents=True, exist_ok=True)
    _install(folder)  # what a kill left half moved
    staging = folder / f".staging.{uuid.uuid4().hex[:8]}.part"
    staging.mkdir()
    try:
        _write_records(staging / RUNS, list(contents.runs.values()), RunRecord)
        _write_records(staging / DECAYS, list(contents.decays.values()), DecayRecord)
        _write_curves(staging / CURVES, contents)
        write_json(staging / MANIFEST, _manifest(contents, staging))
        for name in DATA_FILES:
            sync(staging / name)
        sync(staging)
        staging.rename(folder / _STAGED)
        sync(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _install(folder)


def is_table(folder: Path) -> bool:
    return find(folder, MANIFEST).exists()


def find(folder: Path, name: str) -> Path:
    """Where a file of the table lies now."""
    staged = folder / _STAGED / name
    return staged if staged.exists() else folder / name


def read_manifest(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise InputError(f"{folder} does not exist: give a folder that `isotune table export` wrote")
    if not is_table(folder):
        raise InputError(
            f"{folder} is not a table (it has no {MANIFEST}): give a folder that `isotune table export` wrote"
        )
    path = find(folder, MANIFEST)
    manifest = read_json(path, REMEDY)
    try:
        _require_shape(manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not the manifest of a table (it lacks {error}): {REMEDY}") from None
    return manifest


def read_contents(folder: Path) -> tuple[dict[str, Any], Contents]:
    """The manifest and everything that it describes, if the files are the ones that it means."""
    manifest = read_manifest(folder)
    columns = {name: _read_file(folder, name, manifest) for name in DATA_FILES}
    try:
        contents = Contents(
            name=manifest["name"],
            description=manifest["description"],
            roots=manifest["roots"],
            evaluations=manifest["evaluations"],
            numerics=manifest["numerics"],
            planned=manifest["planned"],
            runs={row.run: row for row in _read_records(columns[RUNS], RunRecord)},
            decays={row.decay: row for row in _read_records(columns[DECAYS], DecayRecord)},
            curves=_read_curves(columns[CURVES]),
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder} lacks a column or has one too many ({error}): {REMEDY}") from None
    for name in (*contents.runs, *contents.decays):  # one that diverged at once has no rows
        contents.curves.setdefault(name, {"tokens": np.zeros(0, dtype=np.int64)})
    return manifest, contents


# Writing


def _install(folder: Path) -> None:
    """Moves staged files to their places, the manifest last."""
    staged = folder / _STAGED
    for name in (*DATA_FILES, MANIFEST):
        if (staged / name).exists():
            move(staged / name, folder / name)
    if staged.exists():
        staged.rmdir()


def _write_records(path: Path, records: Sequence[Any], kind: type) -> None:
    types = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    rows = sorted(records, key=_record_order)
    write_columns(path, {name: [getattr(row, name) for row in rows] for name in types}, types)


def _record_order(row: RunRecord | DecayRecord) -> tuple[object, ...]:
    name = row.run if isinstance(row, RunRecord) else row.decay
    return row.root, row.batch_size, row.learning_rate, row.weight_decay, row.seed, row.tokens, name


def _write_curves(path: Path, contents: Contents) -> None:
    keys: list[tuple[str, str | None]] = [(run, None) for run in contents.runs]
    keys += [(row.run, row.decay) for row in contents.decays.values() if row.decay != row.run]
    keys.sort(key=lambda key: (key[0], key[1] or ""))
    curves = [contents.curves[decay or run] for run, decay in keys]
    names = sorted({name for curve in curves for name in curve} - {"tokens"})
    lengths = [len(curve["tokens"]) for curve in curves]
    columns: dict[str, Any] = {
        "run": [run for (run, _), length in zip(keys, lengths, strict=True) for _ in range(length)],
        "decay": [decay for (_, decay), length in zip(keys, lengths, strict=True) for _ in range(length)],
        "tokens": np.concatenate([np.zeros(0, dtype=np.int64), *(curve["tokens"] for curve in curves)]),
    }
    for name in names:
        parts = [curve.get(name, np.full(len(curve["tokens"]), np.nan)) for curve in curves]
        columns[name] = np.concatenate(parts).astype(np.float32)
    write_columns(path, columns, _CURVE_KEYS | dict.fromkeys(names, "float32"))


def _manifest(contents: Contents, staging: Path) -> dict[str, Any]:
    runs, decays = list(contents.runs.values()), list(contents.decays.values())
    planned = contents.planned_recipes()
    roots = {run: entry["root"] for run, entry in (contents.planned or {}).items()}
    coverage = Coverage.of(contents)
    missing = [run for run, recipe in planned.items() if not coverage.has(roots[run], recipe)]
    num_rows = {RUNS: len(runs), DECAYS: len(decays), CURVES: _num_curve_rows(contents)}
    commits = sorted({(row.commit, row.commit_is_dirty) for row in contents.records()})
    return {
        "name": contents.name,
        "description": contents.description,
        "complete": None if contents.planned is None else not missing,
        "missing": missing,
        "totals": {
            "runs": len(runs),
            "decays": len(decays),
            "trunk_tokens": sum(row.tokens_trained for row in runs),
            "decay_tokens": sum(row.tokens_trained for row in decays),
            "trunk_core_hours": _core_hours(runs),
            "decay_core_hours": _core_hours(decays),
            "planned_tokens": None if contents.planned is None else _planned_tokens(planned, roots),
        },
        "commits": [{"commit": commit, "is_dirty": is_dirty} for commit, is_dirty in commits],
        "roots": _sorted(contents.roots),
        "evaluations": _sorted(contents.evaluations),
        "numerics": _sorted(contents.numerics),
        "files": {
            name: {"sha256": _sha256((staging / name).read_bytes()), "rows": num_rows[name]} for name in num_rows
        },
        "planned": None if contents.planned is None else _sorted(contents.planned),
    }


def _num_curve_rows(contents: Contents) -> int:
    return sum(len(curve["tokens"]) for curve in contents.curves.values())


def _core_hours(rows: Sequence[RunRecord | DecayRecord]) -> float | None:
    """None if a row's time is not known."""
    seconds = [row.core_seconds for row in rows]
    return None if None in seconds else round(sum(s for s in seconds if s is not None) / 3600, 6)


def _planned_tokens(planned: Mapping[str, Recipe], roots: Mapping[str, str]) -> int:
    return unique_tokens(list(planned.values()), [roots[run] for run in planned])


def _sorted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: values[key] for key in sorted(values)}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Reading


def _require_shape(manifest: dict[str, Any]) -> None:
    """Touches everything that readers rely on."""
    needed = ("name", "description", "complete", "missing", "totals", "commits", "evaluations", "numerics", "planned")
    for key in needed:
        manifest[key]
    for name in DATA_FILES:
        manifest["files"][name]["sha256"], manifest["files"][name]["rows"]
    for name in ("trunk", "decay"):
        manifest["totals"][f"{name}_tokens"], manifest["totals"][f"{name}_core_hours"]
    for entry in manifest["roots"].values():
        entry["root"]["corpus"], entry["setup"]["corpus"], entry["corpus"]
    for entry in (manifest["planned"] or {}).values():
        entry["seed"], entry["max_epochs"], entry["phases"], manifest["roots"][entry["root"]]


def _read_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    path = find(folder, name)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {REMEDY}") from None
    if _sha256(content) != manifest["files"][name]["sha256"]:
        raise InputError(f"{path} is cut, damaged or another table's (its sha256 is not the manifest's): {REMEDY}")
    try:
        return dict(read_columns(content))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): {REMEDY}") from None


def _read_records(columns: Mapping[str, Any], kind: Any) -> list[Any]:
    types = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    values = {name: _plain(columns[name], types[name]) for name in types}
    return [kind(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]


def _plain(column: Any, kind: str) -> list[Any]:
    """Python's own values, None where a column may have none."""
    if kind == "tuple[str, ...]":
        return [tuple(cell) for cell in column]
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [None if value != value else value for value in values] if kind == "float | None" else values


def _read_curves(columns: Mapping[str, Any]) -> dict[str, Curve]:
    names = [decay or run for run, decay in zip(columns["run"], columns["decay"], strict=True)]
    starts = [k for k in range(len(names)) if k == 0 or names[k] != names[k - 1]]
    curves = {}
    for start, end in zip(starts, [*starts[1:], len(names)], strict=True):
        curve = {name: values[start:end] for name, values in columns.items() if name not in ("run", "decay")}
        measured = {name: values for name, values in curve.items() if name == "tokens" or not np.isnan(values).all()}
        curves[names[start]] = measured
    return curves
