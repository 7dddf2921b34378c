"""`isotune diagnose`, `isotune fit` and `isotune advise`: what runs say, without training any."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import click

from isotune.analyze.advice import Advice, Setting, advise
from isotune.analyze.decay import PredictorComparison
from isotune.analyze.diagnosis import Diagnosis, StageFinding, SurfaceFinding, degrees, diagnose
from isotune.analyze.laws import PowerLaw, SaturatingPowerLaw
from isotune.analyze.plain import plain
from isotune.analyze.scaling import Laws, fit_laws
from isotune.cli.source import take_source, with_source
from isotune.cli.terminal import make_table, print_table
from isotune.integrations.importers import Imported
from isotune.recipe import format_number, format_tokens
from isotune.runs.trajectory import WeightDecayConvention

LEVEL = click.option(
    "--level", default=0.9, show_default=True, type=click.FloatRange(0.5, 0.999), help="Probability of intervals."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
# The paper's values for 164M parameters, beside ours: Table 1 of arXiv 2509.25049.
PAPER_FLOOR_EXPONENT, PAPER_NOISE_EXPONENT = 0.4604, 0.3561


@click.command(name="diagnose")
@with_source
@LEVEL
@JSON
def diagnose_command(level: float, as_json: bool, **arguments: Any) -> None:
    """Say what the runs in SOURCE are invariant to, which direction matters, and what to run next.

    SOURCE is a study, a table, a CSV/Parquet/JSONL file or folder, a TensorBoard, W&B or MLflow folder or address, an
    Optuna storage or a Trainer's output.
    """
    imported = take_source(arguments)
    diagnoses = diagnose(imported.trajectories, loss=imported.loss, level=level)
    if as_json:
        _print_json(imported, diagnoses=diagnoses)
        return
    _print_source(imported)
    for diagnosis in diagnoses:
        _print_diagnosis(diagnosis)


@click.command(name="fit")
@with_source
@LEVEL
@JSON
def fit_command(level: float, as_json: bool, **arguments: Any) -> None:
    """Fit the laws that the runs in SOURCE follow: curves, floors and noise against ELR, optima against budget."""
    imported = take_source(arguments)
    laws = [fit_laws(one, level=level) for one in diagnose(imported.trajectories, loss=imported.loss, level=level)]
    if as_json:
        _print_json(imported, laws=laws)
        return
    _print_source(imported)
    for one in laws:
        _print_laws(one)


@click.command(name="advise")
@with_source
@click.option("--tokens", required=True, help="The budget of the run to come, such as 100B.")
@click.option("--batch-size", type=int, help="Its batch size in sequences [default: that of most runs].")
@click.option(
    "--parameters", "num_parameters", help="Its model's size, such as 164M; refused if it is not that of SOURCE."
)
@click.option("--family", help="One family of SOURCE, by its name in `isotune diagnose`.")
@LEVEL
@JSON
def advise_command(
    tokens: str,
    batch_size: int | None,
    num_parameters: str | None,
    family: str | None,
    level: float,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Say which learning rate, weight decay and batch to use for --tokens, by the runs in SOURCE."""
    imported = take_source(arguments)
    diagnoses = diagnose(imported.trajectories, loss=imported.loss, level=level)
    advice = advise(
        diagnoses, tokens=tokens, batch_size=batch_size, num_parameters=num_parameters, family=family, level=level
    )
    if as_json:
        _print_json(imported, advice=advice)
        return
    _print_source(imported)
    _print_advice(advice)


def _print_json(imported: Imported, **findings: Any) -> None:
    facts = {"source": imported.source, "kind": imported.kind, "loss": imported.loss, "notes": imported.notes}
    click.echo(json.dumps(plain({**facts, "num_runs": len(imported.trajectories), **findings}), indent=1))


def _print_source(imported: Imported) -> None:
    click.echo(f"{imported.source}: {len(imported.trajectories)} runs")
    for note in imported.notes:
        click.echo(f"  note: {note}")


