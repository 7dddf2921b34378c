"""A study: a folder with every trajectory and state of one root, seeds apart.

    study.json                      what all its runs share: root, evaluation grid, pinned numerics
    segments/<id>/segment.json      a stretch of training between two states: whose, from where to where, how it ended
    segments/<id>/curve.jsonl       its rows
    segments/<id>/timing.jsonl      wall-clock values, kept apart so that equal runs have equal curves
    segments/<id>/windows.npy       per-window validation losses, where a decay ended
    states/<id>.safetensors         parameters and moments
    attempts/<id>.<name>/           a segment being trained, with its own last state; published by one rename

Files appear whole or not at all; curves grow, and a last line that a kill tore is dropped.
"""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from isotune.errors import InputError
from isotune.recipe import (
    Recipe,
    Setup,
    canonical,
    digest,
    recipe_from_table,
    recipe_to_table,
    shared_tokens,
)
from isotune.runs.curve import Row, columns, damaged, read_rows
from isotune.runs.files import move, read_json, sync, write_first_json, write_json
from isotune.runs.trajectory import Status, Trajectory
from isotune.runs.words import run_info


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured beside the steps, and where on the token axis.

    A trunk is evaluated on `windows` fixed validation windows whenever its tokens pass a multiple of `every_tokens`
    (0: never); where a decay ends, also on `final_windows`, of which each window's loss is kept. Gradient noise is
    measured whenever the tokens pass a multiple of `noise_every_tokens`, on `noise_sequences` fresh sequences where a
    step has only one microbatch.
    """

    every_tokens: int
    windows: int = 512
    final_windows: int = 4096
    noise_every_tokens: int = 0
    noise_sequences: int = 8

    def __post_init__(self) -> None:
        if self.every_tokens < 0 or self.windows < 1 or self.final_windows < self.windows:
            raise InputError(
                f"evaluation every {self.every_tokens} tokens on {self.windows} windows ({self.final_windows} at the "
                f"end) is impossible: use tokens of at least 0 and at least as many windows at the end as before"
            )
        if self.noise_every_tokens < 0 or self.noise_sequences < 2:
            raise InputError(
                f"noise every {self.noise_every_tokens} tokens on {self.noise_sequences} sequences is impossible: use "
                f"tokens of at least 0 and at least 2 sequences"
            )

    def is_due(self, tokens_before: int, tokens: int) -> bool:
        return _passes(self.every_tokens, tokens_before, tokens)

    def noise_is_due(self, tokens_before: int, tokens: int) -> bool:
        return _passes(self.noise_every_tokens, tokens_before, tokens)


def _passes(grid_tokens: int, before: int, after: int) -> bool:
    return grid_tokens > 0 and after // grid_tokens > before // grid_tokens


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """What decides the bytes of a run beside its recipe."""

    torch: str
    device: str
    compiled: bool
    threads: int
    micro_batch_size: int | None  # None: the whole batch at once
    world_size: int


@dataclass(frozen=True)
class Segment:
    """A stretch of a recipe between two states; the recipe ends where the segment does."""

    recipe: Recipe
    start_tokens: int
    corpus_fingerprint: str

    @property
    def end_tokens(self) -> int:
        return self.recipe.tokens

    @property
    def tokens(self) -> int:
        return self.end_tokens - self.start_tokens

    @cached_property
    def start_state(self) -> str:
        return self.recipe.state_id(self.corpus_fingerprint, self.start_tokens)

    @cached_property
    def end_state(self) -> str:
        return self.recipe.state_id(self.corpus_fingerprint, self.end_tokens)

    @cached_property
    def id(self) -> str:
        return digest([self.start_state, self.end_state])


@dataclass(frozen=True)
class SegmentRecord:
    """A segment as it lies on disk."""

    segment: Segment
    status: Status
    folder: Path
    diverged_at_tokens: int | None = None
    numerics: Numerics | None = None
    curve_bytes: int | None = None  # None in studies that did not note it

    def require_whole(self) -> None:
        """Refuses a curve that is not as long as when it was published; `rows` looks closer."""
        path = self.folder / "curve.jsonl"
        size = path.stat().st_size if path.exists() else 0
        if self.curve_bytes not in (None, size):
            raise damaged(path, f"(it has {size} of {self.curve_bytes} bytes)")

    def rows(self) -> list[Row]:
        """The rows of its curve: all of them, unless it is still being trained."""
        path, recipe = self.folder / "curve.jsonl", self.segment.recipe
        rows = read_rows(path)
        if self.status != "running":
            last = self.segment.end_tokens if self.diverged_at_tokens is None else self.diverged_at_tokens
            num_steps = recipe.steps_at(last) - recipe.steps_at(self.segment.start_tokens)
            num_expected = num_steps if self.diverged_at_tokens is None else num_steps - 1
            num_rows = sum(row["tokens"] > self.segment.start_tokens for row in rows)
            if num_rows != num_expected:
                raise damaged(path, f"(it has {num_rows} of {num_expected} rows)")
        return rows

    def usable_end(self, recipe: Recipe) -> int:
        """How far this segment's rows are rows of the recipe."""
        end = min(self.segment.end_tokens, shared_tokens(self.segment.recipe, recipe))
        return end if self.diverged_at_tokens is None else min(end, self.diverged_at_tokens)

    def diverges_on(self, recipe: Recipe) -> bool:
        """Whether the recipe meets this segment's divergence."""
        if self.diverged_at_tokens is None:
            return False
        return shared_tokens(self.segment.recipe, recipe) >= self.diverged_at_tokens


