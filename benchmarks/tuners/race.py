"""Tuners raced on tables of real training, without training anything: tokens to a good recommendation.

    python benchmarks/tuners/race.py --table nano --seeds 200 --processes 2
    python benchmarks/tuners/race.py --table nano --family "batch 4" --budget 2752512 --tuners tpe,gp --seeds 3
    python benchmarks/tuners/race.py --tuners tpe,gp:50,bohb:50 --seeds 200     # slow ones with fewer seeds
    python benchmarks/tuners/race.py --scenario made-round,shuffled-wd          # negative controls

Every tuner meets the same replays, paired by seed, for each family and budget; what it recommends is scored on the
table's smooth truth (analyze/truth.py). Readings are defined in scores.py. A path is raced once: paths are kept in
benchmarks/tuners/cache and are found again as long as the table's numbers are the same, so a race can be killed,
continued, and widened by single tuners (a changed tuner: --again NAME). What rivals of isotune did is kept with the
results, too, so that a changed isotune meets them in minutes instead of hours; --afresh runs them again.

Results: benchmarks/results/tuners.json, tuners.md and tuners/*.svg, made of all that was asked for, and of what was
asked for before with --add; --no-results prints only. `make race` makes all that is committed. Both files begin with
isotune against the best of the others (head_to_head.py, which then brings it to docs/comparison.md). Packages: see
`bench` in pyproject.toml.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import gzip
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from contenders import CONTENDERS
from harness import circumstances, write_results
from head_to_head import OURS, free_seeds, head_to_head, head_to_head_text, paired_ratios, ratio_intervals, share_words
from landscape import Landscape
from plot import SHARES, draw
from replay import Replay
from scenarios import DIRECTIONS, MADE, ORDERS, SCENARIOS, TABLES, landscapes
from scores import TARGETS, make_path, price_to_reach, price_to_stay, regret_at, summarize
from scores import Path as TunerPath

from isotune.errors import InputError
from isotune.recipe import format_tokens

CACHE = Path(__file__).resolve().parent / "cache" / "paths.jsonl"
RESULTS = Path(__file__).resolve().parents[1] / "results"
KEPT = RESULTS / "tuners" / "rivals.jsonl.gz"


@dataclass(frozen=True)
class Course:
    """A family of a table, under a scenario, at a budget."""

    table: str
    scenario: str
    family: str
    budget: int

    @property
    def landscape(self) -> Landscape:
        return landscapes(self.table, self.scenario)[self.family]

    @property
    def words(self) -> str:
        family = "" if self.family == self.scenario else f", {self.family}"
        return f"{self.table}, {self.scenario}{family}, {format_tokens(self.budget)} tokens"


@dataclass(frozen=True)
class Heat:
    """One tuner on one course with one seed; the fingerprint says on which numbers."""

    course: Course
    fingerprint: str
    tuner: str
    seed: int


def main() -> None:
    options = _options()
    started = time.perf_counter()
    courses = chosen_courses(options)
    heats = [
        Heat(course, course.landscape.fingerprint, tuner, seed)
        for course in courses
        for seed in range(options.seeds)
        for tuner, num_seeds in options.tuners.items()
        if num_seeds is None or seed < num_seeds
    ]
    about = circumstances()
    known = race(heats, options.processes, set(options.again), kept=None if options.afresh else KEPT)
    results = [course_results(course, heats, known) | {"command": about["command"]} for course in courses]
    print(markdown(results))
    if not options.no_results:
        for course, result in zip(courses, results, strict=True):
            if ORDERS.get(course.scenario, ("", 0))[1] == 0:  # the first order of shuffled labels is enough to look at
                draw_course(course, result, heats, known)
        results = _earlier_results(courses) + results if options.add else results
        commands = dict.fromkeys(result["command"] for result in results)
        (RESULTS / "tuners.md").write_text(f"Made by `{'`, `'.join(commands)}`.\n\n{markdown(results)}")
        keep({heat: known[heat] for heat in heats}, KEPT)
        seconds = round(time.perf_counter() - started)
        found = {"seconds": seconds, "head_to_head": head_to_head(results), "races": results}
        print(write_results("tuners", about, found))


def _earlier_results(courses: Sequence[Course]) -> list[dict[str, Any]]:
    """What the results say of other courses, as long as their numbers are what they were."""
    path = RESULTS / "tuners.json"
    earlier = json.loads(path.read_text())["races"] if path.exists() else []
    names = [field.name for field in fields(Course)]
    found = {Course(**{name: result[name] for name in names}): result for result in earlier}
    return [
        result
        for course, result in found.items()
        if course not in courses and "command" in result and result["fingerprint"] == course.landscape.fingerprint
    ]


def race(
    heats: Sequence[Heat], processes: int = 1, again: Iterable[str] = (), kept: Path | None = None
) -> dict[Heat, TunerPath]:
    """The path of each heat, from the cache, from a file of kept paths, or run now; `again` names tuners whose paths
    are not to be trusted."""
    again = set(again)
    known = {heat: path for heat, path in [*_kept(kept), *_cached()] if heat.tuner not in again}
    missing = [heat for heat in heats if heat not in known]
    CACHE.parent.mkdir(exist_ok=True)
    with CACHE.open("a") as file:
        for number, (heat, path) in enumerate(_run_all(missing, processes), 1):
            known[heat] = path
            file.write(_line(heat, path))
            file.flush()
            if number % 100 == 0 or number == len(missing):
                print(f"{number} of {len(missing)} replays", file=sys.stderr, flush=True)
    return known


def keep(paths: Mapping[Heat, TunerPath], file: Path) -> None:
    """Adds the paths of isotune's rivals to a file of kept ones. Those of isotune are not kept: it changes."""
    rivals = {heat: path for heat, path in paths.items() if not heat.tuner.startswith(OURS)}
    lines = sorted(_line(heat, path) for heat, path in (dict(_kept(file)) | rivals).items())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def run_heat(heat: Heat) -> TunerPath:
    """Replays one tuner until it has spent the full grid, or ends.

    Tuners of one seed meet the same losses but have luck of their own: with equal generators a dozen samplers would all
    begin with the same random point.
    """
    landscape, contender = heat.course.landscape, CONTENDERS[heat.tuner]
    replay = Replay(landscape, heat.course.budget, heat.seed, can_pause=contender.can_pause, by_seed=contender.by_seed)
    rng = np.random.default_rng([heat.seed, zlib.crc32(heat.tuner.encode())])
    return make_path(contender.tuner(replay, rng), replay.grid_price)


