"""Findings in words and small tables of words: what the terminal prints and the page shows, said once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isotune.analyze.advice import Advice, Setting
from isotune.analyze.decay import PredictorComparison
from isotune.analyze.diagnosis import Diagnosis, StageFinding, SurfaceFinding, degrees
from isotune.analyze.distances import GroupDistances
from isotune.analyze.laws import PowerLaw, SaturatingPowerLaw
from isotune.analyze.scaling import Laws
from isotune.recipe import format_number, format_tokens
from isotune.runs.trajectory import WeightDecayConvention

# The paper's values for 164M parameters, beside ours: Table 1 of arXiv 2509.25049.
PAPER_FLOOR_EXPONENT, PAPER_NOISE_EXPONENT = 0.4604, 0.3561


@dataclass(frozen=True)
class WordTable:
    """A table whose cells are words already."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


# Diagnoses


def family_title(diagnosis: Diagnosis) -> str:
    """The family's name and its setup: "batch 4 (nano on python-sources)"."""
    family = diagnosis.family
    return f"{family.name}" + (f" ({family.setup})" if family.setup and family.setup not in family.name else "")


def family_counts(diagnosis: Diagnosis) -> str:
    family = diagnosis.family
    return f"{count(family.num_cells, 'cell')}, {count(len(family.curves), 'curve')}"


def verdict(diagnosis: Diagnosis) -> str:
    """What the runs are invariant to, stage by stage, and the direction that matters for the final loss."""
    direction = salient_words(diagnosis)
    return "; ".join([invariance_words(diagnosis), *([direction] if direction else [])])


def invariance_words(diagnosis: Diagnosis) -> str:
    decided = [finding for finding in diagnosis.stages if finding.verdict != "undecided"]
    if not decided:
        return f"what the runs are invariant to is undecided: {diagnosis.reason}"
    return "; ".join(f"{finding.range}: {_invariant_to(finding.verdict)}" for finding in decided)


def salient_words(diagnosis: Diagnosis) -> str:
    """The direction in which the final loss changes most; nothing where it is not known."""
    if math.isnan(diagnosis.salient_direction):
        return ""
    low, high = diagnosis.interval
    angle = f"{degrees(diagnosis.salient_direction)} degrees [{degrees(low)}, {degrees(high)}]"
    return f"the final loss changes most at {angle} (0 is LR, 45 ELR, 90 WD)"


def evidence_sentences(diagnosis: Diagnosis) -> list[str]:
    return [sentence for sentence in diagnosis.evidence if sentence != diagnosis.reason]


def next_run_words(diagnosis: Diagnosis) -> str:
    """The run that would tell most, and why; nothing where there is none."""
    run = diagnosis.next_run
    return "" if run is None else f"{run.words(diagnosis.family.weight_decay_convention)}: {run.why}"


def _invariant_to(verdict: str) -> str:
    if verdict == "neither":
        return "runs are invariant to neither LR nor ELR"
    if verdict == "another":
        return "runs are invariant to another product of LR and WD"
    return f"runs of equal {verdict} are alike"


def stage_table(stages: Sequence[StageFinding]) -> WordTable | None:
    """The verdict of each stage of n; None where no stage could be looked at."""
    if all(finding.invariance is None for finding in stages):
        return None
    columns = ("n", "tokens", "cells", "alike at equal", "LR apart / alike", "ELR apart / alike", "angle")
    return WordTable(columns, tuple(_stage_row(finding) for finding in stages))


def _stage_row(finding: StageFinding) -> tuple[str, ...]:
    if finding.invariance is None:
        return finding.range, "-", "0", "undecided", "", "", ""
    angle = finding.invariance.angle
    return (
        finding.range,
        f"{format_tokens(finding.tokens[0])} to {format_tokens(finding.tokens[1])}",
        str(finding.invariance.num_cells),
        finding.verdict,
        *(_ratio(one) for one in (finding.by_lr, finding.by_elr)),
        "" if math.isnan(angle.degrees) else f"{degrees(angle.degrees)} [{degrees(angle.low)}, {degrees(angle.high)}]",
    )


