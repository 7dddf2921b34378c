"""Which LR, WD and batch for so many tokens: from the laws of measured optima, or a refusal that says what is missing.

    a budget that was measured         its own fitted minimum
    three budgets with a minimum       the laws LR ~ D^a, WD ~ D^b, with intervals that widen with the distance
    anything else                      refused: what stands in the way, and the run that would help

Nothing is carried over to another model size, another batch or another family: optima move with all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from isotune.analyze.batches import BatchSchedule, OptimalRate, SquareRootRule, batch_schedule, square_root_rule
from isotune.analyze.curves import effective_learning_rate
from isotune.analyze.diagnosis import Diagnosis, StageFinding, SurfaceFinding
from isotune.analyze.families import Family
from isotune.analyze.forecast import PROTOTYPE_SHIFT, Direction, DirectionForecast, ShiftPoint, forecast_direction
from isotune.analyze.invariance import Verdict
from isotune.analyze.laws import Prediction
from isotune.analyze.rules_of_thumb import Reference, Rule, disagreements, rules
from isotune.analyze.scaling import MIN_BUDGETS, Laws, fit_laws, with_minimum
from isotune.analyze.stages import STAGES
from isotune.analyze.surface import FlatSet
from isotune.errors import InputError
from isotune.recipe.quantities import format_number, format_tokens, parse_tokens
from isotune.runs.trajectory import Unknown, WeightDecayConvention

SAME_SIZE = 0.01  # relative: models this close are of one size
SAME_BUDGET = 0.1  # relative: within it a measured budget is taken as the one that was asked for
MAX_OCTAVES = 2.0  # half-width of an interval beyond which a law says nothing
MAX_EXTRAPOLATION = 100.0  # times the largest measured budget
SAME_OCTAVES = 0.005  # of settings: what two digits show as the same
# What runs may show without contradicting a forecast.
IN_LINE: dict[Direction, tuple[Verdict, ...]] = {
    "LR": ("LR", "undecided"),
    "ELR": ("ELR", "undecided"),
    "mixed": ("ELR", "another", "neither", "undecided"),
}


@dataclass(frozen=True)
class Setting:
    """A value and the interval that holds the best one with probability `level`."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Advice:
    """Settings for a budget, where they come from, and what stands beside them."""

    family: str
    tokens: int
    batch_size: int | Unknown
    weight_decay_convention: WeightDecayConvention  # of the runs: what their user calls weight decay
    learning_rate: Setting
    weight_decay: Setting  # coupled: w *= 1 - LR * WD
    effective_learning_rate: Setting  # the weight decay of an independent optimizer: w *= 1 - WD
    expected_loss: Setting | None
    memory_times: float  # n at the end
    basis: str
    extrapolation_factor: float
    flat_set: str
    forecast: DirectionForecast | None
    batch_schedule: BatchSchedule | None
    square_root: SquareRootRule | None
    rules: tuple[Rule, ...]
    lines: dict[str, str]  # to paste, by library
    warnings: tuple[str, ...]


def advise(
    diagnoses: Sequence[Diagnosis],
    *,
    tokens: int | float | str,
    batch_size: int | None = None,
    num_parameters: int | float | str | None = None,
    family: str | None = None,
    level: float = 0.9,
) -> Advice:
    """The advice of these diagnosed runs for a budget; InputError, with what to do, where they do not carry it."""
    budget = parse_tokens("tokens", tokens)
    if budget < 1:
        raise InputError(f"tokens={budget} is no budget: give one such as 100B")
    of_that_size = _of_size(diagnoses, num_parameters) if num_parameters is not None else diagnoses
    diagnosis = _choose(of_that_size, batch_size, family)
    laws = fit_laws(diagnosis, level=level)
    found = _settings(diagnosis, laws, budget, level)
    return _beside(diagnosis, diagnoses, laws, found, budget)


# Which family


