"""isotune against the best of the others, made from the results of a race.

    python benchmarks/tuners/head_to_head.py    # fills blocks of docs/comparison.md and README.md with results

    duels       real tables: isotune's mean share of the grid against the lowest of all baselines; the lowest is chosen
                for each course and target from the same results, which favours the baselines
    arrivals    the same, where a recommendation counts from when it is within the target for the first time
    settled     the same, where the mean regret over seeds counts, from when it stays within the target; tuners with few
                seeds are left out
    regrets     the same courses: isotune's mean regret after some shares of the grid's tokens against the lowest of all
                baselines, chosen for each course and share
    controls    nothing is invariant there: isotune's tokens against those of Sobol with a quadratic; tables are
                shuffled in several orders, over which the goal is judged in the mean
    ablations   isotune without one of its parts, and other samplers with its coordinates, against isotune

Shares are those of `stays` in scores.py, of `first` for arrivals and of `settles` for settled: a seed that fails is
charged the full grid. A recommendation that is within the target may be lost again, when a run that follows has bad
luck; how much is lost in the mean is what regrets tell. A seed is free if the setting that is recommended before the
first run is within the target and stays so. Grids are laid around where the optimum was expected, so the middle of
one is no finding: free seeds are counted, and a goal that would be missed if each of them were charged one full run
is not simply called met. Intervals of ratios draw seeds with replacement, the same ones for both where both have
them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from isotune.recipe import format_tokens

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "tuners.json"
PAGE, README = ROOT / "docs" / "comparison.md", ROOT / "README.md"
BEGIN, END = "<!-- race:begin -->", "<!-- race:end -->"

OURS = "isotune"
YARDSTICK = "sobol-quadratic"
ORACLE = "oracle"  # knows the surface: no baseline (oracle.py)
COORDINATES = ("tpe-elr", "gp-elr")  # with our coordinates: rivals, and ablations of what the coordinates alone give
RATIO_GOALS = {"0.1%": 0.5, "0.25%": 0.5, "0.5%": 1.0}
SHARE_GOALS = {"0.1%": 0.05, "0.25%": 0.03, "0.5%": 0.02}
CONTROL_GOAL = 1.2
CONTROLS = re.compile(r"(shuffled-wd|shuffled-lr|made-round|made-between)(-\d+)?")  # and the number of an order
SET_TABLES = ("nano",)  # constants of the tuner were set on them
VIEWED_TABLES = ("small32",)  # some were chosen with them in view (docs/log.md); all others were trained afterwards
SEVERAL_SEEDS = "16-seeds"  # scenario of a grid with as many seeds in each cell
OFF_CENTRE = ("lower-lrs", "upper-lrs")  # scenarios without a third of the LRs
LEVEL, DRAWS, MIN_SEEDS = 0.9, 2000, 10
READINGS = {  # of scores.py
    "first": "is within the target",
    "stays": "stays within the target",
    "settles": "stays within the target in the mean over seeds",
}
SHOWN = ("0.1%", "0.25%")  # targets in the README
MIN_SETTLED_SEEDS = 30  # the mean of few seeds is within a target by luck

Race = Mapping[str, Any]  # what race.py writes of a course
Row = dict[str, Any]


def main() -> None:
    sys.path.append(str(ROOT / "experiments"))
    from table_sheet import update_block

    results = json.loads(RESULTS.read_text())
    for path, text in ((PAGE, page_block(results)), (README, readme_block(results))):
        update_block(path, text, BEGIN, END)
        print(path.relative_to(ROOT))


def page_block(results: Mapping[str, Any]) -> str:
    """What the page says of the results of a race."""
    made = f"commit {results['commit'][:7]}, {results['date'][:10]}"
    source = f"`benchmarks/results/tuners.json` ({made}), which names the command that makes it again"
    return f"From {source}.\n\n{head_to_head_text(head_to_head(results['races']))}"


def readme_block(results: Mapping[str, Any]) -> str:
    """What it comes to on the table that says most, all three readings of two targets."""
    summary = head_to_head(results["races"])
    kinds = {"first": "arrivals", "settles": "settled", "stays": "duels"}
    first = _group(summary["duels"][0])
    lines = []
    for reading, kind in kinds.items():
        rows = [row for row in summary[kind] if _group(row) == first]
        ours, best = (" / ".join(_mean_shares(rows, who)) for who in ("isotune", "baseline"))
        lines.append([READINGS[reading].replace("the target", " / ".join(map(_target, SHOWN))), ours, best])
    others = {name for race in results["races"] if _group(race) == first for name in _baselines(race)}
    return _table(["share of a grid's tokens until what is recommended", OURS, f"best of {len(others)} others"], lines)


def _mean_shares(rows: Sequence[Row], who: str) -> list[str]:
    """Of each target that is shown, the mean over courses."""
    of_targets = [[row[who]["mean"] for row in rows if row["target"] == target] for target in SHOWN]
    return [f"{100 * float(np.mean(its)):.2g} %" for its in of_targets]


def head_to_head(races: Sequence[Race]) -> dict[str, list[Row]]:
    """Duels, controls and ablations of all courses that isotune ran, a row for each target."""
    raced = [(race, target) for race in races if OURS in race["tuners"] for target in RATIO_GOALS]
    duelled = [(race, target) for race, target in raced if not _is_control(race) and _baselines(race)]
    duels = [duel(race, target) for race, target in duelled]
    arrivals = [duel(race, target, "first") for race, target in duelled if "first" in race["tuners"][OURS][target]]
    settled = [duel(race, target, "settles") for race, target in duelled if _baselines(race, target, "settles")]
    return {
        "duels": sorted(duels, key=lambda row: _group(row)[0]),
        "arrivals": sorted(arrivals, key=lambda row: _group(row)[0]),
        "settled": sorted(settled, key=lambda row: _group(row)[0]),
        "regrets": [row for race in races if not _is_control(race) for row in regrets(race)],
        "controls": [control(*one) for one in raced if _is_control(one[0]) and YARDSTICK in one[0]["tuners"]],
        "ablations": [row for race, target in raced if not _is_control(race) for row in ablations(race, target)],
    }


def duel(race: Race, target: str, reading: str = "stays") -> Row:
    """isotune against the baseline with the lowest mean share, with both goals."""
    baselines = _baselines(race, target, reading)
    best = min(baselines, key=lambda name: race["tuners"][name][target][reading]["mean"])
    row = _against(race, target, best, RATIO_GOALS[target], reading)
    goal, ours = SHARE_GOALS[target], row["isotune"]
    met = {"share_goal_met": ours["mean"] <= goal, "share_goal_met_charged": ours["charged_mean"] <= goal}
    has_oracle = reading in race["tuners"].get(ORACLE, {}).get(target, {})
    oracle = {"oracle": _readings(race, target, ORACLE, reading)} if has_oracle else {}
    means = {name: race["tuners"][name][target][reading]["mean"] for name in baselines}
    return row | {"share_goal": goal, **met, **oracle, "baseline_means": means}


def regrets(race: Race) -> list[Row]:
    """isotune's mean regret at equal tokens, and the lowest of the others."""
    rows = []
    for share, ours in race["tuners"].get(OURS, {}).get("regret", {}).items():
        others = {name: race["tuners"][name]["regret"][share] for name in _baselines(race)}
        others = {name: value for name, value in others.items() if value is not None}
        best = min(others, key=others.__getitem__, default=None)
        baseline = best and {"name": best, "regret": others[best], "seeds": race["tuners"][best]["seeds"]}
        rows.append(_course(race) | {"share": share, "isotune": ours, "baseline": baseline})
    return rows


