"""What a path was worth: the price of a good recommendation, as a share of the full grid's.

    stays   the price from which on the recommendation's regret is at most the target, for the rest of the path
    first   the price at which it is for the first time, be it by luck and lost again later
    settles the price from which on the mean regret over all seeds is at most the target: luck does not pay there, and a
            change between settings that are about as good costs next to nothing; one number for all seeds
    done    what was spent when the tuner declared itself done, and the regret of what it recommended then
    regret  what is recommended after a share of the grid's tokens is off the best by so much, in the mean

A path that never gets there fails and is charged the full grid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from replay import Spent

TARGETS = (0.001, 0.0025, 0.005)
REGRET_SHARES = (0.025, 0.05, 0.1, 0.2, 0.5)  # of the grid's tokens


@dataclass(frozen=True)
class Path:
    """The points at which a tuner's recommendation changed, and what it had spent when it was done (None: never)."""

    points: tuple[tuple[int, int], ...]  # (tokens, cell), ascending; a later point at equal tokens counts
    done_tokens: int | None
    end_tokens: int


def make_path(spent: Iterable[Spent], limit: int) -> Path:
    """The path of a tuner until it has spent `limit` tokens; what comes beyond is cut."""
    points: list[tuple[int, int]] = []
    done, end = None, 0
    for point in spent:
        if point.tokens > limit:
            break
        end = point.tokens
        if point.cell is not None and (not points or points[-1][1] != point.cell):
            points.append((point.tokens, point.cell))
        if point.is_done and done is None:
            done = point.tokens
    return Path(tuple(points), done, end)


def price_to_stay(path: Path, regrets: np.ndarray, target: float) -> float:
    """Tokens from which on the regret is at most the target; infinite if it is above it in the end."""
    price = math.inf
    for tokens, cell in reversed(path.points):
        if regrets[cell] > target:
            break
        price = tokens
    return price


def price_to_reach(path: Path, regrets: np.ndarray, target: float) -> float:
    """Tokens at which the regret is at most the target for the first time; infinite if it never is."""
    return next((tokens for tokens, cell in path.points if regrets[cell] <= target), math.inf)


def regret_at(path: Path, regrets: np.ndarray, tokens: float) -> float:
    """The regret of what is recommended after so many tokens; NaN before there is anything."""
    cells = [cell for at, cell in path.points if at <= tokens]
    return float(regrets[cells[-1]]) if cells else math.nan


def price_to_settle(paths: Sequence[Path], regrets: np.ndarray, target: float) -> float:
    """Tokens from which on the mean regret of all paths is at most the target; infinite if it is not in the end."""
    tokens = np.array(sorted({at for path in paths for at, _ in path.points}))
    means = np.zeros(len(tokens))
    for path in paths:
        at, cells = np.array(path.points, dtype=int).reshape(-1, 2).T
        place = np.searchsorted(at, tokens, side="right") - 1
        means += np.where(place < 0, np.inf, np.append(regrets[cells], np.inf)[place]) / len(paths)
    outside = np.flatnonzero(~(means <= target))
    settled = tokens[outside[-1] + 1 :] if len(outside) else tokens
    return float(settled[0]) if len(settled) else math.inf


def summarize(paths: Sequence[Path], regrets: np.ndarray, grid_price: int) -> dict[str, Any]:
    """Mean and 90th percentile over seeds of all readings, with failures counted."""
    summary: dict[str, Any] = {"seeds": len(paths)}
    for target in TARGETS:
        summary[f"{100 * target:g}%"] = {
            name: _shares([price(path, regrets, target) / grid_price for path in paths])
            for name, price in (("stays", price_to_stay), ("first", price_to_reach))
        }
        settled = price_to_settle(paths, regrets, target) / grid_price
        summary[f"{100 * target:g}%"]["settles"] = {
            "mean": _rounded(min(1.0, settled)),
            "failures": 0 if math.isfinite(settled) else len(paths),
        }
    summary["regret"] = {
        f"{100 * share:g}%": _mean_regret([regret_at(path, regrets, share * grid_price) for path in paths])
        for share in REGRET_SHARES
    }
    done = [path for path in paths if path.done_tokens is not None]
    if done:
        left = np.array([regret_at(path, regrets, path.done_tokens or 0) for path in done])
        summary["done"] = {
            "count": len(done),
            "mean_share": _rounded(np.mean([path.done_tokens / grid_price for path in done if path.done_tokens])),
            "mean_regret": _rounded(np.nanmean(left)) if np.isfinite(left).any() else None,
            "within": {f"{100 * target:g}%": int(np.sum(left <= target)) for target in TARGETS},
        }
    return summary


def _mean_regret(values: Sequence[float]) -> float | None:
    """None where some seed has no recommendation yet, or one that diverged."""
    return _rounded(np.mean(values)) if np.isfinite(values).all() else None


def _shares(shares: Sequence[float]) -> dict[str, Any]:
    charged = np.minimum(1.0, shares)
    return {
        "mean": _rounded(charged.mean()),
        "p90": _rounded(np.quantile(charged, 0.9)),
        "failures": int(np.sum(~np.isfinite(shares))),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
