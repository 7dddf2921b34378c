"""C17 to C24, C27 and C30: the loss after the decay over LR and WD, its minimum, and the laws of the minimum.

A surface is a mean over seeds where there are several, at the level of the average seed. The same numbers from the grid
without its lowest WDs, as it was planned at first, are shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from isotune.analyze.distances import draw_cells
from isotune.analyze.laws import fit_saturating_power_law
from isotune.claims.definitions import FEW_CELLS, interval, paired_error, window_means
from isotune.claims.grids import GridLosses, grid_losses, seed_interval
from isotune.claims.judging import judges
from isotune.claims.optima import BestLoss, BudgetOptimum, OptimumLaw, Surfaces, fit_surfaces
from isotune.claims.rows import Rows, RowsMissing, Run
from isotune.claims.rules import Entry, Estimate, Measured
from isotune.claims.tuning_lines import Ends, Regrets, lines_through
from isotune.errors import InputError

DIVERGED_PENALTY = 0.1  # note of C24
CONSTANT_TOKENS = 614_400  # of the trunk's end, over which C24 compares constant-LR losses
# C27: the middle of the grid, whose lines a user may have chosen.
WD_LINES: dict[str, Ends] = {"small_decays": (-6, -2), "large_decays": (-2, 2)}
LR_LINES, ELR_LINES = (-11, -8), (-16, -10)


@judges("C17")
def c17(rows: Rows, entry: Entry) -> Measured:
    """After the decay ELR explains the loss at a small batch, LR at a large one, ELR again with the scheduler."""
    wanted = {"small_gap": "small_common", "large_gap": "large_common", "switch_gap": "type2_common"}
    left_out = ("switch_gap",) if rows.is_replication else ()
    statistics: dict[str, Estimate] = {}
    shown, num_cells = {}, []
    for stream, (name, row_set) in enumerate(wanted.items()):
        if name in left_out:
            continue
        try:
            grid = grid_losses(rows, row_set, rows.budgets("last_budget", rows[row_set]), more_seeds=False)
        except RowsMissing as error:
            statistics[name] = Estimate(math.nan, reason=str(error))
            continue
        statistics[name], shown[f"explained in {grid.name} by ELR, LR"] = _explained_gap(grid, entry, stream)
        num_cells.append(grid.num_cells)
    if not num_cells:
        raise RowsMissing("; ".join(one.reason for one in statistics.values()))
    return Measured(statistics, min(num_cells), shown, left_out=left_out)


@judges("C18")
def c18(rows: Rows, entry: Entry) -> Measured:
    """The top eigenvector is (1,1) at a small batch and (1,0) at a large one, and its eigenvalue dominates."""
    small, large = both_surfaces(rows, entry)
    shown = _directions(small, entry) | _directions(large, entry)
    before = _first_plan(rows, entry, "small_surface")
    if before is not None:
        shown |= {f"without the lowest WDs: {name}": value for name, value in _directions(before, entry).items()}
    num_cells = min(small.grid.num_cells, large.grid.num_cells)
    first, second = small.last, large.last
    if first is None or second is None:
        missing = Estimate(math.nan, reason="no paraboloid can be fitted")
        return Measured(dict.fromkeys(entry.statistic, missing), num_cells, shown)
    ratio = min(first.surface.eigenvalue_ratio, second.surface.eigenvalue_ratio)
    drawn = np.minimum(first.drawn.eigenvalue_ratio, second.drawn.eigenvalue_ratio)
    return Measured(
        {
            "small_angle": _angle(first, entry.level),
            "large_angle": _angle(second, entry.level),
            "eigenvalue_ratio": seed_interval(ratio, drawn, entry.level),
        },
        num_cells,
        shown,
    )


@judges("C19")
def c19(rows: Rows, entry: Entry) -> Measured:
    """The optimal LR hardly depends on the number of tokens."""
    return _exponents(rows, entry, {"lr_exponent": "learning_rate"})


@judges("C20")
def c20(rows: Rows, entry: Entry) -> Measured:
    """The optimal WD falls with tokens, more slowly than 1/tokens; so the optimal ELR falls."""
    return _exponents(rows, entry, {"wd_exponent": "weight_decay", "elr_exponent": "effective_learning_rate"})


@judges("C21")
def c21(rows: Rows, entry: Entry) -> Measured:
    """The best loss follows E + B D^-beta, and the large batch never beats the small one."""
    tables = both_surfaces(rows, entry)
    small, large = ([each.best(budget) for budget in each.grid.budgets] for each in tables)
    gaps = [_lead(ours, theirs) for ours, theirs in zip(small, large, strict=True)]
    each_level = 1 - (1 - entry.level) / len(gaps)  # Bonferroni: together they hold with `level`
    found = [seed_interval(*gap, each_level) for gap in gaps]
    smallest = Estimate(*(min(getattr(one, end) for one in found) for end in ("value", "low", "high")))
    budgets = tables[0].grid.budgets
    errors = [_law_errors(budgets, best) for best in (small, large)]
    return Measured(
        {"smallest_gap": smallest, "law_error": Estimate(float(np.max(np.abs(errors))))},
        min(each.grid.num_cells for each in tables),
        {
            "gap by budget": dict(zip(map(str, budgets), found, strict=True)),
            "best loss at batch 4": _shown_best(budgets, small),
            "best loss at batch 64": _shown_best(budgets, large),
            "errors of the law, each budget from the others, batch 4": errors[0],
            "errors of the law, each budget from the others, batch 64": errors[1],
        },
    )


@judges("C22")
def c22(rows: Rows, entry: Entry) -> Measured:
    """The scheduler beats the plain large batch by far, and the small batch too where data is limited."""
    budgets = rows.budgets("switch_budgets")
    names = ("small_surface", "large_surface", "type2_common")
    tables = [fit_surfaces(grid_losses(rows, name, budgets), entry, stream) for stream, name in enumerate(names)]
    small, large, switched = ([each.best(budget) for budget in budgets] for each in tables)
    leads = [_lead(ours, theirs) for ours, theirs in zip(switched, large, strict=True)]
    shown: dict[str, Any] = {
        f"best loss of {each.grid.name}": _shown_best(budgets, best)
        for each, best in zip(tables, (small, large, switched), strict=True)
    }
    shown["best cell of Type 2 (log2 LR, log2 WD)"] = {str(each): _best_cell(tables[2].grid, each) for each in budgets}
    return Measured(
        {
            "lead_large": seed_interval(
                min(value for value, _ in leads), np.min([drawn for _, drawn in leads], axis=0), entry.level
            ),
            "lead_small": seed_interval(*_lead(switched[0], small[0]), entry.level),
        },
        min(each.grid.num_cells for each in tables),
        shown,
    )


@judges("C23")
def c23(rows: Rows, entry: Entry) -> Measured:
    """The optimal LR is lower at the large batch; so LR growing with the square root of the batch is wrong."""
    small, large = both_surfaces(rows, entry)
    shift = _lr_shift(small.last, large.last, entry.level)
    shown: dict[str, Any] = {
        "shift by budget, whether censored or not": {
            str(budget): _lr_shift(small.optima[budget], large.optima[other], entry.level, even_censored=True)
            for budget, other in zip(small.grid.budgets, large.grid.budgets, strict=True)
        }
    }
    before = _first_plan(rows, entry, "small_surface")
    if before is not None:
        shown["without the lowest WDs: shift, whether censored or not"] = _lr_shift(
            before.last, large.last, entry.level, even_censored=True
        )
    notes: tuple[str, ...] = ()
    if shift.low > 0 and shift.high < entry["square_root_shift"]:
        notes = ("a shift between 0 and that of the rule: the claim fails, and so does the square-root rule",)
    return Measured({"lr_shift": shift}, min(small.grid.num_cells, large.grid.num_cells), shown, notes)


@judges("C24")
def c24(rows: Rows, entry: Entry) -> Measured:
    """Multiplying LR by sqrt(16) at the batch switch ends at a higher loss than leaving it."""
    scaled, kept = rows["square_root"], rows["type2_common"].by_place()
    (budget,) = rows.budgets("last_budget")
    pairs = [(run, kept[place]) for place, run in scaled.by_place().items() if place in kept]
    pairs = [pair for pair in pairs if all(budget in run.decays for run in pair)]
    if not pairs and not scaled.num_diverged:
        raise RowsMissing(f"{scaled.name} (no decay at {budget:,} tokens with its Type 2 run)")
    ends = [_penalty(*pair, budget) for pair in pairs]
    trunks = [_constant_penalty(*pair) for pair in pairs]
    diverged = [DIVERGED_PENALTY] * scaled.num_diverged
    errors = [error for _, error in ends] + [0.0] * len(diverged)
    penalties = [value for value, _ in ends] + diverged
    return Measured(
        {
            "penalty": mean_interval(np.array(penalties), entry, np.array(errors)),
            "constant_penalty": mean_interval(np.array(trunks + diverged), entry),
        },
        len(penalties),
        {
            f"LR 2^{run.log2_lr:g}, WD 2^{run.log2_wd:g}: after the decay, constant LR": [end, trunk]
            for (run, _), (end, _), trunk in zip(pairs, ends, trunks, strict=True)
        },
        (f"{len(diverged)} square-root runs diverged: a penalty of 10 % each",) if diverged else (),
    )


@judges("C27")
def c27(rows: Rows, entry: Entry) -> Measured:
    """LR at fixed WD is a good line to tune along, WD at fixed LR is better at a small batch, constant ELR fails."""
    budgets = rows.budgets("last_budget", rows["small_decays"])
    grid = grid_losses(rows, "small_decays", budgets)
    small = Regrets(grid, entry)
    along = {
        "LR lines": lines_through(grid.log2_wd, WD_LINES["small_decays"]),
        "WD lines": lines_through(grid.log2_lr, LR_LINES),
        "ELR lines": lines_through(grid.log2_lr + grid.log2_wd, ELR_LINES),
    }
    regrets = {name: small.of(lines) for name, lines in along.items()}
    means = {name: each.mean(axis=1) for name, each in regrets.items()}
    statistics = {
        "lr_line_small": _mean_of_draws(means["LR lines"], entry.level),
        "wd_advantage": _mean_of_draws(means["LR lines"] - means["WD lines"], entry.level),
        "elr_line_small": _mean_of_draws(means["ELR lines"], entry.level),
    }
    shown: dict[str, Any] = {}
    for name, lines in along.items():
        count = round(float(np.mean([len(cells) for cells in lines])))
        shown[f"{name}, batch 4: mean regret"] = _mean_of_draws(means[name], entry.level)
        shown[f"{name}, batch 4: 90th percentile"] = float(np.quantile(regrets[name], 0.9))
        shown[f"{count} cells at random: mean regret"] = float(small.of_random_cells(count).mean())
    num_cells = [grid.num_cells]
    if rows.is_replication:
        statistics["lr_line_large"] = Estimate(math.nan, reason="the replication has no large batch")
    else:
        grid = grid_losses(rows, "large_decays", budgets)
        large = Regrets(grid, entry, 1).of(lines_through(grid.log2_wd, WD_LINES["large_decays"]))
        statistics["lr_line_large"] = _mean_of_draws(large.mean(axis=1), entry.level)
        shown["LR lines, batch 64: 90th percentile"] = float(np.quantile(large, 0.9))
        num_cells.append(grid.num_cells)
    return Measured(statistics, min(num_cells), shown)


@judges("C30")
def c30(rows: Rows, entry: Entry) -> Measured:
    """The scheduler's laws of LR and WD lie between those of the two batches, and its WD exponent differs markedly."""
    small, large = both_surfaces(rows, entry)
    budgets = sorted(set.intersection(*(set(run.decays) for run in rows["type2_laws"].runs)))
    switched = fit_surfaces(grid_losses(rows, "type2_laws", budgets), entry, 2)
    tables = (small, large, switched)
    shown = {f"optimum of {each.grid.name}": _places(each) for each in tables}
    num_cells = min(each.grid.num_cells for each in tables)
    laws = {
        factor: [each.law(factor, entry["min_uncensored_budgets"]) for each in tables]
        for factor in ("learning_rate", "weight_decay")
    }
    lacking = [_too_few(each, entry) for each, law in zip(tables, laws["weight_decay"], strict=True) if law is None]
    if lacking:
        missing = Estimate(math.nan, reason="; ".join(lacking))
        return Measured(dict.fromkeys(entry.statistic, missing), num_cells, shown)
    found = {factor: [law for law in each if law is not None] for factor, each in laws.items()}
    return Measured(
        {
            "lr_outside": _outside(switched, found["learning_rate"], "learning_rate", entry.level),
            "wd_outside": _outside(switched, found["weight_decay"], "weight_decay", entry.level),
            "wd_exponent_gap": _exponent_gap(found["weight_decay"], entry.level),
        },
        num_cells,
        shown
        | {f"{factor} exponents: small, large, scheduler": [law.exponent for law in found[factor]] for factor in found},
    )