def _choose(diagnoses: Sequence[Diagnosis], batch_size: int | None, family: str | None) -> Diagnosis:
    names = "; ".join(f"{one.family.name!r} ({one.family.num_cells} cells)" for one in diagnoses)
    chosen = [one for one in diagnoses if family is None or one.family.name == family]
    if not chosen:
        raise InputError(f"there is no family {family!r}: give one of {names}")
    if batch_size is not None:
        sizes = sorted({one.family.batch_size for one in chosen if not isinstance(one.family.batch_size, str)})
        chosen = [one for one in chosen if one.family.batch_size == batch_size]
        if not chosen:
            listed = ", ".join(map(str, sizes)) or "unknown ones"
            raise InputError(
                f"no runs have batch size {batch_size}, only {listed}: optima do not carry over to another batch size "
                f"(the square-root rule fails); ask for one of those, or add runs at {batch_size}"
            )
    with_optimum = [one for one in chosen if with_minimum(one.surfaces)]
    candidates = with_optimum or chosen
    plain = [one for one in candidates if not one.family.history]
    return max(plain or candidates, key=lambda one: (len(with_minimum(one.surfaces)), one.family.num_cells))


def _of_size(diagnoses: Sequence[Diagnosis], num_parameters: int | float | str) -> list[Diagnosis]:
    """Those whose model has that size."""
    asked = parse_tokens("num_parameters", num_parameters)
    sizes = [_num_parameters(one.family) for one in diagnoses]
    known = sorted({size for size in sizes if size is not None})
    if not known:
        raise InputError(
            "the size of these runs' model is unknown, so nobody can say whether it is the one that is asked about: "
            "give it with the source (num_parameters)"
        )
    matching = [
        one
        for one, size in zip(diagnoses, sizes, strict=True)
        if size is not None and abs(asked - size) <= SAME_SIZE * size
    ]
    if not matching:
        listed = " or ".join(map(format_tokens, known))
        raise InputError(
            f"these runs have {listed} parameters and the advice is asked for {format_tokens(asked)}: "
            "optima move with model size and these runs do not say how; train a sweep at that size, however short"
        )
    return matching


def _num_parameters(family: Family) -> int | None:
    sizes = {run.info.num_parameters for run in family.curves} - {"unknown"}
    return int(next(iter(sizes))) if len(sizes) == 1 else None


# Settings


@dataclass(frozen=True)
class _Settings:
    learning_rate: Setting
    weight_decay: Setting
    effective_learning_rate: Setting
    loss: Setting | None
    basis: str
    factor: float
    surface: SurfaceFinding
    warnings: tuple[str, ...]


def _settings(diagnosis: Diagnosis, laws: Laws, budget: int, level: float) -> _Settings:
    usable = with_minimum(diagnosis.surfaces)
    if not usable:
        raise InputError(_no_minimum(diagnosis))
    nearest = min(usable, key=lambda one: abs(math.log(one.tokens / budget)))
    if abs(nearest.tokens / budget - 1) <= SAME_BUDGET:
        return _measured(nearest, level)
    found = (laws.optimal_learning_rate, laws.optimal_weight_decay, laws.optimal_effective_learning_rate)
    if any(law is None for law in found):
        best = _measured(nearest, level)
        budgets = ", ".join(format_tokens(one.tokens) for one in usable)
        raise InputError(
            f"{format_tokens(budget)} tokens were not measured, and a law to go there takes {MIN_BUDGETS} budgets with "
            f"a minimum inside the grid, where there {_are(len(usable))} ({budgets}): add budgets that branch off the "
            f"same runs; at {format_tokens(nearest.tokens)} tokens the best is {_best_words(best, diagnosis.family)}; "
            f"{_suggest(diagnosis)}"
        )
    predictions = [law.predict(float(budget)) for law in found if law is not None]
    factor = predictions[0].extrapolation_factor
    wide = max(abs(math.log2(p.high / p.low)) / 2 if p.low > 0 else math.inf for p in predictions)
    if factor > MAX_EXTRAPOLATION or wide > MAX_OCTAVES:
        compared = f"{factor:.3g} times" if budget > nearest.tokens else f"1/{factor:.3g} of"
        raise InputError(
            f"{format_tokens(budget)} tokens are {compared} what was measured, where the laws are uncertain by "
            f"{wide:.2g} octaves: too far to say anything; measure a budget nearer to it, such as "
            f"{format_tokens(round(math.sqrt(budget * nearest.tokens)))} tokens, halfway in octaves"
        )
    rate, decay, elr = (_predicted(prediction) for prediction in predictions)
    elr = _product(rate, decay, elr)
    loss = None
    if laws.optimal_loss is not None:
        loss = _predicted(laws.optimal_loss.predict(float(budget)))
    warnings = [warning for prediction in predictions for warning in prediction.warnings]
    basis = (
        f"laws of {len(usable)} budgets, {format_tokens(usable[0].tokens)} to {format_tokens(usable[-1].tokens)} tokens"
    )
    return _Settings(rate, decay, elr, loss, basis, factor, nearest, tuple(dict.fromkeys(warnings)))


