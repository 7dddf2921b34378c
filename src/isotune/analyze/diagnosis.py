"""What a set of runs says: what its trajectories are invariant to, which direction matters, what to run next.

One diagnosis for each family (runs that differ in LR, WD, seed and length alone). Its parts:

    stages      the verdict where n < .3, .3 to 3 and > 3, with the distances of curves grouped by LR and by ELR
    shift       when LR gives way to ELR
    surfaces    a paraboloid through the final losses, for each budget
    regimes     the batch against the measured noise scale
    next_run    the run that would tell most

A part that cannot be made is there with the reason in words. `invariant` is the verdict of the latest stage that is
decided, `salient_direction` the direction in which the final loss of the largest budget changes most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from isotune.analyze.curves import Curves, common_curves, effective_learning_rate, log2_settings
from isotune.analyze.distances import GroupDistances, group_distances, group_labels, relative_distances
from isotune.analyze.families import Budget, Cells, Family, cells_of, lineage_of, make_families, seed_levels
from isotune.analyze.invariance import MIN_CELLS, PERMUTATIONS, Invariance, Verdict, invariance
from isotune.analyze.next_run import NextRun, choose_next_run
from isotune.analyze.regime import Regime, batch_regime
from isotune.analyze.shift import Shift, find_shift
from isotune.analyze.stages import STAGES, Stage, find_stretch, knows_memory_times
from isotune.analyze.surface import LossSurface, fit_surface
from isotune.errors import InputError
from isotune.recipe.quantities import format_number, format_tokens
from isotune.runs.trajectory import RunInfo, Trajectory, WeightDecayConvention

MAX_COMPARED = 400  # curves in a distance matrix: more would cost minutes and change nothing
MAX_METERED = 12  # runs whose noise is looked at, spread over the cells
MIN_TWINS = 4
SHUFFLED_VALUES = 4_000_000  # of a permutation test: 9,999 permutations up to 400 cells, fewer for more cells
MIN_PERMUTATIONS = 199
ALL_DIRECTIONS = 179.0  # degrees: an interval this wide leaves none out
LONG_ENOUGH = 0.9  # of the median run: shorter ones would cut the window of all when a shift is looked for

Interval = tuple[float, float]


@dataclass(frozen=True)
class StageFinding:
    """What the runs are invariant to in a range of n, or why that cannot be said."""

    stage: Stage
    tokens: Interval
    invariance: Invariance | None
    by_lr: GroupDistances | None
    by_elr: GroupDistances | None
    runs: tuple[Trajectory, ...] = field(default=(), repr=False)
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        return "undecided" if self.invariance is None else self.invariance.verdict

    @property
    def range(self) -> str:
        low, high = STAGES[self.stage]
        return f"n < {high:g}" if not low else f"n > {low:g}" if math.isinf(high) else f"n {low:g} to {high:g}"


@dataclass(frozen=True)
class SurfaceFinding:
    """The paraboloid of one budget, or why there is none."""

    tokens: int
    decay_tokens: int | str
    cells: Cells = field(repr=False)
    surface: LossSurface | None
    reason: str = ""


@dataclass(frozen=True)
class RunRegime:
    """The batch of one run against its noise scale."""

    info: RunInfo = field(repr=False)
    settings: str
    regime: Regime


@dataclass(frozen=True)
class Diagnosis:
    """What the runs of a family say, with the evidence and what is wrong with it."""

    family: Family
    invariant: Verdict
    reason: str  # why `invariant` is undecided; nothing where it is decided
    salient_direction: float  # of the gradients over the last budget's cells: 0 LR, 45 ELR, 90 WD; NaN if none
    interval: Interval
    stages: tuple[StageFinding, ...]
    shift: Shift | None
    surfaces: tuple[SurfaceFinding, ...]
    regimes: tuple[RunRegime, ...]  # of a few runs, by ELR
    next_run: NextRun | None
    evidence: tuple[str, ...]
    warnings: tuple[str, ...]


def diagnose(
    trajectories: Sequence[Trajectory], *, loss: str = "val_loss", level: float = 0.9, random_seed: int = 0
) -> tuple[Diagnosis, ...]:
    """A diagnosis for each family of these runs, the one with most cells first."""
    return tuple(
        diagnose_family(family, level=level, random_seed=random_seed) for family in make_families(trajectories, loss)
    )


def diagnose_family(family: Family, *, level: float = 0.9, random_seed: int = 0) -> Diagnosis:
    """What one family says."""
    warnings = list(family.warnings)
    nothing_tells = _nothing_tells(family)
    stages = tuple(_stage(stage, family, nothing_tells, level, random_seed) for stage in STAGES)
    shift, why_none = (None, "") if nothing_tells else _shift(family, level)
    surfaces = tuple(_surface(budget, level) for budget in family.budgets if len(budget.ends) > 1)
    direction, interval = _direction(surfaces)
    invariant, reason = _invariant(stages)
    regimes = _regimes(family)
    if family.diverged:
        warnings.append(f"{_count(len(family.diverged), 'run')} diverged: {_name_settings(family.diverged)}")
    warnings += [why_none] if why_none else []
    warnings += shift.warnings if shift is not None else ()
    warnings += surfaces[-1].surface.warnings if surfaces and surfaces[-1].surface is not None else ()
    by_budget = {finding.tokens: finding.surface for finding in surfaces}
    return Diagnosis(
        family,
        invariant,
        reason,
        direction,
        interval,
        stages,
        shift,
        surfaces,
        regimes,
        choose_next_run(family, by_budget, invariant),
        _evidence(nothing_tells, stages, shift, surfaces, regimes, family.weight_decay_convention),
        tuple(dict.fromkeys(warnings)),
    )


def _nothing_tells(family: Family) -> str:
    """Why these runs cannot tell a direction, whatever their losses are; nothing if they might."""
    cells = cells_of([run.info for run in family.curves], np.zeros(len(family.curves)))
    if not len(cells.value):
        return "no run has a curve"
    num_lr, num_wd, num_elr = (
        len(np.unique(column.round(2))) for column in (cells.log2_lr, cells.log2_wd, cells.log2_elr)
    )
    if num_lr == 1:
        rate = f"one LR ({format_number(2.0 ** float(cells.log2_lr[0]))})" + " and one WD" * (num_wd == 1)
        return f"all runs have {rate}: no direction can be inferred from one learning rate; add runs with another LR"
    if num_wd == 1:
        return "all runs have one WD: nothing tells LR from ELR; add runs with another WD"
    if num_elr == 1:
        return "all runs have one ELR: nothing tells whether ELR matters; add runs with another LR or WD alone"
    if len(cells.value) < MIN_CELLS:
        return f"{len(cells.value)} cells are too few to tell LR from ELR: it takes {MIN_CELLS}, as three LR by two WD"
    if not knows_memory_times(family.curves):
        return "n is unknown, since steps are: give batch_size and sequence_length, or a column step"
    return ""


# Stages of n


def _stage(stage: Stage, family: Family, nothing_tells: str, level: float, random_seed: int) -> StageFinding:
    nowhere = (math.nan, math.nan)
    if nothing_tells:
        return StageFinding(stage, nowhere, None, None, None, reason=nothing_tells)
    falling = family.shape == "falling"
    stretch = find_stretch(stage, family.curves, family.loss, through_ramps=falling)
    low, high = STAGES[stage]
    if stretch is None:
        span = f"n below {high:g}" if not low else f"n above {low:g}" if math.isinf(high) else f"n from {low} to {high}"
        why = f"no stretch of training has six cells with {span} and four evaluations of each"
        return StageFinding(stage, nowhere, None, None, None, reason=why)
    window = (stretch.start, stretch.end)
    try:
        curves = common_curves(stretch.runs, family.loss, tokens=window, through_ramps=falling)
    except InputError as error:
        return StageFinding(stage, window, None, None, None, reason=str(error))
    noise, freedom = _twin_noise(family, stretch.runs, window)
    x, y = log2_settings(curves.infos)
    found = invariance(
        x,
        y,
        curves.values - seed_levels(curves.infos, curves.values.mean(axis=1))[:, None],
        cell_noise=noise,
        cell_noise_freedom=freedom,
        level=level,
        permutations=max(MIN_PERMUTATIONS, min(PERMUTATIONS, SHUFFLED_VALUES // family.num_cells)),
        random_seed=random_seed,
    )
    by_lr, by_elr = _grouped(curves, level, random_seed)
    return StageFinding(stage, window, found, by_lr, by_elr, stretch.runs)


def _twin_noise(family: Family, runs: Sequence[Trajectory], window: Interval) -> tuple[float | None, float]:
    """The variance of a cell's mean over the window, from perturbed twins: half their mean square difference."""
    if len(family.twins) < MIN_TWINS:
        return None, math.inf
    means = {lineage_of(run, family.loss): _mean(run, family.loss, window) for run in runs}
    differences = np.array(
        [_mean(twin, family.loss, window) - means.get(lineage_of(twin, family.loss), math.nan) for twin in family.twins]
    )
    differences = differences[np.isfinite(differences)]
    if len(differences) < MIN_TWINS:
        return None, math.inf
    return float(np.mean(differences**2)) / 2, float(len(differences))


