"""Core-seconds along a run, from the notes that its segments' attempts left."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isotune.recipe import Recipe
from isotune.runs.curve import Row, read_rows
from isotune.runs.study import SegmentRecord


def core_seconds_at(recipe: Recipe, path: Sequence[SegmentRecord], start_tokens: int, tokens: np.ndarray) -> np.ndarray:
    """Core-seconds from `start_tokens` to each position, walking the recipe's segments; NaN where one noted nothing."""
    total, position = np.zeros(len(tokens)), start_tokens
    for record in path:
        end = record.usable_end(recipe)
        if end > position:
            at, seconds = _clock(read_rows(record.folder / "timing.jsonl"), record.segment.start_tokens)
            inside = np.clip(tokens, position, end)
            passed = np.interp(inside, at, seconds) - np.interp(position, at, seconds)
            cores = _num_cores(record) if len(at) > 1 else math.nan
            total += np.where(inside > position, cores * passed, 0.0)
            position = end
    return total


def trained_with(record: SegmentRecord) -> tuple[str, bool] | None:
    """The commit that a segment was trained with, and whether its sources differed from it; None if it noted none."""
    notes = [note for note in read_rows(record.folder / "timing.jsonl") if "commit" in note]
    return (notes[-1]["commit"], notes[-1]["is_dirty"]) if notes else None


def _num_cores(record: SegmentRecord) -> float:
    return record.numerics.threads * record.numerics.world_size if record.numerics else math.nan


def _clock(notes: Sequence[Row], start_tokens: int) -> tuple[list[int], list[float]]:
    """Seconds of useful work as a function of tokens.

    A sitting notes its seconds since it began, again and again. A later one begins at a state of an earlier one, whose
    work beyond that state was lost and does not count.
    """
    at, seconds = [start_tokens], [0.0]
    began, base, latest = start_tokens, 0.0, 0.0
    for note in notes:
        if note["from_tokens"] != began or note["tokens"] <= at[-1] or note["seconds"] < latest:
            began = note["from_tokens"]
            base = float(np.interp(began, at, seconds))
            at, seconds = (
                [*(t for t in at if t < began), began],
                [*(s for t, s in zip(at, seconds, strict=True) if t < began), base],
            )
        latest = note["seconds"]
        if note["tokens"] > at[-1]:
            at, seconds = [*at, note["tokens"]], [*seconds, base + latest]
    return at, seconds
