"""The laws of a family: what its curves, noise and optima follow, each with intervals or with the reason why not.

curves      L(t) = L0 + A (LR t)^-alpha of the runs with n > 3, one alpha for all
floors      those L0 against ELR, and the mean late losses against ELR: L01 + L02 ELR^L03
noise       the mean late scaled noise against ELR: G1 ELR^G2
optima      LR, WD, ELR and loss of each budget's fitted minimum against the budget
decays      which predictor of a decayed loss is best, calibrated with whole ELR groups left out
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from scipy import special

from isotune.analyze.curves import common_curves, effective_learning_rate
from isotune.analyze.decay import Decay, PredictorComparison, compare_predictors, read_decay
from isotune.analyze.diagnosis import Diagnosis, StageFinding, SurfaceFinding
from isotune.analyze.distances import same_up_to
from isotune.analyze.families import End, Family, lineage_of
from isotune.analyze.laws import (
    PowerLaw,
    SaturatingPowerLaw,
    TrainingCurves,
    fit_power_law,
    fit_saturating_power_law,
    fit_training_curves,
)
from isotune.errors import InputError
from isotune.runs.trajectory import Trajectory

MIN_BUDGETS = 3
MIN_DECAYS = 6
MIN_GROUPS = 3  # of ELR, to be left out in turn
CURVE_START = 0.25  # of a run's tokens: before, the curve still depends on its warm-up

Fitted = TypeVar("Fitted")


@dataclass(frozen=True)
class Laws:
    """What could be fitted; `reasons` says of the rest why it could not."""

    family: Family
    curves: TrainingCurves | None
    floors: SaturatingPowerLaw | None  # L0 of each run against ELR
    late_losses: SaturatingPowerLaw | None  # mean loss where n > 3 against ELR
    noise: PowerLaw | None
    optimal_learning_rate: PowerLaw | None
    optimal_weight_decay: PowerLaw | None
    optimal_effective_learning_rate: PowerLaw | None
    optimal_loss: SaturatingPowerLaw | None
    decays: PredictorComparison | None
    reasons: dict[str, str]
    points: dict[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)  # what each law was fitted to: (x, y)


def fit_laws(diagnosis: Diagnosis, *, level: float = 0.9) -> Laws:
    """The laws of a diagnosed family."""
    family = diagnosis.family
    reasons: dict[str, str] = {}
    points: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    late = diagnosis.stages[-1].runs  # n > 3

    def attempt(name: str, fit: Callable[[], Fitted]) -> Fitted | None:
        try:
            return fit()
        except InputError as error:
            reasons[name] = str(error)
            return None

    curves = attempt("curves", lambda: _fit_curves(family, late, level))
    elr = np.array([effective_learning_rate(run.info) for run in late])

    def floors() -> SaturatingPowerLaw:
        if curves is None:
            raise InputError("no curves are fitted, of which they would be the floors")
        points["floors"] = elr, np.array([run.floor for run in curves.runs])
        return fit_saturating_power_law(
            *points["floors"],
            groups=same_up_to(np.log2(elr)).tolist(),
            common=curves.floors_error,
            level=level,
        )

    def late_losses() -> SaturatingPowerLaw:
        points["late_losses"] = _late_means(diagnosis.stages[-1], late, family.loss, None)
        return fit_saturating_power_law(*points["late_losses"], level=level)

    def noise() -> PowerLaw:
        points["noise"] = _late_means(diagnosis.stages[-1], late, "scaled_noise", diagnosis.stages[-1].tokens)
        return fit_power_law(*points["noise"], level=level)

    inside = with_minimum(diagnosis.surfaces)

    def optimum(name: str) -> Callable[[], PowerLaw]:
        def fit() -> PowerLaw:
            x, y, error = _optima(inside, name, len(diagnosis.surfaces))
            points[f"optimal_{name}"] = x, y
            return fit_power_law(x, y, standard_errors=error, level=level)

        return fit

    def optimal_loss() -> SaturatingPowerLaw:
        x, y, error = _optima(inside, "loss", len(diagnosis.surfaces))
        points["optimal_loss"] = x, y
        return fit_saturating_power_law(x, y, standard_errors=error, level=level)

    return Laws(
        family,
        curves,
        attempt("floors", floors),
        attempt("late_losses", late_losses),
        attempt("noise", noise),
        attempt("optimal_learning_rate", optimum("learning_rate")),
        attempt("optimal_weight_decay", optimum("weight_decay")),
        attempt("optimal_effective_learning_rate", optimum("effective_learning_rate")),
        attempt("optimal_loss", optimal_loss),
        attempt("decays", lambda: compare_decays(family, level=level)),
        reasons,
        points,
    )


def with_minimum(surfaces: Sequence[SurfaceFinding]) -> list[SurfaceFinding]:
    """Those whose minimum is known to lie inside the grid."""
    return [one for one in surfaces if one.surface is not None and not one.surface.is_censored]


def compare_decays(family: Family, *, level: float = 0.9) -> PredictorComparison:
    """Which predictor reads decayed losses off the trunks best, whole ELR groups left out of its calibration."""
    decays = decays_of(family)
    if len(decays) < MIN_DECAYS:
        raise InputError(
            f"{len(decays)} decays of one length branch off a run that goes on for half a decay: it takes {MIN_DECAYS}"
        )
    metered = [decay for decay in decays if math.isfinite(decay.trunk.scaled_noise)]
    if len(metered) < MIN_DECAYS or len({decay.group for decay in metered}) < MIN_GROUPS:
        return compare_predictors(decays, level=level)
    comparison = compare_predictors(metered, level=level)
    if len(metered) == len(decays):
        return comparison
    note = f"{len(decays) - len(metered)} of {len(decays)} decays left out: the noise of their trunks was not measured"
    return replace(comparison, warnings=(*comparison.warnings, note))


def decays_of(family: Family) -> list[Decay]:
    """The decays of the commonest length beside their trunks, where these go on far enough; grouped by ELR.

    One length: what a decay gains depends on it.
    """
    if family.shape != "constant":
        return []
    lengths = Counter(budget.decay_tokens for budget in family.budgets for _ in budget.ends)
    usual = next((length for length, _ in lengths.most_common() if length not in (0, "unknown")), None)
    trunks = {lineage_of(run, family.loss): run for run in family.curves}
    decays = []
    for budget in family.budgets:
        for end in budget.ends if budget.decay_tokens == usual else ():
            trunk = trunks.get(lineage_of(end.run, family.loss))
            found = _decay(end, trunk, family.loss) if trunk is not None else None
            if found is not None:
                decays.append(found)
    return decays


def _decay(end: End, trunk: Trajectory, loss: str) -> Decay | None:
    length = end.info.decay_tokens
    if isinstance(length, str) or not length or math.isnan(end.curve_loss):
        return None
    if trunk.tokens[-1] < end.tokens - length / 2:
        return None  # the trunk is the decay's own beginning
    try:
        return read_decay(
            trunk,
            branch_tokens=end.tokens - length,
            decay_tokens=2 * _flow_tokens(end.run, length),
            decayed_loss=end.curve_loss,
            group=round(math.log2(effective_learning_rate(end.info)), 3),
            column=loss,
        )
    except InputError:
        return None


def _flow_tokens(run: Trajectory, length: int) -> float:
    """How many tokens at full LR have the flow time of the decay: half its length if LR falls to 0 on a line."""
    rate = run.columns.get("learning_rate")
    begins = run.tokens[-1] - length
    if rate is None:
        return length / 2
    rows = (run.tokens > begins) & ~np.isnan(rate)
    tokens = np.concatenate([[begins], run.tokens[rows]])
    share = np.concatenate([[1.0], rate[rows] / float(run.info.learning_rate)])
    flow = float(np.sum(np.diff(tokens) * (share[1:] + share[:-1]) / 2))
    return round(flow / length, 2) * length  # rows are sparse: decays of one shape shall be read at one place


def _fit_curves(family: Family, runs: Sequence[Trajectory], level: float) -> TrainingCurves:
    if family.shape == "falling":
        raise InputError("LR falls all the way: L0 + A (LR t)^-alpha is the law of a constant LR")
    if not runs:
        raise InputError("no runs with n above 3: their floors are not those of the late loss")
    times, losses, rates = [], [], []
    for run in runs:
        at, values = run.measured(family.loss)
        kept = at >= CURVE_START * at[-1]
        times.append(_steps(run, at[kept]))
        losses.append(values[kept])
        rates.append(float(run.info.learning_rate))
    return fit_training_curves(times, losses, rates, level=level)


def _steps(run: Trajectory, tokens: np.ndarray) -> np.ndarray:
    """The steps of these positions; without a column from the size of a step, which late runs have: n is made of it."""
    step = run.columns.get("step")
    if step is not None and not np.isnan(step.astype(float)).any():
        return np.interp(tokens, run.tokens, step)
    batch, length = run.info.batch_size, run.info.sequence_length
    assert not isinstance(batch, str) and not isinstance(length, str)
    return tokens / (batch * length)


def _late_means(
    late: StageFinding, runs: Sequence[Trajectory], column: str, bins: tuple[float, float] | None
) -> tuple[np.ndarray, np.ndarray]:
    """(ELR, mean over the late stage) of each run."""
    if not runs:
        raise InputError("no runs with n above 3")
    curves = common_curves(runs, column, tokens=late.tokens, bins=bins, min_points=1 if bins else 4)
    return np.array([effective_learning_rate(info) for info in curves.infos]), curves.values.mean(axis=1)


def _quantile(level: float) -> float:
    return float(special.ndtri((1 + level) / 2))


def _optima(inside: Sequence[SurfaceFinding], name: str, num_budgets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(budget, optimum, its standard error) of the budgets whose minimum is inside the grid."""
    if len(inside) < MIN_BUDGETS:
        raise InputError(
            f"{len(inside)} of {num_budgets} budgets have their minimum inside the grid: a law takes {MIN_BUDGETS}"
        )
    tokens = np.array([float(finding.tokens) for finding in inside])
    values, errors = [], []
    for finding in inside:
        surface = finding.surface
        assert surface is not None
        if name == "loss":
            value, (low, high) = surface.minimum_loss, surface.minimum_loss_interval
        else:
            value = 2.0 ** getattr(surface, f"minimum_log2_{name}")
            low, high = (value * math.log(2) * end for end in getattr(surface, f"minimum_log2_{name}_interval"))
        values.append(value)
        errors.append((high - low) / (2 * _quantile(surface.level)))
    return tokens, np.array(values), np.array(errors)
