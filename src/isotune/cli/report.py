"""`isotune report`: one page that says what runs say, to look at, to mail and to print."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isotune.analyze.advice import paste_in
from isotune.cli.source import take_source, with_source
from isotune.cli.terminal import format_bytes
from isotune.errors import InputError, describe_os_error
from isotune.integrations.importers import Imported, open_source
from isotune.recipe import format_number, format_tokens
from isotune.report.figures import figures_of
from isotune.report.findings import find
from isotune.report.page import Account, Origin, make_page
from isotune.report.words import WordTable
from isotune.runs import Study
from isotune.runs.files import require_writable, write_whole
from isotune.runs.provenance import source_commit
from isotune.sweep.status import sweep_status

if TYPE_CHECKING:
    from isotune.tune import Goal, Round, Tuned

REPORT = "report.html"
LIBRARIES = ("numpy", "scipy", "plotly")
NO_REPORT = click.option("--no-report", is_flag=True, help=f"Write no {REPORT} into the study at the end.")


@click.command(name="report")
@with_source
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"The file to write [default: {REPORT} in a study's own folder, else <SOURCE>-{REPORT} here].",
)
@click.option(
    "--level", default=0.9, show_default=True, type=click.FloatRange(0.5, 0.999), help="Probability of intervals."
)
def report_command(out: Path | None, level: float, **arguments: Any) -> None:
    """Write one HTML file with all that the runs in SOURCE say: verdict, figures, warnings and a table of runs.

    SOURCE is what `isotune diagnose` takes. The file needs no server and no network.
    """
    typed = arguments["source"]
    imported = take_source(arguments)
    path = out or _usual_place(imported)
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no folder: make it, or give another file with --out")
    require_writable(path.parent, "file with --out")
    _write(path, imported, label=typed, level=level)
    click.echo(f"{path}: {format_bytes(path.stat().st_size)}, to be opened in a browser")


def report_sweep(folder: Path, *, quiet: bool) -> None:
    """Writes the page of a study into its folder, at the end of a sweep."""
    _write_or_warn(folder, lambda: open_source(folder), (), quiet)


def report_tuning(
    folder: Path,
    tuned: Tuned,
    goal: Goal,
    *,
    result: str,
    rounds: Sequence[Round],
    quiet: bool,
) -> None:
    """Writes the page of a tuning into its folder; `result` is what the terminal says of it."""

    def read() -> Imported:
        is_study, per_step = (folder / "study.json").exists(), goal.tokens_per_step
        return open_source(folder, settings=None if is_study or per_step is None else {"tokens_per_step": per_step})

    _write_or_warn(folder, read, (_tuning_account(tuned, result, rounds),), quiet)


def _write_or_warn(folder: Path, read: Callable[[], Imported], accounts: Sequence[Account], quiet: bool) -> None:
    """A page that cannot be written is a warning: the runs are what the command was called for, and they are there."""
    path = folder / REPORT
    try:
        _write(path, read(), label=str(folder), accounts=accounts)
    except Exception as error:
        click.echo(f"isotune: no report was written: {_reason(error)}", err=True)
    else:
        if not quiet:
            click.echo(f"report: {path}", err=True)


def _reason(error: Exception) -> str:
    if isinstance(error, InputError):
        return str(error)
    return describe_os_error(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _write(path: Path, imported: Imported, *, label: str, level: float = 0.9, accounts: Sequence[Account] = ()) -> None:
    notes = (*imported.notes, *_progress(imported))
    findings = find(imported.trajectories, loss=imported.loss, label=_no_password(label), warnings=notes, level=level)
    page = make_page(findings, figures_of(findings, _warn_of_defect), origin=_origin(label), accounts=accounts)

    def fill(temporary: Path) -> None:
        temporary.write_text(page, encoding="utf-8")

    write_whole(path, fill)


def _warn_of_defect(name: str, error: Exception) -> None:
    """A page without one of its figures is better than none, but nobody shall overlook it."""
    click.echo(f"isotune: the figure {name} could not be drawn: {type(error).__name__}: {error}", err=True)


def _usual_place(imported: Imported) -> Path:
    if imported.kind in ("study", "answers"):
        return Path(imported.source) / REPORT
    name = re.sub(r"[^\w.-]+", "-", Path(_no_password(imported.source)).stem).strip("-.")
    return Path(f"{name or imported.kind}-{REPORT}")


def _progress(imported: Imported) -> list[str]:
    """Where a study's sweep stands, if it has not ended."""
    if imported.kind != "study":
        return []
    status = sweep_status(Study.open(Path(imported.source)))
    open_segments = {name: status.segments[name] for name in ("running", "waiting") if status.segments[name]}
    if not open_segments:
        return []
    counts = ", ".join(f"{number} {name}" for name, number in open_segments.items())
    there, all_of_them = format_tokens(status.price.there), format_tokens(status.price.shared)
    failed = [f"; {words} failed: {reason}" for words, reason in status.failures[:3]]
    return [f"the sweep has not ended: segments {counts}; {there} of {all_of_them} tokens are there" + "".join(failed)]


# How it was made


def _origin(label: str) -> Origin:
    commit, is_changed = source_commit()
    versions = {
        "isotune": importlib.metadata.version("isotune"),
        "commit": commit + (" with changes" if is_changed else ""),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
    }
    command = shlex.join(["isotune", *sys.argv[1:]])
    return Origin(
        command=_no_password(command), source=_no_password(label), made_at=datetime.now(UTC), versions=versions
    )


def _no_password(text: str) -> str:
    """A page is mailed around: what stands between user and host of an address stays here.

    >>> _no_password("optuna:mysql://me:secret@host/trials")
    'optuna:mysql://me:...@host/trials'
    """
    return re.sub(r"(://[^\s/:@]*):[^\s/@]+@", r"\1:...@", text)


# A tuning


def _tuning_account(tuned: Tuned, result: str, rounds: Sequence[Round]) -> Account:
    best = tuned.recommendation
    asked = [
        (
            str(one.number),
            format_number(question.learning_rate),
            format_number(question.weight_decay),
            format_tokens(question.tokens),
            format_tokens(price),
            reason,
        )
        for one in rounds
        for question, reason, price in zip(one.suggestion.questions, one.suggestion.reasons, one.prices, strict=True)
    ]
    table = WordTable(("round", "LR", "WD", "budget", "to train", "why"), tuple(asked))
    return Account(
        "What the tuner found",
        click.unstyle(result),
        (("What this call asked, and why", table),) if asked else (),
        paste_in(best.learning_rate, best.weight_decay),
    )
