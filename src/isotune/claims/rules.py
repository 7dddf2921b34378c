"""claims.toml: what is measured for each claim, and the conditions that make of it a verdict.

A condition is a small expression over statistics and thresholds: comparisons, `and`, `or`, numbers, + - * /. Nothing
else is read, and nothing is executed. Logic has three values: a comparison with a missing number is unknown, and an
unknown is never the reason for a verdict.

    holds        holds_if is true and fails_if is not
    fails        fails_if is true and holds_if is false
    undecided    anything else, with the conditions that were not met
"""

from __future__ import annotations

import ast
import math
import operator
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from isotune.errors import InputError

VerdictWord = Literal["holds", "fails", "undecided"]
Truth = bool | None  # None: unknown

FORMAT = 1


@dataclass(frozen=True)
class Estimate:
    """A statistic and the ends of its interval; NaN where there is none, with the reason."""

    value: float
    low: float = math.nan
    high: float = math.nan
    reason: str = ""

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) and math.isnan(self.high))


@dataclass(frozen=True)
class Measured:
    """What a judge found: the statistics by their names in claims.toml, and what is shown beside them.

    `left_out` names statistics that these rows cannot have by design (a replication without a batch switch):
    conditions on them are not judged. `would_decide` names the runs that would, if the rule leaves the claim undecided.
    """

    statistics: dict[str, Estimate]
    num_cells: int
    shown: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    would_decide: str = ""


@dataclass(frozen=True)
class Verdict:
    verdict: VerdictWord
    why: str


@dataclass(frozen=True)
class Entry:
    """A claim of the file; `numbers` holds its numeric keys over the defaults."""

    id: str
    claim: str
    paper: str
    rows: tuple[str, ...]
    replication: tuple[str, ...]
    apart: tuple[str, ...]
    windows: tuple[str, ...]
    holds_if: str
    fails_if: str
    statistic: dict[str, str]  # name -> how it is defined
    numbers: dict[str, float]
    effect_unit: str = ""
    notes: str = ""
    test: str = ""
    figures: tuple[str, ...] = ()  # as `isotune figures` calls them
    explanation: str = ""  # shown where the claim fails
    would_decide: str = ""  # the runs that would, shown where it stays undecided and its judge names no others

    def __getitem__(self, name: str) -> float:
        """A threshold or another number of the entry (or of the defaults) by its key."""
        return self.numbers[name]

    @property
    def level(self) -> float:
        return self.numbers["level"]

    @property
    def draws(self) -> int:
        return int(self.numbers["bootstrap_draws"])

    @property
    def permutations(self) -> int:
        return int(self.numbers["permutations"])

    @property
    def random_seed(self) -> int:
        return int(self.numbers["random_seed"])

    @property
    def min_cells(self) -> int:
        return int(self.numbers["min_cells"])


@dataclass(frozen=True)
class Rules:
    """The whole file."""

    path: Path
    claims: dict[str, Entry]
    rows: dict[str, dict[str, Any]]
    windows: dict[str, dict[str, Any]]
    definitions: dict[str, str]
    defaults: dict[str, float]


def read_rules(path: str | Path) -> Rules:
    """The rules in this file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there: give the file of rules, experiments/claims.toml of the repository"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not readable as TOML ({error}): mend it or take the repository's") from None
    if content.get("format") != FORMAT:
        raise InputError(f"{path} has format {content.get('format')!r}: this version reads format {FORMAT}")
    defaults = _numbers(content["defaults"])
    claims = {name: _entry(path, name, table, defaults) for name, table in content["claims"].items()}
    return Rules(path, claims, content["rows"], content["windows"], content["definitions"], defaults)


def judge_measured(entry: Entry, measured: Measured) -> Verdict:
    """The verdict of the entry's conditions on these statistics."""
    runs = measured.would_decide or entry.would_decide
    decide = f"; would decide: {runs}" if runs else ""
    if measured.num_cells < entry.min_cells:
        return Verdict("undecided", f"{measured.num_cells} cells, {entry.min_cells} are needed{decide}")
    names = names_of(entry, measured)
    holds = evaluate(entry.holds_if, names, measured.left_out)
    fails = evaluate(entry.fails_if, names, measured.left_out)
    if holds is True and fails is not True:
        return Verdict("holds", _listed(_parts(entry.holds_if, names, measured, {True})))
    if fails is True and holds is False:
        return Verdict("fails", _listed(_parts(entry.fails_if, names, measured, {True})))
    if holds is True and fails is True:
        return Verdict("undecided", f"holds_if and fails_if are both true{decide}")
    unmet = _parts(entry.holds_if, names, measured, {False, None})
    missing = [
        f"{name} ({estimate.reason})"
        for name, estimate in measured.statistics.items()
        if math.isnan(estimate.value) and estimate.reason and name not in measured.left_out
    ]
    words = f"not met: {_listed(unmet)}" if unmet else "neither condition is met"
    return Verdict("undecided", words + (f"; missing: {', '.join(missing)}" if missing else "") + decide)


def names_of(entry: Entry, measured: Measured) -> dict[str, float]:
    """All names that a condition may use: thresholds, and each statistic with its ends."""
    names = dict(entry.numbers)
    for name in entry.statistic:
        estimate = measured.statistics.get(name, Estimate(math.nan))
        names |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return names


