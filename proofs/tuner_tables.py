"""Whether a recommendation's regret stays within its bound on tables of real training: the hits, course by course.

    python proofs/tuner_tables.py [--replays 20] [--processes 2]

A course is a budget of a family of a table. It is tuned as in the race (benchmarks/tuners), until the tuner is done at
a tolerance of .25 %, or the grid's tokens are spent; then the regret on the table's smooth surface is compared with the
bound that was stated for 90 %. Replay 0 has the table's own losses; the others are the surface with noise as its seeds
scatter. What is listed is no band to be met: the surface is itself known to some tenths of a percent only, and courses
of one table share their runs. Results: proofs/results/tuner_tables.json, and the block of docs/comparison.md.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
# Digits as on processors without AVX-512, as in the race: noise is drawn by a root of its covariance, which is another
# one where digits differ, and other draws are other replays.
os.environ["OPENBLAS_CORETYPE"] = "Haswell"
os.environ["NPY_DISABLE_CPU_FEATURES"] = "X86_V4 AVX512_ICL AVX512_SPR"

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import Any

import numpy as np
from proof import ROOT, commit, machine

sys.path.insert(0, str(ROOT / "benchmarks" / "tuners"))
sys.path.insert(0, str(ROOT / "experiments"))
from ours import whole_tuning
from replay import Replay, Spent
from scenarios import landscapes
from table_sheet import update_block

from isotune.recipe import format_tokens
from isotune.tune import Recommendation

FAMILIES = {"german48": ("batch 16",), "small32": ("batch 4", "batch 64"), "nano": ("batch 4", "batch 64")}
RESULTS, PAGE = ROOT / "proofs" / "results" / "tuner_tables.json", ROOT / "docs" / "comparison.md"
BEGIN, END = "<!-- bounds:begin -->", "<!-- bounds:end -->"


@dataclass(frozen=True)
class Course:
    table: str
    family: str
    budget: int


@dataclass(frozen=True)
class Ended:
    """How one tuning ended."""

    replay: int
    regret: float
    bound: float
    share_of_grid: float
    is_done: bool

    @property
    def is_hit(self) -> bool:
        return self.regret <= self.bound


def tuned(course: Course, number: int) -> Ended:
    landscape = landscapes(course.table)[course.family]
    replay = Replay(landscape, course.budget, number, by_seed=True)
    steps = list(_until_done(whole_tuning(replay)))
    spent, recommended = steps[-1]
    assert spent.cell is not None
    regret = float(landscape.regrets(course.budget)[spent.cell])
    share = spent.tokens / replay.grid_price
    return Ended(number, _round(regret), _round(recommended.regret_bound), _round(share), spent.is_done)


def _until_done(steps: Iterable[tuple[Spent, Recommendation]]) -> Iterator[tuple[Spent, Recommendation]]:
    for step in steps:
        yield step
        if step[0].is_done:
            return


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def summary(course: Course, ended: Sequence[Ended]) -> dict[str, Any]:
    own, *drawn = ended
    return {
        **asdict(course),
        "own": asdict(own) | {"hit": own.is_hit},
        "replays": len(drawn),
        "hits": sum(one.is_hit for one in drawn),
        "mean_regret": _round(float(np.mean([one.regret for one in drawn]))),
        "mean_bound": _round(float(np.mean([one.bound for one in drawn]))),
        "mean_share_of_grid": _round(float(np.mean([one.share_of_grid for one in drawn]))),
        "missed": [asdict(one) for one in drawn if not one.is_hit],
    }


def page_block(results: Mapping[str, Any]) -> str:
    """What the page says of the results."""
    courses = results["courses"]
    head = ["course", "own losses: regret", "bound", "hit", "drawn ones: hits", "mean regret", "mean bound"]
    lines = [head, ["---"] * len(head)]
    for one in courses:
        own, hits = one["own"], f"{one['hits']} of {one['replays']}"
        name = f"{one['table']}, {one['family']}, {format_tokens(one['budget'])}"
        values = [own["regret"], own["bound"], one["mean_regret"], one["mean_bound"]]
        regret, bound, mean_regret, mean_bound = (f"{100 * value:.2g} %" for value in values)
        lines.append([name, regret, bound, "yes" if own["hit"] else "no", hits, mean_regret, mean_bound])
    own_hits, hits, replays = (
        sum(one["own"]["hit"] for one in courses),
        sum(one["hits"] for one in courses),
        sum(one["replays"] for one in courses),
    )
    made = f"From `proofs/results/tuner_tables.json` (commit {results['commit'][:7]}, {results['date'][:10]})."
    totals = (
        f"With the tables' own losses {own_hits} of {len(courses)} bounds hold, with drawn ones {hits} of {replays}."
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{made} {totals} {results['command']} makes it again.\n\n{table}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    courses = [
        Course(table, family, budget)
        for table, families in FAMILIES.items()
        for family in families
        for budget in landscapes(table)[family].budgets
    ]
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "machine": machine()}
    tasks = [(course, number) for course in courses for number in range(options.replays + 1)]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        ended = dict(zip(tasks, pool.map(tuned, *zip(*tasks, strict=True)), strict=True))
    found = [summary(course, [ended[course, number] for number in range(options.replays + 1)]) for course in courses]
    results = about | {"command": f"`python proofs/tuner_tables.py --replays {options.replays}`", "courses": found}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    update_block(PAGE, page_block(results), BEGIN, END)
    print(page_block(results))


if __name__ == "__main__":
    main()
