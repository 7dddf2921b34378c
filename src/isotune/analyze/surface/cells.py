"""The cells of a grid that a paraboloid is fitted to: those with a loss, within a margin of the best."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from isotune.analyze.laws import point_weights
from isotune.analyze.surface.paraboloid import COMFORTABLE_CELLS, MIN_SINGULAR_VALUE, NUM_COEFFICIENTS, basis
from isotune.errors import InputError


@dataclass(frozen=True)
class Cell:
    """A pair of hyperparameters and its loss."""

    log2_learning_rate: float
    log2_weight_decay: float
    loss: float


def usable_cells(
    log2_learning_rate: ArrayLike,
    log2_weight_decay: ArrayLike,
    loss: ArrayLike,
    weights: ArrayLike | None,
    standard_errors: ArrayLike | None,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Rows (x, y, loss) with a finite loss, their weights, and what was left out."""
    columns = [np.asarray(column, dtype=float) for column in (log2_learning_rate, log2_weight_decay, loss)]
    if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise InputError(f"learning rates, weight decays and losses must be rows of one length: shapes {shapes}")
    if not (np.isfinite(columns[0]).all() and np.isfinite(columns[1]).all()):
        raise InputError("log2 of learning rates and weight decays must be finite: leave out runs without weight decay")
    cells = np.column_stack(columns)
    weight = point_weights(len(cells), weights, standard_errors)
    usable = np.isfinite(cells[:, 2])
    warnings = []
    if not usable.all():
        warnings.append(f"{int((~usable).sum())} cells without a finite loss are left out")
    cells, weight = cells[usable], weight[usable]
    if len(cells) < NUM_COEFFICIENTS:
        raise InputError(f"{len(cells)} cells with a loss: a paraboloid has 6 coefficients and takes 6 cells at least")
    if not _fixes_paraboloid(cells):
        raise InputError(f"these {len(cells)} cells do not fix a paraboloid: {_degeneracy(cells)}")
    return cells, weight, warnings


def cells_within(cells: np.ndarray, margin: float) -> tuple[float, np.ndarray]:
    """The margin, widened until the cells within it are enough, and these cells."""
    chosen = cells[:, 2] <= loss_limit(cells, margin)
    order = np.sort(cells[:, 2])
    count = int(chosen.sum())
    while count < len(cells) and (count < COMFORTABLE_CELLS or not _fixes_paraboloid(cells[chosen])):
        count += 1
        chosen = cells[:, 2] <= order[count - 1]
        count = int(chosen.sum())
    best = float(order[0])
    reached = (float(cells[chosen, 2].max()) - best) / abs(best) if best else math.inf
    return max(margin, reached), chosen


def loss_limit(cells: np.ndarray, margin: float) -> float:
    best = float(cells[:, 2].min())
    return best + margin * abs(best)


def _fixes_paraboloid(cells: np.ndarray) -> bool:
    if len(cells) < NUM_COEFFICIENTS:
        return False
    place = cells[:, :2] - cells[:, :2].mean(axis=0)
    size = np.abs(place).max(axis=0)
    if np.any(size == 0):
        return False
    values = np.linalg.svd(basis(*(place / size).T), compute_uv=False)
    return bool(values[-1] > MIN_SINGULAR_VALUE * values[0])


def _degeneracy(cells: np.ndarray) -> str:
    """Why, and what to run."""
    for column, name in enumerate(("learning rate", "weight decay")):
        count = len(np.unique(cells[:, column]))
        if count < 3:
            return f"they have {count} {name}{'s' * (count > 1)}; add runs until there are 3"
    if np.linalg.matrix_rank(cells[:, :2] - cells[:, :2].mean(axis=0), tol=1e-9) < 2:
        return "they lie on one line; add runs beside it"
    return "they lie on one curve of second order, such as two lines; add a run beside it"
