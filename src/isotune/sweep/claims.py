"""Who works on what: claims that any number of drivers make on one study, on one host or on many.

    drivers/<driver>.json           where the driver runs, and its heartbeat: a number that it raises every few seconds
    claims/<segment>.<generation>   the driver that trains this segment; of several generations the highest counts

A claim is made by creating its file, which succeeds for one driver only. A claim is stale if its driver's heartbeat has
not changed for a while on the observer's own clock, so clocks need not agree; or at once, if the driver ran on this
machine and is dead. A stale claim is taken over by creating the next generation. Nothing rests on claims: two drivers
that train the same segment cost time, and the first to publish wins.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isotune.errors import InputError
from isotune.runs.files import write_json

BEAT_SECONDS = 5.0
SHORTEST_STALE_SECONDS = 2 * BEAT_SECONDS
STALE_SECONDS = 60.0  # a driver that is only slow (a full disk, a suspended laptop) misses several beats


def require_stale_seconds(seconds: float) -> None:
    """Refuses to call drivers dead that have only not shown themselves yet."""
    if not seconds >= SHORTEST_STALE_SECONDS:
        raise InputError(
            f"--stale-seconds {seconds:g} is too short: living drivers show themselves every {BEAT_SECONDS:g} seconds, "
            f"so use at least {SHORTEST_STALE_SECONDS:g}"
        )


@dataclass(frozen=True)
class Claim:
    segment_id: str
    generation: int
    path: Path

    @property
    def stop_file(self) -> Path:
        """If it exists, whoever trains the segment saves its state and stops."""
        return self.path.with_name(f"{self.path.name}.stop")


class Claims:
    """This driver's claims on a study, and its view of the others'."""

    def __init__(
        self,
        study_folder: Path,
        *,
        stale_seconds: float = STALE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        require_stale_seconds(stale_seconds)
        self.driver = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.stale_seconds, self.clock = stale_seconds, clock
        self._drivers, self._claims = study_folder / "drivers", study_folder / "claims"
        for folder in (self._drivers, self._claims):
            folder.mkdir(exist_ok=True)
        self._held: dict[str, Claim] = {}
        self._beats_seen: dict[str, tuple[object, float]] = {}  # driver -> (its beat, when we first saw it)
        self._num_beats = 0
        self._beaten_at = -float("inf")
        self.beat()

    def beat(self) -> None:
        """Shows that this driver lives; call it as often as you like."""
        if self.clock() - self._beaten_at >= BEAT_SECONDS:
            self._num_beats += 1
            self._beaten_at = self.clock()
            about = {"driver": self.driver, "beat": self._num_beats, **_whereabouts()}
            write_json(self._drivers / f"{self.driver}.json", about)

    def take(self, segment_id: str) -> Claim | None:
        """A claim on this segment; None if a living driver has it."""
        generation, owner = self._highest(segment_id)
        if owner == self.driver:
            return self._held[segment_id]
        if owner is not None and not self._is_stale(owner):
            return None
        claim = Claim(segment_id, generation + 1, self._claims / f"{segment_id}.{generation + 1}")
        if not _create(claim.path, self.driver):
            return None
        self._held[segment_id] = claim
        return claim

    def is_taken_over(self, claim: Claim) -> bool:
        """Whether another driver thought that this one was dead."""
        return self._highest(claim.segment_id)[0] > claim.generation

    def release(self, claim: Claim) -> None:
        """Lets others have the segment."""
        self._held.pop(claim.segment_id, None)
        claim.stop_file.unlink(missing_ok=True)
        claim.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of everything; what the driver did stays in its journal."""
        for claim in list(self._held.values()):
            self.release(claim)
        (self._drivers / f"{self.driver}.json").unlink(missing_ok=True)

    def _highest(self, segment_id: str) -> tuple[int, str | None]:
        """The generation that counts, and whose it is; (0, None) if nobody claims the segment."""
        found = {_generation(path): path for path in self._claims.glob(f"{segment_id}.*") if path.suffix != ".stop"}
        for generation in sorted(found, reverse=True):
            try:
                return generation, found[generation].read_text()
            except FileNotFoundError:  # released meanwhile
                continue
        return 0, None

    def _is_stale(self, driver: str) -> bool:
        about = read_driver(self._drivers / f"{driver}.json")
        if is_dead_here(about):
            return True
        beat = about.get("beat")
        seen, since = self._beats_seen.get(driver, (None, 0.0))
        if driver not in self._beats_seen or seen != beat:
            self._beats_seen[driver] = (beat, self.clock())
            return False
        return self.clock() - since >= self.stale_seconds


def read_driver(path: Path) -> dict[str, object]:
    """What a driver wrote about itself; empty if it is gone."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_dead_here(about: dict[str, object]) -> bool:
    """Whether a driver ran on this very machine and is no more: no need to wait for its heartbeat then."""
    here = _whereabouts()
    if about.get("place") != here["place"]:
        return False
    return _process_start(about.get("pid")) != about.get("process_start")


def _whereabouts() -> dict[str, object]:
    pid = os.getpid()
    return {"place": _place(), "pid": pid, "process_start": _process_start(pid)}


def _place() -> str:
    """Equal for two processes only if one can see whether the other lives: same host, boot and process namespace."""
    parts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        try:
            parts.append(read())
        except OSError:  # not Linux: then nobody is known to be here, and heartbeats decide
            parts.append(uuid.uuid4().hex)
    return " ".join(parts)


def _process_start(pid: object) -> str | None:
    """When a process began, in the kernel's ticks, which tells it from a later one of the same number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _generation(path: Path) -> int:
    return int(path.suffix[1:]) if path.suffix[1:].isdigit() else 0


def _create(path: Path, content: str) -> bool:
    """Creates a file with its content in one step; False if it is there already."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        temporary.write_text(content)  # outside of what follows: a full disk is no lack of links
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            return _create_in_place(path, content)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _create_in_place(path: Path, content: str) -> bool:
    try:
        with open(path, "x") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True
