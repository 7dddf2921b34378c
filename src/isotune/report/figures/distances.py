"""How far apart curves are: pairwise and averaged over groups, ordered by ELR and by LR."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from isotune.analyze.curves import common_curves, log2_settings
from isotune.analyze.diagnosis import Diagnosis, StageFinding
from isotune.analyze.distances import (
    OVERLAP_THRESHOLD,
    GroupDistances,
    floor_of_pairs,
    group_distances,
    group_labels,
    relative_distances,
    seed_pairs,
)
from isotune.analyze.stretches import stretch_values
from isotune.errors import InputError
from isotune.recipe.quantities import format_tokens
from isotune.report.figures.drawing import Drawing, points, power_of_two, thin
from isotune.report.figures.words import interval, name_verdict
from isotune.runs.trajectory import RunInfo, Trajectory

MAX_CELLS = 60  # of a pairwise matrix
MAX_RUNS = 200  # of group averages
NUM_STRETCHES = 8  # over which noise is averaged inside the window
DRAWS = 200
NAMES = {"scaled_noise": "gradient noise", "scaled_gradient": "gradient norm"}

When = Literal["early", "latest"]


@dataclass(frozen=True)
class DistanceMatrices:
    """Relative distances of one seed's curves, and of all curves averaged over groups of equal LR and of equal ELR."""

    pairwise: np.ndarray  # [cells x cells]
    log2_lr: np.ndarray
    log2_elr: np.ndarray
    by_lr: GroupDistances
    by_elr: GroupDistances
    stage: StageFinding
    name: str  # of what is compared
    seed_floor: float  # 95th percentile of distances between seeds; NaN without seeds


def distance_matrices(diagnosis: Diagnosis, column: str, when: When) -> DistanceMatrices:
    """The distances in the early stage, or in the latest one that there are enough runs for."""
    stage = _stage(diagnosis, when)
    family = diagnosis.family
    runs = [stage.runs[index] for index in thin(np.arange(len(stage.runs)), MAX_RUNS)]
    if column in NAMES:
        return _matrices(*_noise_values(runs, column, stage), stage, NAMES[column])
    curves = common_curves(runs, column, tokens=stage.tokens, through_ramps=family.shape == "falling")
    return _matrices(curves.values, curves.infos, stage, "loss")


def _noise_values(
    runs: Sequence[Trajectory], column: str, stage: StageFinding
) -> tuple[np.ndarray, tuple[RunInfo, ...]]:
    """Curves [runs x stretches] of the runs whose noise was measured in all stretches."""
    edges = np.linspace(*stage.tokens, NUM_STRETCHES + 1)
    values = np.array([stretch_values(run, column, edges) for run in runs])
    whole = np.isfinite(values).all(axis=1)
    if whole.sum() < 2:
        raise InputError(f"the {NAMES[column]} of these runs was not measured: train with the meter on")
    return values[whole], tuple(run.info for run, is_whole in zip(runs, whole, strict=True) if is_whole)


def _matrices(values: np.ndarray, infos: Sequence[RunInfo], stage: StageFinding, name: str) -> DistanceMatrices:
    distances = relative_distances(values)
    if not (distances > 0).any():
        start, end = (format_tokens(end) for end in stage.tokens)
        raise InputError(
            f"all {name} curves are the same where {stage.range} ({start} to {end} tokens): these runs are one until "
            "they branch off, so that there is no distance between them"
        )
    x, y = log2_settings(infos)
    seeds = [info.seed for info in infos]
    cells = list(zip(x.tolist(), y.tolist(), strict=True))
    grouped = []
    for powers in ({"learning_rate": 1.0}, {"learning_rate": 1.0, "weight_decay": 1.0}):
        labels = group_labels(infos, **powers)
        grouped.append(group_distances(distances, labels, cells=cells, seeds=seeds, draws=DRAWS))
    rows = _one_seed(seeds, cells)
    floor = floor_of_pairs(values, seed_pairs(infos))
    return DistanceMatrices(
        distances[np.ix_(rows, rows)],
        x[rows],
        (x + y)[rows],
        grouped[0],
        grouped[1],
        stage,
        name,
        floor.percentile_95 if len(floor.distances) > 1 else math.nan,
    )


def _stage(diagnosis: Diagnosis, when: When) -> StageFinding:
    stages = diagnosis.stages[:1] if when == "early" else diagnosis.stages[::-1]
    for stage in stages:
        if stage.runs:
            return stage
    raise InputError(stages[0].reason or "no stretch of training has enough runs to compare")


def _one_seed(seeds: Sequence[object], cells: Sequence[tuple[float, float]]) -> np.ndarray:
    """One run for each cell, of the commonest seed, at most 60."""
    usual, _ = Counter(seeds).most_common(1)[0]
    first: dict[tuple[float, float], int] = {}
    for row, (seed, cell) in enumerate(zip(seeds, cells, strict=True)):
        if seed == usual:
            first.setdefault(cell, row)
    rows = sorted(first.values(), key=lambda row: (sum(cells[row]), cells[row][0]))
    return thin(np.array(rows, dtype=int), MAX_CELLS)


# Drawing


