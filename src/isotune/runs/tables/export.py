"""Studies -> a table: their published segments as trunks, decays and thinned curves."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.recipe import Recipe, digest, falling_tokens, recipe_to_table
from isotune.runs.curve import Row, columns, damaged
from isotune.runs.provenance import source_commit
from isotune.runs.study import SegmentRecord, Study
from isotune.runs.tables.contents import (
    WINDOW_LOSS_QUANTUM,
    Contents,
    Curve,
    Provenance,
    decay_record,
    fingerprint_of,
    root_entry,
    root_id,
    run_record,
)
from isotune.runs.tables.folder import is_table, write_contents
from isotune.runs.tables.merge import union
from isotune.runs.tables.prefixes import continues, plain, trunk_of
from isotune.runs.tables.reader import Table, read_table
from isotune.runs.tables.timing import core_seconds_at, trained_with
from isotune.runs.trajectory import Status

# Measured at every step; a table keeps their means over the steps since its previous row.
STEP_COLUMNS = ("train_loss", "gradient_norm", "clip_factor")


def export_table(
    studies: Sequence[Study],
    folder: Path,
    *,
    name: str,
    description: str = "",
    planned: Sequence[Recipe] | None = None,
    replace: bool = False,
) -> Table:
    """The table of everything that the studies have published, written into the folder.

    With `planned`, the table says whether these recipes are all there, and which are not. A table that is there
    already is refused unless `replace` says otherwise.
    """
    folder = Path(folder)
    _require_room(folder, replace)
    contents = _collect(studies, name, description)
    if planned is not None:
        contents = _with_plan(contents, planned)
    write_contents(folder, contents)
    return read_table(folder)


def _require_room(folder: Path, replace: bool) -> None:
    if is_table(folder):
        if not replace:
            raise InputError(
                f"{folder} holds a table already: export to another folder and add it with `isotune table merge`, "
                f"or replace it with --replace"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there and is no table: choose a new or empty folder")


def _collect(studies: Sequence[Study], name: str, description: str) -> Contents:
    if not studies:
        raise InputError("a table is made of at least one study: give the folder of one")
    collected = [_collect_study(study, name, description) for study in studies]
    contents = collected[0]
    for study, other in zip(studies[1:], collected[1:], strict=True):
        contents, _ = union(contents, other, f"the study {study.folder}")
    return contents


def _collect_study(study: Study, name: str, description: str) -> Contents:
    """One study as a table."""
    done = _ends(study)
    if not done:
        raise InputError(f"the study {study.folder} has no finished segment yet: train something first")
    fingerprint, evaluation = study.corpus_fingerprint, dataclasses.asdict(study.evaluation)
    first = plain(next(iter(done.values())).segment.recipe)
    root = root_id(first.setup, fingerprint)
    contents = Contents(
        name=name,
        description=description,
        roots={root: root_entry(first, fingerprint, study.corpus_name)},
        evaluations={digest(evaluation): evaluation},
        numerics={},
        planned=None,
        runs={},
        decays={},
        curves={},
    )
    source = _Source(study, root, digest(evaluation))
    trunks = _trunks(done.values())
    for recipe in trunks:
        _add_run(contents, source, recipe)
    for record in done.values():
        recipe = record.segment.recipe
        if falling_tokens(recipe) and (recipe.phases[-1].ends_a_decay or record.status == "diverged"):
            _add_decay(contents, source, recipe, trunks)
    return contents


def _ends(study: Study) -> dict[str, SegmentRecord]:
    """The segments where something ends: a decay, or a recipe that nothing continues."""
    records = study.records()
    continued = {record.segment.start_state for record in records}
    return {
        record.segment.end_state: record
        for record in records
        if record.segment.end_state not in continued or record.segment.recipe.phases[-1].ends_a_decay
    }


def _trunks(records: Iterable[SegmentRecord]) -> list[Recipe]:
    """The longest continuations with constant settings: every other trunk is a prefix of one of them."""
    candidates = [trunk for record in records if (trunk := trunk_of(record.segment.recipe)) is not None]
    kept: list[Recipe] = []
    for recipe in sorted(candidates, key=lambda recipe: -recipe.tokens):
        if not any(continues(longer, recipe) for longer in kept):
            kept.append(recipe)
    return kept


@dataclasses.dataclass(frozen=True)
class _Source:
    """The study that rows come from."""

    study: Study
    root: str
    evaluation: str

    def path(self, recipe: Recipe) -> list[SegmentRecord]:
        """The segments of the recipe; refused if some of them were deleted."""
        path = self.study.path(recipe)
        if not path or (path[-1].usable_end(recipe) < recipe.tokens and not path[-1].diverges_on(recipe)):
            reached = path[-1].usable_end(recipe) if path else 0
            raise InputError(
                f"the run {self.study.run_id(recipe)} of {self.study.folder} lacks its segments from {reached} tokens "
                f"on: repeat its training command, which trains them again"
            )
        return path

    def provenance(self, contents: Contents, path: Sequence[SegmentRecord]) -> Provenance:
        """Also enters the numerics of these segments into the table."""
        numerics = [dataclasses.asdict(record.numerics) for record in path if record.numerics is not None]
        contents.numerics.update({digest(values): values for values in numerics})
        commit, is_dirty = trained_with(path[-1]) or source_commit()
        return Provenance(
            root=self.root,
            evaluation=self.evaluation,
            numerics=tuple(dict.fromkeys(digest(values) for values in numerics)),
            commit=commit,
            commit_is_dirty=is_dirty,
        )


def _add_run(contents: Contents, source: _Source, recipe: Recipe) -> str:
    path = source.path(recipe)
    status, diverged_at = _outcome(path, recipe)
    fingerprint = source.study.corpus_fingerprint
    record = run_record(recipe, fingerprint, status, diverged_at, source.provenance(contents, path))
    contents.runs[record.run] = record
    contents.curves[record.run] = _curve(recipe, path, 0)
    return record.run


def _add_decay(contents: Contents, source: _Source, recipe: Recipe, trunks: Sequence[Recipe]) -> None:
    trunk, fingerprint = trunk_of(recipe), source.study.corpus_fingerprint
    path, branch = source.path(recipe), recipe.tokens - falling_tokens(recipe)
    if trunk is None:
        run = _add_run(contents, source, recipe)
        curve = contents.curves[run]
    else:
        longest = next(longer for longer in trunks if continues(longer, trunk))
        run = longest.state_id(fingerprint, longest.tokens)
        path = [record for record in path if record.usable_end(recipe) > branch]
        curve = _curve(recipe, path, branch)
    status, diverged_at = _outcome(path, recipe)
    measured = _losses(path[-1], curve, recipe.tokens)
    provenance = source.provenance(contents, path)
    record = decay_record(recipe, run, fingerprint, status, diverged_at, measured, provenance)
    contents.decays[record.decay] = record
    contents.curves[record.decay] = curve


def _outcome(path: Sequence[SegmentRecord], recipe: Recipe) -> tuple[Status, int | None]:
    last = path[-1]
    return ("diverged", last.diverged_at_tokens) if last.diverges_on(recipe) else ("finished", None)


# Curves


def _curve(recipe: Recipe, path: Sequence[SegmentRecord], start_tokens: int) -> Curve:
    """The rows behind `start_tokens` (from 0 on: with the row of position 0) where something was measured."""
    rows: list[Row] = []
    position = start_tokens if start_tokens else -1
    for record in path:
        end = record.usable_end(recipe)
        rows += [row for row in record.rows() if position < row["tokens"] <= end]
        position = max(position, end)
    table = columns(rows) if rows else {"tokens": np.zeros(0, dtype=np.int64)}
    curve = thinned(table)
    seconds = core_seconds_at(recipe, path, start_tokens, curve["tokens"])
    if not np.isnan(seconds).all():
        curve["core_seconds"] = seconds.astype(np.float32)
    return curve


def thinned(table: dict[str, np.ndarray]) -> Curve:
    """The rows where more than the step itself was measured, and the last one; steps as means since the row before."""
    tokens = table["tokens"]
    kept = np.zeros(len(tokens), dtype=bool)
    for name, values in table.items():
        if name != "tokens" and name not in STEP_COLUMNS:
            kept |= ~np.isnan(values)
    kept[-1:] = True
    rows = np.flatnonzero(kept)
    curve: Curve = {"tokens": tokens[rows].astype(np.int64)}
    for name, values in table.items():
        if name in STEP_COLUMNS:
            curve[name] = _means(values, rows)
        elif name != "tokens":
            curve[name] = values[rows].astype(np.float32)
    if "clip_factor" in table:
        curve["clip_factor_sq"] = _means(table["clip_factor"] ** 2, rows)
    return curve


def _means(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Means over the stretches that end at these rows; NaN where a stretch has no value (before the first step)."""
    there = ~np.isnan(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(there, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(there)))
    ends = np.concatenate(([0], rows + 1))
    number = np.diff(counts[ends])
    with np.errstate(invalid="ignore"):
        return (np.diff(sums[ends]) / np.where(number, number, np.nan)).astype(np.float32)


