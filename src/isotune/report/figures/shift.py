"""When LR gives way to ELR: the angle of the index against n, and where neighbouring runs change sides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.diagnosis import Diagnosis
from isotune.analyze.shift import PowerShift
from isotune.errors import InputError
from isotune.report.figures.drawing import CATEGORIES, Drawing, error_bars, log_axis, plain_axis, points
from isotune.report.figures.words import count


@dataclass(frozen=True)
class ShiftData:
    """Angles of the index over windows of training, by their median n; n of each triple of runs at its change."""

    memory_times: np.ndarray
    angles: np.ndarray
    intervals: tuple[tuple[float, float], ...]
    crossings: np.ndarray  # n, of triples that change inside the window
    num_outside: int
    shift: PowerShift
    reasons: tuple[str, ...]


def shift_data(diagnosis: Diagnosis) -> ShiftData:
    """What the search for the shift saw."""
    shift = diagnosis.shift
    if shift is None or not shift.angles:
        why = [stage.reason for stage in diagnosis.stages if stage.reason]
        raise InputError(why[0] if why else "when LR gives way to ELR cannot be seen in these runs")
    angles = [one for one in shift.angles if one.median_memory_times > 0 and math.isfinite(one.angle.degrees)]
    if not angles:
        raise InputError("; ".join(shift.reasons) or "n is unknown: give batch_size and sequence_length")
    seen = [one.memory_times for one in shift.crossings if one.censored == "no"]
    return ShiftData(
        np.array([one.median_memory_times for one in angles]),
        np.array([one.angle.degrees for one in angles]),
        tuple((one.angle.low, one.angle.high) for one in angles),
        np.array(seen),
        len(shift.crossings) - len(seen),
        shift.memory_times,
        shift.reasons,
    )


def draw_shift(data: ShiftData) -> dict[str, Any]:
    """Angles with intervals; below them the triples' crossings."""
    drawing = Drawing()
    bars = error_bars(data.angles.tolist(), data.intervals, CATEGORIES[0])
    trace = points(
        data.memory_times, data.angles, color=CATEGORIES[0], name="angle of the curves' index", showlegend=True
    )
    drawing.add(0, trace | {"mode": "lines+markers", "line": {"color": CATEGORIES[0], "width": 1}, "error_y": bars})
    if len(data.crossings):
        # A little height each, so that equal ones do not hide each other.
        height = -28 + 9 * np.modf(np.arange(len(data.crossings)) * 0.618)[0]
        name = "triples of runs change from LR to ELR"
        mark = points(data.crossings, height, color=CATEGORIES[1], size=4, name=name, showlegend=True)
        drawing.add(0, mark | {"hovertemplate": "n = %{x:.3g}"})
    x = log_axis("n = sum of LR·WD over steps", [*data.memory_times, *data.crossings])
    ends = [end for pair in data.intervals for end in pair if abs(end) <= 180]
    span = [min([-32.0, *ends]) - 3, max([92.0, *ends]) + 3]
    y = plain_axis("angle (degrees)") | {"range": span, "tickvals": np.arange(-135, 181, 45)}
    drawing.axes(0, x, y)
    drawing.line(0, y=0.0, words="LR")
    drawing.line(0, y=45.0, words="ELR")
    if math.isfinite(data.shift.value):
        drawing.line(0, x=data.shift.value, words="shift")
    return drawing.finish()


def shift_caption(data: ShiftData) -> str:
    outside = f" {count(data.num_outside, 'triple')} change outside the window." if data.num_outside else ""
    return (
        "The direction in (log LR, log WD) in which curves differ, over windows of training: 0 degrees is LR, 45 ELR. "
        f"{'; '.join(data.reasons)[:1].upper()}{'; '.join(data.reasons)[1:]}.{outside}"
    )