def _mean(run: Trajectory, loss: str, window: Interval) -> float:
    """The mean loss of the evaluations in the window; NaN if the run does not reach its end."""
    at, values = run.measured(loss)
    inside = (window[0] <= at) & (at <= window[1])
    return float(values[inside].mean()) if inside.any() and at[-1] >= window[1] else math.nan


def _grouped(curves: Curves, level: float, random_seed: int) -> tuple[GroupDistances | None, GroupDistances | None]:
    """Distances of curves grouped by LR and by ELR; of many curves some, whole seeds first."""
    rows = _some(curves.infos, random_seed)
    infos, values = [curves.infos[row] for row in rows], curves.values[rows]
    distances = relative_distances(values)
    seeds = [info.seed for info in infos]
    cells = list(zip(*(column.tolist() for column in log2_settings(infos)), strict=True))
    results: list[GroupDistances | None] = []
    for powers in ({"learning_rate": 1.0}, {"learning_rate": 1.0, "weight_decay": 1.0}):
        labels = group_labels(infos, **powers)
        try:
            found = group_distances(
                distances, labels, cells=cells, seeds=seeds, level=level, draws=400, random_seed=random_seed
            )
        except InputError:
            results.append(None)
        else:
            results.append(found)
    return results[0], results[1]


def _some(infos: Sequence[RunInfo], random_seed: int) -> list[int]:
    """At most 400 runs: pairs are made within a seed, so seeds are taken one after the other, their cells at random."""
    if len(infos) <= MAX_COMPARED:
        return list(range(len(infos)))
    order = np.random.default_rng(random_seed).permutation(len(infos)).tolist()
    by_seed: dict[object, list[int]] = {}
    for row in order:
        by_seed.setdefault(infos[row].seed, []).append(row)
    largest_first = sorted(by_seed.values(), key=len, reverse=True)
    return sorted([row for rows in largest_first for row in rows][:MAX_COMPARED])