def control(race: Race, target: str) -> Row:
    """isotune against Sobol with a quadratic, where its prior is wrong."""
    return _against(race, target, YARDSTICK, CONTROL_GOAL)


def ablations(race: Race, target: str) -> list[Row]:
    """How much more of the grid isotune takes without its parts."""
    return [
        _course(race) | {"target": target, "without": name} | ratio
        for name, ratio in race["paired_ratios"][target].items()
        if name.startswith(OURS) or name in COORDINATES
    ]


def paired_ratios(shares: Mapping[str, Mapping[int, float]]) -> dict[str, Row]:
    """The mean share of each other tuner over isotune's, both over the seeds that they have in common."""
    ours = shares.get(OURS)
    if ours is None:
        return {}
    found = {}
    for name, its in shares.items():
        if name != OURS:
            both = sorted(ours.keys() & its.keys())
            ones, others = ({seed: one[seed] for seed in both} for one in (its, ours))
            total = sum(others.values())
            ratio = _rounded(sum(ones.values()) / total) if total else None
            found[name] = {"seeds": len(both), "ratio": ratio, "interval": ratio_interval(ones, others)}
    return found


def ratio_intervals(shares: Mapping[str, Mapping[int, float]]) -> dict[str, list[float] | None]:
    """The interval of isotune's mean share over that of each other tuner, from the share of every seed."""
    ours = shares.get(OURS)
    if ours is None:
        return {}
    return {name: ratio_interval(ours, its) for name, its in shares.items() if name != OURS}


