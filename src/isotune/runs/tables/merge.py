"""Tables + tables: equal rows once, longer trunks instead of their beginnings, contradictions refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from isotune.errors import InputError
from isotune.recipe import format_number
from isotune.runs.tables.contents import Contents, Curve, DecayRecord, Record, RunRecord, read_recipe_text
from isotune.runs.tables.folder import read_contents, write_contents
from isotune.runs.tables.prefixes import continues

# Not compared: these depend on the machine's mood and on which other rows a table has.
_COSTS = ("core_seconds",)

_Row = TypeVar("_Row", RunRecord, DecayRecord)


@dataclass(frozen=True)
class Merged:
    """What merging changed."""

    runs_added: int = 0
    runs_lengthened: int = 0  # trunks that took the place of their own beginning
    decays_added: int = 0
    runs_kept: int = 0  # rows that were there already, or there with other numerics or another evaluation
    decays_kept: int = 0

    def __add__(self, other: Merged) -> Merged:
        return Merged(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))


def merge_tables(folder: Path, others: Sequence[Path]) -> Merged:
    """Adds the rows of other tables to the one in the folder; merging the same table again changes nothing.

    Rows that are there stay. Runs with equal recipes, numerics and evaluation must have equal numbers.
    """
    _, contents = read_contents(Path(folder))
    merged = Merged()
    for other in others:
        contents, changes = union(contents, read_contents(Path(other))[1], str(other))
        merged += changes
    write_contents(Path(folder), contents)
    return merged


def union(first: Contents, second: Contents, where: str) -> tuple[Contents, Merged]:
    """Both tables as one; `where` names the second in complaints."""
    for name, row in second.runs.items():
        if name in first.runs:
            _require_agreement(first.runs[name], row, first.curves[name], second.curves[name], where)
    for name, decay in second.decays.items():
        if name in first.decays:
            _require_agreement(first.decays[name], decay, first.curves[name], second.curves[name], where)
    everything = dataclasses.replace(
        first,
        roots=second.roots | first.roots,
        evaluations=second.evaluations | first.evaluations,
        numerics=second.numerics | first.numerics,
        planned=_both(first.planned, second.planned),
        runs=second.runs | first.runs,
        decays=second.decays | first.decays,
        curves=second.curves | first.curves,
    )
    result = _without_beginnings(everything, where)
    dropped = set(everything.runs) - set(result.runs)
    merged = Merged(
        runs_added=len(set(result.runs) - set(first.runs)) - len(dropped & set(first.runs)),
        runs_lengthened=len(dropped & set(first.runs)),
        decays_added=len(set(second.decays) - set(first.decays)),
        runs_kept=len(set(second.runs) & set(first.runs)) + len(dropped - set(first.runs)),
        decays_kept=len(set(second.decays) & set(first.decays)),
    )
    return result, merged


def _both(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    if first is None or second is None:
        return second if first is None else first
    return second | first


def _without_beginnings(contents: Contents, where: str) -> Contents:
    """Drops trunks that another row continues, and gives their decays to that row."""
    heirs: dict[str, str] = {}
    for longer, shorter in _continuations(contents):
        _require_agreement(longer, shorter, contents.curves[longer.run], contents.curves[shorter.run], where)
        heirs[shorter.run] = longer.run
    return dataclasses.replace(
        contents,
        runs={name: row for name, row in contents.runs.items() if name not in heirs},
        decays={
            name: dataclasses.replace(row, run=heirs.get(row.run, row.run)) for name, row in contents.decays.items()
        },
        curves={name: curve for name, curve in contents.curves.items() if name not in heirs},
    )


def _continuations(contents: Contents) -> list[tuple[RunRecord, RunRecord]]:
    """(longer, shorter) for every trunk that a longer one of the same kind continues."""
    groups: dict[tuple[object, ...], list[RunRecord]] = {}
    for row in contents.runs.values():
        if row.kind == "trunk":
            settings = (row.root, row.seed, row.learning_rate, row.weight_decay, row.batch_size)
            groups.setdefault((settings, row.numerics, row.evaluation), []).append(row)
    pairs = []
    for rows in groups.values():
        by_length = sorted(rows, key=lambda row: (-row.tokens, row.run))
        recipes = [read_recipe_text(row) for row in by_length]
        for k, row in enumerate(by_length):
            longer = next((j for j in range(k) if continues(recipes[j], recipes[k])), None)
            if longer is not None:
                pairs.append((by_length[longer], row))
    return pairs


# Agreement


def _require_agreement(a: _Row, b: _Row, curve_a: Curve, curve_b: Curve, where: str) -> None:
    """Refuses rows of one training that tell different things, as far as both go."""
    if a.numerics != b.numerics or a.evaluation != b.evaluation:
        return  # other bytes are to be expected
    difference = _difference(a, b, curve_a, curve_b)
    if difference is not None:
        raise InputError(
            f"{where} contradicts the table on {_describe(b)}: {difference}, though recipe and numerics are equal "
            f"(commits {a.commit[:12]} and {b.commit[:12]}): leave one of the two out, or train that run again"
        )


def _difference(a: Record, b: Record, curve_a: Curve, curve_b: Curve) -> str | None:
    reached = min(a.tokens, b.tokens)
    ends = [row.end_tokens if row.end_tokens <= reached and row.status == "diverged" else None for row in (a, b)]
    if ends[0] != ends[1]:
        return f"one diverges at {ends[0] or ends[1]} tokens, the other does not"
    for name in sorted((set(curve_a) & set(curve_b)) - set(_COSTS)):
        at = _first_difference(curve_a, curve_b, name)
        if at is not None:
            return f"{name} differs at {at} tokens"
    if isinstance(a, DecayRecord) and isinstance(b, DecayRecord) and a.final_val_loss != b.final_val_loss:
        return f"final_val_loss is {a.final_val_loss} and {b.final_val_loss}"
    return None


def _first_difference(a: Curve, b: Curve, name: str) -> int | None:
    """Where both have a row and other values; the shorter's last row may be one that the longer has not."""
    tokens, in_a, in_b = np.intersect1d(a["tokens"], b["tokens"], return_indices=True)
    x, y = a[name][in_a], b[name][in_b]
    differs = (x != y) & ~(np.isnan(x) & np.isnan(y))
    return int(tokens[differs.argmax()]) if differs.any() else None


def _describe(row: Record) -> str:
    name = row.run if isinstance(row, RunRecord) else row.decay
    return (
        f"{name[:8]} (LR {format_number(row.learning_rate)}, WD {format_number(row.weight_decay)}, batch size "
        f"{row.batch_size}, seed {row.seed})"
    )