# Shared by judges


def both_surfaces(rows: Rows, entry: Entry) -> tuple[Surfaces, Surfaces]:
    """The small and the large batch's surfaces at all budgets; drawn apart."""
    names = ("small_surface", "large_surface")
    first, second = (
        fit_surfaces(grid_losses(rows, name, rows.budgets("budgets", rows[name])), entry, stream)
        for stream, name in enumerate(names)
    )
    return first, second


def mean_interval(values: np.ndarray, entry: Entry, errors: np.ndarray | None = None) -> Estimate:
    """The mean over cells; `errors` of the single values are added in quadrature (paired_windows)."""
    if len(values) < 2:
        return Estimate(float(values.mean()), reason="one cell has no interval")
    weights = draw_cells(len(values), entry.draws, entry.random_seed)
    found = interval(float(values.mean()), weights @ values / len(values), entry.level)
    below, above = found.value - found.low, found.high - found.value
    if len(values) < FEW_CELLS:
        quantile = float(special.stdtrit(len(values) - 1, (1 + entry.level) / 2))
        reach = quantile * float(values.std(ddof=1)) / math.sqrt(len(values))
        if 2 * reach > below + above:
            below = above = reach
    if errors is not None:
        normal = float(special.ndtri((1 + entry.level) / 2))
        window_part = normal * math.sqrt(float(np.sum(errors**2))) / len(values)
        below, above = math.hypot(below, window_part), math.hypot(above, window_part)
    return Estimate(found.value, found.value - below, found.value + above)


