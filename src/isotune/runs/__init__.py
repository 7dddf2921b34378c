"""Trajectories <-> disk: the seam between the costly half (training) and the arithmetic (analysis)."""

from isotune.runs.curve import CurveWriter, Row, columns, read_rows
from isotune.runs.files import write_json, write_whole
from isotune.runs.study import Evaluation, Numerics, Segment, SegmentRecord, Study, octaves
from isotune.runs.tables import (
    Cell,
    DecayRecord,
    Grid,
    Merged,
    RunRecord,
    Table,
    check_table,
    export_table,
    make_grids,
    merge_tables,
    read_table,
)
from isotune.runs.trajectory import RunInfo, Trajectory
from isotune.runs.words import describe_phases

__all__ = [
    "Cell",
    "CurveWriter",
    "DecayRecord",
    "Evaluation",
    "Grid",
    "Merged",
    "Numerics",
    "Row",
    "RunInfo",
    "RunRecord",
    "Segment",
    "SegmentRecord",
    "Study",
    "Table",
    "Trajectory",
    "check_table",
    "columns",
    "describe_phases",
    "export_table",
    "make_grids",
    "merge_tables",
    "octaves",
    "read_rows",
    "read_table",
    "write_json",
    "write_whole",
]
