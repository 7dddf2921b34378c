"""Our own studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isotune.integrations.importers.contract import Notes
from isotune.integrations.importers.options import Options
from isotune.runs import Study, Trajectory

NAME = "study"
NAMES: Mapping[str, str] = {}


def recognizes(source: Any) -> bool:
    return isinstance(source, str) and (Path(source) / "study.json").is_file()


def read(source: Any, options: Options, notes: Notes) -> Iterator[Trajectory]:
    """The leaves of the study's prefix tree; a damaged segment is refused, as everywhere."""
    study = Study.open(Path(source))
    for recipe in study.recipes():
        yield study.trajectory(recipe)
