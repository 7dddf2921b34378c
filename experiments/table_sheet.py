"""What a data sheet shows, from a table alone: what is there, price, floors, optima, errors of the best cells.

Errors of a decayed loss are paired: cells are compared on the same windows, and on the same seeds.

    windows   standard deviation over windows of (losses of the cell - losses of the best one) / sqrt(windows)
    seeds     standard error of (loss of the cell - loss of the best one) over seeds, by analyze/seed_noise.py: runs of
              one seed share its noise along WD, and their differences are free of it

Both as shares of the loss, of the best cell against the second best; their root of squares is the cell's error.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from table_twins import seed_pairs, twin_pairs

from isotune.analyze.distances import floor_of_pairs
from isotune.analyze.families import Budget, Family, make_families, place_of
from isotune.analyze.seed_noise import cell_mean_errors, cell_means, fit_noise
from isotune.analyze.surface import MARGIN, LossSurface, fit_surface
from isotune.errors import InputError
from isotune.recipe import Recipe, falling_tokens, format_number, format_tokens
from isotune.runs import DecayRecord, Table
from isotune.runs.words import describe_setup, run_info
from isotune.sweep.plan import make_plan

BEGIN, END = "<!-- sheet:begin -->", "<!-- sheet:end -->"
GOAL = 0.001  # paired standard error of a decayed loss, as a share of it
NUM_BEST = 5
LINE_LENGTH = 140
CellKey = tuple[float, float]
Losses = dict[CellKey, dict[int, DecayRecord]]


def make_sheet(
    name: str, table: Table | None, beside: Sequence[Table], sweeps: Mapping[str, Sequence[Recipe]]
) -> dict[str, Any]:
    """The sheet's numbers; of a table that is not there yet, its plan."""
    planned = {sweep: _planned(recipes, table) for sweep, recipes in sweeps.items()}
    sheet: dict[str, Any] = {"table": name, "exported": table is not None, "planned": planned}
    if table is None:
        return sheet | {"price": {"planned_tokens": _tokens([r for rs in sweeps.values() for r in rs])}}
    families = [family for family in make_families(_trajectories(table)) if family.curves]
    return sheet | {
        "complete": table.is_complete,
        "price": _price(table),
        "floors": _floors(table, beside),
        "families": [_family(family, table) for family in families],
    }


def _trajectories(table: Table):
    names = dict.fromkeys([*(run.run for run in table.runs()), *(decay.decay for decay in table.decays())])
    return [table.trajectory(name) for name in names]


# Plan and price


def _planned(recipes: Sequence[Recipe], table: Table | None) -> dict[str, Any]:
    decays = [recipe for recipe in recipes if falling_tokens(recipe)]
    return {
        "decays": len(decays),
        "decays_there": 0 if table is None else sum(_has(table, recipe) for recipe in decays),
        "tokens": _tokens(recipes),
    }


def _has(table: Table, recipe: Recipe) -> bool:
    try:
        return table.has(recipe)
    except InputError:  # its corpus is none of the table's
        return False


def _tokens(recipes: Sequence[Recipe]) -> int:
    """What training them costs; recipes of different roots share nothing."""
    roots: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        roots.setdefault(f"{describe_setup(recipe.setup)} {recipe.setup.init}", []).append(recipe)
    return sum(make_plan(group, None).price.shared for group in roots.values())


def _price(table: Table) -> dict[str, Any]:
    totals = table.manifest["totals"]
    tokens = totals["trunk_tokens"] + totals["decay_tokens"]
    parts = [totals["trunk_core_hours"], totals["decay_core_hours"]]
    hours = None if None in parts else sum(parts)
    planned = totals["planned_tokens"]
    missing = None if planned is None else max(0, planned - tokens)
    return {
        "tokens": tokens,
        "trunk_tokens": totals["trunk_tokens"],
        "decay_tokens": totals["decay_tokens"],
        "planned_tokens": planned,
        "core_hours": hours,
        "seconds_per_million_tokens": {
            str(batch): seconds for batch, seconds in _pace(table).items() if seconds is not None
        },
        "core_hours_of_the_missing": None if hours is None or missing is None else hours / tokens * missing,
    }


def _pace(table: Table) -> dict[int, float | None]:
    """Core-seconds for a million tokens, for each batch size; whole trunks only, which are measured in one go."""
    paces: dict[int, float | None] = {}
    for batch in sorted({run.batch_size for run in table.runs()}):
        runs = [run for run in table.runs() if run.batch_size == batch and run.core_seconds and run.tokens_trained]
        tokens = sum(run.tokens_trained for run in runs)
        paces[batch] = sum(run.core_seconds for run in runs) / tokens * 1e6 if tokens else None
    return paces


