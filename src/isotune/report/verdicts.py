"""Verdicts on the paper's claims as one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isotune.claims import ClaimVerdict
from isotune.claims.pages import COLUMNS, FIGURES, details, facts_in_words, summary, table_rows
from isotune.report.page.html import Html, element, join

TITLE = "Verdicts on the paper's claims"


def verdict_page(verdicts: Sequence[ClaimVerdict], facts: Mapping[str, Any]) -> str:
    """A self-contained page: the table of verdicts, and what is shown beside each claim."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", TITLE),
        element("style", Html(_STYLE)),
    )
    columns = element("tr", *(element("th", column, scope="col") for column in COLUMNS))
    rows = [_row(each, row) for each, row in zip(verdicts, table_rows(verdicts), strict=True)]
    body = element(
        "body",
        element("h1", TITLE),
        element("p", facts_in_words(facts)),
        element("p", f"{summary(verdicts)} {FIGURES}"),
        element("div", element("table", element("thead", columns), element("tbody", *rows)), class_="wide"),
        element("h2", "Beside each claim"),
        *(_details(each) for each in verdicts),
    )
    return join(Html("<!doctype html>\n"), element("html", head, body, lang="en"), Html("\n"))


def _row(each: ClaimVerdict, row: Sequence[str]) -> Html:
    name, *rest = row
    cells = [
        element("td", cell, class_=each.verdict.verdict if column == "verdict" else False)
        for column, cell in zip(COLUMNS[1:], rest, strict=True)
    ]
    return element("tr", element("th", element("a", name, href=f"#{name}"), scope="row"), *cells)


def _details(each: ClaimVerdict) -> Html:
    name = each.entry.id
    title = element("summary", f"{name}: {each.verdict.verdict}. {each.entry.claim}")
    return element("details", title, element("ul", *(element("li", line) for line in details(each))), id=name)


# Verdicts are told by their words; the colours (Okabe and Ito's) only help.
_STYLE = """
:root { color-scheme: light dark; --line: #8885; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 90rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--line); padding: .4rem .6rem; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 7rem; }
.holds, .fails, .undecided { border-left: .4rem solid; font-weight: 600; }
.holds { border-left-color: #009e73; } .fails { border-left-color: #d55e00; } .undecided { border-left-color: #999; }
details { margin: .3rem 0; } summary { cursor: pointer; }
@media print { details > ul { display: block; } }
"""
