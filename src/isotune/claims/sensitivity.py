"""How much the loss changes with LR and with WD, as an angle that turns from LR (0 degrees) to ELR (45) with n.

A cell's gradient comes from its neighbours an octave away, in each octave of tokens. Gradients are binned by n (or by
steps, or by tokens); a bin's angle is the top eigenvector of the mean outer product of its gradients.

    angle(n) = 45 / (1 + (n_half / n)^q)        by least squares over bins
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isotune.analyze.curves import memory_times, steps_at_rows
from isotune.analyze.distances import draw_cells
from isotune.claims.definitions import window_means
from isotune.claims.rows import RowSet, RowsMissing
from isotune.claims.rules import Entry
from isotune.runs import Trajectory

Clock = Callable[[Trajectory], np.ndarray]
N_EDGES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)
HALVES = np.arange(-10.0, 10.01, 0.05)  # octaves from the middle of the bins
MIDDLE = 22.5  # degrees: an angle is the nearest to it of those that mean the same
SHARPNESS = np.array([0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0])


@dataclass(frozen=True)
class BinAngles:
    """Angles of bins [draws x bins], the first row as measured; NaN where a draw has no cell in a bin."""

    log2_x: np.ndarray
    degrees: np.ndarray

    def fit(self) -> tuple[np.ndarray, np.ndarray]:
        """(log2 n_half, q) of each draw."""
        return fit_curve(self.log2_x, self.degrees)

    def shown(self) -> dict[str, float]:
        return {f"{2.0**x:.3g}": float(angle) for x, angle in zip(self.log2_x, self.degrees[0], strict=True)}


@dataclass(frozen=True)
class Sensitivities:
    """One table's angles, in bins of n, of steps and of tokens."""

    in_n: BinAngles
    in_steps: BinAngles
    in_tokens: BinAngles


def find_sensitivities(rows: RowSet, edges: Sequence[float], entry: Entry, stream: int = 0) -> Sensitivities:
    """The angles of a grid of runs; cells are drawn with replacement."""
    places = {run.cell: index for index, run in enumerate(rows.runs)}
    inner = [
        (index, [places.get((x + dx, y + dy)) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))])
        for (x, y), index in places.items()
    ]
    inner = [(index, around) for index, around in inner if None not in around]
    if len(inner) < 4:
        raise RowsMissing(rows.missing or f"{rows.name} (too few cells have four neighbours)")
    cells = np.array([index for index, _ in inner])
    around = np.array([neighbours for _, neighbours in inner])
    windows = list(itertools.pairwise(edges))
    values = np.array([window_means(rows, "val_loss", window) for window in windows])  # [windows x runs]
    up_lr, down_lr, up_wd, down_wd = (values[:, column] for column in around.T)
    gradients = np.stack([up_lr - down_lr, up_wd - down_wd], axis=-1) / 2
    middles = [math.sqrt(start * end) for start, end in windows]
    n = _at(rows, cells, middles, memory_times)
    steps = _at(rows, cells, middles, steps_at_rows)
    weights = np.concatenate(
        [np.ones((1, len(cells))), draw_cells(len(cells), entry.draws, entry.random_seed + stream)]
    )
    by_n = np.digitize(n, N_EDGES) - 1
    by_n[n >= N_EDGES[-1]] = -1
    in_n = np.sqrt(np.array(N_EDGES[:-1]) * np.array(N_EDGES[1:]))
    by_window = np.broadcast_to(np.arange(len(windows))[:, None], n.shape)
    return Sensitivities(
        _bins(np.log2(in_n), by_n, gradients, weights),
        _bins(np.log2(steps.mean(axis=1)), by_window, gradients, weights),
        _bins(np.log2(middles), by_window, gradients, weights),
    )


def top_angle(outer: np.ndarray) -> np.ndarray:
    """Degrees of the top eigenvector of matrices [..., 2, 2], within 90 of the curve's middle, 22.5."""
    turned = np.degrees(np.arctan2(2 * outer[..., 0, 1], outer[..., 0, 0] - outer[..., 1, 1])) / 2
    return np.where(turned <= MIDDLE - 90, turned + 180, turned)


def fit_curve(log2_x: np.ndarray, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log2 n_half, q) with the least squares for each row of degrees, on a grid; NaN with fewer than two bins."""
    there = np.isfinite(degrees)
    halves = log2_x.mean() + HALVES
    places = [(half, q) for half in halves for q in SHARPNESS]
    shapes = curve_at(log2_x[:, None], *(np.array(column) for column in zip(*places, strict=True)))  # [bins x places]
    known = np.where(there, degrees, 0.0)
    best = np.argmin(there @ shapes**2 - 2 * known @ shapes, axis=1)
    half, q = (np.array(column)[best] for column in zip(*places, strict=True))
    enough = there.sum(axis=1) >= 2
    return np.where(enough, half, np.nan), np.where(enough, q, np.nan)


def curve_at(log2_x: np.ndarray, log2_half: np.ndarray, q: np.ndarray) -> np.ndarray:
    """45 / (1 + (n_half / n)^q)."""
    return 45 / (1 + 2.0 ** (q * (log2_half - log2_x)))


def prediction_errors(tables: Sequence[BinAngles]) -> np.ndarray:
    """Root mean square degrees, in each draw, between a table's bins and the curve fitted to the other tables."""
    squares, counts = 0.0, 0.0
    for index, table in enumerate(tables):
        others = [each for k, each in enumerate(tables) if k != index]
        half, q = fit_curve(
            np.concatenate([each.log2_x for each in others]), np.concatenate([each.degrees for each in others], axis=1)
        )
        rest = table.degrees - curve_at(table.log2_x, half[:, None], q[:, None])
        rest = (rest + 90) % 180 - 90
        squares = squares + np.nansum(rest**2, axis=1)
        counts = counts + np.isfinite(rest).sum(axis=1)
    return np.sqrt(squares / counts)


def _bins(log2_x: np.ndarray, bins: np.ndarray, gradients: np.ndarray, weights: np.ndarray) -> BinAngles:
    """The angle of each bin that has cells; `bins` [windows x cells] numbers them, -1 is none."""
    outer = gradients[..., :, None] * gradients[..., None, :]  # [windows x cells x 2 x 2]
    columns, used = [], []
    for index in range(len(log2_x)):
        inside = bins == index
        if inside.any():
            sums = np.where(inside[..., None, None], outer, 0.0).sum(axis=0)
            total = np.einsum("dc,cij->dij", weights, sums)
            columns.append(np.where(weights @ inside.sum(axis=0) > 0, top_angle(total), np.nan))
            used.append(index)
    return BinAngles(log2_x[used], np.column_stack(columns))


def _at(rows: RowSet, cells: np.ndarray, tokens: Sequence[float], clock: Clock) -> np.ndarray:
    """A clock of the runs at these tokens, [windows x cells]."""
    trajectories = [rows.runs[cell].trajectory for cell in cells]
    return np.array([np.interp(tokens, each.tokens, clock(each)) for each in trajectories]).T