def course_results(course: Course, heats: Sequence[Heat], known: dict[Heat, TunerPath]) -> dict[str, Any]:
    """What the file says of a course: its circumstances, and each tuner's readings."""
    landscape, budget = course.landscape, course.budget
    regrets, grid_price = landscape.regrets(budget), landscape.grid_price(budget)
    best = int(np.argmin(regrets))
    noise = landscape.noise
    deviation = np.nan if noise is None else float(noise.deviations[landscape.budgets.index(budget)])
    members = _by_tuner(course, heats)

    def shares_of(price: Callable[[TunerPath, np.ndarray, float], float]) -> dict[str, dict[str, dict[int, float]]]:
        """What each seed of each tuner took, as a share of the grid; a failure takes all of it."""
        return {
            f"{100 * target:g}%": {
                tuner: {heat.seed: min(1.0, price(known[heat], regrets, target) / grid_price) for heat in its}
                for tuner, its in members.items()
            }
            for target in TARGETS
        }

    shares = shares_of(price_to_stay)
    return {
        **asdict(course),
        "fingerprint": landscape.fingerprint,
        "cells": landscape.num_cells,
        "diverged_cells": int(np.sum(~np.isfinite(regrets))),
        "grid_tokens": grid_price,
        "grid_seeds": landscape.num_seeds,
        "seed_noise": None if np.isnan(deviation) else float(f"{deviation:.3g}"),
        "best_cell": {"log2_lr": float(landscape.log2_lr[best]), "log2_wd": float(landscape.log2_wd[best])},
        "cells_within": {f"{100 * target:g}%": int(np.sum(regrets <= target)) for target in TARGETS},
        "tuners": {
            tuner: summarize([known[heat] for heat in its], regrets, grid_price) for tuner, its in members.items()
        },
        "ratio_intervals": {target: ratio_intervals(its) for target, its in shares.items()},
        "first_ratio_intervals": {target: ratio_intervals(its) for target, its in shares_of(price_to_reach).items()},
        "paired_ratios": {target: paired_ratios(its) for target, its in shares.items()},
        "free_seeds": {target: free_seeds(its) for target, its in shares.items()},
    }


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """isotune against the best of the others, then a table of all tuners for each course."""
    return f"## Head to head\n\n{head_to_head_text(head_to_head(results))}\n\n## All tuners\n\n{course_tables(results)}"


