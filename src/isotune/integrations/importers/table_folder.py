"""Our own replay tables: every trunk, and every decay behind its trunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isotune.integrations.importers.contract import Notes
from isotune.integrations.importers.options import Options
from isotune.runs import Trajectory, read_table

NAME = "table"
NAMES: Mapping[str, str] = {}


def recognizes(source: Any) -> bool:
    return isinstance(source, str) and all((Path(source) / n).is_file() for n in ("manifest.json", "runs.parquet"))


def read(source: Any, options: Options, notes: Notes) -> Iterator[Trajectory]:
    """Runs first, then decays; a whole run (cosine) is there once."""
    table = read_table(source)
    names = [run.run for run in table.runs()]
    for name in dict.fromkeys([*names, *(decay.decay for decay in table.decays())]):
        yield table.trajectory(name)
