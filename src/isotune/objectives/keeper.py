"""Ends runs with all that they started; also those of a tuning that was itself ended by force (kill -9, no memory).

What a command starts belongs to its process group, or carries its mark in the environment: torchrun, for one, gives its
workers sessions of their own. The mark is looked for where the system shows environments (/proc).

For the second case a process of its own listens to the tuning; when the tuning is gone, the pipe between them closes,
and the runs that were under way are ended. It runs this file, which therefore imports nothing of isotune.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

MARK = "ISOTUNE_RUN"  # variable in the environment of a run, and of all that it starts
PATIENCE_SECONDS = 10.0  # between asking runs to end and making them
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Processes:
    """Those of a run: its process group, and whatever carries its mark."""

    group: int
    mark: str


def new_mark() -> str:
    return uuid.uuid4().hex


def marked(mark: str) -> dict[str, str]:
    """The environment to start a run in."""
    return {**os.environ, MARK: mark}


def end_runs(runs: Collection[Processes], look: Callable[[], object] = lambda: None) -> None:
    """Asks all processes of the runs to end, and makes them where they do not; `look` is called while it waits.

    Each is asked once, also those that begin meanwhile: some programs take a second word for an order to drop all.
    """
    asked = set[int]()
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + PATIENCE_SECONDS
        while _signal(runs, number, asked if number == signal.SIGTERM else set()):
            if time.monotonic() > until:
                break
            time.sleep(POLL_SECONDS)
            look()
        else:
            return


def _signal(runs: Collection[Processes], number: int, asked: set[int]) -> bool:
    """Sends a signal to all process groups and processes of the runs that did not get it; whether any of them still
    runs. Groups come first: what they begin while the others are looked for would be missed."""
    for run in runs:
        if run.group not in asked:
            asked.add(run.group)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.group, number)
    elsewhere = _elsewhere(runs)
    for process in elsewhere - asked:
        asked.add(process)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)
    return bool(elsewhere) or any(_is_running(run.group) for run in runs)


def _elsewhere(runs: Collection[Processes]) -> set[int]:
    """Processes with the mark of one of the runs in other process groups. The dead have no environment any more."""
    groups = {f"{MARK}={run.mark}".encode(): run.group for run in runs}
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # of another user, or it has ended meanwhile
            process = int(path.parent.name)
            for line in groups.keys() & set(path.read_bytes().split(b"\0")):
                if os.getpgid(process) != groups[line]:
                    found.add(process)
    return found


def _is_running(process_group: int) -> bool:
    """Whether any process of the group still runs. The dead stay members until their parents ask for them, which some
    parents never do, such as the first process of many containers: nobody needs to wait for those."""
    try:
        os.killpg(process_group, 0)
    except (ProcessLookupError, PermissionError):  # or the number is somebody else's by now
        return False
    members = [state for state, group in _states_and_groups() if group == process_group]
    return not members or any(state != "Z" for state in members)


def _states_and_groups() -> Iterator[tuple[str, int]]:
    """Of all processes, where the system tells."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            state, _, group = path.read_text(errors="replace").rpartition(")")[2].split()[:3]
            yield state, int(group)


class Keeper:
    """Knows which runs are under way; use it in a `with` statement around them."""

    def __enter__(self) -> Keeper:
        # A session of its own: what ends the tuning's process group must not end its keeper. Nor must what ends a run
        # in which this tuning is itself.
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            env=environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate()

    def add(self, run: Processes) -> None:
        """This run has begun."""
        self._tell(f"+{run.group} {run.mark}")

    def remove(self, run: Processes) -> None:
        """This run has ended."""
        self._tell(f"-{run.group} {run.mark}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # without a keeper the runs go on as well
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def listen(lines: Iterable[str]) -> None:
    """Follows what begins and ends, and ends what is left when nobody speaks any more."""
    alive = set[Processes]()
    for line in lines:
        change = alive.add if line[0] == "+" else alive.discard
        group, mark = line[1:].split()
        change(Processes(int(group), mark))
    end_runs(alive)


if __name__ == "__main__":
    listen(sys.stdin)
