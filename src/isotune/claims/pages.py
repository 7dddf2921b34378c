"""Verdicts for people: as lines of text, as a Markdown table and as JSON; `isotune.report.verdicts` makes a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from isotune.analyze.plain import plain
from isotune.claims.judging import ClaimVerdict, Judgement
from isotune.claims.rules import Estimate

NO_CORRECTION = (
    "No correction is made across claims: with 32 of them at 90 or 95 % one or two false verdicts are to be expected."
)
COLUMNS = ("claim", "what", "paper", "ours", "verdict", "why", "figure")
FIGURES = (
    "`isotune figures tables/nano --only NAME --out FOLDER` draws a figure of the last column "
    "(C31, B_a, B_e: tables/nano-variants)."
)


def as_lines(verdicts: Sequence[ClaimVerdict]) -> list[str]:
    """A few lines per claim, and a last one that counts."""
    lines = []
    for each in verdicts:
        lines.append(f"{each.entry.id}  {each.verdict.verdict.upper()}  {each.entry.claim}")
        lines.append(f"     paper: {each.entry.paper}")
        lines += [f"     ours: {words}" for words in _ours(each)]
        lines.append(f"     why: {each.verdict.why}")
        if explanation_of(each):
            lines.append(f"     explanation: {explanation_of(each)}")
        lines.append(f"     figure: {_figures(each)}")
        lines.append("")
    return [*lines, summary(verdicts)]


def as_markdown(verdicts: Sequence[ClaimVerdict], facts: Mapping[str, Any]) -> str:
    """The verdict table, what it was made from, and what is shown beside each claim."""
    rows = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    rows += [" | ".join(_cell(cell) for cell in row) for row in table_rows(verdicts)]
    table = "\n".join(f"| {row} |" for row in rows)
    head = f"# Verdicts on the paper's claims\n\n{facts_in_words(facts)}\n\n{summary(verdicts)} {FIGURES}"
    return f"{head}\n\n{table}\n\n" + "\n".join(_section(each) for each in verdicts)


def as_json(verdicts: Sequence[ClaimVerdict], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data: every statistic with its interval, in the parts and in the replication too."""
    claims = [
        {
            "id": each.entry.id,
            "claim": each.entry.claim,
            "paper": each.entry.paper,
            "verdict": each.verdict.verdict,
            "why": each.verdict.why,
            "explanation": explanation_of(each),
            "figures": list(each.entry.figures),
            "holds_if": each.entry.holds_if,
            "fails_if": each.entry.fails_if,
            "level": each.entry.level,
            "judgements": [_judgement(one) for one in each.judgements],
            "replications": [_judgement(one) for one in each.replications],
        }
        for each in verdicts
    ]
    return {"format": 1, **plain(dict(facts)), "counts": counts(verdicts), "claims": claims}


def summary(verdicts: Sequence[ClaimVerdict]) -> str:
    """How many hold, fail and are undecided, and what to expect by chance."""
    found = counts(verdicts)
    words = ", ".join(f"{number} {word}" for word, number in found.items())
    return f"{len(verdicts)} claim{'s' * (len(verdicts) != 1)}: {words}. {NO_CORRECTION}"


def counts(verdicts: Sequence[ClaimVerdict]) -> dict[str, int]:
    found = Counter(str(each.verdict.verdict) for each in verdicts)
    return {word: found[word] for word in ("holds", "fails", "undecided")}


def explanation_of(each: ClaimVerdict) -> str:
    """The best explanation of a failure; nothing where the claim does not fail."""
    return (each.entry.explanation or "none yet") if each.verdict.verdict == "fails" else ""


def words_of(value: Any) -> str:
    """A shown value in words."""
    if isinstance(value, Estimate):
        if math.isnan(value.value):
            return f"missing ({value.reason})" if value.reason else "missing"
        ends = f" [{_number(value.low)}, {_number(value.high)}]" if value.has_interval else ""
        return _number(value.value) + ends
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {words_of(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(words_of(item) for item in value)
    if isinstance(value, bool | str) or value is None:
        return str(value)
    return _number(float(value))


def table_rows(verdicts: Sequence[ClaimVerdict]) -> list[tuple[str, ...]]:
    return [
        (
            each.entry.id,
            each.entry.claim,
            each.entry.paper,
            "; ".join(_ours(each)) or "nothing yet",
            each.verdict.verdict,
            each.verdict.why,
            _figures(each),
        )
        for each in verdicts
    ]


def _figures(each: ClaimVerdict) -> str:
    return ", ".join(each.entry.figures) or "none"


def _ours(each: ClaimVerdict) -> list[str]:
    """The statistics of each part in words."""
    found = []
    for one in each.judgements:
        if one.measured is not None:
            words = ", ".join(f"{name} {words_of(value)}" for name, value in one.measured.statistics.items())
            found.append(f"{one.part}: {words}" if one.part else words)
    return found


def _judgement(one: Judgement) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "part": one.part,
        "verdict": one.verdict.verdict,
        "why": one.verdict.why,
        "missing_rows": list(one.missing_rows),
    }
    if one.measured is not None:
        facts |= plain(one.measured)
    return facts


def facts_in_words(facts: Mapping[str, Any]) -> str:
    return ". ".join(f"{name.capitalize()}: {words_of(value)}" for name, value in facts.items()) + "."


def _section(each: ClaimVerdict) -> str:
    lines = [f"- {line}" for line in details(each)]
    return f"## {each.entry.id}: {each.verdict.verdict}\n\n{each.entry.claim}\n\n" + "\n".join(lines) + "\n"


def details(each: ClaimVerdict) -> list[str]:
    """Explanation, rule, what is shown beside the statistics, notes, and the replication."""
    lines = [f"explanation: {explanation_of(each)}"] if explanation_of(each) else []
    lines += [f"holds if {each.entry.holds_if}", f"fails if {each.entry.fails_if}"]
    for one in each.judgements:
        lines += _shown_of(one, f"{one.part}: " if one.part else "")
    for one in each.replications:
        begin = f"replication{f' of {one.part}' if one.part else ''}"
        lines.append(f"{begin}: {one.verdict.verdict}, {one.verdict.why}")
        if one.measured is not None:
            lines += [f"{begin}: {name} {words_of(value)}" for name, value in one.measured.statistics.items()]
            lines += _shown_of(one, f"{begin}: ")
    return lines


def _shown_of(one: Judgement, begin: str) -> list[str]:
    if one.measured is None:
        return []
    shown = [f"{begin}{name}: {words_of(value)}" for name, value in one.measured.shown.items()]
    return [f"{begin}{one.measured.num_cells} cells", *shown, *(f"{begin}{note}" for note in one.measured.notes)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float) -> str:
    if math.isnan(value):
        return "missing"
    if math.isinf(value):
        return "no limit"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3g}"