# Diagnoses


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    family = diagnosis.family
    title = f"{family.name}" + (f" ({family.setup})" if family.setup and family.setup not in family.name else "")
    counts = f"{_count(family.num_cells, 'cell')}, {_count(len(family.curves), 'curve')}"
    click.echo(f"\n{click.style(title, bold=True)}: {counts}")
    click.echo(click.wrap_text(_verdict(diagnosis), 110, "  ", "  "))
    if any(finding.invariance is not None for finding in diagnosis.stages):
        _print_stages(diagnosis.stages)
    if any(finding.surface is not None for finding in diagnosis.surfaces):
        _print_surfaces(diagnosis.surfaces, family.weight_decay_convention)
    sentences = [sentence for sentence in diagnosis.evidence if sentence != diagnosis.reason]
    if sentences:
        click.echo("Evidence")
        _print_list(sentences)
    if diagnosis.warnings:
        click.echo("Warnings")
        _print_list(diagnosis.warnings)
    run = diagnosis.next_run
    if run is not None:
        click.echo("Next run")
        _print_list([f"{run.words(family.weight_decay_convention)}: {run.why}"])


def _verdict(diagnosis: Diagnosis) -> str:
    decided = [finding for finding in diagnosis.stages if finding.verdict != "undecided"]
    words = f"what the runs are invariant to is undecided: {diagnosis.reason}"
    if decided:
        words = "; ".join(f"{finding.range}: {_invariant_words(finding.verdict)}" for finding in decided)
    if math.isnan(diagnosis.salient_direction):
        return words
    low, high = diagnosis.interval
    angle = f"{degrees(diagnosis.salient_direction)} degrees [{degrees(low)}, {degrees(high)}]"
    return f"{words}; the final loss changes most at {angle} (0 is LR, 45 ELR, 90 WD)"


def _invariant_words(verdict: str) -> str:
    if verdict == "neither":
        return "runs are invariant to neither LR nor ELR"
    if verdict == "another":
        return "runs are invariant to another product of LR and WD"
    return f"runs of equal {verdict} are alike"


def _print_stages(stages: Sequence[StageFinding]) -> None:
    table = make_table("n", "tokens", "cells", "alike at equal", "LR apart / alike", "ELR apart / alike", "angle")
    for finding in stages:
        if finding.invariance is None:
            table.add_row(finding.range, "-", "0", "undecided", "", "", "")
            continue
        ratios = [f"{one.ratio:.2g}" if one is not None else "" for one in (finding.by_lr, finding.by_elr)]
        angle = finding.invariance.angle
        table.add_row(
            finding.range,
            f"{format_tokens(finding.tokens[0])} to {format_tokens(finding.tokens[1])}",
            str(finding.invariance.num_cells),
            finding.verdict,
            *ratios,
            ""
            if math.isnan(angle.degrees)
            else f"{degrees(angle.degrees)} [{degrees(angle.low)}, {degrees(angle.high)}]",
        )
    print_table(table)


def _print_surfaces(surfaces: Sequence[SurfaceFinding], convention: WeightDecayConvention) -> None:
    names = ("best WD", "best ELR") if convention == "coupled" else ("coupled WD", "best WD")
    table = make_table("budget", "cells", "angle", "best LR", *names, "loss", "")
    for finding in surfaces:
        surface = finding.surface
        if surface is None:
            table.add_row(format_tokens(finding.tokens), str(len(finding.cells.value)), *[""] * 5, "no surface")
            continue
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
        table.add_row(
            format_tokens(finding.tokens),
            str(surface.num_cells),
            f"{degrees(surface.active_direction)} [{degrees(low)}, {degrees(high)}]",
            *(["-"] * 3 if surface.is_censored else optimum),
            f"{surface.best_cell.loss:.4f}" if surface.is_censored else f"{surface.minimum_loss:.4f}",
            "at the edge" if surface.is_censored else "",
        )
    print_table(table)


# Laws


