"""Rows of a run that went back to a checkpoint: what it had written beyond is of a branch that was abandoned.

Rows stand in the order of writing. A column that goes up, goes back and goes up again over the same ground was
restarted. Rows out of order go back too, but in other ways: shuffled ones at every second place, parts of a log in the
wrong order without meeting, a late row past a single other, and positions that were sorted as text (1000, 10000, 2000)
with long leaps.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

MAX_RESTARTS = 30
MIN_ROWS = 2  # of each stretch, and of those that a restart goes back over
MIN_MEAN_ROWS = 3  # of all; shuffled rows have about 2
MAX_LEAP = 4  # rows of another stretch between two neighbours of one; text order leaps over five and more


def abandoned_rows(at: np.ndarray, written: Iterable[np.ndarray]) -> np.ndarray:
    """Which rows a restart has made void; `written` says of each column that was measured which rows have a value."""
    void = np.zeros(len(at), dtype=bool)
    for is_written in written:
        rows = np.flatnonzero(is_written)
        for row in rows[_restarts(at[rows])]:
            void[:row] |= at[:row] > at[row]
    return void


def _restarts(at: np.ndarray) -> list[int]:
    """Where a stretch begins that goes over ground which was covered; none if rows are merely out of order."""
    begins = np.flatnonzero(np.diff(at) < 0) + 1
    if len(begins) > MAX_RESTARTS or len(at) < MIN_MEAN_ROWS * (len(begins) + 1):
        return []
    stretches = np.split(at, begins)
    if min(map(len, stretches)) < MIN_ROWS or _leaps(stretches):
        return []
    covered = [at[:begin][at[:begin] >= at[begin]] for begin in begins]
    return [
        int(begin)
        for begin, before, stretch in zip(begins, covered, stretches[1:], strict=True)
        if len(before) >= MIN_ROWS and before.min() <= stretch[-1]
    ]


def _leaps(stretches: list[np.ndarray]) -> bool:
    between = (np.diff(np.searchsorted(other, one)).max() for one in stretches for other in stretches)
    return any(number > MAX_LEAP for number in between)
