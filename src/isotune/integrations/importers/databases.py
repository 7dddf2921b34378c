"""Whose SQLite file is it? Found out without the tool that wrote it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

SQLITE = "sqlite:///"


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