# Floors


def _floors(table: Table, beside: Sequence[Table]) -> list[dict[str, Any]]:
    """How far apart curves of val_loss lie that differ by chance alone, for each batch size."""
    found = []
    for kind, pairs in (("perturbed twins", twin_pairs(table, beside)), ("seeds", seed_pairs(table))):
        for batch in sorted({_batch(one) for one, _ in pairs}):
            curves = [_two_curves(one, other) for one, other in pairs if _batch(one) == batch]
            distances = np.array([floor_of_pairs(both, [(0, 1)]).median for both in curves if both.shape[1] > 1])
            if len(distances):
                found.append(
                    {
                        "of": kind,
                        "batch_size": batch,
                        "pairs": len(distances),
                        "median": float(np.median(distances)),
                        "percentile_95": float(np.quantile(distances, 0.95)),
                    }
                )
    return found


def _batch(named) -> int:
    table, run = named
    return table.contents.runs[run].batch_size


def _two_curves(one, other) -> np.ndarray:
    """val_loss of two runs after the warm-up, where both were evaluated, [2 x points]."""
    (first_at, first), (second_at, second) = (table.trajectory(run).measured("val_loss") for table, run in (one, other))
    at, i, j = np.intersect1d(first_at, second_at, return_indices=True)
    after = at > one[0].contents.runs[one[1]].warmup_tokens
    return np.array([first[i][after], second[j][after]])


# Families: optima and errors


def _family(family: Family, table: Table) -> dict[str, Any]:
    largest = max((budget.tokens for budget in family.budgets), default=0)
    return {
        "name": family.name,
        "batch_size": family.batch_size,
        "cells": family.num_cells,
        "seeds": sorted({str(run.info.seed) for run in family.curves}),
        "optima": [_optimum(budget) for budget in family.budgets],
        "errors_at_tokens": largest,
        "errors": _errors(_losses(family, table, largest), _steps(family, largest)),
    }


def _optimum(budget: Budget) -> dict[str, Any]:
    cells = budget.cells()
    best = int(np.argmin(cells.value))
    found: dict[str, Any] = {
        "tokens": budget.tokens,
        "cells": len(cells.value),
        "best_cell": {
            "learning_rate": 2.0 ** float(cells.log2_lr[best]),
            "weight_decay": 2.0 ** float(cells.log2_wd[best]),
            "loss": float(cells.value[best]),
            "at_edge": _edges(cells.log2_lr, cells.log2_wd, best),
        },
    }
    try:
        surface = fit_surface(cells.log2_lr, cells.log2_wd, cells.value, weights=cells.num_runs)
    except InputError as error:
        return found | {"inside": False, "reason": str(error)}
    return found | _minimum(surface)


def _edges(log2_lr: np.ndarray, log2_wd: np.ndarray, best: int) -> list[str]:
    return [name for name, axis in (("LR", log2_lr), ("WD", log2_wd)) if axis[best] in (axis.min(), axis.max())]


def _minimum(surface: LossSurface) -> dict[str, Any]:
    if not surface.is_convex:
        return {"inside": False, "reason": "the fitted surface has no minimum", "warnings": list(surface.warnings)}
    minimum = {}
    for name in ("learning_rate", "weight_decay"):
        value = getattr(surface, f"minimum_log2_{name}")
        low, high = getattr(surface, f"minimum_log2_{name}_interval")
        minimum[name] = [_power(value), _power(low), _power(high)]
    outside = " and ".join(name.replace("_", " ") for name in surface.censored)
    reason = f"its interval does not keep it inside the grid ({outside})" if outside else ""
    return {
        "inside": not surface.is_censored,
        "reason": reason,
        "minimum": minimum,
        "loss": surface.minimum_loss,
        "level": surface.level,
        "fitted_cells": surface.num_fitted,
        "warnings": list(surface.warnings),
    }


def _power(log2: float) -> float | None:
    return 2.0**log2 if math.isfinite(log2) else None


def _losses(family: Family, table: Table, tokens: int) -> Losses:
    """The family's decays at a budget, by cell and seed."""
    losses: Losses = {}
    places = {place_of(end.info) for budget in family.budgets for end in budget.ends}
    for decay in table.decays():
        recipe = table.recipe(decay.decay)
        is_here = decay.tokens == tokens and place_of(run_info(recipe, "finished", "")) in places
        if is_here and decay.final_val_loss is not None and not recipe.setup.init.perturbation:
            losses.setdefault((decay.learning_rate, decay.weight_decay), {})[decay.seed] = decay
    return losses