def evaluate(expression: str, names: Mapping[str, float], left_out: tuple[str, ...] = ()) -> Truth:
    """Whether the condition is true, with None for unknown. Terms on names that are left out are passed over."""
    return _truth(parse_condition(expression), names, left_out)


def parse_condition(expression: str) -> ast.expr:
    """The condition's syntax tree, refused if there is anything in it but comparisons, and, or, numbers and names."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"the condition {expression[:80]!r} cannot be read: use comparisons, and, or") from None
    _require_condition(tree, expression)
    return tree


_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _entry(path: Path, name: str, table: dict[str, Any], defaults: dict[str, float]) -> Entry:
    try:
        entry = Entry(
            id=table["id"],
            claim=table["claim"],
            paper=table["paper"],
            rows=tuple(table["rows"]),
            replication=tuple(table["replication"]),
            apart=tuple(table["apart"]),
            windows=tuple(table["window"]),
            holds_if=table["holds_if"],
            fails_if=table["fails_if"],
            statistic=dict(table["statistic"]),
            numbers=defaults | _numbers(table),
            effect_unit=table.get("effect_unit", ""),
            notes=table.get("notes", ""),
            test=table.get("test", ""),
            figures=tuple(table.get("figure", ())),
            explanation=table.get("explanation", ""),
            would_decide=table.get("would_decide", ""),
        )
    except KeyError as error:
        raise InputError(f"claim {name} of {path} has no {error.args[0]}: add it") from None
    known = set(entry.numbers) | {f"{stat}{end}" for stat in entry.statistic for end in ("", "_low", "_high")}
    for condition in (entry.holds_if, entry.fails_if):
        unknown = {node.id for node in ast.walk(parse_condition(condition)) if isinstance(node, ast.Name)} - known
        if unknown:
            words = ", ".join(sorted(unknown))
            raise InputError(f"claim {name} of {path} uses {words}: name it as a statistic or a number")
    return entry


def _numbers(table: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: value for key, value in table.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _require_condition(node: ast.expr, expression: str) -> None:
    """Refuses what is no condition. Conditions and numbers do not mix: `1 and 2` is refused too."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            _require_condition(value, expression)
        return
    if isinstance(node, ast.Compare) and all(type(each) in _COMPARISONS for each in node.ops):
        for value in (node.left, *node.comparators):
            _require_number(value, expression)
        return
    raise InputError(f"the condition {expression[:80]!r} holds {type(node).__name__}: use comparisons, and, or")


def _require_number(node: ast.expr, expression: str) -> None:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        _require_number(node.left, expression)
        _require_number(node.right, expression)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _require_number(node.operand, expression)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return
    elif not isinstance(node, ast.Name):
        raise InputError(f"the condition {expression[:80]!r} holds {type(node).__name__}: use names and numbers")


def _truth(node: ast.expr, names: Mapping[str, float], left_out: tuple[str, ...]) -> Truth:
    if isinstance(node, ast.BoolOp):
        judged = [value for value in node.values if not _is_left_out(value, left_out)]
        truths = [_truth(value, names, left_out) for value in judged]
        decisive = isinstance(node.op, ast.Or)
        if decisive in truths:
            return decisive
        return None if None in truths or not truths else not decisive
    assert isinstance(node, ast.Compare)
    if _is_left_out(node, left_out):
        return None
    numbers = [_number(value, names) for value in (node.left, *node.comparators)]
    if any(math.isnan(number) for number in numbers):
        return None
    pairs = zip(node.ops, numbers[:-1], numbers[1:], strict=True)
    return all(_COMPARISONS[type(each)](left, right) for each, left, right in pairs)


def _number(node: ast.expr, names: Mapping[str, float]) -> float:
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, names), _number(node.right, names)
        if isinstance(node.op, ast.Div) and right == 0:
            return math.nan
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        return -_number(node.operand, names)
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise InputError(f"a condition names {node.id!r}, which nothing defines: use {', '.join(sorted(names))}")
        return float(names[node.id])
    assert isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return float(node.value)


def _is_left_out(node: ast.expr, left_out: tuple[str, ...]) -> bool:
    """Whether all of its comparisons need a statistic that is not judged here."""
    if isinstance(node, ast.BoolOp):
        return all(_is_left_out(value, left_out) for value in node.values)
    ends = {f"{name}{end}" for name in left_out for end in ("", "_low", "_high")}
    return any(isinstance(each, ast.Name) and each.id in ends for each in ast.walk(node))


def _parts(expression: str, names: Mapping[str, float], measured: Measured, wanted: set[Truth]) -> list[str]:
    """The top terms of the condition with one of these truths, each with its numbers."""
    tree = parse_condition(expression)
    terms = tree.values if isinstance(tree, ast.BoolOp) else [tree]
    return [
        _with_numbers(term, names)
        for term in terms
        if not _is_left_out(term, measured.left_out) and _truth(term, names, measured.left_out) in wanted
    ]


def _with_numbers(term: ast.expr, names: Mapping[str, float]) -> str:
    if not isinstance(term, ast.Compare):
        return ast.unparse(term)
    numbers = [_number(value, names) for value in (term.left, *term.comparators)]
    shown = ["missing" if math.isnan(number) else f"{number:.3g}" for number in numbers]
    return f"{ast.unparse(term)} ({' against '.join(shown)})"


def _listed(words: list[str]) -> str:
    return ", ".join(words)
