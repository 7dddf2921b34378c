"""Ends the runs of a tuning that was itself ended by force (kill -9, no memory), which cannot do so any more.

A process of its own listens to the tuning; when the tuning is gone, the pipe between them closes, and the runs that
were under way are ended with all that they started. It runs this file, which therefore imports nothing of isotune.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from types import TracebackType

PATIENCE_SECONDS = 10.0  # between asking runs to end and making them
POLL_SECONDS = 0.1


class Keeper:
    """Knows which runs are under way; use it in a `with` statement around them."""

    def __enter__(self) -> Keeper:
        # A session of its own: what ends the tuning's process group must not end its keeper.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, start_new_session=True, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate()

    def add(self, process_group: int) -> None:
        """This run has begun."""
        self._tell(f"+{process_group}")

    def remove(self, process_group: int) -> None:
        """This run has ended."""
        self._tell(f"-{process_group}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # without a keeper the runs go on as well
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def listen(lines: Iterable[str]) -> None:
    """Follows what begins and ends, and ends what is left when nobody speaks any more."""
    alive = set[int]()
    for line in lines:
        change = alive.add if line[0] == "+" else alive.discard
        change(int(line[1:]))
    left = _signal(alive, signal.SIGTERM)
    until = time.monotonic() + PATIENCE_SECONDS
    while left and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        left = _signal(left, 0)
    _signal(left, signal.SIGKILL)


def _signal(process_groups: set[int], number: int) -> set[int]:
    """Those of the process groups that are there and get the signal."""
    reached = set()
    for group in process_groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
            reached.add(group)
    return reached


if __name__ == "__main__":
    listen(sys.stdin)