def free_seeds(shares: Mapping[str, Mapping[int, float]]) -> dict[str, int]:
    """For how many seeds a tuner spent nothing, of those that have any."""
    counts = {name: sum(share == 0 for share in its.values()) for name, its in shares.items()}
    return {name: count for name, count in counts.items() if count}


def ratio_interval(ones: Mapping[int, float], others: Mapping[int, float]) -> list[float] | None:
    """Bootstrap interval of mean(ones) / mean(others), paired by seed; None with too few seeds in common.

    Seeds that only one of them has are drawn apart, so that every draw has as many seeds of each as there are.
    """
    both = sorted(ones.keys() & others.keys())
    if len(both) < MIN_SEEDS:
        return None
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(both), size=(DRAWS, len(both)))
    means = []
    for shares in (ones, others):
        alone = np.array([share for seed, share in sorted(shares.items()) if seed not in both])
        sums = np.array([shares[seed] for seed in both])[drawn].sum(axis=1)
        if len(alone):
            sums += alone[rng.integers(len(alone), size=(DRAWS, len(alone)))].sum(axis=1)
        means.append(sums / len(shares))
    if not np.all(means[1] > 0):
        return None
    return [_rounded(end) for end in np.quantile(means[0] / means[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])]


def _against(race: Race, target: str, name: str, goal: float, reading: str = "stays") -> Row:
    ours, its = (_readings(race, target, tuner, reading) for tuner in (OURS, name))
    never = ours["failures"] == ours["seeds"]
    return _course(race) | {
        "target": target,
        "isotune": ours,
        "baseline": {"name": name, **its},
        "ratio": _rounded(ours["mean"] / its["mean"]) if its["mean"] else None,
        "interval": _interval(race, target, name, reading),
        "ratio_goal": goal,
        "ratio_goal_met": not never and ours["mean"] <= goal * its["mean"],
        "ratio_goal_met_charged": not never and ours["charged_mean"] <= goal * its["mean"],
        "baseline_wins": ours["mean"] > its["mean"],
    }


def _course(race: Race) -> Row:
    return {name: race[name] for name in ("table", "scenario", "family", "budget")}


def _readings(race: Race, target: str, name: str, reading: str) -> Row:
    summary = race["tuners"][name]
    share, seeds = summary[target][reading], summary["seeds"]
    free = race.get("free_seeds", {}).get(target, {}).get(name, 0)
    a_run = 1 / (race["cells"] * race.get("grid_seeds", 1))
    return {**share, "seeds": seeds, "free": free, "charged_mean": _rounded(share["mean"] + free / seeds * a_run)}


def _interval(race: Race, target: str, name: str, reading: str) -> list[float] | None:
    intervals = race.get("ratio_intervals" if reading == "stays" else f"{reading}_ratio_intervals", {})
    return intervals.get(target, {}).get(name)


