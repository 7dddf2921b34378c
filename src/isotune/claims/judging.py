"""A claim's verdict: its judge measures, its rule decides, parts and replication are put together."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from isotune.claims.rows import Rows, RowsMissing, Tables
from isotune.claims.rules import Entry, Measured, Rules, Verdict, VerdictWord, judge_measured
from isotune.errors import InputError

Judge = Callable[[Rows, Entry], Measured]

_JUDGES: dict[str, Judge] = {}
# Each module of claims registers its judges when it is imported.
_MODULES = ("curves", "splitting", "noise", "laws", "batches", "surfaces", "decays", "rest", "beyond")


@dataclass(frozen=True)
class Judgement:
    """One application of a rule: to the whole claim, to a part that is judged apart, or to the replication."""

    part: str | None
    verdict: Verdict
    measured: Measured | None
    missing_rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim with all that it rests on."""

    entry: Entry
    verdict: Verdict
    judgements: tuple[Judgement, ...]
    replications: tuple[Judgement, ...] = ()


def judges(claim: str) -> Callable[[Judge], Judge]:
    """Registers a function as the judge of this claim."""

    def register(judge: Judge) -> Judge:
        _JUDGES[claim] = judge
        return judge

    return register


def judge_of(claim: str) -> Judge | None:
    """The claim's judge; None if nobody wrote one."""
    for module in _MODULES:
        name = f"isotune.claims.judges.{module}"
        if claim not in _JUDGES and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    return _JUDGES.get(claim)


def chosen_claims(rules: Rules, names: Sequence[str]) -> list[Entry]:
    """The entries of these claims, all if none is named."""
    wanted = {name.lower(): name for name in names}
    by_name = {name.lower(): entry for name, entry in rules.claims.items()}
    unknown = [name for lower, name in wanted.items() if lower not in by_name]
    if unknown:
        raise InputError(f"no claim is called {', '.join(unknown)}: choose among {', '.join(rules.claims)}")
    return [by_name[lower] for lower in wanted] if names else list(rules.claims.values())


def judge_claim(entry: Entry, tables: Tables) -> ClaimVerdict:
    """What the tables say about the claim."""
    judge = judge_of(entry.id)
    if judge is None:
        return ClaimVerdict(entry, Verdict("undecided", "no judge is written for it"), ())
    parts: tuple[str | None, ...] = entry.apart or (None,)
    judgements = tuple(_judged(judge, entry, Rows(tables, part)) for part in parts)
    replications = tuple(
        _judged(judge, entry, Rows(tables, part, sets)) for sets in _replica_sets(entry) for part in parts
    )
    return ClaimVerdict(entry, _together(judgements, replications), judgements, replications)


def _replica_sets(entry: Entry) -> list[tuple[str, ...]]:
    """The sets of each replication: a claim about one batch gets one at either batch, where both are named."""
    batches = ("small32_all", "small32_large")
    about_one = not any(name.startswith("large") for name in entry.rows)
    if about_one and set(batches) <= set(entry.replication):
        return [(batch,) for batch in batches]
    return [entry.replication] if entry.replication else []


def _judged(judge: Judge, entry: Entry, rows: Rows) -> Judgement:
    """The rule applied to what there is. With rows missing the verdict is open; the numbers so far are shown."""
    missing = _missing(entry, rows)
    try:
        measured = judge(rows, entry)
    except RowsMissing as error:
        absent = missing or (str(error),)
        return Judgement(rows.part, _rows_not_there(absent), None, absent)
    except InputError as error:  # an analysis refused these rows
        why = f"cannot be measured: {error}" + (f"; {_rows_not_there(missing).why}" if missing else "")
        return Judgement(rows.part, Verdict("undecided", why), None, missing)
    verdict = judge_measured(entry, measured)
    if missing:
        so_far = Verdict("undecided", f"{_rows_not_there(missing).why}; with what is there: {verdict.verdict}")
        return Judgement(rows.part, so_far, measured, missing)
    return Judgement(rows.part, verdict, measured)


def _missing(entry: Entry, rows: Rows) -> tuple[str, ...]:
    """What is not there of the sets that this application needs: the part's own and those of no part.

    A replication may do without sets that are planned nowhere: their conditions are then missing.
    """
    if rows.is_replication:
        planned = [name for name in rows.replication if rows.tables.rules.rows[name]["planned"]]
        return tuple(words for name in planned if (words := rows.tables.rows(name).missing))
    return tuple(rows.missing([name for name in entry.rows if name == rows.part or name not in entry.apart]))


def _rows_not_there(missing: Sequence[str]) -> Verdict:
    return Verdict("undecided", f"rows not there: {'; '.join(missing)}")


def _together(judgements: Sequence[Judgement], replications: Sequence[Judgement]) -> Verdict:
    """A claim is said of all parts: it fails where one does. The opposite verdict in a replication leaves it open."""
    verdict = judgements[0].verdict
    if len(judgements) > 1:
        words = "; ".join(f"{each.part}: {each.verdict.verdict} ({each.verdict.why})" for each in judgements)
        verdict = Verdict(_of_all([each.verdict.verdict for each in judgements]), words)
    for ours, theirs in zip(itertools.cycle(judgements), replications, strict=False):
        if {ours.verdict.verdict, theirs.verdict.verdict} == {"holds", "fails"}:
            where = f" in {ours.part}" if ours.part else ""
            why = f"tables disagree{where}: {ours.verdict.verdict} here, {theirs.verdict.verdict} in the replication"
            return replace(verdict, verdict="undecided", why=f"{why}; {theirs.verdict.why}")
    return verdict


def _of_all(parts: Sequence[VerdictWord]) -> VerdictWord:
    if "fails" in parts:
        return "fails"
    return "undecided" if "undecided" in parts else "holds"