def course_tables(results: Sequence[dict[str, Any]]) -> str:
    """A table for each course: mean share of the grid's price until the recommendation stays within each target."""
    blocks = []
    for result in results:
        words = Course(*(result[name] for name in ("table", "scenario", "family", "budget"))).words
        noise = "no seeds, no noise" if result["seed_noise"] is None else f"seed noise {result['seed_noise']}"
        within = ", ".join(f"{count} within {target}" for target, count in result["cells_within"].items())
        head = [f"{100 * target:g} % stays" for target in TARGETS] + ["0.25 % first", "done at", "regret then"]
        lines = [
            f"### {words}",
            "",
            f"{result['cells']} cells ({within}), {result['diverged_cells']} diverged, {noise}. Share of the full "
            f"grid's {format_tokens(result['grid_tokens'])} tokens: mean (90th percentile; failures).",
            "",
            "| tuner | " + " | ".join(head) + " |",
            "|---" * (len(head) + 1) + "|",
        ]
        rows = sorted(result["tuners"].items(), key=lambda item: item[1]["0.25%"]["stays"]["mean"])
        blocks.append("\n".join(lines + [_row(name, summary) for name, summary in rows]) + "\n")
    return "\n".join(blocks)


def draw_course(course: Course, result: dict[str, Any], heats: Sequence[Heat], known: dict[Heat, TunerPath]) -> None:
    regrets, grid_price = course.landscape.regrets(course.budget), course.landscape.grid_price(course.budget)
    shares = np.geomspace(*SHARES, 120)
    lines = {}
    for tuner, its in _by_tuner(course, heats).items():
        values = [[regret_at(known[heat], regrets, share * grid_price) for share in shares] for heat in its]
        lines[tuner] = np.mean(values, axis=0)  # from where all seeds have a recommendation
    name = "-".join([course.table, course.scenario, course.family.replace(" ", "-"), str(course.budget)])
    draw(RESULTS / "tuners" / f"{name}.svg", f"{course.words}, {result['cells']} cells", shares, lines)


def chosen_courses(options: argparse.Namespace) -> list[Course]:
    """All that the options ask for; a family or a budget that no table has is an error."""
    possible = [
        Course(table, scenario, family, budget)
        for table in options.table
        for scenario in options.scenario
        if (table == MADE) == (scenario in DIRECTIONS)
        for family, landscape in landscapes(table, scenario).items()
        for budget in landscape.budgets
    ]
    families = dict.fromkeys(course.family for course in possible)
    budgets = dict.fromkeys(course.budget for course in possible)
    _known("family", options.family, families)
    _known("budget", options.budget, budgets)
    wanted = {*(options.family or families), *DIRECTIONS}  # made surfaces have one family each, of the scenario's name
    return [c for c in possible if c.family in wanted and c.budget in (options.budget or budgets)]