class Study:
    """Reads and extends the folder; nothing of it is kept in memory but `study.json` and the segments' records."""

    def __init__(self, folder: Path, description: dict[str, Any]):
        self.folder = folder
        self.description = {name: description[name] for name in ("root", "corpus", "evaluation", "numerics")}
        self.root = description["root"]
        self.corpus_name: str = description["corpus"]
        self.corpus_fingerprint: str = self.root["corpus"]
        self.evaluation = Evaluation(**description["evaluation"])
        self.numerics = Numerics(**description["numerics"])
        self._records: dict[str, SegmentRecord] = {}
        self._families: dict[tuple[object, ...], list[SegmentRecord]] = {}
        self._damaged: dict[str, InputError] = {}
        self._damaged_families: dict[str, tuple[object, ...]] = {}  # of those whose description can be read
        self._is_fixed = False

    # Making and opening

    @classmethod
    def create(
        cls, folder: Path, setup: Setup, corpus_name: str, fingerprint: str, evaluation: Evaluation, numerics: Numerics
    ) -> Study:
        """A new study in an empty or absent folder; the one that is there if somebody else was faster."""
        description = {
            "root": _root_without_seed(setup, fingerprint),
            "corpus": corpus_name,
            "evaluation": dataclasses.asdict(evaluation),
            "numerics": dataclasses.asdict(numerics),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_first_json(folder / "study.json", _remembered(folder) or description)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise InputError(f"{folder} cannot be written ({error.strerror}): choose another --study folder") from None
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Study:
        """The study in this folder."""
        path = folder / "study.json"
        if not path.exists():
            raise InputError(f"{folder} is not a study (it has no study.json): give one that `isotune train` wrote")
        remedy = "restore it from a copy, or delete this file alone and repeat the training command, which rewrites it"
        description = read_json(path, remedy)
        try:
            return cls(folder, description)
        except (KeyError, TypeError, AttributeError, InputError) as error:
            raise InputError(f"{path} is damaged ({error!r}): {remedy}") from None

    @staticmethod
    def may_begin_in(folder: Path) -> bool:
        """Whether nothing foreign is in the folder: a study killed at its very beginning is not foreign."""
        if not folder.exists():
            return True
        own = ("segments", "states", "attempts", "claims", "drivers", "plans")
        return folder.is_dir() and all(p.name in own or p.match(".study.json.*.part") for p in folder.iterdir())

    def require_root(self, setup: Setup, fingerprint: str) -> None:
        """Refuses a setup whose runs do not belong here."""
        asked = _root_without_seed(setup, fingerprint)
        differences = [name for name in asked if asked[name] != self.root.get(name)]
        if differences:
            raise InputError(
                f"the study {self.folder} holds runs with another {' and another '.join(differences)}: "
                f"use another --study folder"
            )

    # Reading

    def records(self) -> list[SegmentRecord]:
        """All published segments; an error if one cannot be read."""
        for error in self.damaged().values():
            raise error
        return list(self._records.values())

    def damaged(self) -> dict[str, InputError]:
        """What is wrong with which published segment: a description that cannot be read, a curve that was cut."""
        self._read_new_records()
        return dict(self._damaged)

    def attempts(self) -> list[SegmentRecord]:
        """Segments that are being trained, or whose training was interrupted."""
        records = []
        for folder in _folders(self.folder / "attempts"):
            if (folder / "segment.json").exists() and not self.has(_segment_id(folder)):
                try:
                    records.append(self.read_record(folder))
                except InputError:
                    if (folder / "segment.json").exists():  # it was not published meanwhile
                        raise
        return records

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Looks at the folder now and not again: a plan asks thousands of times, and wants one answer."""
        self._read_new_records()
        self._is_fixed = True
        try:
            yield
        finally:
            self._is_fixed = False

    def has(self, segment_id: str) -> bool:
        """Whether this segment is published."""
        return (self.folder / "segments" / segment_id / "segment.json").exists()

    def recipes(self) -> list[Recipe]:
        """The recipes that end where nothing continues them: the leaves of the prefix tree."""
        records = [*self.records(), *self.attempts()]
        continued = {record.segment.start_state for record in records}
        leaves = {r.segment.end_state: r.segment.recipe for r in records if r.segment.end_state not in continued}
        return list(leaves.values())

    def reached(self, recipe: Recipe) -> tuple[int, bool]:
        """How many tokens of this recipe are published, and whether it is known to diverge."""
        path = self.path(recipe)
        return (path[-1].usable_end(recipe), path[-1].diverges_on(recipe)) if path else (0, False)

    def trajectory(self, recipe: Recipe) -> Trajectory:
        """All rows of this recipe, found by walking its prefix; status `running` if some are missing."""
        rows: list[Row] = []
        position, diverged = -1, False
        for record in self.path(recipe):
            end = record.usable_end(recipe)
            rows += [row for row in record.rows() if position < row["tokens"] <= end]
            position, diverged = end, record.diverges_on(recipe)
        status: Status = "diverged" if diverged else "finished" if position >= recipe.tokens else "running"
        if status == "running":
            self._require_readable(recipe)
            rows += self._running_rows(recipe, position)
        table = columns(rows)
        table.setdefault("tokens", np.zeros(0, dtype=np.int64))
        settings = settings_columns(recipe, table["tokens"])
        return Trajectory(settings | table, run_info(recipe, status, str(self.folder)))

    def missing(self, recipe: Recipe) -> list[Segment]:
        """The segments that must be trained for this recipe, in order: none if it is finished or known to diverge."""
        reached, diverges = self.reached(recipe)
        if reached >= recipe.tokens or diverges:
            return []
        self._require_readable(recipe)
        start = max(tokens for tokens in self.positions(recipe) if tokens <= reached and self._rests(recipe, tokens))
        ends = [end for end in _phase_ends(recipe) if end > start]
        return [self.segment(recipe, a, b) for a, b in zip([start, *ends], ends, strict=False)]

    def _require_readable(self, recipe: Recipe) -> None:
        """Refuses if what is missing of the recipe may be there, but damaged: it must not be trained beside that."""
        family = _family(recipe)
        for name, error in self._damaged.items():
            if self._damaged_families.get(name, family) == family:
                raise error

    def segment(self, recipe: Recipe, start_tokens: int, end_tokens: int) -> Segment:
        return Segment(Recipe(recipe.setup, recipe.prefix(end_tokens)), start_tokens, self.corpus_fingerprint)

    def run_id(self, recipe: Recipe) -> str:
        """A short name for a run: the beginning of its final state's address."""
        return recipe.state_id(self.corpus_fingerprint, recipe.tokens)[:8]

    def state_path(self, state_id: str) -> Path:
        return self.folder / "states" / f"{state_id}.safetensors"

    # Writing

    def new_attempt(self, segment: Segment, numerics: Numerics) -> Path:
        """A folder for training this segment, already describing it."""
        folder = self.folder / "attempts" / f"{segment.id}.{uuid.uuid4().hex[:8]}"
        folder.mkdir(parents=True)
        sync(folder.parent)
        self.describe(folder, segment, numerics, "running")
        return folder

    def describe(
        self, folder: Path, segment: Segment, numerics: Numerics, status: Status, diverged_at_tokens: int | None = None
    ) -> None:
        record = {
            "start": {"tokens": segment.start_tokens, "state": segment.start_state},
            "end": {"tokens": segment.end_tokens, "state": segment.end_state},
            "recipe": recipe_to_table(segment.recipe),
            "status": status,
            "diverged_at_tokens": diverged_at_tokens,
            "curve_bytes": None if status == "running" else (folder / "curve.jsonl").stat().st_size,
            "numerics": dataclasses.asdict(numerics),
            "study": self.description,  # should study.json get lost
        }
        write_json(folder / "segment.json", record)

    def interrupted(self, segment: Segment) -> list[Path]:
        """Attempts at this segment that another process left, or is still working on."""
        return sorted((self.folder / "attempts").glob(f"{segment.id}.*"))

    def keep_state(self, path: Path, state_id: str) -> None:
        """Moves an attempt's state to where all recipes find it."""
        place = self.state_path(state_id)
        place.parent.mkdir(exist_ok=True)
        move(path, place)

    def publish(self, attempt: Path, segment_id: str) -> bool:
        """Makes an attempt the segment by one rename; False if another attempt was first."""
        place = self.folder / "segments" / segment_id
        place.parent.mkdir(exist_ok=True)
        try:
            attempt.rename(place)
        except OSError:
            if not self.has(segment_id):
                raise
            return False
        sync(place.parent)
        return True

    # Walking prefixes

    def path(self, recipe: Recipe) -> list[SegmentRecord]:
        """Published segments that cover the recipe from 0 on without a gap, as far as they reach."""
        left = [(record.segment.start_tokens, record.usable_end(recipe), record) for record in self._relatives(recipe)]
        path: list[SegmentRecord] = []
        position = 0
        while position < recipe.tokens and not (path and path[-1].diverges_on(recipe)):
            reachable = [(end, record) for start, end, record in left if start <= position < end]
            if not reachable:
                break
            position, record = max(reachable, key=lambda pair: pair[0])
            path.append(record)
        return path

    def _running_rows(self, recipe: Recipe, position: int) -> list[Row]:
        """What is known beyond the published rows: from the attempt that has come furthest."""
        furthest: list[Row] = []
        for record in self.attempts():
            if _family(record.segment.recipe) != _family(recipe) or record.segment.start_tokens > max(position, 0):
                continue
            end = record.usable_end(recipe)
            rows = [row for row in read_rows(record.folder / "curve.jsonl") if position < row["tokens"] <= end]
            furthest = max(furthest, rows, key=len)
        return furthest

    def positions(self, recipe: Recipe) -> set[int]:
        """Where states of this recipe may lie: the ends of its segments, and its octaves."""
        ends = {0, *octaves(recipe)}
        for record in self._relatives(recipe):
            if record.segment.end_tokens <= shared_tokens(record.segment.recipe, recipe):
                ends.add(record.segment.end_tokens)
        return ends

    def _rests(self, recipe: Recipe, tokens: int) -> bool:
        return tokens == 0 or self.state_path(recipe.state_id(self.corpus_fingerprint, tokens)).exists()

    def _relatives(self, recipe: Recipe) -> list[SegmentRecord]:
        """The published segments that may share something with the recipe."""
        self._read_new_records()
        return self._families.get(_family(recipe), [])

    def _read_new_records(self) -> None:
        """Reads what was published since; a segment never changes once it is there."""
        if self._is_fixed:
            return
        folder = self.folder / "segments"
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            if name in self._records or name in self._damaged or not (folder / name).is_dir():
                continue
            try:
                record = self.read_record(folder / name)
                family = _family(record.segment.recipe)
            except InputError as error:
                self._damaged[name] = error
                continue
            try:
                record.require_whole()
            except InputError as error:
                self._damaged[name], self._damaged_families[name] = error, family
                continue
            self._records[name] = record
            self._families.setdefault(family, []).append(record)

    def read_record(self, folder: Path) -> SegmentRecord:
        """The segment in this folder, published or not."""
        path = folder / "segment.json"
        remedy = f"delete the folder {folder} and repeat the training command, which trains that segment again"
        value = read_json(path, remedy)
        try:
            recipe = recipe_from_table(value["recipe"], str(path))
            segment = Segment(recipe, value["start"]["tokens"], self.corpus_fingerprint)
            numerics = Numerics(**value["numerics"])
            record = SegmentRecord(
                segment, value["status"], folder, value["diverged_at_tokens"], numerics, value.get("curve_bytes")
            )
            is_sound = segment.id == _segment_id(folder) and record.status in get_args(Status)
        except (KeyError, TypeError, InputError) as error:
            raise InputError(f"{path} is damaged ({error!r}): {remedy}") from None
        if not is_sound:
            raise InputError(f"{path} does not describe the segment of its folder's name: {remedy}")
        return record


def octaves(recipe: Recipe) -> list[int]:
    """The token grid of states: where a run reaches a power of two, from one token per parameter on.

    A decay that nobody planned then costs at most the half of its trunk, for a handful of states.
    """
    powers = (2**k for k in range(recipe.tokens.bit_length()))
    return [recipe.end_of_step(p) for p in powers if recipe.setup.model.num_parameters <= p <= recipe.tokens]


def settings_columns(recipe: Recipe, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Number and settings of the step that ends at each row: derived from the recipe, so never stored."""
    step, learning_rate, weight_decay, batch_size = recipe.settings_at(tokens)
    return {"step": step, "learning_rate": learning_rate, "weight_decay": weight_decay, "batch_size": batch_size}


def _folders(folder: Path) -> list[Path]:
    """The folders in it; none if tools that copy files alone left it out."""
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _family(recipe: Recipe) -> tuple[object, ...]:
    """What recipes must have in common to share any token: the seed and the settings of the first phase."""
    first = recipe.phases[0]
    return recipe.setup.seed, first.learning_rate, first.weight_decay, first.batch_size


def _segment_id(folder: Path) -> str:
    return folder.name.partition(".")[0]


def _remembered(folder: Path) -> dict[str, Any] | None:
    """The study's description as any of its segments remembers it; None if there is none."""
    for kind in ("segments", "attempts"):
        for segment in _folders(folder / kind):
            if (segment / "segment.json").exists():
                value = read_json(segment / "segment.json", f"delete the folder {segment} and repeat the command")
                if isinstance(value.get("study"), dict):
                    return dict(value["study"])
    return None


def _phase_ends(recipe: Recipe) -> list[int]:
    ends, position = [], 0
    for phase in canonical(recipe.phases):
        position += phase.tokens
        ends.append(position)
    return ends


def _root_without_seed(setup: Setup, fingerprint: str) -> dict[str, Any]:
    root = setup.root(fingerprint)
    return {name: value for name, value in root.items() if name != "seed"}
