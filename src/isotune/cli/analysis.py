"""`isotune diagnose`, `isotune fit` and `isotune advise`: what runs say, without training any."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import click

from isotune.analyze.advice import Advice, advise
from isotune.analyze.diagnosis import Diagnosis, diagnose
from isotune.analyze.plain import plain
from isotune.analyze.scaling import Laws, fit_laws
from isotune.cli.source import take_source, with_source
from isotune.cli.terminal import make_table, print_table
from isotune.errors import InputError
from isotune.integrations.importers import Imported
from isotune.report import words

LEVEL = click.option(
    "--level", default=0.9, show_default=True, type=click.FloatRange(0.5, 0.999), help="Probability of intervals."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


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
    diagnoses = _diagnosed(imported, level)
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
    laws = [fit_laws(one, level=level) for one in _diagnosed(imported, level)]
    if as_json:
        _print_json(imported, laws=laws)
        return
    _print_source(imported)
    for one in laws:
        _print_laws(one)


@click.command(name="advise")
@with_source
@click.option("--tokens", required=True, help="The budget of the run to come, such as 100B.")
@click.option(
    "--batch-size", type=int, help="Its batch size in sequences [default: that whose optimum is known at most budgets]."
)
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
    diagnoses = _diagnosed(imported, level)
    advice = advise(
        diagnoses, tokens=tokens, batch_size=batch_size, num_parameters=num_parameters, family=family, level=level
    )
    if as_json:
        _print_json(imported, advice=advice)
        return
    _print_source(imported)
    _print_advice(advice)


def _diagnosed(imported: Imported, level: float) -> tuple[Diagnosis, ...]:
    """The diagnoses; a refusal also says what was noted while reading, which may be its cause."""
    try:
        return diagnose(imported.trajectories, loss=imported.loss, level=level)
    except InputError as error:
        noted = "; ".join(imported.notes)
        raise InputError(f"{error} (noted in reading: {noted})" if noted else str(error)) from None


def _print_json(imported: Imported, **findings: Any) -> None:
    facts = {"source": imported.source, "kind": imported.kind, "loss": imported.loss, "notes": imported.notes}
    click.echo(json.dumps(plain({**facts, "num_runs": len(imported.trajectories), **findings}), indent=1))


def _print_source(imported: Imported) -> None:
    click.echo(f"{imported.source}: {len(imported.trajectories)} runs")
    for note in imported.notes:
        click.echo(f"  note: {note}")


# What they print


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    title, family = words.family_title(diagnosis), diagnosis.family
    click.echo(f"\n{click.style(title, bold=True)}: {words.family_counts(diagnosis)}")
    click.echo(click.wrap_text(words.verdict(diagnosis), 110, "  ", "  "))
    _print_words(words.stage_table(diagnosis.stages))
    _print_words(words.surface_table(diagnosis.surfaces, family.weight_decay_convention))
    _print_headed("Evidence", words.evidence_sentences(diagnosis))
    _print_headed("Warnings", diagnosis.warnings)
    next_run = words.next_run_words(diagnosis)
    _print_headed("Next run", [next_run] if next_run else [])


def _print_laws(laws: Laws) -> None:
    click.echo(f"\n{click.style(laws.family.name, bold=True)}")
    _print_list(words.law_sentences(laws))
    if laws.decays is not None:
        _print_words(words.decay_table(laws.decays))
        _print_list(laws.decays.warnings)
    _print_list(words.missing_law_sentences(laws))
    _print_headed("Warnings", laws.family.warnings)


def _print_advice(advice: Advice) -> None:
    click.echo(click.style(words.advice_headline(advice), bold=True))
    _print_words(words.advice_table(advice))
    click.echo(words.advice_basis(advice))
    if not math.isnan(advice.memory_times):
        click.echo(f"n at the end: {advice.memory_times:.2g}")
    _print_list(words.advice_sentences(advice))
    click.echo("To paste")
    for library, line in advice.lines.items():
        click.echo(f"  {library}: {line}")
    _print_words(words.rule_table(advice))
    _print_headed("Warnings", advice.warnings)


def _print_words(found: words.WordTable | None) -> None:
    if found is None:
        return
    table = make_table(*found.columns)
    for row in found.rows:
        table.add_row(*row)
    print_table(table)


def _print_headed(heading: str, sentences: Iterable[str]) -> None:
    sentences = list(sentences)
    if sentences:
        click.echo(heading)
        _print_list(sentences)


def _print_list(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        click.echo(click.wrap_text(sentence, 110, "  - ", "    "))
