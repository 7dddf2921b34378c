"""Files that are either there whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isotune.errors import InputError

FORMAT = 1  # of every file of a study; old versions stay readable from release 0.1.0 on
LOCK = "lock"  # in an attempt's folder, locked by the process that trains there
PARTS = (".*.part", ".tmp??????")  # names of unfinished files: ours, and those that safetensors writes by itself


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a temporary file, then moves it to its place: a kill leaves the old file or the new one."""
    temporary = _temporary(path)
    try:
        write(temporary)
        move(temporary, path)
    except OSError as error:
        if error.filename == str(temporary):  # a name that says nothing to whoever reads the complaint
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            temporary.unlink(missing_ok=True)


def require_writable(folder: Path, option: str) -> None:
    """Refuses a folder, there or to be made, that nothing can be put into: before the work, not after it."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}): choose another {option}") from None


def move(source: Path, path: Path) -> None:
    """Moves a file to its place, once the disk has its content."""
    sync(source)
    os.replace(source, path)
    sync(path.parent)


def remove_parts(folder: Path) -> None:
    """Removes what kills left of unfinished files."""
    for pattern in PARTS:
        for part in folder.glob(pattern):
            part.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, lambda temporary: _dump(temporary, value))


def write_first_json(path: Path, value: dict[str, Any]) -> None:
    """Writes the file unless somebody else has: of several at the same time the first wins."""
    temporary = _temporary(path)
    try:
        _dump(temporary, value)
        try:
            sync(temporary)
            os.link(temporary, path)
        except OSError:  # somebody was first, or the file system has no links
            if not path.exists():
                move(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """What `write_json` wrote."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {remedy}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): {remedy}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise InputError(
            f"{path} has format {found!r}, this version of isotune reads format {FORMAT}: use the version that wrote it"
        )
    return value


def is_locked(path: Path) -> bool:
    """Whether a living process holds this lock; where the file system has none, that it does is assumed."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps({"format": FORMAT, **value}, indent=1, allow_nan=False) + "\n")


def sync(path: Path) -> None:
    """Has the disk keep what was written to this file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
