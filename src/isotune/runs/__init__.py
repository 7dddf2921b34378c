"""Trajectories <-> disk: the seam between the costly half (training) and the arithmetic (analysis)."""

from isotune.runs.curve import CurveWriter, Row, columns, read_rows
from isotune.runs.files import write_json, write_whole
from isotune.runs.study import Evaluation, Numerics, Segment, SegmentRecord, Study, describe_phases, octaves
from isotune.runs.trajectory import RunInfo, Trajectory

__all__ = [
    "CurveWriter",
    "Evaluation",
    "Numerics",
    "Row",
    "RunInfo",
    "Segment",
    "SegmentRecord",
    "Study",
    "Trajectory",
    "columns",
    "describe_phases",
    "octaves",
    "read_rows",
    "write_json",
    "write_whole",
]