def _losses(record: SegmentRecord, curve: Curve, tokens: int) -> dict[str, Any]:
    """What was measured where a decay ended."""
    losses: dict[str, Any] = dict.fromkeys(("val_loss", "final_val_loss", "standard_error", "window_losses"))
    if record.status == "diverged" or not len(curve["tokens"]) or curve["tokens"][-1] != tokens:
        return losses
    exact = record.rows()[-1]
    losses |= {name: exact.get(name) for name in ("val_loss", "final_val_loss")}
    path = record.folder / "windows.npy"
    if path.exists():
        try:
            windows = np.load(path).astype(np.float64)
        except (ValueError, OSError, EOFError):
            raise damaged(path, "(it is no array)") from None
        rounded = np.round(windows / WINDOW_LOSS_QUANTUM) * WINDOW_LOSS_QUANTUM
        losses["window_losses"] = rounded.astype(np.float32)
        losses["standard_error"] = windows.std(ddof=1) / math.sqrt(len(windows)) if len(windows) > 1 else None
    return losses


# The plan


def _with_plan(contents: Contents, planned: Sequence[Recipe]) -> Contents:
    """The table with the recipes that it is meant to hold; roots that nothing was trained of yet are entered too."""
    roots, plan = dict(contents.roots), {}
    corpora = {entry["setup"]["corpus"]: entry["corpus"] for entry in roots.values()}
    for recipe in planned:
        fingerprint = fingerprint_of(recipe.setup, contents.roots.values(), "plan only recipes on the studies' corpora")
        root = root_id(recipe.setup, fingerprint)
        roots.setdefault(root, root_entry(recipe, fingerprint, corpora[recipe.setup.corpus]))
        plan[recipe.state_id(fingerprint, recipe.tokens)] = {
            "root": root,
            "seed": recipe.setup.seed,
            "max_epochs": recipe.setup.max_epochs,
            "phases": json.dumps(recipe_to_table(plain(recipe))["phases"], separators=(",", ":")),
        }
    return dataclasses.replace(contents, roots=roots, planned=plan)