def _baselines(race: Race, target: str | None = None, reading: str = "stays") -> list[str]:
    """The others; those that have a reading, if one is named, and isotune has it."""
    names = [name for name in race["tuners"] if not name.startswith(OURS) and name != ORACLE]
    if target is None or reading != "settles":
        return names
    tuners = race["tuners"]
    having = [name for name in (OURS, *names) if reading in tuners[name][target]]
    enough = [name for name in having if tuners[name]["seeds"] >= MIN_SETTLED_SEEDS]
    return enough[1:] if OURS in enough else []


def _is_control(race: Race) -> bool:
    return CONTROLS.fullmatch(race["scenario"]) is not None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# Words


def head_to_head_text(summary: Mapping[str, Sequence[Row]]) -> str:
    """The summary as Markdown: what it comes to in each group of courses, then its rows."""
    parts = [
        "Tokens until the recommendation is within the target, and until it stays within it, as a share of the full "
        "grid's: mean over seeds (90th percentile; failures, if any); and until the mean regret over all seeds stays "
        f"within it, where {MIN_SETTLED_SEEDS} seeds and more were run. A failure is charged the full grid. The best "
        f"baseline has the lowest mean of its row. {_interval_words(summary)}{_free_words(summary)}"
    ]
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in summary["duels"]:
        groups.setdefault(_group(row), []).append(row)
    for (_, title), rows in groups.items():
        arrived = [row for row in summary.get("arrivals", ()) if _group(row)[1] == title]
        settled = [row for row in summary.get("settled", ()) if _group(row)[1] == title]
        parts += [f"### {title}", _totals({"first": arrived, "stays": rows, "settles": settled})]
        if arrived:
            parts += [f"Until the recommendation {READINGS['first']}:", _duels(arrived)]
        parts += [f"Until it {READINGS['stays']}:", _duels(rows)]
        if settled:
            parts += [f"Until it {READINGS['settles']}:", _duels(settled)]
        at_equal_tokens = [row for row in summary.get("regrets", ()) if _group(row)[1] == title]
        if at_equal_tokens:
            parts += [
                "Mean regret of what is recommended after a share of the grid's tokens, and in brackets the lowest of "
                "all baselines that have a recommendation for every seed by then, chosen for each course and share:",
                _regrets(at_equal_tokens),
            ]
    if summary["controls"]:
        parts += ["### Negative controls: where nothing is invariant", _controls(summary["controls"])]
    if summary["ablations"]:
        parts += [
            "### Without its parts",
            "The share that is needed, over isotune's with the same seeds: above 1, the part helps. Names with `elr` "
            "are other samplers that are given log ELR and log LR as coordinates; they are baselines above, too.",
            _ablations(summary["ablations"]),
        ]
    return "\n\n".join(parts)


def _interval_words(summary: Mapping[str, Sequence[Row]]) -> str:
    if not any(row.get("interval") for rows in summary.values() for row in rows):
        return "There are no intervals of the ratios here."
    return (
        f"Intervals of ratios are {100 * LEVEL:.0f} % ones over seeds, paired, and do not cover the choice of the "
        f"best; they take {MIN_SEEDS} common seeds."
    )


def _free_words(summary: Mapping[str, Sequence[Row]]) -> str:
    if not any(row["isotune"]["free"] for name in ("duels", "controls") for row in summary[name]):
        return ""
    return (
        " Free seeds are those for which what isotune would recommend before its first run, near the middle of the "
        "ranges, is within the target and stays so: they cost nothing, and a grid's middle is no finding. A goal that "
        "would be missed if each of them were charged one full run is met by free seeds only, and is not counted."
    )


def share_words(share: Mapping[str, Any]) -> str:
    """Mean (90th percentile; failures, if any), and free seeds, if any. A reading of all seeds together is a mean, or
    "never"."""
    if "p90" not in share:
        return "never" if share["failures"] else f"{100 * share['mean']:.3g} %"
    failures = f"; {share['failures']}" if share["failures"] else ""
    free = f", {share['free']} free" if share.get("free") else ""
    return f"{100 * share['mean']:.3g} % ({100 * share['p90']:.3g}{failures}){free}"