def _invariant(stages: Sequence[StageFinding]) -> tuple[Verdict, str]:
    """The verdict of the latest stage that is decided; if none is, why the latest one that was seen is not."""
    decided = [finding.verdict for finding in stages if finding.verdict != "undecided"]
    if decided:
        return decided[-1], ""
    seen = [finding for finding in stages if finding.invariance is not None]
    last = (seen or list(stages))[-1]
    return "undecided", last.reason or "; ".join(last.invariance.reasons if last.invariance else ())


# Shift, surfaces, regimes


def _shift(family: Family, level: float) -> tuple[Shift | None, str]:
    if family.shape == "falling":
        return None, "LR falls all the way, so n is not that of one LR: when LR gives way to ELR is not asked"
    try:
        return find_shift(_for_shift(family), family.loss, level=level), ""
    except InputError as error:
        return None, f"when LR gives way to ELR cannot be seen: {error}"


def _for_shift(family: Family) -> list[Trajectory]:
    """The runs that are long enough; of a large grid every second (third, ...) LR and WD."""
    ends = np.array([float(run.measured(family.loss)[0][-1]) for run in family.curves])
    runs = [run for run, end in zip(family.curves, ends, strict=True) if end >= LONG_ENOUGH * np.median(ends)]
    step = math.ceil(math.sqrt(family.num_cells / MAX_COMPARED))
    if step < 2:
        return runs
    x, y = log2_settings([run.info for run in runs])
    place = [np.unique(column.round(2), return_inverse=True)[1].ravel() for column in (x, y)]
    kept = (place[0] % step == 0) & (place[1] % step == 0)
    return [run for run, is_kept in zip(runs, kept, strict=True) if is_kept]


def _surface(budget: Budget, level: float) -> SurfaceFinding:
    cells = budget.cells()
    try:
        surface = fit_surface(cells.log2_lr, cells.log2_wd, cells.value, weights=cells.num_runs, level=level)
    except InputError as error:
        return SurfaceFinding(budget.tokens, budget.decay_tokens, cells, None, str(error))
    return SurfaceFinding(budget.tokens, budget.decay_tokens, cells, surface)


def _direction(surfaces: Sequence[SurfaceFinding]) -> tuple[float, Interval]:
    """The direction in which the largest budget's final loss changes most; NaN where it may be any."""
    fitted = [finding.surface for finding in surfaces if finding.surface is not None]
    if fitted:
        low, high = fitted[-1].active_direction_interval
        if high - low < ALL_DIRECTIONS:
            return fitted[-1].active_direction, (low, high)
    return math.nan, (math.nan, math.nan)


def _regimes(family: Family) -> tuple[RunRegime, ...]:
    """The batch against the noise scale, in a few runs spread over the cells."""
    metered = [run for run in family.curves if len(run.measured("precond_noise_trace")[0])]
    metered.sort(key=lambda run: effective_learning_rate(run.info))
    step = max(1, math.ceil(len(metered) / MAX_METERED))
    return tuple(RunRegime(run.info, _settings(run.info), batch_regime(run)) for run in metered[::step])