def _known(what: str, names: Iterable[Any], known: Iterable[Any]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"no table has the {what} {name!r}: take one of {', '.join(map(str, known))}")


def _options() -> argparse.Namespace:
    tables = sorted(folder.parent.name for folder in TABLES.glob("*/manifest.json"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=_names, help=f"of {', '.join(tables)}, {MADE} (all real ones)")
    parser.add_argument("--scenario", type=_names, default=["real"], help=f"of {', '.join(SCENARIOS)} (real)")
    parser.add_argument("--family", type=_names, default=[], help='such as "batch 4" (all)')
    parser.add_argument("--budget", type=lambda text: [int(part) for part in text.split(",")], default=[])
    parser.add_argument(
        "--tuners", type=_tuners, default=dict.fromkeys(CONTENDERS), help=f"of {', '.join(CONTENDERS)} (all)"
    )
    parser.add_argument("--again", type=_names, default=[], help="tuners whose cached paths are not to be used")
    parser.add_argument("--afresh", action="store_true", help=f"run rivals again that are in {KEPT.name}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--add", action="store_true", help="keep what the results say of other courses")
    parser.add_argument("--no-results", action="store_true", help="print, and write nothing but the cache")
    options = parser.parse_args()
    unknown = {*options.tuners, *options.again} - set(CONTENDERS) | set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    made = [MADE] if set(options.scenario) & set(DIRECTIONS) else []
    options.table = options.table or tables + made
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _tuners(text: str) -> dict[str, int | None]:
    """Names with numbers of seeds, where those are given: "tpe,gp:50"."""
    parts = [name.partition(":") for name in _names(text)]
    return {name: int(seeds) if seeds else None for name, _, seeds in parts}


def _run_all(heats: Sequence[Heat], processes: int) -> Iterator[tuple[Heat, TunerPath]]:
    if processes == 1 or len(heats) < 2:
        yield from ((heat, run_heat(heat)) for heat in heats)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_heat, heat): heat for heat in heats}
        try:
            yield from ((futures[future], future.result()) for future in as_completed(futures))
        finally:  # where a heat failed, or nobody waits for more, the pool would run all the others first
            pool.shutdown(wait=False, cancel_futures=True)


def _cached() -> Iterator[tuple[Heat, TunerPath]]:
    """What the cache holds; a torn last line is dropped."""
    yield from _read(CACHE.read_text() if CACHE.exists() else "")


def _kept(file: Path | None) -> Iterator[tuple[Heat, TunerPath]]:
    yield from _read(gzip.decompress(file.read_bytes()).decode() if file and file.exists() else "")


def _line(heat: Heat, path: TunerPath) -> str:
    return json.dumps(asdict(heat) | {"path": asdict(path)}) + "\n"


def _read(lines: str) -> Iterator[tuple[Heat, TunerPath]]:
    for line in lines.splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        path = row.pop("path")
        points = tuple((tokens, cell) for tokens, cell in path["points"])
        heat = Heat(Course(**row.pop("course")), **row)
        yield heat, TunerPath(points, path["done_tokens"], path["end_tokens"])


def _by_tuner(course: Course, heats: Sequence[Heat]) -> dict[str, list[Heat]]:
    members: dict[str, list[Heat]] = {}
    for heat in heats:
        if heat.course == course:
            members.setdefault(heat.tuner, []).append(heat)
    return members


def _row(name: str, summary: dict[str, Any]) -> str:
    cells = [share_words(summary[f"{100 * target:g}%"]["stays"]) for target in TARGETS]
    cells.append(share_words(summary["0.25%"]["first"]))
    done = summary.get("done")
    regret = None if done is None else done["mean_regret"]
    cells += ["-" if done is None else f"{100 * done['mean_share']:.3g} %"]
    cells += ["-" if regret is None else f"{100 * regret:.2g} %"]
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