def _ratio(found: GroupDistances | None) -> str:
    """How much farther apart groups are than their members; "-" where nothing is apart."""
    if found is None:
        return ""
    return f"{found.ratio:.2g}" if math.isfinite(found.ratio) else "-"


def surface_table(surfaces: Sequence[SurfaceFinding], convention: WeightDecayConvention) -> WordTable | None:
    """The minimum of each budget; None where no budget has a surface."""
    if all(finding.surface is None for finding in surfaces):
        return None
    names = ("best WD", "best ELR") if convention == "coupled" else ("coupled WD", "best WD")
    columns = ("budget", "cells", "angle", "best LR", *names, "loss", "")
    return WordTable(columns, tuple(_surface_row(finding) for finding in surfaces))


def _surface_row(finding: SurfaceFinding) -> tuple[str, ...]:
    surface = finding.surface
    if surface is None:
        return format_tokens(finding.tokens), str(len(finding.cells.value)), *[""] * 5, "no surface"
    low, high = surface.active_direction_interval
    optimum = [
        f"{format_number(2.0**value)} [{format_number(2.0 ** ends[0])}, {format_number(2.0 ** ends[1])}]"
        if not math.isnan(value)
        else "-"
        for value, ends in (
            (surface.minimum_log2_learning_rate, surface.minimum_log2_learning_rate_interval),
            (surface.minimum_log2_weight_decay, surface.minimum_log2_weight_decay_interval),
            (surface.minimum_log2_effective_learning_rate, surface.minimum_log2_effective_learning_rate_interval),
        )
    ]
    return (
        format_tokens(finding.tokens),
        str(surface.num_cells),
        f"{degrees(surface.active_direction)} [{degrees(low)}, {degrees(high)}]",
        *(["-"] * 3 if surface.is_censored else optimum),
        f"{surface.best_cell.loss:.4f}" if surface.is_censored else f"{surface.minimum_loss:.4f}",
        "at the edge" if surface.is_censored else "",
    )


# Laws


def law_sentences(laws: Laws) -> list[str]:
    """A sentence for each law that could be fitted."""
    sentences: list[str] = []
    if laws.curves is not None:
        low, high = laws.curves.alpha_interval
        sentences.append(
            f"L(t) = L0 + A (LR t)^-alpha: alpha {laws.curves.alpha:.3g} [{low:.3g}, {high:.3g}], "
            f"{count(len(laws.curves.runs), 'run')}, R2 {laws.curves.r_squared:.3f}"
        )
    sentences += _saturating("L0 against ELR", laws.floors, f"paper {PAPER_FLOOR_EXPONENT}")
    sentences += _saturating("late loss against ELR", laws.late_losses, f"paper {PAPER_FLOOR_EXPONENT}")
    sentences += _power("noise against ELR", laws.noise, f"paper {PAPER_NOISE_EXPONENT}")
    sentences += _power("best LR against tokens", laws.optimal_learning_rate)
    is_independent = laws.family.weight_decay_convention == "independent"
    coupled, elr = ("best WD / LR", "best WD") if is_independent else ("best WD", "best ELR")
    sentences += _power(f"{coupled} against tokens", laws.optimal_weight_decay)
    sentences += _power(f"{elr} against tokens", laws.optimal_effective_learning_rate)
    sentences += _saturating("best loss against tokens", laws.optimal_loss)
    return sentences


def missing_law_sentences(laws: Laws) -> list[str]:
    """Why the others could not be fitted, those with one reason in one sentence."""
    same_reason: dict[str, list[str]] = {}
    for name, reason in laws.reasons.items():
        same_reason.setdefault(reason, []).append(name.replace("_", " "))
    return [f"no law of {', '.join(names)}: {reason}" for reason, names in same_reason.items()]


