"""How the training of a segment ended, as a value: no outcome of one segment is the end of a sweep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from isotune.errors import describe_os_error

Kind = Literal[
    "finished",  # and published
    "diverged",  # and published
    "lost",  # another driver published it first: the tokens are wasted
    "given_up",  # another driver took it over while this one stood still: wasted too
    "stopped",  # as asked; its state is saved
    "failed",  # something that a repetition would meet again: a full disk, an unreadable state
    "crashed",  # its process died: an out-of-memory kill, a lost node, a defect
    "hung",  # no row for too long; its process was killed
]
SETTLED = ("finished", "diverged", "lost")
WASTED = ("lost", "given_up")
WORTH_RETRYING = ("crashed", "hung")


@dataclass(frozen=True)
class Outcome:
    """One sentence, and what it cost."""

    kind: Kind
    reason: str = ""
    trained_tokens: int = 0
    repeated_tokens: int = 0  # of these, trained before but lost by a kill after the last state
    seconds: float = 0.0
    ready_seconds: float = 0.0  # of these, before the first step: imports, the corpus, loading, compiling

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def from_error(error: BaseException) -> Outcome:
    """The outcome that an exception in training stands for."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Outcome("failed", "out of memory: use a smaller --micro-batch-size or fewer --workers")
    if isinstance(error, OSError):
        return Outcome("failed", describe_os_error(error))
    if isinstance(error, ValueError):  # InputError is one, and says what to do
        return Outcome("failed", _one_line(error))
    return Outcome("crashed", f"{type(error).__name__}: {_one_line(error)}")


def from_exit(return_code: int, last_words: str) -> Outcome:
    """The outcome of a process that ended without saying how."""
    words = f" ({last_words})" if last_words else ""
    if return_code == -9:
        return Outcome("crashed", f"its process was killed (signal 9), often for lack of memory{words}")
    if return_code < 0:
        return Outcome("crashed", f"its process was killed (signal {-return_code}){words}")
    return Outcome("crashed", f"its process ended with code {return_code}{words}")


def _one_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
