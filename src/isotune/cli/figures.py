"""`isotune figures`: every figure of a source as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from isotune.cli.source import take_source, with_source
from isotune.errors import InputError
from isotune.report.export import FORMATS, WIDTH, Format, find_browser, write_figures
from isotune.report.figure import Figure
from isotune.report.figures import KINDS, figures_of
from isotune.report.findings import find


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
    if file_format not in ("html", "json"):
        find_browser()  # before the minutes that the analysis may take
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


def choose(figures: tuple[Figure, ...], only: tuple[str, ...]) -> tuple[Figure, ...]:
    """The figures with these names, of all families or of one; all of them without names."""
    names = {figure.kind for figure in figures} | {figure.name for figure in figures}
    for name in only:
        if name not in names:
            raise InputError(f"--only {name} is no figure of this source: give one of {', '.join(sorted(names))}")
    return tuple(figure for figure in figures if not only or figure.kind in only or figure.name in only)