def verdict_words(row: Row) -> str:
    """Whether the goal of the ratio is met, and who is ahead where it is not isotune."""
    ours, its, interval = row["isotune"], row["baseline"], row["interval"]
    words = _met_words(row, "ratio_goal_met")
    if ours["failures"] == ours["seeds"]:
        nobody = its["failures"] == its["seeds"]
        words += ": nobody gets there" if nobody else f": {its['name']} wins, isotune fails with every seed"
    elif row["baseline_wins"]:
        by_chance = interval is not None and interval[0] <= 1
        words += f": {its['name']} is ahead, within chance" if by_chance else f": {its['name']} wins"
    return words


def _met_words(row: Row, goal: str) -> str:
    if row[goal] and not row[f"{goal}_charged"]:
        return "met by free seeds only"
    return "met" if row[goal] else "missed"


def _group(row: Row) -> tuple[int, str]:
    """Its place and title: tables that say most come first."""
    places = {"real": (0, ""), SEVERAL_SEEDS: (1, " with 16 seeds in each cell")}
    places |= dict.fromkeys(OFF_CENTRE, (2, " without a third of their LRs"))
    if row["scenario"] not in places:
        return 9, "Surfaces made by a formula"
    place, words = places[row["scenario"]]
    if row["table"] in SET_TABLES:
        return 6 + place, f"Tables{words} on which constants of the tuner were set"
    if row["table"] in VIEWED_TABLES:
        return 3 + place, f"Tables{words} that were in view when some constants were chosen"
    return place, f"Tables{words} that were trained when the tuner was finished"


def _totals(rows: Mapping[str, Sequence[Row]]) -> str:
    lines = []
    for reading, target in product(rows, RATIO_GOALS):
        its = [row for row in rows[reading] if row["target"] == target]
        if not its:
            continue
        ours, best = (float(np.mean([row[who]["mean"] for row in its])) for who in ("isotune", "baseline"))
        counted = ("ratio_goal_met_charged", "share_goal_met_charged", "baseline_wins")
        counts = [sum(row[name] for row in its) for name in counted]
        goals = (f"≤ {RATIO_GOALS[target]:g}", f"≤ {100 * SHARE_GOALS[target]:g} %")
        met = [f"{goal}: met in {count} of {len(its)}" for goal, count in zip(goals, counts[:2], strict=True)]
        words = [READINGS[reading].replace(" the target", ""), _target(target), f"{100 * ours:.3g} %"]
        words += [f"{100 * best:.3g} % ({ours / best:.2g})", _best_single(its, ours), *met]
        lines.append([*words, f"in {counts[2]} of {len(its)}"])
    head = (
        "recommendation",
        "target",
        "isotune, mean of courses",
        "best baseline of each (ratio)",
        "best one for all (ratio)",
        "goal for the ratio",
    )
    return _table([*head, "goal for the share", "a baseline is ahead"], lines)


def _best_single(rows: Sequence[Row], ours: float) -> str:
    """The baseline with the lowest mean over all courses, what one gets who has to choose before the race; and the
    ratio of our mean to its."""
    everywhere = set.intersection(*(set(row["baseline_means"]) for row in rows))
    means = {name: float(np.mean([row["baseline_means"][name] for row in rows])) for name in sorted(everywhere)}
    best = min(means, key=means.__getitem__, default=None)
    return "-" if best is None else f"{100 * means[best]:.3g} % ({best}; {ours / means[best]:.2g})"


def _duels(rows: Iterable[Row]) -> str:
    lines = []
    for row in rows:
        share = f"≤ {100 * row['share_goal']:g} %: {_met_words(row, 'share_goal_met')}"
        oracle = share_words(row["oracle"]) if "oracle" in row else "-"
        lines.append([*_both(row), f"≤ {row['ratio_goal']:g}: {verdict_words(row)}", share, oracle])
    head = ("course", "target", "isotune", "seeds", "best baseline", "its share", "its seeds", "ratio")
    return _table([*head, "goal for the ratio", "goal for the share", "oracle"], lines)


