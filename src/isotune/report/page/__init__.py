"""Findings and figures -> one HTML file that needs no server and no network.

    head          styles, a policy that forbids every request
    the tuner     accounts that a command adds: what it found, what it asked and why
    verdict       families.py: what each family says, settings to paste, what to run next
    evidence      figures.py: drawings, each with its words; families.py: tables and sentences
    warnings      what was dropped, what cannot be said
    reproduce     the command, versions, commit
    runs          runs.py: a table that sorts and filters

Everything is there as text before a script runs; page.js draws figures when they come into view, sorts, filters and
changes colours.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from isotune.report.figure import Figure
from isotune.report.findings import Findings
from isotune.report.page.families import Told, show_evidence, show_verdict, tell
from isotune.report.page.figures import panels_of, show_panel
from isotune.report.page.html import Html, element, folded, join
from isotune.report.page.runs import show_runs
from isotune.report.page.text import as_sentence, lines_to_paste, sentence_list, word_table
from isotune.report.words import WordTable, count
from isotune.runs.trajectory import Status

STATUSES: tuple[Status, ...] = ("finished", "running", "diverged", "failed")
NUM_OPEN = 2  # families; those with fewer runs are folded: all of nano's would be a page of 87,000 pixels on a phone


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How the page was made, so that it can be made again."""

    command: str  # as it was typed
    source: str  # as it was typed
    made_at: datetime
    versions: dict[str, str] = field(default_factory=dict)  # of what made it, by name


@dataclass(frozen=True)
class Account:
    """What a command did, in a section of its own: as the terminal told it, lines to paste, tables by their titles."""

    title: str
    told: str
    tables: tuple[tuple[str, WordTable], ...] = ()
    lines: dict[str, str] = field(default_factory=dict)  # to paste, by library


def make_page(
    findings: Findings, figures: Sequence[Figure], *, origin: Origin, accounts: Sequence[Account] = ()
) -> str:
    """The whole page."""
    title, told = f"isotune report: {findings.label}", tell(findings)
    sections = [
        *(_account(account) for account in accounts),
        _verdict(findings, told),
        _evidence(told, figures),
        _warnings(findings, figures),
        _reproduce(origin),
        _runs(findings),
    ]
    body = element(
        "body",
        element("a", "Skip to the content", href=f"#{sections[0][0]}", class_="skip"),
        _header(findings, origin, [(name, words) for name, words, _ in sections]),
        element("main", *(_section(*section) for section in sections)),
        _footer(origin),
        *(element("script", Html(text)) for text in _scripts()),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{_head(title)}{body}</html>\n'


Section = tuple[str, str, Html]  # anchor, heading, content


def _head(title: str) -> Html:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(_packaged("page.css"))),
        element("script", Html(_theme_script())),
    )


def _policy() -> str:
    """No request of any kind, and no script but those of this page, by their hashes."""
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in (_theme_script(), *_scripts()))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _scripts() -> tuple[str, str]:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs(), _packaged("page.js")


def _theme_script() -> str:
    """Runs before anything is shown, so that a dark page does not begin with a flash of white."""
    return _packaged("theme.js")


def _packaged(name: str) -> str:
    return importlib.resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


# Header and footer


def _header(findings: Findings, origin: Origin, contents: Iterable[tuple[str, str]]) -> Html:
    links = [element("li", element("a", words, href=f"#{name}")) for name, words in contents]
    return element(
        "header",
        element(
            "div",
            element("h1", findings.label or "Runs"),
            element("button", "Dark colours", type="button", id="theme", hidden=True),
            class_="top",
        ),
        element("p", _summary(findings, origin), class_="summary"),
        element("nav", element("ul", *links), aria_label="Contents"),
        element("noscript", element("p", "Figures, sorting and filters need JavaScript.", class_="notice")),
        *_notices(findings),
    )


def _summary(findings: Findings, origin: Origin) -> str:
    runs = findings.trajectories
    counts = Counter(run.info.status for run in runs)
    statuses = ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if counts[status])
    parts = [count(len(runs), "run") + (f" ({statuses})" if runs else "")]
    if findings.diagnoses:
        parts.append("1 family" if len(findings.diagnoses) == 1 else f"{len(findings.diagnoses)} families")
    return f"{', '.join(parts)}; loss: {findings.loss}; made {_moment(origin.made_at)}"