def _measured(finding: SurfaceFinding, level: float) -> _Settings:
    surface = finding.surface
    assert surface is not None

    def setting(value: float, interval: tuple[float, float]) -> Setting:
        return Setting(2.0**value, 2.0 ** interval[0], 2.0 ** interval[1], surface.level)

    loss = Setting(surface.minimum_loss, *surface.minimum_loss_interval, surface.level)
    return _Settings(
        setting(surface.minimum_log2_learning_rate, surface.minimum_log2_learning_rate_interval),
        setting(surface.minimum_log2_weight_decay, surface.minimum_log2_weight_decay_interval),
        setting(surface.minimum_log2_effective_learning_rate, surface.minimum_log2_effective_learning_rate_interval),
        loss,
        f"the fitted minimum at {format_tokens(finding.tokens)} tokens, which was measured",
        1.0,
        finding,
        surface.warnings,
    )


def _predicted(prediction: Prediction) -> Setting:
    return Setting(prediction.value, prediction.low, prediction.high, prediction.level)


def _product(rate: Setting, decay: Setting, elr: Setting) -> Setting:
    """ELR as the product of the advised LR and WD: three laws are fitted apart and need not agree exactly."""
    value = rate.value * decay.value
    return Setting(value, min(elr.low, value), max(elr.high, value), elr.level)


def _no_minimum(diagnosis: Diagnosis) -> str:
    if not diagnosis.surfaces:
        num_diverged, num_runs = len(diagnosis.family.diverged), len(diagnosis.family.curves)
        if num_diverged and num_diverged >= num_runs:
            why = "all of these runs diverged"
        else:
            why = "no two finished runs of these ended after the same number of tokens"
    else:
        last = diagnosis.surfaces[-1]
        edge = " and ".join(name.replace("_", " ") for name in last.surface.censored) if last.surface else last.reason
        why = f"no budget has its minimum inside the grid of these runs ({edge})"
    return f"{why}: nothing can be advised yet; {_suggest(diagnosis)}"


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _best_words(best: _Settings, family: Family) -> str:
    is_independent = family.weight_decay_convention == "independent"
    wd = best.effective_learning_rate if is_independent else best.weight_decay
    return f"LR {format_number(best.learning_rate.value)}, WD {format_number(wd.value)}"


def _suggest(diagnosis: Diagnosis) -> str:
    run = diagnosis.next_run
    if run is None:
        return "add runs with other LR and WD"
    return f"the run to add is {run.words(diagnosis.family.weight_decay_convention)} ({run.why})"


# What stands beside it