def draw_distances(data: DistanceMatrices) -> dict[str, Any]:
    """Pairs above, group averages below; ordered by ELR left, by LR right; one colour scale."""
    drawing = Drawing(4, panel_height=250, gap=0.16)
    grouped = [found.matrix[np.isfinite(found.matrix)] for found in (data.by_elr, data.by_lr)]
    every = np.concatenate([data.pairwise[~np.eye(len(data.pairwise), dtype=bool)], *grouped])
    positive = every[every > 0]
    low, high = (math.log10(end) for end in np.quantile(positive, [0.02, 0.99])) if len(positive) else (-3.0, 0.0)
    for panel, (label, main, other) in enumerate(
        (("ELR", data.log2_elr, data.log2_lr), ("LR", data.log2_lr, data.log2_elr))
    ):
        order = np.lexsort((other, main))
        _add_pairs(drawing, panel, data, order, main[order], label)
    for panel, (label, found) in enumerate((("ELR", data.by_elr), ("LR", data.by_lr)), start=2):
        _add_groups(drawing, panel, found, label)
    drawing.set(coloraxis=_colors(low, high))
    return drawing.finish()


def _add_pairs(
    drawing: Drawing, panel: int, data: DistanceMatrices, order: np.ndarray, main: np.ndarray, label: str
) -> None:
    matrix = data.pairwise[np.ix_(order, order)]
    places = np.arange(len(order))
    drawing.add(panel, _heatmap(matrix, places))
    i, j = np.nonzero((matrix <= OVERLAP_THRESHOLD) & ~np.eye(len(matrix), dtype=bool))
    mark = {"size": 2, "color": "#ffffff"}
    drawing.add(panel, points(j, i, color="#ffffff", marker=mark, hoverinfo="skip"))
    axis = _group_axis(main, label)
    axis |= {"range": [-0.5, len(order) - 0.5]}
    y = axis | {"range": [len(order) - 0.5, -0.5], "title": {"text": ""}}
    drawing.axes(panel, axis, y, f"pairs, by {label}")


def _add_groups(drawing: Drawing, panel: int, found: GroupDistances, label: str) -> None:
    values = np.array([float(str(group)) for group in found.groups])
    places = np.arange(len(values))
    drawing.add(panel, _heatmap(found.matrix, places))
    shown = places[:: max(1, math.ceil(len(places) / 5))]
    axis = {"tickvals": shown, "ticktext": [power_of_two(values[place]) for place in shown], "showgrid": False}
    axis |= {"title": {"text": label}, "tickangle": 0}
    y = axis | {"autorange": "reversed", "title": {"text": ""}}
    drawing.axes(panel, axis, y, f"groups of equal {label}")


def _heatmap(matrix: np.ndarray, places: np.ndarray) -> dict[str, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.log10(np.where(matrix > 0, matrix, np.nan)).round(3)
    return {
        "type": "heatmap",
        "x": places,
        "y": places,
        "z": z,
        "coloraxis": "coloraxis",
        "hovertemplate": "distance 10^%{z:.2f}<extra></extra>",
    }


def _group_axis(main: np.ndarray, label: str) -> dict[str, Any]:
    """Ticks in the middle of each group."""
    rounded = main.round(2)
    middles = {value: float(np.flatnonzero(rounded == value).mean()) for value in np.unique(rounded).tolist()}
    shown: list[float] = []
    for value, middle in middles.items():  # labels shall not overlap
        if not shown or middle - middles[shown[-1]] >= 0.2 * len(main):
            shown.append(value)
    axis = {"tickvals": [middles[value] for value in shown], "ticktext": [power_of_two(value) for value in shown]}
    return axis | {"title": {"text": label}, "showgrid": False, "tickangle": 0}


def _colors(low: float, high: float) -> dict[str, Any]:
    ticks = [tick for tick in (-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5) if low <= tick <= high]
    if len(ticks) > 5:
        ticks = [tick for tick in ticks if float(tick).is_integer()]
    bar = {"title": {"text": "distance<br>\u00a0", "side": "top"}, "thickness": 11, "outlinewidth": 0, "len": 0.9}
    bar |= {"tickvals": ticks, "ticktext": [f"{10.0**tick:.2g}" for tick in ticks]}
    return {"colorscale": "Viridis", "cmin": low, "cmax": high, "colorbar": bar}


def distances_caption(data: DistanceMatrices) -> str:
    """What the blocks mean, the ratios, and the verdict of the stage."""
    start, end = data.stage.tokens
    words = [
        f"Relative distances of {data.name} curves where {data.stage.range} ({format_tokens(start)} to "
        f"{format_tokens(end)} tokens); dark blocks along the diagonal are groups that lie on each other, dots are "
        f"pairs within the paper's {OVERLAP_THRESHOLD:g}."
    ]
    ratios = [
        f"{found.ratio:.2g} {interval(found.low, found.high, 2)} times grouped by {label}"
        for label, found in (("ELR", data.by_elr), ("LR", data.by_lr))
        if math.isfinite(found.ratio)
    ]
    if ratios:
        words.append(f"How much farther apart curves of different groups are than those of one: {', '.join(ratios)}.")
    if math.isfinite(data.seed_floor):
        words.append(f"Seeds of one setting are up to {data.seed_floor:.2g} apart (95 %).")
    if data.name == "loss":
        words.append(name_verdict(data.stage))
    return " ".join(words)