# Words


def _settings(info: RunInfo) -> str:
    lr, wd = info.learning_rate, info.weight_decay
    assert not isinstance(lr, str) and not isinstance(wd, str)
    return f"LR {format_number(lr)}, WD {format_number(wd)}"


def _name_settings(infos: Sequence[RunInfo]) -> str:
    more = f" and {len(infos) - 4} more" if len(infos) > 4 else ""
    return "; ".join(_settings(info) for info in infos[:4]) + more


def degrees(angle: float) -> str:
    """An angle in whole degrees; never "-0"."""
    return str(round(angle)) if math.isfinite(angle) else "?"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _evidence(
    nothing_tells: str,
    stages: Sequence[StageFinding],
    shift: Shift | None,
    surfaces: Sequence[SurfaceFinding],
    regimes: Sequence[RunRegime],
    convention: WeightDecayConvention,
) -> tuple[str, ...]:
    sentences = [nothing_tells] if nothing_tells else [_stage_words(finding) for finding in stages]
    if shift is not None:
        sentences.append(_shift_words(shift, convention))
    sentences += [_surface_words(finding, convention) for finding in surfaces]
    if regimes:
        kinds = [one.regime.verdict for one in regimes]
        counts = ", ".join(f"{kind} in {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
        sentences.append(f"batch against noise scale, {_count(len(kinds), 'run')}: {counts}")
    return tuple(sentences)


def _stage_words(finding: StageFinding) -> str:
    if finding.invariance is None:
        return f"{finding.range}: nothing can be said: {finding.reason}"
    start, end = finding.tokens
    place = f"{format_tokens(start)} to {format_tokens(end)} tokens, {finding.invariance.num_cells} cells"
    words = [f"{finding.range} ({place}): {finding.verdict}: " + "; ".join(finding.invariance.reasons)]
    for name, groups in (("LR", finding.by_lr), ("ELR", finding.by_elr)):
        if groups is not None and math.isfinite(groups.ratio):
            interval = f" ({groups.low:.2g} to {groups.high:.2g})" if math.isfinite(groups.low) else ""
            words.append(
                f"grouped by {name}, curves of different groups are {groups.ratio:.2g} times as far apart as those of "
                f"one{interval}"
            )
    return "; ".join(words)


def _shift_words(shift: Shift, convention: WeightDecayConvention) -> str:
    if shift.verdict != "shift":
        return "shift from LR to ELR: undecided: " + "; ".join(shift.reasons)
    n, lr, wd = shift.memory_times, shift.learning_rate, shift.weight_decay
    return (
        f"LR gives way to ELR at n = {n.value:.2g} ({n.low:.2g} to {n.high:.2g}), "
        f"t* ~ LR^{lr.value:.2g} ({lr.low:.2g} to {lr.high:.2g}) "
        f"{'(WD / LR)' if convention == 'independent' else 'WD'}^{wd.value:.2g} ({wd.low:.2g} to {wd.high:.2g})"
    )


def _surface_words(finding: SurfaceFinding, convention: WeightDecayConvention) -> str:
    budget = f"{format_tokens(finding.tokens)} tokens" + (
        f", decay of {format_tokens(finding.decay_tokens)}"
        if isinstance(finding.decay_tokens, int) and finding.decay_tokens
        else ", no decay"
        if finding.decay_tokens == 0
        else ""
    )
    surface = finding.surface
    if surface is None:
        return f"{budget}: no surface: {finding.reason}"
    words = f"{budget}: {_direction_words(surface)}"
    if surface.is_censored:
        names = " and ".join(name.replace("_", " ") for name in surface.censored)
        return f"{words}; minimum not known to lie inside the grid ({names})"
    is_independent = convention == "independent"
    log2_wd = surface.minimum_log2_effective_learning_rate if is_independent else surface.minimum_log2_weight_decay
    return (
        f"{words}; minimum at LR {format_number(2.0**surface.minimum_log2_learning_rate)}, "
        f"WD {format_number(2.0**log2_wd)}, loss {surface.minimum_loss:.4f}"
    )


def _direction_words(surface: LossSurface) -> str:
    """In which direction the loss changes most over the cells that were run, whose spread has a say in it."""
    low, high = surface.active_direction_interval
    if not high - low < ALL_DIRECTIONS:
        return "no direction in which the loss changes most is told from the others"
    factor = surface.active_factor
    named = f" ({factor})" if factor else ""
    return (
        f"over these cells the loss changes most at {degrees(surface.active_direction)} degrees{named} "
        f"[{degrees(low)}, {degrees(high)}]"
    )
