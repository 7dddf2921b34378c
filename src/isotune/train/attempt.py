"""A segment being trained: its rows, its last state, and at the end its publication. Only the first process writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isotune.recipe import Step
from isotune.runs import CurveWriter, Numerics, Row, Segment, Study, read_rows, write_whole
from isotune.runs.provenance import source_commit
from isotune.runs.trajectory import Status
from isotune.train.evaluation import Measured
from isotune.train.hold import STATE, WINDOWS, Hold, publish, take
from isotune.train.state import state_tokens
from isotune.train.trainer import Trainer

STEP_COLUMNS = ("train_loss", "gradient_norm", "clip_factor")

# Rows are fetched from the device after this many steps: often enough to notice a divergence, seldom enough for a GPU.
STEPS_BETWEEN_ROWS = 32
SECONDS_BETWEEN_ROWS = 2.0  # where steps are slow; on one process only, since several must agree

Observer = Callable[[Step, Row], None]


class AlreadyPublished(Exception):
    """Another process has trained the segment meanwhile."""


class Attempt:
    """Collects what steps return and writes it; continues where a killed attempt at the same segment stopped."""

    def __init__(
        self,
        study: Study,
        segment: Segment,
        trainer: Trainer,
        numerics: Numerics,
        observers: Sequence[Observer],
        save_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        patience_seconds: float = 0.0,
    ):
        self.study, self.segment, self.trainer, self.numerics = study, segment, trainer, numerics
        self.observers, self.save_seconds, self.clock = observers, save_seconds, clock
        self.world = trainer.world
        self.diverged_at_tokens: int | None = None
        self._pending: list[tuple[Step, Tensor]] = []
        self._rows: list[tuple[Step, Row]] = []
        self.is_published = False
        self.repeated_tokens = 0  # trained before, but lost by a kill after the last state
        self._hold: Hold | None = take(study, segment, numerics, patience_seconds) if self.world.is_first else None
        self._curve: CurveWriter | None = None
        try:
            folder = self.world.agreed(self._hold and self._hold.folder)
            if folder is None:
                raise AlreadyPublished(segment.id)
            self.folder: Path = folder
            self.start_tokens: int = self.world.agreed(self._resume_position())
            self.reached_tokens = self.start_tokens
            self._load()
            if self.world.is_first:
                keep_through = self.start_tokens if self._has_own_state() else -1
                self._curve = CurveWriter(self.folder / "curve.jsonl", keep_through)
        except BaseException:
            self.close()
            raise
        self._began = self._saved = self._collected = clock()

    # While training

    def add(self, step: Step, values: Tensor) -> None:
        """Keeps a step's values where they are: a transfer at every step would stall a GPU."""
        self._pending.append((step, values))

    @property
    def has_diverged(self) -> bool:
        return self.diverged_at_tokens is not None

    @property
    def wants_rows(self) -> bool:
        """Whether it is time to fetch the pending steps from the device: after some steps, or if they are slow."""
        is_slow = self.world.size == 1 and self.clock() - self._collected >= SECONDS_BETWEEN_ROWS
        return len(self._pending) >= STEPS_BETWEEN_ROWS or is_slow

    def collect(self) -> None:
        """Turns the pending steps into rows, up to the first whose loss or gradient is not finite."""
        steps = [step for step, _ in self._pending]
        table = torch.stack([values for _, values in self._pending])
        table[:, 0] = self.world.mean(table[:, 0].contiguous())
        self._pending.clear()
        self._collected = self.clock()
        for step, values in zip(steps, table.cpu().numpy(), strict=True):
            if not np.isfinite(values).all():
                self.diverged_at_tokens = step.tokens
                break
            self._rows.append((step, {"tokens": step.tokens} | dict(zip(STEP_COLUMNS, values, strict=True))))

    def write(self, measured: Measured) -> None:
        """Writes the rows, the last one with what was measured after its step."""
        if not measured.is_finite:
            self.diverged_at_tokens = self._rows.pop()[0].tokens
        elif self._rows:
            self._rows[-1][1].update(measured.columns)
        if self._curve is not None:
            losses = measured.window_losses
            if losses is not None and not self.has_diverged:
                write_whole(self.folder / WINDOWS, lambda path: _save_array(path, losses))
            self._curve.write(row for _, row in self._rows)
            for observer in self.observers:
                for step, row in self._rows:
                    observer(step, row)
            if self._rows:
                self.reached_tokens = self._rows[-1][0].tokens
        self._rows.clear()

    def write_start(self, measured: Measured) -> None:
        """Writes the row of position 0."""
        if self._curve is not None and measured.columns and measured.is_finite:
            self._curve.write([{"tokens": 0} | measured.columns])

    def keep_state(self, tokens: int) -> None:
        """Leaves the state where recipes that branch off here will find it."""
        if self._curve is not None:
            recipe = self.segment.recipe
            # Written here and moved: what a kill leaves of it is then known to be nobody's.
            part = self.folder / ".kept.part"
            self.trainer.save(part, tokens, recipe.steps_at(tokens))
            self.study.keep_state(part, recipe.state_id(self.segment.corpus_fingerprint, tokens))

    def save_if_due(self, tokens: int) -> None:
        if self.world.is_first and self.clock() - self._saved >= self.save_seconds:
            self.save(tokens)

    def save(self, tokens: int) -> None:
        """Rows first, then the state: a state on disk always has its rows."""
        if self._curve is not None:
            self._curve.sync()
            self.trainer.save(self._own_state, tokens, self.segment.recipe.steps_at(tokens))
            self._note_time(tokens)
            self._saved = self.clock()

    def finish(self) -> None:
        """Publishes the segment, finished or diverged.

        In this order a kill between any two lines loses nothing: until the state has moved, the attempt continues from
        its own; once it has, the attempt is complete, and whoever comes next publishes it (see `hold.tidy`).
        """
        self.write(Measured())
        if self._curve is not None and self._hold is not None:
            if self.diverged_at_tokens is None:
                self.save(self.segment.end_tokens)
            else:
                self._curve.sync()
                self._note_time(self.diverged_at_tokens)
            status: Status = "diverged" if self.has_diverged else "finished"
            self.study.describe(self.folder, self.segment, self.numerics, status, self.diverged_at_tokens)
            if self.has_diverged:
                self._own_state.unlink(missing_ok=True)
            else:
                self.study.keep_state(self._own_state, self.segment.end_state)
            self.is_published = publish(self.study, self.segment, self._hold)
        self.world.agreed(None)  # the others go on only when the state is there

    def close(self) -> None:
        """Lets go of an unfinished attempt, for another process to continue."""
        try:
            if self._curve is not None:
                self._curve.close()
        finally:
            if self._hold is not None:
                self._hold.release()

    # Beginning

    def _resume_position(self) -> int:
        if not self.world.is_first:
            return 0
        tokens = state_tokens(self._own_state)
        rows = read_rows(self.folder / "curve.jsonl")
        if tokens <= self.segment.start_tokens or not any(row["tokens"] == tokens for row in rows):
            tokens = self.segment.start_tokens
        self.repeated_tokens = max(0, rows[-1]["tokens"] - tokens) if rows else 0
        return tokens

    def _load(self) -> None:
        if self._has_own_state():
            self.trainer.load(self._own_state)
        elif self.segment.start_tokens:
            self.trainer.load(self.study.state_path(self.segment.start_state))
        else:
            self.trainer.start(self.segment.recipe.setup.seed)

    @property
    def _own_state(self) -> Path:
        return self.folder / STATE

    def _has_own_state(self) -> bool:
        return self.start_tokens > self.segment.start_tokens

    def _note_time(self, tokens: int) -> None:
        seconds = round(self.clock() - self._began, 3)
        commit, is_dirty = source_commit()
        note = {
            "from_tokens": self.start_tokens,
            "tokens": tokens,
            "seconds": seconds,
            "commit": commit,
            "is_dirty": is_dirty,
        }
        with open(self.folder / "timing.jsonl", "a") as file:
            file.write(json.dumps(note) + "\n")


def _save_array(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)
