"""Files that are either there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isotune.errors import InputError

FORMAT = 1  # of every file of a study; old versions stay readable from release 0.1.0 on


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary file, then moves it to its place: a kill leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, **value}, indent=1, allow_nan=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text))


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the folder's name") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it from a copy, or delete {path.parent} and repeat") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise InputError(
            f"{path} has format {found!r}, this version of isotune reads format {FORMAT}: use the version that wrote it"
        )
    return value


def sync(path: Path) -> None:
    """Has the disk keep what was written to this file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