def _print_laws(laws: Laws) -> None:
    click.echo(f"\n{click.style(laws.family.name, bold=True)}")
    rows: list[str] = []
    if laws.curves is not None:
        low, high = laws.curves.alpha_interval
        rows.append(
            f"L(t) = L0 + A (LR t)^-alpha: alpha {laws.curves.alpha:.3g} [{low:.3g}, {high:.3g}], "
            f"{_count(len(laws.curves.runs), 'run')}, R2 {laws.curves.r_squared:.3f}"
        )
    rows += _saturating("L0 against ELR", laws.floors, f"paper {PAPER_FLOOR_EXPONENT}")
    rows += _saturating("late loss against ELR", laws.late_losses, f"paper {PAPER_FLOOR_EXPONENT}")
    rows += _power("noise against ELR", laws.noise, f"paper {PAPER_NOISE_EXPONENT}")
    rows += _power("best LR against tokens", laws.optimal_learning_rate)
    rows += _power("best WD against tokens", laws.optimal_weight_decay)
    rows += _power("best ELR against tokens", laws.optimal_effective_learning_rate)
    rows += _saturating("best loss against tokens", laws.optimal_loss)
    _print_list(rows)
    if laws.decays is not None:
        _print_decays(laws.decays)
    same_reason: dict[str, list[str]] = {}
    for name, reason in laws.reasons.items():
        same_reason.setdefault(reason, []).append(name.replace("_", " "))
    _print_list(f"no law of {', '.join(names)}: {reason}" for reason, names in same_reason.items())


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


def _print_decays(comparison: PredictorComparison) -> None:
    table = make_table("decayed loss from", "RMSE", "median error", "Kendall tau", f"RMSE / {comparison.against}")
    for kind, score in comparison.scores.items():
        low, high = comparison.rmse_ratio_intervals.get(kind, (math.nan, math.nan))
        table.add_row(
            kind + ("*" if kind == comparison.best else ""),
            f"{score.rmse:.4f}",
            f"{100 * score.median_relative_error:.2f} %",
            f"{score.kendall_tau:.2f}",
            "" if math.isnan(low) else f"{low:.2f} to {high:.2f}",
        )
    print_table(table)
    _print_list(comparison.warnings)


# Advice


def _print_advice(advice: Advice) -> None:
    is_independent = advice.weight_decay_convention == "independent"
    wd = advice.effective_learning_rate if is_independent else advice.weight_decay
    settings = f"LR {format_number(advice.learning_rate.value)}, WD {format_number(wd.value)}"
    place = f"{format_tokens(advice.tokens)} tokens, {advice.family}"
    click.echo(click.style(f"{settings} ({advice.weight_decay_convention}) for {place}", bold=True))
    table = make_table("", "best", "interval")
    for name, setting in (
        ("LR", advice.learning_rate),
        ("WD (coupled)", advice.weight_decay),
        ("ELR = independent WD", advice.effective_learning_rate),
        ("loss", advice.expected_loss),
    ):
        if setting is not None:
            table.add_row(name, format_number(setting.value), _interval(setting))
    print_table(table)
    click.echo(f"by {advice.basis}" + _far(advice))
    if not math.isnan(advice.memory_times):
        click.echo(f"n at the end: {advice.memory_times:.2g}")
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
    _print_list(sentences)
    click.echo("To paste")
    for library, line in advice.lines.items():
        click.echo(f"  {library}: {line}")
    _print_rules(advice)
    if advice.warnings:
        click.echo("Warnings")
        _print_list(advice.warnings)


def _print_rules(advice: Advice) -> None:
    table = make_table("rule of thumb", "LR", "WD", "batch", "source")
    for rule in advice.rules:
        if rule.why_not:
            continue
        cells = (rule.learning_rate, rule.weight_decay, rule.batch_size)
        table.add_row(rule.name, *("" if v is None else format_number(v) for v in cells), rule.source)
    print_table(table)


def _interval(setting: Setting) -> str:
    return f"{format_number(setting.low)} to {format_number(setting.high)} ({setting.level:.0%})"


def _far(advice: Advice) -> str:
    factor = advice.extrapolation_factor
    return f"; {factor:.3g} times beyond what was measured" if factor > 1 else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _print_list(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        click.echo(click.wrap_text(sentence, 110, "  - ", "    "))