def explained_by(losses: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Adjusted R^2 of a one-way grouping for each row of losses [draws x cells]."""
    labels, group = np.unique(np.round(groups, 3), return_inverse=True)
    member = np.eye(len(labels))[group]
    centred = losses - losses.mean(axis=1, keepdims=True)
    within = centred - (centred @ member / member.sum(axis=0))[:, group]
    count = losses.shape[1]
    return 1 - ((within**2).sum(axis=1) / (count - len(labels))) / ((centred**2).sum(axis=1) / (count - 1))


def _explained_gap(grid: GridLosses, entry: Entry, stream: int) -> tuple[Estimate, list[float]]:
    there = np.isfinite(grid.loss[:, -1])
    lr, elr = grid.log2_lr[there], (grid.log2_lr + grid.log2_wd)[there]
    losses = np.concatenate([grid.loss[None, :, -1], grid.drawn(entry, stream)[:, :, -1]])[:, there]
    by_elr, by_lr = explained_by(losses, elr), explained_by(losses, lr)
    gap = by_elr - by_lr
    return seed_interval(float(gap[0]), gap[1:], entry.level), [float(by_elr[0]), float(by_lr[0])]


def _angle(one: BudgetOptimum, level: float) -> Estimate:
    """The direction of the largest curvature; its draws are turned to within 90 degrees of it."""
    degrees = one.surface.salient_direction
    return seed_interval(degrees, degrees + (one.drawn.angle - degrees + 90) % 180 - 90, level)


def _directions(surfaces: Surfaces, entry: Entry) -> dict[str, Any]:
    fitted = {f"{budget:,}": one for budget, one in surfaces.optima.items() if one is not None}
    name = surfaces.grid.name
    return {
        f"{name}: angle by budget": {budget: _angle(one, entry.level) for budget, one in fitted.items()},
        f"{name}: active angle by budget": {budget: one.surface.active_direction for budget, one in fitted.items()},
    }


def _first_plan(rows: Rows, entry: Entry, part: str) -> Surfaces | None:
    """The grid without its lowest WDs, which decides nothing."""
    name = {"small_surface": "small_decays", "large_surface": "large_decays"}[part]
    if rows.is_replication:
        return None
    return fit_surfaces(grid_losses(rows, name, rows.budgets("budgets")), entry)


def _exponents(rows: Rows, entry: Entry, wanted: dict[str, str]) -> Measured:
    name = rows.part or "small_surface"
    surfaces = fit_surfaces(grid_losses(rows, name, rows.budgets("budgets", rows[name])), entry)
    shown: dict[str, Any] = {"optimum": _places(surfaces)}
    before = _first_plan(rows, entry, name)
    if before is not None:
        shown |= {
            f"without the lowest WDs: {stat}": _exponent(before, factor, entry) for stat, factor in wanted.items()
        }
    statistics = {stat: _exponent(surfaces, factor, entry) for stat, factor in wanted.items()}
    return Measured(statistics, surfaces.grid.num_cells, shown)


def _exponent(surfaces: Surfaces, factor: str, entry: Entry) -> Estimate:
    law = surfaces.law(factor, entry["min_uncensored_budgets"])
    if law is None:
        return Estimate(math.nan, reason=_too_few(surfaces, entry))
    return seed_interval(law.exponent, law.exponent_drawn, entry.level)


def _too_few(surfaces: Surfaces, entry: Entry) -> str:
    return (
        f"{surfaces.num_inside} of {len(surfaces.optima)} budgets of {surfaces.grid.name} have their minimum inside "
        f"the grid, {entry['min_uncensored_budgets']:g} are needed"
    )


def _places(surfaces: Surfaces) -> dict[str, str]:
    """The optimum of each budget in words, and what of it is censored."""
    return {f"{budget:,}": _place(one) for budget, one in surfaces.optima.items()}


def _place(one: BudgetOptimum | None) -> str:
    if one is None:
        return "no paraboloid can be fitted"
    if not one.surface.is_convex:
        return "no minimum"
    lr, wd = (one.optimum(factor)[0] for factor in ("learning_rate", "weight_decay"))
    censored = " and ".join(name.replace("_", " ") for name in one.surface.censored)
    return f"LR 2^{lr:.2f} WD 2^{wd:.2f}" + (f" (censored in {censored})" if censored else "")


def _lead(ours: BestLoss, theirs: BestLoss) -> tuple[float, np.ndarray]:
    """By which share of our loss theirs is above it, measured and drawn."""
    return theirs.value / ours.value - 1, theirs.drawn / ours.drawn - 1


def _law_errors(budgets: Sequence[int], best: Sequence[BestLoss]) -> list[float]:
    """Of E + B D^-beta, each budget predicted from the others."""
    try:
        law = fit_saturating_power_law([float(budget) for budget in budgets], [each.value for each in best])
    except InputError:
        return [math.nan]
    return list(law.leave_one_out_errors)


def _shown_best(budgets: Sequence[int], best: Sequence[BestLoss]) -> dict[str, Any]:
    return {str(budget): [each.value, each.source] for budget, each in zip(budgets, best, strict=True)}


def _best_cell(grid: GridLosses, budget: int) -> list[float]:
    best = int(np.nanargmin(grid.loss[:, grid.budgets.index(budget)]))
    return [float(grid.log2_lr[best]), float(grid.log2_wd[best])]


def _lr_shift(
    small: BudgetOptimum | None, large: BudgetOptimum | None, level: float, even_censored: bool = False
) -> Estimate:
    if small is None or large is None:
        return Estimate(math.nan, reason="no paraboloid can be fitted")
    for words, each in (("small", small), ("large", large)):
        if each.surface.is_censored and not (even_censored and each.surface.is_convex):
            what = " and ".join(name.replace("_", " ") for name in each.surface.censored)
            return Estimate(math.nan, reason=f"the minimum of the {words} batch is censored in {what}")
    (first, first_drawn), (second, second_drawn) = small.optimum("learning_rate"), large.optimum("learning_rate")
    return seed_interval(second - first, second_drawn - first_drawn, level)


def _penalty(scaled: Run, kept: Run, budget: int) -> tuple[float, float]:
    """(relative penalty after the decay, its error over windows); 10 % where the decay diverged."""
    loss, usual = scaled.final_val_loss(budget), kept.final_val_loss(budget)
    if math.isnan(loss):
        return DIVERGED_PENALTY, 0.0
    return loss / usual - 1, paired_error(scaled.decay(budget), kept.decay(budget)) / usual


def _constant_penalty(scaled: Run, kept: Run) -> float:
    end = float(min(scaled.record.tokens, kept.record.tokens))
    losses = window_means([scaled, kept], "val_loss", (end - CONSTANT_TOKENS, end))
    return float(losses[0] / losses[1]) - 1


def _mean_of_draws(drawn: np.ndarray, level: float) -> Estimate:
    return seed_interval(float(drawn.mean()), drawn, level)


def _outside(switched: Surfaces, laws: Sequence[OptimumLaw], factor: str, level: float) -> Estimate:
    """The most octaves by which an optimum of the scheduler lies outside the laws of the two batches."""
    values, draws = [], []
    for budget in laws[2].budgets:
        one = switched.optima[budget]
        assert one is not None
        found = [one.optimum(factor), laws[0].at(budget), laws[1].at(budget)]
        values.append(_beyond(*(np.array(value) for value, _ in found)))
        draws.append(_beyond(*(drawn for _, drawn in found)))
    return seed_interval(float(np.max(values)), np.max(draws, axis=0), level)


def _beyond(place: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    low, high = np.minimum(first, second), np.maximum(first, second)
    return np.maximum(0.0, np.maximum(low - place, place - high))


def _exponent_gap(laws: Sequence[OptimumLaw], level: float) -> Estimate:
    small, large, switched = laws
    value = min(abs(switched.exponent - other.exponent) for other in (small, large))
    drawn = np.minimum(*(np.abs(switched.exponent_drawn - other.exponent_drawn) for other in (small, large)))
    return seed_interval(value, drawn, level)
