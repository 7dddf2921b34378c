"""A hundred kills (-9) of a sweep's workers and drivers, at random moments, leave the bytes of a sweep without any.

Four sweeps of 21 segments of the nano model, a few seconds each, with a state every half a second. Each is killed 25
times: a worker, or the driver, which the same command continues, sometimes while its orphaned workers still save. Then:

- every segment is published once, and all curves, windows' losses, descriptions and states have the expected bytes;
- whoever continues a segment begins at the newest whole state that it had when its process was dead: no token up to a
  state is trained twice, and two attempts at one segment never stand side by side;
- no worker outlives its driver, and what kills left of unfinished files is gone after `isotune sweep clean`.

Tokens after the last state are trained again; they are counted.
"""

import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from proof import ENVIRONMENT, ISOTUNE, Proof, write_recipe

from isotune.runs.curve import last_tokens
from isotune.train.state import state_tokens

NUM_SWEEPS = 4
KILLS_OF_EACH = 25
SECONDS_BETWEEN_LOOKS = 0.05
SWEEP = ["--budgets", "60K,100K,140K", "--save-seconds", "0.5", "--quiet"]
MEASUREMENTS = ["--eval-every", "10K", "--eval-windows", "32", "--final-windows", "256", "--noise-every", "10K"]


def main() -> None:
    proof = Proof("sweep_kills")
    names = [f"sweep {number}" for number in range(NUM_SWEEPS)]
    if proof.needs(names):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            recipe = write_recipe(folder / "recipe.toml", "60K")
            command = sweep_command(recipe, "2^-10..2^-8", "--workers", "2", "--retries", "1000")
            subprocess.run([*command, "--study", str(folder / "straight")], env=ENVIRONMENT, check=True)
            print("one sweep is trained without interruption", flush=True)
            for number, name in enumerate(names):
                proof.case(name, partial(killed_sweep, command, folder / "straight", folder / str(number), number))
    proof.finish()


def sweep_command(recipe: Path, learning_rates: str, *options: str) -> list[str]:
    return [ISOTUNE, "sweep", "run", str(recipe), "--lr", learning_rates, *SWEEP, *MEASUREMENTS, *options]


def killed_sweep(command: list[str], straight: Path, study: Path, seed: int) -> dict[str, Any]:
    """Kills a sweep so many times, then lets it end."""
    sweep = KilledSweep([*command, "--study", str(study)], straight, study, random.Random(seed))
    last = 8 * sweep.num_tokens // 10  # so that the sweep does not end before its last kill
    for position in sorted(sweep.rng.randrange(last) for _ in range(KILLS_OF_EACH)):
        # One in four comes soon after the one before it, while processes start and continue.
        sweep.watch_until(position if sweep.rng.random() < 0.75 else 0, sweep.rng.uniform(0, 3))
        sweep.kill()
    return sweep.end()


class Segment(NamedTuple):
    start_tokens: int
    end_tokens: int
    end_state: str


class Remains(NamedTuple):
    """A segment's attempt when no process had it any more."""

    segment: str
    num_notes: int  # lines of timing.jsonl: one for each state that was saved
    state_tokens: int  # the position of its newest whole state
    row_tokens: int  # the position of its last row


