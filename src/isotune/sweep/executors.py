"""What a driver needs of whatever runs its segments; an executor is one file that fulfils this."""

from __future__ import annotations

from typing import Protocol

from isotune.sweep.outcomes import Outcome
from isotune.sweep.training import Job


class Executor(Protocol):
    """Runs jobs side by side; each ends in exactly one outcome, whatever happens to the process that runs it."""

    def num_free(self) -> int:
        """How many more jobs could begin now."""

    def submit(self, key: str, job: Job) -> None:
        """Begins a job under a name of the driver's."""

    def poll(self, seconds: float) -> list[tuple[str, Outcome]]:
        """Jobs that have ended; waits for the first one at most so long."""

    def kill(self, key: str) -> None:
        """Ends a job's process at once; its outcome comes with the next poll."""

    def problem(self) -> str:
        """Why nothing can run any more, in a sentence; empty as long as something can."""

    def close(self) -> None:
        """Ends all processes; jobs that still run save their states if they can."""


class Idle:
    """The executor of a sweep that has nothing to train."""

    def num_free(self) -> int:
        return 0

    def submit(self, key: str, job: Job) -> None:
        raise AssertionError("nothing can begin here")

    def poll(self, seconds: float) -> list[tuple[str, Outcome]]:
        return []

    def kill(self, key: str) -> None:
        pass

    def problem(self) -> str:
        return ""

    def close(self) -> None:
        pass
