"""How fast all distances of a thousand curves are, against scipy's pdist, interleaved in one process.

    python benchmarks/analysis_speed.py [--quick]

1,000 curves of 1,000 points, like losses: half a percent of noise around groups that lie some percent apart. scipy
gives Euclidean distances only; ours are relative and keep their digits. They are timed twice, in processes of their
own: by the clock, with a thread per core as BLAS takes them by itself (pdist has one), which is what a user waits for,
and in seconds of the processor on one thread. Also, on one thread: a verdict on 54 cells with 9,999 permutations, and
the import of the room in a fresh process.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
from harness import circumstances, interleaved, summary, write_results
from scipy.spatial.distance import pdist

from isotune.analyze.distances import relative_distances
from isotune.analyze.invariance import invariance

OF_DISTANCES = "--distances"  # in a process of its own, with as many threads as its environment says
NUM_CURVES, NUM_POINTS = 1000, 1000
GOAL_SHARE = 0.1  # of pdist's time
GOAL_IMPORT_SECONDS = 1.0
GOAL_PERMUTATION_SECONDS = 1.0
IMPORT = """
import sys, time
start = time.process_time()
import isotune.analyze.curves, isotune.analyze.distances, isotune.analyze.invariance
print(time.process_time() - start, "torch" in sys.modules)
"""


def main() -> None:
    num_rounds = 3 if "--quick" in sys.argv else 30
    if OF_DISTANCES in sys.argv:
        print(json.dumps(distances_seconds(num_rounds)))
        return
    about = circumstances()
    imports, torch = zip(*(import_seconds() for _ in range(min(num_rounds, 5))), strict=True)
    permuting = summary([permutation_seconds() for _ in range(min(num_rounds, 5))])
    results = {
        "curves": [NUM_CURVES, NUM_POINTS],
        "distances": against_pdist("clock", os.cpu_count() or 1),
        "distances_one_thread": against_pdist("processor", 1),
        "import_seconds": summary(imports)
        | {"goal": GOAL_IMPORT_SECONDS, "met": bool(np.median(imports) <= GOAL_IMPORT_SECONDS)},
        "import_loads_torch": any(torch),
        "invariance_54_cells_seconds": permuting
        | {"goal": GOAL_PERMUTATION_SECONDS, "met": permuting["median"] <= GOAL_PERMUTATION_SECONDS},
    }
    for name, value in results.items():
        print(name, value.get("median", value) if isinstance(value, dict) else value)
    if "--quick" not in sys.argv:
        print(write_results("analysis_speed", about, results))


def against_pdist(clock: str, threads: int) -> dict[str, Any]:
    """Ours and pdist's seconds by this clock, and the share of theirs that ours take, round by round."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, OF_DISTANCES, *(["--quick"] if "--quick" in sys.argv else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds = {name: np.array(values) for name, values in json.loads(done.stdout)[clock].items()}
    share = summary(seconds["ours"] / seconds["pdist"])
    return {
        "seconds_of": clock,
        "threads": threads,
        **{name: summary(values) for name, values in seconds.items()},
        "share_of_pdist": share | {"goal": GOAL_SHARE, "met": share["median"] <= GOAL_SHARE},
    }


def distances_seconds(num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Clock -> contender -> seconds of each round, with the threads of this process."""
    curves = losses(np.random.default_rng(0))
    contenders = {"ours": lambda: relative_distances(curves), "pdist": lambda: pdist(curves)}
    clocks = {"clock": time.perf_counter, "processor": time.process_time}
    return {
        name: {contender: seconds.tolist() for contender, seconds in interleaved(contenders, num_rounds, clock).items()}
        for name, clock in clocks.items()
    }


def losses(rng: np.random.Generator) -> np.ndarray:
    """Curves that fall like a power of time to a level of their group."""
    time_axis = np.linspace(0.01, 1, NUM_POINTS)
    level = rng.normal(scale=0.1, size=20)[rng.integers(0, 20, NUM_CURVES)]
    noise = 0.01 * rng.standard_normal((NUM_CURVES, NUM_POINTS))
    return 1.5 + level[:, None] + 0.3 * time_axis**-0.3 + noise


def permutation_seconds() -> float:
    """A whole verdict: five tests of 9,999 permutations, three shares and an angle."""
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(-12.0, -6), np.arange(-8.0, 1), indexing="ij"))
    value = x + y + 0.1 * np.random.default_rng(0).standard_normal(len(x))
    start = time.process_time()
    invariance(x, y, value)
    return time.process_time() - start


def import_seconds() -> tuple[float, bool]:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    seconds, torch = done.stdout.split()
    return float(seconds), torch == "True"


if __name__ == "__main__":
    main()