def _steps(family: Family, tokens: int) -> float:
    return tokens / (family.batch_size * family.sequence_length)


def _errors(losses: Losses, steps: float) -> dict[str, Any]:
    """Paired errors of the best cells, as shares of their losses."""
    if len(losses) < 2:
        return {"cells": [], "seed_deviation": None}
    cells = sorted(losses)
    means, covariance, deviation = _over_seeds(cells, losses, steps)
    order = np.argsort(means)
    rows = []
    for place, index in enumerate(order[:NUM_BEST]):
        other = order[0 if place else 1]
        windows = _window_error(losses[cells[index]], losses[cells[other]]) / means[index]
        both = covariance[index, index] + covariance[other, other] - 2 * covariance[index, other]
        seeds = deviation * math.sqrt(max(0.0, both)) / means[index]
        total = math.hypot(windows, seeds)
        rows.append(
            {
                "learning_rate": cells[index][0],
                "weight_decay": cells[index][1],
                "loss": float(means[index]),
                "seeds": len(losses[cells[index]]),
                "window_error": _number(windows),
                "seed_error": _number(seeds),
                "error": _number(total),
                "reaches_goal": bool(total <= GOAL),
            }
        )
    return {"cells": rows, "seed_deviation": _number(deviation / means[order[0]])}


