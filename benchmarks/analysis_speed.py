"""How fast all distances of a thousand curves are, against scipy's pdist, interleaved in one process on one thread.

    python benchmarks/analysis_speed.py [--quick]

1,000 curves of 1,000 points, like losses: half a percent of noise around groups that lie some percent apart. scipy
gives Euclidean distances only; ours are relative and keep their digits. Also: a verdict on 54 cells with 9,999
permutations, and the import of the room in a fresh process. All seconds are of the processor, on one thread: others who
work on the machine then count for less.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import subprocess
import sys
import time

import numpy as np
from harness import circumstances, interleaved, summary, write_results
from scipy.spatial.distance import pdist

from isotune.analyze.distances import relative_distances
from isotune.analyze.invariance import invariance

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
    about = circumstances()
    curves = losses(np.random.default_rng(0))
    contenders = {"ours": lambda: relative_distances(curves), "pdist": lambda: pdist(curves)}
    seconds = interleaved(contenders, num_rounds, time.process_time)
    share = summary(seconds["ours"] / seconds["pdist"])
    imports, torch = zip(*(import_seconds() for _ in range(min(num_rounds, 5))), strict=True)
    permuting = summary([permutation_seconds() for _ in range(min(num_rounds, 5))])
    results = {
        "curves": [NUM_CURVES, NUM_POINTS],
        "seconds": {name: summary(values) for name, values in seconds.items()},
        "share_of_pdist": share | {"goal": GOAL_SHARE, "met": share["median"] <= GOAL_SHARE},
        "import_seconds": summary(imports)
        | {"goal": GOAL_IMPORT_SECONDS, "met": bool(np.median(imports) <= GOAL_IMPORT_SECONDS)},
        "import_loads_torch": any(torch),
        "invariance_54_cells_seconds": permuting
        | {"goal": GOAL_PERMUTATION_SECONDS, "met": permuting["median"] <= GOAL_PERMUTATION_SECONDS},
    }
    print(
        {
            name: value["median"] if isinstance(value, dict) and "median" in value else value
            for name, value in results.items()
        }
    )
    if "--quick" not in sys.argv:
        print(write_results("analysis_speed", about, results))


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