def decay_table(comparison: PredictorComparison) -> WordTable:
    """How well each predictor reads a decayed loss off its trunk."""
    columns = ("decayed loss from", "RMSE", "median error", "Kendall tau", f"RMSE / {comparison.against}")
    rows = []
    for kind, score in comparison.scores.items():
        low, high = comparison.rmse_ratio_intervals.get(kind, (math.nan, math.nan))
        row = (
            kind + ("*" if kind == comparison.best else ""),
            f"{score.rmse:.4f}",
            f"{100 * score.median_relative_error:.2f} %",
            f"{score.kendall_tau:.2f}",
            "" if math.isnan(low) else f"{low:.2f} to {high:.2f}",
        )
        rows.append(row)
    return WordTable(columns, tuple(rows))


def _power(name: str, law: PowerLaw | None, beside: str = "") -> list[str]:
    if law is None:
        return []
    low, high = law.exponent_interval
    words = f"{name}: {law.coefficient:.3g} x^{law.exponent:.3f} [{low:.3f}, {high:.3f}]"
    return [_with(words, f"R2 {law.r_squared:.3f}", beside, law.warnings)]


def _saturating(name: str, law: SaturatingPowerLaw | None, beside: str = "") -> list[str]:
    if law is None:
        return []
    low, high = law.exponent_interval
    words = f"{name}: {law.floor:.4g} + {law.amplitude:.3g} x^{law.exponent:.3f} [{low:.3f}, {high:.3f}]"
    return [_with(words, f"R2 {law.r_squared:.3f}", beside, law.warnings)]


def _with(words: str, fit: str, beside: str, warnings: Iterable[str]) -> str:
    parts = [words, fit, *([f"({beside})"] if beside else [])]
    return "; ".join([", ".join(parts), *warnings])


# Advice


def advice_headline(advice: Advice) -> str:
    """The settings, as the runs' user writes them, and what they are for."""
    is_independent = advice.weight_decay_convention == "independent"
    wd = advice.effective_learning_rate if is_independent else advice.weight_decay
    settings = f"LR {format_number(advice.learning_rate.value)}, WD {format_number(wd.value)}"
    place = f"{format_tokens(advice.tokens)} tokens, {advice.family}"
    return f"{settings} ({advice.weight_decay_convention}) for {place}"


def advice_table(advice: Advice) -> WordTable:
    settings = (
        ("LR", advice.learning_rate),
        ("WD (coupled)", advice.weight_decay),
        ("ELR = independent WD", advice.effective_learning_rate),
        ("loss", advice.expected_loss),
    )
    rows = [(name, format_number(one.value), interval_words(one)) for name, one in settings if one is not None]
    return WordTable(("", "best", "interval"), tuple(rows))


def advice_basis(advice: Advice) -> str:
    factor = advice.extrapolation_factor
    return f"by {advice.basis}" + (f"; {factor:.3g} times beyond what was measured" if factor > 1 else "")


def advice_sentences(advice: Advice) -> list[str]:
    """What stands beside the settings: the direction that matters, what is as good, the batch."""
    sentences = []
    if advice.forecast is not None:
        sentences.append(f"direction that matters there: {advice.forecast.direction}: {advice.forecast.reason}")
    sentences.append(f"as good: {advice.flat_set}")
    if advice.batch_schedule is not None:
        schedule = advice.batch_schedule
        words = "; ".join(schedule.reasons) if schedule.refused else f"{schedule.text} ({'; '.join(schedule.reasons)})"
        sentences.append(f"batch: {words}")
    if advice.square_root is not None:
        sentences.append(f"square-root rule: {advice.square_root.verdict}: {advice.square_root.reason}")
    return sentences


def rule_table(advice: Advice) -> WordTable:
    """The rules of thumb that can be asked, beside the advice."""
    rows = []
    for rule in advice.rules:
        if not rule.why_not:
            cells = (rule.learning_rate, rule.weight_decay, rule.batch_size)
            rows.append((rule.name, *("" if v is None else format_number(v) for v in cells), rule.source))
    return WordTable(("rule of thumb", "LR", "WD", "batch", "source"), tuple(rows))


def interval_words(setting: Setting) -> str:
    return f"{format_number(setting.low)} to {format_number(setting.high)} ({setting.level:.0%})"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
