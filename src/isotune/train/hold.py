"""Which process works in which attempt's folder: locks that the kernel gives back when their holder dies.

They save work, and nothing rests on them: two processes that train the same segment write in folders of their own,
and the first to publish wins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from isotune.runs import Numerics, Segment, SegmentRecord, Study
from isotune.runs.files import LOCK, move, remove_parts
from isotune.train.state import state_tokens

STATE = "state.safetensors"  # an attempt's own last state
WINDOWS = "windows.npy"  # the validation loss of each window at the end
SECONDS_ALONE = 20.0  # to wait for others that look for attempts; they need milliseconds


class Hold:
    """An attempt's folder that this process alone writes to."""

    def __init__(self, folder: Path, descriptor: int | None):
        self.folder, self._descriptor = folder, descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def take(study: Study, segment: Segment, numerics: Numerics, patience_seconds: float = 0.0) -> Hold | None:
    """The furthest attempt at this segment that no living process holds; else a new one, which begins where the
    furthest held one had its last state.

    Whoever knows that a holder is on its way out (its driver died, its claim was taken over) waits with
    `patience_seconds` for it to let go. Attempts with other numerics are left alone: a segment has one kind.
    None if the segment was published meanwhile, by its holder or, where that died just before, by this look.
    """
    is_repeated = study.has(segment.id)
    patient_until = time.monotonic() + patience_seconds
    while True:
        with _alone(study):
            if not is_repeated:
                _settle_all(study, study.interrupted(segment))
                if study.has(segment.id):
                    return None
            others = [folder for folder in study.interrupted(segment) if _has_numerics(study, folder, numerics)]
            furthest = max(map(_position, others), default=-1)
            for folder in others:
                if _position(folder) == furthest and (hold := _hold(folder)) is not None:
                    remove_parts(folder)
                    return hold
            if not others or time.monotonic() >= patient_until:
                return _begin(study, segment, numerics, others)
        time.sleep(0.1)


def publish(study: Study, segment: Segment, hold: Hold) -> bool:
    """Makes the attempt the segment; gives it up, and says False, if another was first."""
    with _alone(study):
        (hold.folder / LOCK).unlink(missing_ok=True)
        is_first = study.publish(hold.folder, segment.id)
        hold.release()
    tidy(study)
    return is_first


def _has_numerics(study: Study, folder: Path, numerics: Numerics) -> bool:
    return (folder / "segment.json").exists() and study.read_record(folder).numerics == numerics


def _begin(study: Study, segment: Segment, numerics: Numerics, others: list[Path]) -> Hold:
    """A new attempt, with the last state, the rows and, where that state is the end, the windows of the furthest."""
    folder = study.new_attempt(segment, numerics)
    furthest = max(others, key=_position, default=None)
    if furthest is not None and _position(furthest) >= 0:
        with suppress(FileNotFoundError):  # it was published meanwhile
            _copy(furthest, folder)
    return _hold(folder) or Hold(folder, None)


def _copy(attempt: Path, folder: Path) -> None:
    """The state is read first: its rows, and the windows of a last one, were there before it. It is put there last."""
    part = folder / f".{STATE}.part"
    try:
        shutil.copyfile(attempt / STATE, part)
        shutil.copyfile(attempt / "curve.jsonl", folder / "curve.jsonl")
        with suppress(FileNotFoundError):
            shutil.copyfile(attempt / WINDOWS, folder / WINDOWS)
        if (attempt / STATE).exists():  # then nothing of it had gone before it was read
            move(part, folder / STATE)
    finally:
        part.unlink(missing_ok=True)


def _position(folder: Path) -> int:
    return state_tokens(folder / STATE)


def tidy(study: Study) -> None:
    """Publishes what was killed just before its publication, and removes what nobody needs any more."""
    remove_parts(study.folder)
    with _alone(study):
        _settle_all(study, sorted((study.folder / "attempts").glob("*.*")))


def _settle_all(study: Study, folders: list[Path]) -> None:
    """Settles those that no living process holds."""
    for folder in folders:
        hold = _hold(folder) if folder.is_dir() else None
        if hold is not None:
            try:
                _settle(study, folder)
            finally:
                hold.release()


def _settle(study: Study, folder: Path) -> None:
    segment_id = folder.name.partition(".")[0]
    if not (folder / "segment.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    record = study.read_record(folder)
    if study.has(segment_id):
        # Rows that are published may be trained again for a state that was deleted: until it is back, that goes on.
        if study.state_path(record.segment.end_state).exists() or not (folder / STATE).exists():
            shutil.rmtree(folder, ignore_errors=True)
    elif _is_complete(study, record):
        for name in (LOCK, STATE):
            (folder / name).unlink(missing_ok=True)
        remove_parts(folder)
        study.publish(folder, segment_id)


def _is_complete(study: Study, record: SegmentRecord) -> bool:
    if record.status == "finished":
        return study.state_path(record.segment.end_state).exists()
    return record.status == "diverged"


@contextmanager
def _alone(study: Study) -> Iterator[None]:
    """While one process looks for an attempt, makes, publishes or removes one, the others wait; not for ever.

    A process may be suspended in there. What follows is right without the lock too, only less tidy: two processes may
    begin at the same time what one of them would have continued.
    """
    folder = study.folder / "attempts"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        _lock(descriptor, seconds=SECONDS_ALONE)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(0.01)
        except OSError:  # a file system without locks: then every attempt counts as held, and is left alone
            return


def _hold(folder: Path) -> Hold | None:
    """None if a living process holds it."""
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return Hold(folder, descriptor)