def _notices(findings: Findings) -> list[Html]:
    """What a reader must know before anything else."""
    statuses = Counter(run.info.status for run in findings.trajectories)
    words = []
    if statuses["running"]:
        words.append(
            f"{count(statuses['running'], 'run')} had not ended when this page was made: what follows may change; "
            "repeat the command below for a newer page."
        )
    if findings.trajectories and statuses["diverged"] == len(findings.trajectories):
        words.append("All runs diverged: no loss can be compared. Lower the learning rate, or lengthen the warm-up.")
    unmeasured = _without_loss(findings)
    if unmeasured and unmeasured == len(findings.trajectories) - statuses["diverged"]:
        words.append(f"No run has a finite {findings.loss}: nothing can be compared. Name another column with --loss.")
    elif unmeasured:
        words.append(f"{count(unmeasured, 'run')} without a finite {findings.loss} say nothing here.")
    return [element("p", sentence, class_="notice", role="status") for sentence in words]


def _without_loss(findings: Findings) -> int:
    """How many runs did not diverge and yet have no loss."""
    sound = [run for run in findings.trajectories if run.info.status != "diverged"]
    return sum(not np.isfinite(run.measured(findings.loss)[1]).any() for run in sound)


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M %Z").strip()


def _footer(origin: Origin) -> Html:
    version = origin.versions.get("isotune", "")
    return element("footer", element("p", f"Made by isotune {version}. The page asks no server for anything."))


# Sections


def _section(name: str, heading: str, content: Html) -> Html:
    return element("section", element("h2", heading, id=f"{name}-heading"), content, id=name, aria_label=heading)


def _verdict(findings: Findings, told: Sequence[Told]) -> Section:
    if not told:
        headline = element("p", "Nothing can be said of these runs", class_="headline")
        content = join(headline, element("p", as_sentence(findings.reason)))
    else:
        content = join(*(show_verdict(one, is_folded=place >= NUM_OPEN) for place, one in enumerate(told)))
    return "verdict", "Verdict", content


def _account(account: Account) -> Section:
    parts = [element("pre", account.told, class_="told", tabindex="0", aria_label=account.title)]
    if account.lines:
        parts += [element("h3", "To paste"), lines_to_paste(account.lines)]
    for title, table in account.tables:
        parts += [element("h3", title), word_table(table, title)]
    name = "".join(character if character.isalnum() else "-" for character in account.title.lower())
    return name, account.title, join(*parts)


def _evidence(told: Sequence[Told], figures: Sequence[Figure]) -> Section:
    """Family by family; figures of no family come last."""
    panels = list(enumerate(panels_of(figures)))
    several = len(told) > 1
    texts = {one.diagnosis.family.name if several else "": show_evidence(one) for one in told}
    parts = []
    for place, group in enumerate(dict.fromkeys([*texts, *(panel.group for _, panel in panels)])):
        drawn = [show_panel(panel, f"panel-{number}") for number, panel in panels if panel.group == group]
        text = texts.get(group, Html())
        if drawn or text:
            heading = element("h3", group or ("All runs" if several else "Figures"))
            content = join(element("div", *drawn, class_="panels"), text)
            parts.append(folded(heading, content) if place >= NUM_OPEN and group else join(heading, content))
    return "evidence", "Evidence", join(*parts) if parts else element("p", "There is none: no run can be looked at.")


def _warnings(findings: Findings, figures: Sequence[Figure]) -> Section:
    several = len(findings.diagnoses) > 1
    parts = []
    if findings.warnings:
        parts += [element("h3", "About the source"), sentence_list(findings.warnings)]
    for diagnosis in findings.diagnoses:
        if diagnosis.warnings:
            heading = f"About {diagnosis.family.name}" if several else "About the runs"
            parts += [element("h3", heading), sentence_list(diagnosis.warnings)]
    missing = _missing(figures)
    if missing:
        parts += [element("h3", "What cannot be drawn"), sentence_list(missing)]
    return "warnings", "Warnings", join(*parts) if parts else element("p", "There are none.")


def _missing(figures: Sequence[Figure]) -> list[str]:
    """Figures that cannot be drawn; those with one reason in one sentence."""
    reasons: dict[str, list[str]] = {}
    for figure in figures:
        if not figure.drawing:
            name = f"{figure.title} ({figure.group})" if figure.group else figure.title
            reasons.setdefault(figure.missing, []).append(name)
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _reproduce(origin: Origin) -> Section:
    facts = [("source", origin.source), ("made", _moment(origin.made_at))]
    rows = [join(element("dt", name), element("dd", words)) for name, words in [*facts, *origin.versions.items()]]
    command = element("pre", element("code", origin.command), tabindex="0", aria_label="Command")
    return "reproduce", "How to reproduce", join(command, element("dl", *rows, class_="facts"))


def _runs(findings: Findings) -> Section:
    return "runs", "Runs", show_runs(findings)
