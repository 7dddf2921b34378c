"""How often isotune.analyze says what is not so, and how often its intervals hold the truth, on synthetic sweeps.

    python proofs/analysis_controls.py [--draws 1000] [--only shift]

Controls: on cells with no invariance, shuffled labels, dependence on WD alone, an index between LR and ELR, one LR, two
runs and constant curves, at most 71 verdicts in 1,000 may be false (5 % and three standard errors), and every answer
has to give reasons; likewise where the truth is LR or ELR. Coverage: nominal 90 % intervals of the index's angle and of
the shift's n and exponents have to hold the truth in 87 to 93 % of the draws. The noise is a share of the change across
one octave. If something is outside, the exit code is 1. Verdicts use 199 permutations, which keeps the tests exact.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from proof import ROOT, commit, machine

sys.path.insert(0, str(ROOT / "tests" / "analyze"))
from synthetic import (
    WIDE_LR,
    WIDE_WD,
    grid,
    index_values,
    round_bowl,
    scaling_loss,
    shuffled,
    sweep,
)

from isotune.analyze.curves import common_curves
from isotune.analyze.invariance import index_angle, invariance
from isotune.analyze.shift import Shift, find_shift

FOLDER = Path(__file__).parent
PERMUTATIONS = 199
MAX_FALSE_RATE = 0.071
BAND = (0.87, 0.93)
NAMED = {"LR", "ELR", "WD", "another", "neither"}
SMALL, WIDE = grid(), grid(WIDE_LR, WIDE_WD)
Draw = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000, help="draws per case (1000)")
    parser.add_argument("--only", choices=list(PARTS), help="this part; the others keep their rows")
    options = parser.parse_args()
    num_draws = options.draws
    start = time.perf_counter()
    rows = []
    for part, measure in PARTS.items():
        if options.only in (None, part):
            for row in measure(num_draws):
                print(json.dumps(row), flush=True)
                rows.append({"part": part} | row)
    failed = [row for row in rows if not row["passed"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} passed; {time.perf_counter() - start:.0f} s")
    if num_draws >= 1000:
        write_results(rows, num_draws)
    sys.exit(1 if failed else 0)


def controls(num_draws: int) -> Iterator[dict[str, Any]]:
    """A row per control: how often each verdict was given, and how many of them are false."""
    line = (np.full(6, -9.0), np.arange(6.0))
    two = (np.array([-9.0, -8.0]), np.array([-2.0, -1.0]))
    cases: list[tuple[str, tuple[np.ndarray, np.ndarray], Draw, set[str]]] = []
    for noise in (0.1, 0.4):
        cases += [
            (f"no invariance, noise {noise}", SMALL, bowl(noise), NAMED - {"neither"}),
            (f"shuffled labels, noise {noise}", SMALL, no_order(noise), NAMED),
            (f"WD alone, noise {noise}", SMALL, index(90, noise), NAMED - {"WD"}),
            (f"between LR and ELR, noise {noise}", SMALL, index(22.5, noise), {"LR", "ELR", "WD"}),
            (f"truth ELR, noise {noise}", SMALL, index(45, noise), NAMED - {"ELR"}),
            (f"truth LR, noise {noise}", SMALL, index(0, noise), NAMED - {"LR"}),
        ]
    cases += [
        ("truth ELR, 54 cells, noise 0.2", WIDE, index(45, 0.2), NAMED - {"ELR"}),
        ("one LR only", line, index(45, 0.1), NAMED),
        ("two runs", two, index(45, 0.1), NAMED),
        ("constant curves", SMALL, lambda rng, x, y: np.full(len(x), rng.uniform(1, 5)), NAMED),
    ]
    for number, (name, (x, y), draw, false) in enumerate(cases):
        found = []
        for seed in range(num_draws):
            rng = np.random.default_rng([number, seed])
            found.append(invariance(x, y, draw(rng, x, y), permutations=PERMUTATIONS, random_seed=seed))
        counts = Counter(one.verdict for one in found)
        rate = sum(counts[verdict] for verdict in false) / num_draws
        reasons = all(one.reasons for one in found)
        yield {
            "control": name,
            "cells": len(x),
            "verdicts": dict(counts.most_common()),
            "false_rate": rate,
            "all_have_reasons": reasons,
            "passed": rate <= MAX_FALSE_RATE and reasons,
        }


def index(degrees: float, noise: float) -> Draw:
    return lambda rng, x, y: index_values(rng, x, y, degrees, noise)


def bowl(noise: float) -> Draw:
    return lambda rng, x, y: round_bowl(rng, x, y, noise)


def no_order(noise: float) -> Draw:
    return lambda rng, x, y: shuffled(rng, x, y, 45, noise)


def angle_coverages(num_draws: int) -> Iterator[dict[str, Any]]:
    for name, (x, y) in (("5 x 5", SMALL), ("6 x 9", WIDE)):
        for degrees in (0.0, 22.5, 45.0):
            for noise in (0.1, 0.4):
                held = []
                for seed in range(num_draws):
                    value = index_values(np.random.default_rng([seed, 1]), x, y, degrees, noise)
                    found = index_angle(x, y, value)
                    turn = (degrees - found.degrees + 90) % 180 - 90 + found.degrees
                    held.append(found.low <= turn <= found.high)
                yield coverage_row(f"angle {degrees}, {name}, noise {noise}", held)


def shift_coverages(num_draws: int) -> Iterator[dict[str, Any]]:
    """The loss shifts at n = 1.3, t* ~ 1 / (LR WD); noise is per evaluation, relative to .1 per octave, AR(1).

    The loss counts steps from the first one, n from the end of the warm-up: its truth is what the fit finds without
    noise, a few thousandths below 1.3 (a test compares).
    """
    for name, cells, noise, correlation in (
        ("5 x 5", SMALL, 0.003, 0.5),
        ("5 x 5", SMALL, 0.01, 0.5),
        ("5 x 5", SMALL, 0.01, 0.8),
        ("5 x 5", SMALL, 0.03, 0.5),
        ("6 x 9", WIDE, 0.01, 0.5),
    ):
        exact = drawn_shift(cells, 0, 0.0, correlation).memory_times.value
        found = [drawn_shift(cells, seed, noise, correlation) for seed in range(num_draws)]
        seen = [one for one in found if one.verdict == "shift"]
        label = f"{name}, noise {noise / 0.1:g}, correlation {correlation}, {len(seen)} shifts seen"
        for quantity, truth in (("memory_times", exact), ("learning_rate", -1.0), ("weight_decay", -1.0)):
            estimates = [getattr(one, quantity) for one in seen]
            row = coverage_row(f"shift {quantity}, {label}", [one.low <= truth <= one.high for one in estimates])
            median = float(np.median([one.value for one in estimates]))
            yield row | {"truth": round(truth, 4), "median": float(f"{median:.4g}")}


def drawn_shift(cells: tuple[np.ndarray, np.ndarray], seed: int, noise: float, correlation: float) -> Shift:
    runs = sweep(np.random.default_rng([seed, 2]), *cells, scaling_loss, noise=noise, correlation=correlation)
    return find_shift(common_curves(runs), num_windows=1)


def coverage_row(name: str, held: list[bool]) -> dict[str, Any]:
    covered = float(np.mean(held))
    return {"coverage": name, "covered": covered, "passed": BAND[0] <= covered <= BAND[1]}


PARTS = {"controls": controls, "angle": angle_coverages, "shift": shift_coverages}


def write_results(rows: list[dict[str, Any]], num_draws: int) -> None:
    """Writes results/analysis_controls.json: where it comes from, then the rows, part by part.

    Parts that were not measured now keep the rows of before, with their own commit and date.
    """
    path = FOLDER / "results" / "analysis_controls.json"
    path.parent.mkdir(exist_ok=True)
    origin = {"commit": commit() or "unknown", "date": datetime.now(UTC).isoformat(timespec="seconds")}
    measured = {row["part"] for row in rows}
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [*(row for row in before if row["part"] not in measured), *(row | origin for row in rows)]
    rows = [row for part in PARTS for row in rows if row["part"] == part]
    results = {
        "command": "python proofs/analysis_controls.py",
        "passed": all(row["passed"] for row in rows) and {row["part"] for row in rows} == set(PARTS),
        "machine": machine(),
        "draws": num_draws,
        "permutations": PERMUTATIONS,
        "max_false_rate": MAX_FALSE_RATE,
        "band": BAND,
        "rows": rows,
    }
    path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