def _regrets(rows: Sequence[Row]) -> str:
    shares = list(dict.fromkeys(row["share"] for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        ours, best = row["isotune"], row["baseline"]
        its = "none"
        if best:
            few = f" with {best['seeds']} seeds" if best["seeds"] < MIN_SEEDS else ""
            its = f"{100 * best['regret']:.2g} %, {best['name']}{few}"
        words = "-" if ours is None else f"{100 * ours:.2g} % ({its})"
        cells.setdefault(_course_words(row), {})[row["share"]] = words
    lines = [[course, *(words.get(share, "-") for share in shares)] for course, words in cells.items()]
    return _table(["course", *(f"after {_target(share)}" for share in shares)], lines)


def _controls(rows: Iterable[Row]) -> str:
    """A line for all orders of a shuffled table together, and what came of each of them."""
    together: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        surface = CONTROLS.sub(r"\1", row["scenario"])
        together.setdefault((_course_words(row | {"scenario": surface}), _target(row["target"])), []).append(row)
    lines = [[*place, *_control_words(its)] for place, its in together.items()]
    return _table(
        ["course", "target", OURS, YARDSTICK, "ratio", "goal for the ratio", "seeds", "ratio by order"], lines
    )


def _control_words(orders: Sequence[Row]) -> list[str]:
    ours, charged = (float(np.mean([row[OURS][mean] for row in orders])) for mean in ("mean", "charged_mean"))
    its = float(np.mean([row["baseline"]["mean"] for row in orders]))
    goal = orders[0]["ratio_goal"]
    seeds = sorted({row[OURS]["seeds"] for row in orders})
    is_met = charged <= goal * its and any(row[OURS]["failures"] < row[OURS]["seeds"] for row in orders)
    return [
        *(f"{100 * mean:.3g} %" for mean in (ours, its)),
        f"{ours / its:.2g}" if its else "-",
        f"≤ {goal:g}: {'met' if is_met else 'missed'}{f': {YARDSTICK} is ahead' if ours > its else ''}",
        " or ".join(map(str, seeds)),
        ", ".join(map(_ratio, orders)) if len(orders) == 1 else ", ".join(f"{row['ratio']:.2g}" for row in orders),
    ]


def _both(row: Row) -> list[str]:
    ours, its = row["isotune"], row["baseline"]
    readings = [share_words(ours), str(ours["seeds"]), its["name"], share_words(its), str(its["seeds"])]
    return [_course_words(row), _target(row["target"]), *readings, _ratio(row)]


def _ablations(rows: Sequence[Row]) -> str:
    names = sorted(dict.fromkeys(row["without"] for row in rows), key=lambda name: name in COORDINATES)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((_course_words(row), _target(row["target"])), {})[row["without"]] = _ratio(row)
    lines = [[*place, *(ratios.get(name, "-") for name in names)] for place, ratios in cells.items()]
    seeds = {name: sorted({row["seeds"] for row in rows if row["without"] == name}) for name in names}
    heads = [f"{name.removeprefix(f'{OURS}-')} ({' or '.join(map(str, seeds[name]))} seeds)" for name in names]
    return _table(["course", "target", *heads], lines)


def _course_words(row: Row) -> str:
    families = () if row["family"] == row["scenario"] else (row["family"],)
    scenarios = () if row["scenario"] == "real" else (row["scenario"],)
    return ", ".join([row["table"], *scenarios, *families, format_tokens(row["budget"])])


def _target(target: str) -> str:
    return target.replace("%", " %")


def _ratio(row: Row) -> str:
    if row["ratio"] is None:
        return "-"
    ends = "" if row["interval"] is None else " [{:.2g}, {:.2g}]".format(*row["interval"])
    return f"{row['ratio']:.2g}{ends}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


if __name__ == "__main__":
    main()
