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
from isotune.analyze.families import Budget, Cells, Family, make_families
from isotune.analyze.invariance import Invariance, Verdict, invariance
from isotune.analyze.next_run import NextRun, choose_next_run
from isotune.analyze.regime import Regime, batch_regime
from isotune.analyze.shift import Shift, find_shift
from isotune.analyze.stages import STAGES, Stage, find_stretch
from isotune.analyze.surface import LossSurface, fit_surface
from isotune.errors import InputError
from isotune.recipe.quantities import format_number, format_tokens
from isotune.runs.trajectory import RunInfo, Trajectory

MAX_COMPARED = 400  # curves in a distance matrix: more would cost minutes and change nothing
MAX_METERED = 12  # runs whose noise is looked at, spread over the cells
MIN_TWINS = 4

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
class Diagnosis:
    """What the runs of a family say, with the evidence and what is wrong with it."""

    family: Family
    invariant: Verdict
    salient_direction: float  # degrees: 0 LR, 45 ELR, 90 WD; NaN if nothing tells
    interval: Interval
    stages: tuple[StageFinding, ...]
    shift: Shift | None
    surfaces: tuple[SurfaceFinding, ...]
    regimes: tuple[tuple[str, Regime], ...]  # (which run, its batch against its noise)
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
    stages = tuple(_stage(stage, family, level, random_seed) for stage in STAGES)
    shift, why_none = _shift(family, level)
    surfaces = tuple(_surface(budget, level) for budget in _budgets(family))
    direction, interval = _direction(surfaces, shift)
    regimes = _regimes(family)
    if family.diverged:
        warnings.append(f"{len(family.diverged)} runs diverged: {_name_settings(family)}")
    warnings += [why_none] if why_none else []
    return Diagnosis(
        family,
        _invariant(stages),
        direction,
        interval,
        stages,
        shift,
        surfaces,
        regimes,
        choose_next_run(family, [finding.surface for finding in surfaces], _invariant(stages)),
        _evidence(stages, shift, surfaces, regimes),
        tuple(dict.fromkeys(warnings)),
    )


# Stages of n


def _stage(stage: Stage, family: Family, level: float, random_seed: int) -> StageFinding:
    falling = family.shape == "falling"
    stretch = find_stretch(stage, family.curves, family.loss, through_ramps=falling)
    low, high = STAGES[stage]
    if stretch is None:
        span = f"n below {high:g}" if not low else f"n above {low:g}" if math.isinf(high) else f"n from {low} to {high}"
        why = f"no stretch of training has six cells with {span} and four evaluations of each"
        return StageFinding(stage, (math.nan, math.nan), None, None, None, reason=why)
    window = (stretch.start, stretch.end)
    try:
        curves = common_curves(stretch.runs, family.loss, tokens=window, through_ramps=falling)
    except InputError as error:
        return StageFinding(stage, window, None, None, None, reason=str(error))
    noise, freedom = _twin_noise(family, curves)
    x, y = log2_settings(curves.infos)
    found = invariance(
        x, y, curves.values, cell_noise=noise, cell_noise_freedom=freedom, level=level, random_seed=random_seed
    )
    by_lr, by_elr = _grouped(curves, level, random_seed)
    return StageFinding(stage, window, found, by_lr, by_elr, stretch.runs)


def _twin_noise(family: Family, curves: Curves) -> tuple[float | None, float]:
    """The variance of a cell's mean over the window, from perturbed twins: half their mean square difference."""
    if len(family.twins) < MIN_TWINS or family.shape == "falling":
        return None, math.inf
    window = (float(curves.tokens[0]), float(curves.tokens[-1]))
    try:
        twins = common_curves(family.twins, family.loss, tokens=window)
    except InputError:
        return None, math.inf
    means = {_cell_and_seed(info): value for info, value in zip(curves.infos, curves.values.mean(axis=1), strict=True)}
    differences = [
        value - means[_cell_and_seed(info)]
        for info, value in zip(twins.infos, twins.values.mean(axis=1), strict=True)
        if _cell_and_seed(info) in means
    ]
    if len(differences) < MIN_TWINS:
        return None, math.inf
    return float(np.mean(np.square(differences))) / 2, float(len(differences))


def _cell_and_seed(info: RunInfo) -> tuple[object, ...]:
    return info.learning_rate, info.weight_decay, info.seed


def _grouped(curves: Curves, level: float, random_seed: int) -> tuple[GroupDistances | None, GroupDistances | None]:
    """Distances of curves grouped by LR and by ELR; of many curves a spread-out part."""
    step = max(1, math.ceil(len(curves.infos) / MAX_COMPARED))
    infos, values = curves.infos[::step], curves.values[::step]
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


def _invariant(stages: Sequence[StageFinding]) -> Verdict:
    decided = [finding.verdict for finding in stages if finding.verdict != "undecided"]
    return decided[-1] if decided else "undecided"


# Shift, surfaces, regimes


def _shift(family: Family, level: float) -> tuple[Shift | None, str]:
    if family.shape == "falling":
        return None, "LR falls all the way, so n is not that of one LR: when LR gives way to ELR is not asked"
    if not family.curves:
        return None, "no run has a curve: when LR gives way to ELR cannot be seen"
    try:
        return find_shift(family.curves, family.loss, level=level), ""
    except InputError as error:
        return None, f"when LR gives way to ELR cannot be seen: {error}"