def _over_seeds(cells: Sequence[CellKey], losses: Losses, steps: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(losses of the cells, covariance of their errors over the squared deviation of a seed's noise, that deviation:
    NaN where seeds are too few to tell it)."""
    u, v = np.log2(np.array(cells)).T
    z = np.log2(1 + 2.0 ** (u + v) * steps)
    seeds = sorted({seed for of in losses.values() for seed in of})
    by_seed = {
        seed: np.array([[losses[cell][seed].final_val_loss if seed in losses[cell] else math.nan] for cell in cells])
        for seed in seeds
    }
    first = by_seed[seeds[0]]
    near = first <= (1 + MARGIN) * np.nanmin(first)  # elsewhere noise is larger
    noise = fit_noise(u, z[:, None], {seed: np.where(near, its, math.nan) for seed, its in by_seed.items()})
    runs = [(index, seed, by_seed[seed][index, 0]) for index, cell in enumerate(cells) for seed in losses[cell]]
    index, seed, values = (np.array(column) for column in zip(*runs, strict=True))
    means, covariance = cell_means(u, z, index, seed, values, noise), cell_mean_errors(u, z, index, seed, noise)
    return means, covariance, math.nan if noise is None else float(noise.deviations[0])


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _window_error(cell: dict[int, DecayRecord], other: dict[int, DecayRecord]) -> float:
    """The standard error over windows of the difference of two cells, both as means over the seeds that they share."""
    shared = [seed for seed in cell if seed in other]
    windows = [(cell[seed].window_losses, other[seed].window_losses) for seed in shared]
    if not windows or any(part is None for pair in windows for part in pair):
        return math.nan
    differences = np.mean([np.asarray(a, float) - np.asarray(b, float) for a, b in windows], axis=0)
    return float(differences.std(ddof=1) / math.sqrt(len(differences)))


# Words


def sheet_text(sheet: dict[str, Any]) -> str:
    """The numbers as Markdown."""
    lines = [f"Made by `python experiments/tables.py sheet {sheet['table']}` from the table alone.", ""]
    lines += ["| sweep | planned decays | there | planned tokens |", "|---|---|---|---|"]
    lines += [
        f"| `{name}` | {row['decays']} | {row['decays_there']} | {format_tokens(row['tokens'])} |"
        for name, row in sheet["planned"].items()
    ]
    price = sheet["price"]
    if not sheet["exported"]:
        planned = format_tokens(price["planned_tokens"])
        return "\n".join([*lines, "", f"Not exported yet: nothing of the {planned} planned tokens can be shown."])
    lines += ["", textwrap.fill(_price_words(price), LINE_LENGTH), "", *_floor_lines(sheet["floors"])]
    for family in sheet["families"]:
        seeds = ", ".join(family["seeds"])
        lines += ["", f"#### {family['name']}: {family['cells']} cells, seeds {seeds}", ""]
        lines += [*_optimum_lines(family["optima"]), "", *_error_lines(family)]
    return "\n".join(lines)


def _price_words(price: dict[str, Any]) -> str:
    words = f"Price: {format_tokens(price['tokens'])} tokens ({format_tokens(price['trunk_tokens'])} in trunks)"
    if price["planned_tokens"] is not None:
        words += f" of {format_tokens(price['planned_tokens'])} planned"
    if price["core_hours"] is None:
        return f"{words}; the time was not noted."
    words += f", {price['core_hours']:.1f} core-hours so far"
    if price["core_hours_of_the_missing"]:
        words += f"; what is missing takes {price['core_hours_of_the_missing']:.1f} more at this pace"
    paces = ", ".join(
        f"{seconds:.0f} s at batch {batch}" for batch, seconds in price["seconds_per_million_tokens"].items()
    )
    return f"{words}. A million tokens took {paces}, on a shared machine."


def _floor_lines(floors: Sequence[dict[str, Any]]) -> list[str]:
    if not floors:
        return ["Floors: no two runs differ by chance alone yet."]
    return [
        "| floor (relative distance of val_loss along trunks) | batch | pairs | median | 95th percentile |",
        "|---|---|---|---|---|",
        *(
            f"| {row['of']} | {row['batch_size']} | {row['pairs']} | {row['median']:.4f} | {row['percentile_95']:.4f} |"
            for row in floors
        ),
    ]


def _optimum_lines(optima: Sequence[dict[str, Any]]) -> list[str]:
    if not optima:
        return ["No decay has ended yet."]
    return [
        "| budget | cells | best cell (LR, WD), loss | fitted minimum LR | WD | inside the grid |",
        "|---|---|---|---|---|---|",
        *(_optimum_line(row) for row in optima),
        *_warning_lines(optima),
    ]


def _warning_lines(optima: Sequence[dict[str, Any]]) -> list[str]:
    """What the fits warn of, each with its budgets: an interval says nothing where the loss is no paraboloid."""
    budgets: dict[str, list[str]] = {}
    for row in optima:
        for warning in row.get("warnings", ()):
            budgets.setdefault(warning, []).append(format_tokens(row["tokens"]))
    return ["", *(f"- {', '.join(tokens)}: {warning}" for warning, tokens in budgets.items())] if budgets else []


def _optimum_line(row: dict[str, Any]) -> str:
    best = row["best_cell"]
    edge = f", at the edge in {' and '.join(best['at_edge'])}" if best["at_edge"] else ""
    place = f"{_as_power(best['learning_rate'])}, {_as_power(best['weight_decay'])}; {best['loss']:.4f}{edge}"
    minimum = row.get("minimum")
    lr, wd = (_interval(minimum[name]) if minimum else "-" for name in ("learning_rate", "weight_decay"))
    inside = "yes" if row["inside"] else f"no: {row['reason']}"
    return f"| {format_tokens(row['tokens'])} | {row['cells']} | {place} | {lr} | {wd} | {inside} |"


def _as_power(value: float) -> str:
    power = math.log2(value)
    return f"2^{power:.0f}" if abs(power - round(power)) < 1e-6 else format_number(value)


def _interval(ends: Sequence[float | None]) -> str:
    value, low, high = ("?" if end is None else f"{end:.2g}" for end in ends)
    return f"{value} [{low}, {high}]"


def _error_lines(family: dict[str, Any]) -> list[str]:
    errors = family["errors"]
    if not errors["cells"]:
        return ["Too few decayed cells for errors."]
    budget = format_tokens(family["errors_at_tokens"])
    lines = [
        f"| best cells at {budget} (LR, WD) | loss | seeds | paired error of windows | of seeds | both | within .1 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in errors["cells"]:
        shares = " | ".join(_percent(row[name]) for name in ("window_error", "seed_error", "error"))
        place = f"{_as_power(row['learning_rate'])}, {_as_power(row['weight_decay'])}"
        reached = "yes" if row["reaches_goal"] else "no"
        lines.append(f"| {place} | {row['loss']:.4f} | {row['seeds']} | {shares} | {reached} |")
    if errors["seed_deviation"] is None:
        return [*lines, "", "Too few seeds to tell their scatter."]
    scatter = _percent(errors["seed_deviation"])
    paired = "Errors of seeds are those of differences of cells, paired by seed."
    words = f"A run near the best scatters by {scatter} with its seed. {paired}"
    return [*lines, "", *textwrap.wrap(words, LINE_LENGTH)]


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.3f} %"


def update_block(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replaces what stands between the markers of a data sheet, or between others of a page."""
    if not path.exists():
        raise InputError(f"{path} is not there: write the data sheet, with a line {begin} and a line {end}")
    before = path.read_text()
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise InputError(f"{path} needs one line {begin} and, behind it, one line {end}")
    head, rest = before.split(begin)
    path.write_text(f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}")