def _beside(diagnosis: Diagnosis, diagnoses: Sequence[Diagnosis], laws: Laws, found: _Settings, budget: int) -> Advice:
    family = diagnosis.family
    batch, length = family.batch_size, family.sequence_length
    lr, wd = found.learning_rate.value, found.weight_decay.value
    warnings = [*found.warnings, *family.warnings]
    forecast = schedule = None
    n = math.nan
    if isinstance(batch, int) and isinstance(length, int):
        metered = min(
            diagnosis.regimes,
            key=lambda one: abs(math.log(effective_learning_rate(one.info) / (lr * wd))),
            default=None,
        )
        regime = metered.regime if metered else None  # n forecasts nothing for a batch above the noise scale
        forecast = forecast_direction(lr, wd, batch, length, budget, shift=_shift_point(diagnosis), regime=regime)
        forecast = _as_these_runs_show(forecast, diagnosis.stages)
        n = forecast.memory_times
        if regime is not None:
            schedule = batch_schedule(regime, tokens=budget, sequence_length=length)
    else:
        warnings.append("batch size or sequence length is unknown: n and a batch schedule cannot be given")
    size = _num_parameters(family)
    optimum = found.surface.surface
    assert optimum is not None
    beside = rules(
        num_parameters=size,
        tokens=budget,
        batch_size=batch if isinstance(batch, int) else None,
        sequence_length=length if isinstance(length, int) else None,
        learning_rate=lr,
        reference=Reference(
            tokens=found.surface.tokens,
            learning_rate=2.0**optimum.minimum_log2_learning_rate,
            weight_decay=2.0**optimum.minimum_log2_weight_decay,
            batch_size=batch if isinstance(batch, int) else None,
            sequence_length=length if isinstance(length, int) else None,
        ),
    )
    return Advice(
        family.name,
        budget,
        batch,
        family.weight_decay_convention,
        found.learning_rate,
        found.weight_decay,
        found.effective_learning_rate,
        found.loss,
        n,
        found.basis,
        found.factor,
        _flat_words(found, family.weight_decay_convention),
        forecast,
        schedule,
        _square_root(diagnosis, diagnoses, budget),
        beside,
        paste_in(lr, wd),
        tuple(dict.fromkeys([*warnings, *_disagreement(beside)])),
    )


def _shift_point(diagnosis: Diagnosis) -> ShiftPoint:
    """Where LR gives way to ELR in these runs; where they do not tell, in others."""
    shift = diagnosis.shift
    if shift is None or shift.verdict != "shift":
        return PROTOTYPE_SHIFT
    n, low, high = (
        float(f"{n:.2g}") for n in (shift.memory_times.value, shift.memory_times.low, shift.memory_times.high)
    )
    return ShiftPoint(n, low, high, "measured on these runs")


def _as_these_runs_show(forecast: DirectionForecast, stages: Sequence[StageFinding]) -> DirectionForecast:
    """The forecast; where it rests on a shift of other runs and these refute it, what these show at such n."""
    n = forecast.memory_times
    finding = next((one for one in stages if STAGES[one.stage][0] <= n <= STAGES[one.stage][1]), None)
    # The middle stage lies on both sides of the shift: its verdict says little of one n in it.
    if finding is None or finding.stage == "middle" or forecast.shift is not PROTOTYPE_SHIFT:
        return forecast
    shown = finding.invariance
    if shown is None or shown.verdict in IN_LINE[forecast.direction]:
        return forecast
    alone: dict[Verdict, Direction] = {"LR": "LR", "ELR": "ELR", "WD": "WD"}
    direction = alone.get(shown.verdict, "mixed")
    alike = "neither equal LR nor equal ELR" if direction == "mixed" else f"equal {direction}"
    return replace(
        forecast,
        direction=direction,
        degrees=shown.angle.degrees,
        degrees_low=shown.angle.low,
        degrees_high=shown.angle.high,
        reason=f"n = {n:.3g}, and where {finding.range} these runs are alike at {alike}: the shift at "
        f"n = {PROTOTYPE_SHIFT.memory_times:g}, {PROTOTYPE_SHIFT.source}, does not hold here",
    )