def _budgets(family: Family) -> tuple[Budget, ...]:
    return tuple(budget for budget in family.budgets if len(budget.ends) > 1)


def _surface(budget: Budget, level: float) -> SurfaceFinding:
    cells = budget.cells()
    try:
        surface = fit_surface(cells.log2_lr, cells.log2_wd, cells.value, weights=cells.num_runs, level=level)
    except InputError as error:
        return SurfaceFinding(budget.tokens, budget.decay_tokens, cells, None, str(error))
    return SurfaceFinding(budget.tokens, budget.decay_tokens, cells, surface)


def _direction(surfaces: Sequence[SurfaceFinding], shift: Shift | None) -> tuple[float, Interval]:
    """The direction in which the largest budget's final loss changes most; without surfaces the late curves'."""
    fitted = [finding.surface for finding in surfaces if finding.surface is not None]
    if fitted:
        return fitted[-1].active_direction, fitted[-1].active_direction_interval
    if shift is not None and shift.angles:
        angle = shift.angles[-1].angle
        return angle.degrees, (angle.low, angle.high)
    return math.nan, (math.nan, math.nan)


def _regimes(family: Family) -> tuple[tuple[str, Regime], ...]:
    """The batch against the noise scale, in a few runs spread over the cells."""
    metered = [run for run in family.curves if len(run.measured("precond_noise_trace")[0])]
    metered.sort(key=lambda run: effective_learning_rate(run.info))
    step = max(1, math.ceil(len(metered) / MAX_METERED))
    return tuple((_settings(run), batch_regime(run)) for run in metered[::step])


# Words


def _settings(run: Trajectory) -> str:
    lr, wd = run.info.learning_rate, run.info.weight_decay
    assert not isinstance(lr, str) and not isinstance(wd, str)
    return f"LR {format_number(lr)}, WD {format_number(wd)}"


def _name_settings(family: Family) -> str:
    names = []
    for info in family.diverged[:4]:
        lr, wd = info.learning_rate, info.weight_decay
        names.append(f"LR {lr if isinstance(lr, str) else format_number(lr)}, WD {wd}")
    more = f" and {len(family.diverged) - 4} more" if len(family.diverged) > 4 else ""
    return "; ".join(names) + more


def _evidence(
    stages: Sequence[StageFinding],
    shift: Shift | None,
    surfaces: Sequence[SurfaceFinding],
    regimes: Sequence[tuple[str, Regime]],
) -> tuple[str, ...]:
    sentences = [_stage_words(finding) for finding in stages]
    if shift is not None:
        sentences.append(_shift_words(shift))
    sentences += [_surface_words(finding) for finding in surfaces]
    if regimes:
        kinds = [regime.verdict for _, regime in regimes]
        counts = ", ".join(f"{kind} in {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
        sentences.append(f"batch against noise scale, {len(kinds)} runs: {counts}")
    return tuple(sentences)


def _stage_words(finding: StageFinding) -> str:
    if finding.invariance is None:
        return f"{finding.range}: nothing can be said: {finding.reason}"
    start, end = finding.tokens
    place = f"{format_tokens(start)} to {format_tokens(end)} tokens, {finding.invariance.num_cells} cells"
    words = [f"{finding.range} ({place}): {finding.verdict}: " + "; ".join(finding.invariance.reasons)]
    for name, groups in (("LR", finding.by_lr), ("ELR", finding.by_elr)):
        if groups is not None and math.isfinite(groups.ratio):
            words.append(
                f"grouped by {name}, curves of different groups are {groups.ratio:.2g} times as far apart as those of "
                f"one ({groups.low:.2g} to {groups.high:.2g})"
            )
    return "; ".join(words)


def _shift_words(shift: Shift) -> str:
    if shift.verdict != "shift":
        return "shift from LR to ELR: undecided: " + "; ".join(shift.reasons)
    n, lr, wd = shift.memory_times, shift.learning_rate, shift.weight_decay
    return (
        f"LR gives way to ELR at n = {n.value:.2g} ({n.low:.2g} to {n.high:.2g}), "
        f"t* ~ LR^{lr.value:.2g} ({lr.low:.2g} to {lr.high:.2g}) WD^{wd.value:.2g} ({wd.low:.2g} to {wd.high:.2g})"
    )


def _surface_words(finding: SurfaceFinding) -> str:
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
    low, high = surface.active_direction_interval
    factor = surface.salient_factor
    named = f" ({factor})" if factor else ""
    words = f"{budget}: salient direction {surface.active_direction:.0f} degrees{named} [{low:.0f}, {high:.0f}]"
    if surface.is_censored:
        return f"{words}; minimum not inside the grid ({', '.join(surface.censored)})"
    return (
        f"{words}; minimum at LR {format_number(2.0**surface.minimum_log2_learning_rate)}, "
        f"WD {format_number(2.0**surface.minimum_log2_weight_decay)}, loss {surface.minimum_loss:.4f}"
    )
