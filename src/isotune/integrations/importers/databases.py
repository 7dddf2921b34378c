"""Whose SQLite file is it? Found out without the tool that wrote it.

Tools bring a database that they open up to their own tables, so they are given copies.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from isotune.errors import InputError

SQLITE = "sqlite:///"
ADDRESS = re.compile(r"sqlite(\+\w+)?:///(?P<path>[^?]*)", re.IGNORECASE)
TABLES = {"mlflow": {"latest_metrics", "runs"}, "optuna": {"studies", "trials"}}  # that tell whose a database is


def is_database_of(kind: str, source: str) -> bool:
    """Whether the source, a path or an address, is an SQLite file of this kind or Optuna's journal; reads only."""
    return _has_tables(source, TABLES[kind]) or (kind == "optuna" and is_journal(source))


def require_database(source: str, kind: str) -> None:
    """Refuses a file, or the address of an SQLite file, that is not there or of another kind."""
    path = local_file(source)
    if path is None or is_database_of(kind, source):
        return
    if not path.is_file():
        raise InputError(f"{source} does not exist: check the address, which is {SQLITE} and a path")
    for other in TABLES:
        if is_database_of(other, source):
            raise InputError(f"{source} is a database of {other}, not of {kind}: give kind={other} (--kind {other})")
    raise InputError(
        f"{source} is no database of {kind} (an SQLite file with the tables {' and '.join(sorted(TABLES[kind]))}): "
        "check its name, or leave kind= (--kind) out"
    )


@contextmanager
def copied(source: str) -> Iterator[str]:
    """The address of a copy of an SQLite file, for a while; other addresses as they are."""
    path = local_file(source)
    if path is None or is_journal(source):
        yield source
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "copy.db"
        try:
            with closing(_connect(path)) as theirs, closing(sqlite3.connect(copy)) as ours:
                theirs.backup(ours)
        except sqlite3.Error as error:
            raise InputError(f"{source} cannot be read ({error}): check the file and the space in {folder}") from None
        yield f"{SQLITE}{copy}"


def local_file(source: str) -> Path | None:
    """The file that an SQLite address names, or the source itself if it is one; None for what is neither."""
    return path_of_address(source) or (Path(source) if Path(source).is_file() else None)


def path_of_address(source: str) -> Path | None:
    """The path of an SQLite address; None for what is none."""
    address = ADDRESS.match(source)
    return Path(address["path"]) if address else None


def is_journal(source: str) -> bool:
    """Whether the file's first line is an operation of Optuna's journal."""
    try:
        with open(source, "rb") as file:
            return b'"op_code"' in file.readline(1000)
    except (OSError, ValueError):
        return False


def _has_tables(source: str, names: set[str]) -> bool:
    try:
        path = local_file(source)
        if path is None:
            return False
        with open(path, "rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                return False
        with closing(_connect(path)) as connection:
            found = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
    except (OSError, ValueError, sqlite3.Error):
        return False
    return names <= found


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