def _disagreement(beside: Sequence[Rule]) -> list[str]:
    """One sentence on all rules of thumb that disagree."""
    quantities = dict.fromkeys(sentence.partition(":")[0] for sentence in disagreements(beside))
    if not quantities:
        return []
    return [f"the rules of thumb disagree by more than a factor of 2 on {', '.join(quantities)}: trust none blindly"]


def _flat_words(found: _Settings, convention: WeightDecayConvention) -> str:
    """What is as good; for a budget that was not measured the set of the nearest one, moved to the advised settings."""
    finding, surface = found.surface, found.surface.surface
    assert surface is not None
    try:
        flat: FlatSet = surface.flat_set()
    except InputError as error:
        return str(error)
    tokens = format_tokens(finding.tokens)
    octaves_lr = math.log2(found.learning_rate.value) - surface.minimum_log2_learning_rate
    octaves_wd = math.log2(found.weight_decay.value) - surface.minimum_log2_weight_decay
    if max(abs(octaves_lr), abs(octaves_wd)) < SAME_OCTAVES:
        return f"at {tokens} tokens {flat.describe(convention)}"
    moved = flat.describe(convention, (octaves_lr, octaves_wd))
    return f"if it is as flat as at {tokens} tokens, {moved.replace(' of the grid', '', 1)}"


def _square_root(diagnosis: Diagnosis, diagnoses: Sequence[Diagnosis], budget: int) -> SquareRootRule | None:
    """What the square-root rule would have done for another batch of the same setup, against its measured optimum."""
    ours, family = _optimal_rate(diagnosis, budget), diagnosis.family
    others = [
        one
        for one in diagnoses
        if one.family.setup == family.setup
        and _num_parameters(one.family) == _num_parameters(family)
        and one.family.sequence_length == family.sequence_length
        and not one.family.history
        and one.family.shape == family.shape
        and isinstance(one.family.batch_size, int)
        and one.family.batch_size != family.batch_size
    ]
    for other in others:
        theirs = _optimal_rate(other, budget)
        if ours is not None and theirs is not None and isinstance(family.batch_size, int):
            assert isinstance(other.family.batch_size, int)
            return square_root_rule(
                ours.learning_rate, family.batch_size, other.family.batch_size, optimum=ours, new_optimum=theirs
            )
    return None


def _optimal_rate(diagnosis: Diagnosis, budget: int) -> OptimalRate | None:
    usable = with_minimum(diagnosis.surfaces)
    if not usable:
        return None
    surface = min(usable, key=lambda one: abs(math.log(one.tokens / budget))).surface
    assert surface is not None
    low, high = surface.minimum_log2_learning_rate_interval
    return OptimalRate(2.0**surface.minimum_log2_learning_rate, 2.0**low, 2.0**high)


def paste_in(learning_rate: float, weight_decay: float) -> dict[str, str]:
    """The settings as each library wants them: the first decay by LR * WD, the last by WD, scaled as LR's schedule is.

    >>> paste_in(0.001, 0.1)["torch"]
    'torch.optim.AdamW(model.parameters(), lr=0.001, weight_decay=0.1, betas=(0.9, 0.95))'
    """
    lr, wd = (f"{value:.4g}" for value in (learning_rate, weight_decay))
    independent = f"{float(lr) * float(wd):.8g}"
    return {
        "torch": f"torch.optim.AdamW(model.parameters(), lr={lr}, weight_decay={wd}, betas=(0.9, 0.95))",
        "transformers": f"TrainingArguments(learning_rate={lr}, weight_decay={wd}, adam_beta2=0.95)",
        "lightning": f"def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), lr={lr}, "
        f"weight_decay={wd}, betas=(0.9, 0.95))",
        "independent": f"lr={lr}, weight_decay={independent}  # w *= 1 - weight_decay * (LR now / lr)",
    }
