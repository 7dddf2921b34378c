"""`isotune figures`: every figure of a source as files."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import click

from isotune.cli.source import take_source, with_source
from isotune.errors import InputError
from isotune.report.export import FORMATS, WIDTH, Format, require_drawing, write_figures
from isotune.report.figure import Figure
from isotune.report.figures import KINDS, UNPLACED, figures_of
from isotune.report.findings import find
from isotune.runs.files import require_writable


@click.command(name="figures")
@with_source
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder to write to.")
@click.option(
    "--only", multiple=True, metavar="NAME", help=f"Only this figure; may be repeated. One of {', '.join(KINDS)}."
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    default="svg",
    show_default=True,
    help="svg, pdf and png are drawn by Chrome or Chromium; html and json need neither.",
)
@click.option("--width", type=click.IntRange(200, 4000), default=WIDTH, show_default=True, help="Of images, in pixels.")
@click.option(
    "--level", default=0.9, show_default=True, type=click.FloatRange(0.5, 0.999), help="Probability of intervals."
)
def figures(out: Path, only: tuple[str, ...], file_format: Format, width: int, level: float, **arguments: Any) -> None:
    """Write the figures of the runs in SOURCE as files: curves, distances, surfaces, noise, laws, cost.

    A figure that these runs cannot give is named with the reason.
    """
    require_drawing(file_format)
    require_kinds(only)
    require_writable(out, "--out")
    imported = take_source(arguments)
    findings = find(
        imported.trajectories, loss=imported.loss, label=imported.source, warnings=imported.notes, level=level
    )
    chosen = choose(figures_of(findings), only)
    for path in write_figures(chosen, out, file_format, width=width):
        click.echo(str(path))
    for figure in chosen:
        if figure.missing:
            click.echo(f"no {figure.name}: {figure.missing}", err=True)


def require_kinds(names: tuple[str, ...]) -> None:
    """Refuses what no source can have a figure of; which families it has, the analysis tells."""
    for name in names:
        if name not in (*KINDS, UNPLACED) and not any(name.startswith(f"{kind}-") for kind in KINDS):
            meant = difflib.get_close_matches(name, KINDS, 1)
            question = f"did you mean {meant[0]}? There are" if meant else "there are"
            raise InputError(f"--only {name} is no figure: {question} {', '.join(KINDS)}")


def choose(figures: tuple[Figure, ...], only: tuple[str, ...]) -> tuple[Figure, ...]:
    """The figures with these names, of all families or of one; all of them without names."""
    names = {figure.kind for figure in figures} | {figure.name for figure in figures}
    for name in only:
        if name not in names:
            raise InputError(f"--only {name} is no figure of this source: {_alternatives(name, figures)}")
    return tuple(figure for figure in figures if not only or figure.kind in only or figure.name in only)


def _alternatives(name: str, figures: tuple[Figure, ...]) -> str:
    """What begins alike, the kind and the family of one; else the kinds that there are."""
    alike = [figure for figure in figures if name.startswith(f"{figure.kind}-")]
    names = [figure.kind for figure in alike] + [figure.name for figure in alike] or [one.kind for one in figures]
    return f"give one of {', '.join(dict.fromkeys(names))}"
