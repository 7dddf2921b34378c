"""Where a study's sweeps stand, read off its folder alone: while drivers work on it, or after all of them died."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from isotune.runs import Study
from isotune.runs.curve import last_tokens
from isotune.sweep.claims import is_dead_here, read_driver
from isotune.sweep.outcomes import WASTED
from isotune.sweep.plan import Price, Task, make_plan
from isotune.sweep.plans import planned_recipes


@dataclass(frozen=True)
class RunningSegment:
    """A segment that somebody has claimed."""

    words: str
    driver: str
    share: float  # of its tokens that have rows


@dataclass(frozen=True)
class SweepStatus:
    """A study's planned recipes: what is there, who works on what, what went wrong, what lies on the disk."""

    num_recipes: int
    segments: dict[str, int]  # done, diverged, running, waiting, damaged
    price: Price
    running: tuple[RunningSegment, ...]
    failures: tuple[tuple[str, str], ...]  # (segment in words, the last reason) of segments that are still missing
    repeated_tokens: int  # trained again after kills, as the drivers' journals say: a killed driver notes nothing
    wasted_tokens: int  # trained by two drivers, likewise
    disk_bytes: dict[str, int]  # by folder


def sweep_status(study: Study) -> SweepStatus:
    """What the folder says now."""
    recipes = planned_recipes(study) or study.recipes()
    plan = make_plan(recipes, study) if recipes else None
    tasks = plan.tasks if plan else ()
    claims = living_claims(study)
    running = tuple(
        RunningSegment(task.node.words(), claims[task.segment.id], _share(study, task))
        for task in tasks
        if task.segment is not None and task.segment.id in claims
    )
    counts = Counter({"there": "done", "missing": "waiting"}.get(task.status, task.status) for task in tasks)
    counts["waiting"] -= len(running)
    counts["running"] = len(running)
    journal = _journals(study)
    missing = {task.segment.id for task in tasks if task.segment is not None}
    last = {note["segment"]: note for note in journal}
    failures = tuple(
        (note["what"], note["reason"])
        for segment, note in last.items()
        if segment in missing and note["kind"] in ("failed", "crashed", "hung")
    )
    return SweepStatus(
        num_recipes=len(recipes),
        segments={name: counts[name] for name in ("done", "running", "waiting", "diverged", "damaged")},
        price=plan.price if plan else Price(0, 0, 0, 0),
        running=running,
        failures=failures,
        repeated_tokens=sum(note["repeated_tokens"] for note in journal),
        wasted_tokens=sum(note["trained_tokens"] for note in journal if note["kind"] in WASTED),
        disk_bytes=disk_use(study),
    )


def disk_use(study: Study) -> dict[str, int]:
    """Bytes in each folder of the study."""
    folders = ("segments", "states", "attempts", "drivers", "claims", "plans")
    return {name: bytes_in(study.folder / name) for name in folders}


def bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def living_claims(study: Study) -> dict[str, str]:
    """Segment -> driver, of claims whose driver is not known to be dead."""
    claims = {}
    for path in sorted((study.folder / "claims").glob("*.*")):
        segment, _, generation = path.name.partition(".")
        if generation.isdigit():
            try:
                driver = path.read_text()
            except FileNotFoundError:
                continue
            if not is_dead_here(read_driver(study.folder / "drivers" / f"{driver}.json")):
                claims[segment] = driver
    return claims


def _share(study: Study, task: Task) -> float:
    assert task.segment is not None
    folders = study.interrupted(task.segment)
    reached = max((last_tokens(folder / "curve.jsonl") for folder in folders), default=-1)
    return max(0, reached - task.segment.start_tokens) / task.segment.tokens


def _journals(study: Study) -> list[dict]:
    """All drivers' notes, in order of time."""
    notes = []
    for path in (study.folder / "drivers").glob("*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:  # a kill may have torn the last one
            notes.append(json.loads(line))
    return sorted(notes, key=lambda note: note["time"])
