"""Curves as JSON lines: a row per step, with the columns that were measured at it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError

Row = dict[str, Any]

LONGEST_ROW_BYTES = 1 << 16  # a row with the norms of some hundred matrices has a few thousand


class CurveWriter:
    """Appends rows to a file, first cutting whatever lies beyond the state it continues from."""

    def __init__(self, path: Path, keep_through_tokens: int):
        _cut(path, keep_through_tokens)
        self._file = open(path, "a")  # noqa: SIM115 (closed by close)

    def write(self, rows: Iterable[Row]) -> None:
        self._file.writelines(_line(row) for row in rows)
        self._file.flush()  # for those who watch

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """All whole rows; a last line that a kill tore is dropped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn or empty
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("tokens"), int):
            raise damaged(path, f"in line {number}")
        rows.append(row)
    return rows


def last_tokens(path: Path) -> int:
    """The position of the last whole row, read off the end of the file; -1 if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_ROW_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return -1
    try:
        return int(json.loads(lines[-2])["tokens"]) if len(lines) > 1 else -1
    except (ValueError, KeyError, TypeError):
        return -1


def damaged(path: Path, where: str) -> InputError:
    return InputError(
        f"{path} is damaged {where}: delete the folder {path.parent} and repeat the training command, "
        f"which trains that segment again"
    )


def columns(rows: list[Row]) -> dict[str, np.ndarray]:
    """Rows as columns; what a row lacks is NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: np.array([row.get(name, np.nan) for row in rows], dtype=np.int64 if name == "tokens" else np.float64)
        for name in names
    }


def _cut(path: Path, keep_through_tokens: int) -> None:
    """Shortens the file in place: a kill in between leaves rows that the next cut removes."""
    kept = [row for row in read_rows(path) if row["tokens"] <= keep_through_tokens]
    if path.exists():
        lines = path.read_bytes().split(b"\n")
        os.truncate(path, sum(len(line) + 1 for line in lines[: len(kept)]))


def _line(row: Row) -> str:
    return json.dumps({name: _shortest(value) for name, value in row.items()}, separators=(",", ":")) + "\n"


def _shortest(value: Any) -> Any:
    """A float32 with as many digits as it takes to read the same float32 back."""
    return float(str(value)) if isinstance(value, np.float32) else value