class KilledSweep:
    """A sweep, the processes that worked on it, and what was seen when they were killed."""

    def __init__(self, command: list[str], straight: Path, study: Path, rng: random.Random):
        self.command, self.straight, self.study, self.rng = command, straight, study, rng
        self.segments = read_segments(straight)
        self.num_tokens = sum(segment.end_tokens - segment.start_tokens for segment in self.segments.values())
        self.kills: Counter[str] = Counter()
        self.remains: set[Remains] = set()
        self.side_by_side: set[str] = set()
        self.unexpected_exits: list[int] = []
        self.workers: set[int] = set()
        self.driver = self._start()

    def watch_until(self, tokens: int, seconds: float) -> None:
        """Waits until so many tokens have rows, and then so long."""
        while self._tokens_there() < tokens and self._is_going_on():
            time.sleep(SECONDS_BETWEEN_LOOKS)
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._is_going_on():
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def kill(self) -> None:
        """Kills the driver or one of its workers; looks at what is left as soon as it is dead."""
        wants_worker = self.rng.random() < 0.5
        while wants_worker and not children(self.driver.pid) and self._is_going_on():
            time.sleep(SECONDS_BETWEEN_LOOKS)
        workers = children(self.driver.pid)
        self.workers |= set(workers)
        if wants_worker and workers:
            victim = self.rng.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self.kills["worker"] += 1
            wait_for_end([victim])
            self._look_at_remains()
        elif self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()
            self.kills["driver"] += 1
            if self.rng.random() < 0.5:  # else the next driver meets workers that are still saving
                wait_for_end(workers)
            self._look_at_remains()
            self.driver = self._start()

    def end(self) -> dict[str, Any]:
        """Lets the sweep finish, and compares everything."""
        while self._is_going_on() or self.driver.returncode != 0:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        outlived = wait_for_end(list(self.workers))
        differing = differences(everything(self.straight), everything(self.study))
        notes = {segment: read_lines(self.study / "segments" / segment / "timing.jsonl") for segment in self.segments}
        journal = read_journals(self.study)
        finished = Counter(note["segment"] for note in journal if note["kind"] == "finished")
        too_early = [remains for remains in self.remains if self._continues_too_early(remains, notes[remains.segment])]
        overlapping = [segment for segment in notes if overlaps(notes[segment], self.segments[segment])]
        parts_before_cleaning = len(list(self.study.rglob(".*.part")))
        subprocess.run([ISOTUNE, "sweep", "clean", str(self.study), "--yes"], stdout=subprocess.DEVNULL, check=True)
        leftovers = [*self.study.rglob(".*.part"), *self.study.glob("claims/*"), *self.study.glob("attempts/?*.*")]
        lost = sum(remains.row_tokens - remains.state_tokens for remains in self.remains)
        return {
            "passed": not (differing or too_early or overlapping or self.side_by_side or outlived or leftovers)
            and max(finished.values()) == 1
            and sum(self.kills.values()) == KILLS_OF_EACH,
            "kills": dict(self.kills),
            "segments": len(self.segments),
            "files_compared": len(everything(self.straight)),
            "differing_files": differing,
            "published_more_than_once": [segment for segment, count in finished.items() if count > 1],
            "killed_attempts_looked_at": len(self.remains),
            "continued_before_their_last_state": [remains._asdict() for remains in too_early],
            "trained_twice_up_to_a_state": overlapping,
            "attempts_side_by_side": sorted(self.side_by_side),
            "workers_that_outlived_their_driver": outlived,
            "unexpected_exit_codes": self.unexpected_exits,
            "unfinished_files_before_cleaning": parts_before_cleaning,
            "leftovers": [str(path.relative_to(self.study)) for path in leftovers],
            "tokens": self.num_tokens,
            "repeated_tokens": lost,  # those with rows; up to 31 steps of each kill have none yet
            "journals": {
                "trained_tokens": sum(note["trained_tokens"] for note in journal),
                "repeated_tokens": sum(note["repeated_tokens"] for note in journal),
                "outcomes": dict(Counter(note["kind"] for note in journal)),
            },
        }

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, env=ENVIRONMENT)

    def _is_going_on(self) -> bool:
        """Also notes what is there, and continues a driver that gave up, say because no worker could start."""
        attempts = Counter(path.name.partition(".")[0] for path in self.study.glob("attempts/?*.*"))
        self.side_by_side |= {segment for segment, count in attempts.items() if count > 1}
        self.workers |= set(children(self.driver.pid))
        if self.driver.poll() is None:
            return True
        if self.driver.returncode != 0:
            self.unexpected_exits.append(self.driver.returncode)
            self.driver = self._start()
            return True
        return False

    def _tokens_there(self) -> int:
        published = [self.segments[path.name] for path in self.study.glob("segments/*")]
        total = sum(segment.end_tokens - segment.start_tokens for segment in published)
        for attempt in self.study.glob("attempts/?*.*"):
            start = self.segments[attempt.name.partition(".")[0]].start_tokens
            total += max(0, last_tokens(attempt / "curve.jsonl") - start)
        return total

    def _look_at_remains(self) -> None:
        """Notes every attempt that no process holds, before and after the look."""
        for attempt in self.study.glob("attempts/?*.*"):
            if is_locked(attempt / "lock"):
                continue
            name = attempt.name.partition(".")[0]
            segment = self.segments[name]
            if (self.study / "states" / f"{segment.end_state}.safetensors").exists():
                position = segment.end_tokens  # killed after its state was moved, before it was published
            else:
                position = max(segment.start_tokens, state_tokens(attempt / "state.safetensors"))
            num_notes = len(read_lines(attempt / "timing.jsonl"))
            rows = max(position, last_tokens(attempt / "curve.jsonl"))
            if attempt.exists() and not is_locked(attempt / "lock"):
                self.remains.add(Remains(name, num_notes, position, rows))

    def _continues_too_early(self, remains: Remains, notes: list[dict[str, Any]]) -> bool:
        later = notes[remains.num_notes :]
        return bool(later) and later[0]["from_tokens"] != remains.state_tokens


# What a study holds


def everything(study: Path) -> dict[str, bytes]:
    """All that must not depend on how a study came about; what was measured in seconds may, and unfinished files."""
    files = [*study.glob("states/*"), *study.glob("segments/*/*")]
    chosen = [path for path in files if path.name != "timing.jsonl" and not path.name.startswith(".")]
    return {str(path.relative_to(study)): path.read_bytes() for path in chosen}


def differences(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def read_segments(study: Path) -> dict[str, Segment]:
    """The published segments by their ids."""
    segments = {}
    for path in study.glob("segments/*/segment.json"):
        value = json.loads(path.read_text())
        segments[path.parent.name] = Segment(value["start"]["tokens"], value["end"]["tokens"], value["end"]["state"])
    return segments


def read_journals(study: Path) -> list[dict[str, Any]]:
    """How segments ended, as all drivers noted it."""
    return [note for path in study.glob("drivers/*.jsonl") for note in read_lines(path)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; none if it is not there."""
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return []


def overlaps(notes: list[dict[str, Any]], segment: Segment) -> bool:
    """Whether tokens were trained again that lay before a saved state, or an attempt began with another's state."""
    position, beginning, seconds = segment.start_tokens, segment.start_tokens, 0.0
    for note in notes:
        goes_on = note["from_tokens"] == beginning and note["tokens"] >= position and note["seconds"] >= seconds
        if not goes_on and note["from_tokens"] < position:
            return True
        position, beginning, seconds = note["tokens"], note["from_tokens"], note["seconds"]
    return position != segment.end_tokens or notes[0]["from_tokens"] != segment.start_tokens


# Processes


def children(pid: int) -> list[int]:
    """The processes that this one started and that live."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in found if is_alive(int(child))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: list[int], seconds: float = 30.0) -> list[int]:
    """Those that live after so long."""
    until = time.monotonic() + seconds
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < until:
        time.sleep(0.01)
    return alive


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on this file, as the kernel says, without touching the lock."""
    try:
        inode = str(path.stat().st_ino)
    except OSError:
        return False
    return any(line.split()[-3].rpartition(":")[2] == inode for line in Path("/proc/locks").read_text().splitlines())


if __name__ == "__main__":
    main()
