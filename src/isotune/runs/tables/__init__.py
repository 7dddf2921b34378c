"""Replay tables: real sweeps as four small files, to be searched again and again without training anything.

runs.parquet       a row per trunk (or whole run): settings, recipe, status, what it cost
decays.parquet     a row per decay: where it leaves its trunk, the loss at its end, each final window's loss
curves.parquet     what was measured along both
manifest.json      what the table is: roots, numerics, evaluation, totals, plan, checksums
"""

from isotune.runs.tables.check import check_table
from isotune.runs.tables.contents import DecayRecord, RunRecord
from isotune.runs.tables.export import export_table
from isotune.runs.tables.grid import Cell, Grid, make_grids
from isotune.runs.tables.merge import Merged, merge_tables
from isotune.runs.tables.reader import Table, read_table

__all__ = [
    "Cell",
    "DecayRecord",
    "Grid",
    "Merged",
    "RunRecord",
    "Table",
    "check_table",
    "export_table",
    "make_grids",
    "merge_tables",
    "read_table",
]
