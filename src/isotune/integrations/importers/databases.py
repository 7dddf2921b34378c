"""Whose SQLite file is it? Found out without the tool that wrote it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from isotune.errors import InputError

SQLITE = "sqlite:///"


def require_database(source: str) -> None:
    """Refuses the address of an SQLite file that is not there: libraries would make an empty one of that name."""
    if source.startswith(SQLITE) and not Path(source.removeprefix(SQLITE)).is_file():
        raise InputError(f"{source} does not exist: check the address, which is {SQLITE} and a path")


def has_tables(source: str, names: set[str]) -> bool:
    """Whether the source, a path or an address, is an SQLite file with these tables; reads only."""
    path = Path(source.removeprefix(SQLITE))
    try:
        with open(path, "rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                return False
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            found = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        finally:
            connection.close()
    except (OSError, ValueError, sqlite3.Error):
        return False
    return names <= found
