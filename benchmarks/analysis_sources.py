"""How long ten thousand runs take from a file to a diagnosis, and how much memory.

    python benchmarks/analysis_sources.py [--quick]

A Parquet file of 10,000 runs x 50 rows under foreign column names, once as 100 cells with 100 seeds each and once as
100 x 100 cells; curves are synthetic, depend on LR early and on ELR late, and carry noise. Reading and diagnosing are
timed in a process of their own, from its start to the printed verdict; peak memory is that process's largest resident
size. Also: the import of isotune.analyze with all its public names. --quick takes 1,000 runs and writes no result.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from harness import circumstances, summary, table, write_results

NUM_ROWS = 50
STEPS_PER_ROW, BATCH_SIZE, SEQUENCE_LENGTH = 200, 4, 64
GOAL_SECONDS, GOAL_BYTES, GOAL_IMPORT_SECONDS = 60.0, 4e9, 1.0

CHILD = """
import json, resource, sys, time
start, process = time.perf_counter(), time.process_time
from isotune.integrations.importers import open_source
imported = open_source(sys.argv[1], run_column="run_id", mapping={"learning_rate": "lr", "weight_decay": "wd",
    "val_loss": "eval/loss"}, settings=json.loads(sys.argv[2]), weight_decay_convention="coupled")
read, read_cpu = time.perf_counter(), process()
from isotune.analyze import diagnose
(diagnosis,) = diagnose(imported.trajectories)
print(json.dumps({
    "runs": len(imported.trajectories), "cells": diagnosis.family.num_cells,
    "verdicts": {one.range: one.verdict for one in diagnosis.stages},
    "read_seconds": read - start, "diagnose_seconds": time.perf_counter() - read,
    "processor_seconds": process(), "read_processor_seconds": read_cpu,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""
IMPORT = """
import time
start = time.process_time()
from isotune.analyze import *
print(time.process_time() - start)
"""


def main() -> None:
    quick = "--quick" in sys.argv
    about = circumstances()
    num = 10 if quick else 100
    results: dict[str, Any] = {"rows_per_run": NUM_ROWS}
    with tempfile.TemporaryDirectory() as folder:
        for name, cells_per_axis, num_seeds in (
            ("cells_and_seeds", 10, num),
            ("cells_alone", 100 if not quick else 32, 1),
        ):
            path = Path(folder) / f"{name}.parquet"
            write_runs(path, cells_per_axis, num_seeds)
            results[name] = judged(run_child(path)) | {"file_bytes": path.stat().st_size}
    imports = summary([import_seconds() for _ in range(5)])
    results["import_seconds"] = imports | {
        "goal": GOAL_IMPORT_SECONDS,
        "met": imports["median"] <= GOAL_IMPORT_SECONDS,
    }
    rows = [
        (
            name,
            str(results[name]["runs"]),
            str(results[name]["cells"]),
            f"{results[name]['processor_seconds']:.1f}",
            f"{results[name]['read_seconds'] + results[name]['diagnose_seconds']:.1f}",
            f"{results[name]['peak_bytes'] / 1e9:.2f}",
        )
        for name in ("cells_and_seeds", "cells_alone")
    ]
    print(table(("source", "runs", "cells", "processor s", "s", "peak GB"), rows))
    print(f"import: {imports['median']} s of processor")
    if not quick:
        print(write_results("analysis_sources", about, results))


def write_runs(path: Path, cells_per_axis: int, num_seeds: int) -> None:
    """Loss = 1.2 + .4 (LR t)^-.3 exp(-n) + 3 ELR^.45 (1 - exp(-n)) + 3 t^-.3, and noise of .003."""
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(-12, -6, cells_per_axis), np.linspace(-8, -2, cells_per_axis), indexing="ij")
    lr, wd = (np.tile(2.0 ** axis.ravel(), num_seeds) for axis in (x, y))
    num_runs = len(lr)
    step = STEPS_PER_ROW * np.arange(1, NUM_ROWS + 1)
    elr = (lr * wd)[:, None]
    n = elr * step
    loss = 1.2 + 0.4 * (lr[:, None] * step) ** -0.3 * np.exp(-n) + 3 * elr**0.45 * (1 - np.exp(-n)) + 3 * step**-0.3
    loss = loss + 0.003 * rng.standard_normal(loss.shape)
    columns = {
        "run_id": np.repeat([f"run-{index:05d}" for index in range(num_runs)], NUM_ROWS),
        "step": np.tile(step, num_runs),
        "lr": np.repeat(lr, NUM_ROWS),
        "wd": np.repeat(wd, NUM_ROWS),
        "seed": np.repeat(np.repeat(np.arange(num_seeds), cells_per_axis**2), NUM_ROWS),
        "eval/loss": loss.ravel(),
    }
    pyarrow.parquet.write_table(pa.table(columns), path)


def run_child(path: Path) -> dict[str, Any]:
    settings = {"batch_size": BATCH_SIZE, "sequence_length": SEQUENCE_LENGTH}
    command = [sys.executable, "-c", CHILD, str(path), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def judged(measured: dict[str, Any]) -> dict[str, Any]:
    """Goals are met on the clock of the processor: others may work on the machine."""
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in measured.items()}
    return rounded | {
        "goal_seconds": GOAL_SECONDS,
        "goal_bytes": GOAL_BYTES,
        "met": measured["processor_seconds"] <= GOAL_SECONDS and measured["peak_bytes"] <= GOAL_BYTES,
    }


def import_seconds() -> float:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
