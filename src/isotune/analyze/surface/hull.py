"""The convex hull of points, as its lower and upper chain."""

from __future__ import annotations

import numpy as np


def hull_chains(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper chain of the convex hull, each from left to right (Andrew's monotone chain)."""
    ordered = np.unique(points, axis=0)
    return _chain(ordered, 1.0), _chain(ordered, -1.0)


def _chain(ordered: np.ndarray, sign: float) -> np.ndarray:
    left, right = ordered[0, 0], ordered[-1, 0]
    # At either end only the outermost point counts.
    edge = min if sign > 0 else max
    ends = {side: edge(float(y) for x, y in ordered if x == side) for side in (left, right)}
    chain: list[tuple[float, float]] = []
    for x, y in [(left, ends[left]), *ordered[(ordered[:, 0] > left) & (ordered[:, 0] < right)], (right, ends[right])]:
        while len(chain) >= 2:
            (x1, y1), (x2, y2) = chain[-2:]
            if sign * ((x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)) > 0:
                break
            chain.pop()
        chain.append((float(x), float(y)))
    return np.array(chain)
