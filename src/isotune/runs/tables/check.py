"""Whether a table is what it says: files, ids, curves, losses, costs, plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.recipe import digest
from isotune.runs.study import Evaluation
from isotune.runs.tables.contents import (
    WINDOW_LOSS_QUANTUM,
    Contents,
    Curve,
    DecayRecord,
    Record,
    RunRecord,
    priced,
    read_recipe_text,
)
from isotune.runs.tables.coverage import Coverage
from isotune.runs.tables.folder import CURVES, DATA_FILES, DECAYS, MANIFEST, RUNS, find, read_contents

_SECONDS_TOLERANCE = 1e-6  # of core-seconds, relative


def check_table(folder: Path) -> list[str]:
    """What is wrong with the table, a sentence each; empty if nothing is."""
    folder = Path(folder)
    absent = [name for name in (MANIFEST, *DATA_FILES) if not find(folder, name).exists()]
    if absent:
        return [f"{folder} has no {name}: restore it from a copy, or export the table again" for name in absent]
    try:
        manifest, contents = read_contents(folder)
    except InputError as error:
        return [str(error)]
    unreadable = [problem for row in contents.records() for problem in _recipe_problems(row)]
    if unreadable:
        return unreadable
    return [
        *_manifest_problems(manifest, contents),
        *_total_problems(manifest, contents),
        *(problem for row in contents.runs.values() for problem in _run_problems(row, contents)),
        *(problem for row in contents.decays.values() for problem in _decay_problems(row, contents)),
    ]


def _manifest_problems(manifest: dict[str, Any], contents: Contents) -> Iterator[str]:
    num_curve_rows = sum(len(curve["tokens"]) for curve in contents.curves.values())
    for name, number in ((RUNS, len(contents.runs)), (DECAYS, len(contents.decays)), (CURVES, num_curve_rows)):
        if manifest["files"][name]["rows"] != number:
            yield f"{name} has {number} rows, the manifest says {manifest['files'][name]['rows']}"
    for root, entry in contents.roots.items():
        if digest(entry["root"]) != root:
            yield f"root {root[:8]} of the manifest does not have the id of its content"
        if not entry["root"].get("corpus"):
            yield f"root {root[:8]} of the manifest has no fingerprint of its corpus"
    roots = {run: entry["root"] for run, entry in (contents.planned or {}).items()}
    coverage, planned = Coverage.of(contents), contents.planned_recipes()
    missing = [run for run, recipe in planned.items() if not coverage.has(roots[run], recipe)]
    if manifest["complete"] and missing:
        yield f"the table says that it is complete, and lacks {len(missing)} of {len(planned)} planned runs"
    if sorted(missing) != sorted(manifest["missing"]) and not (manifest["complete"] and missing):
        yield f"{len(missing)} planned runs are missing, the manifest lists {len(manifest['missing'])}"


def _total_problems(manifest: dict[str, Any], contents: Contents) -> Iterator[str]:
    """Costs: every row's share follows from the rows and curves, and the totals from the shares."""
    again = priced(contents)
    pairs: list[tuple[Record, Record]] = [(row, again.runs[name]) for name, row in contents.runs.items()]
    pairs += [(row, again.decays[name]) for name, row in contents.decays.items()]
    for row, expected in pairs:
        if row.tokens_trained != expected.tokens_trained:
            yield f"{_name(row)} counts {row.tokens_trained} tokens as its own, it should be {expected.tokens_trained}"
        if not _close(row.core_seconds, expected.core_seconds):
            yield f"{_name(row)} counts {row.core_seconds} core-seconds, its curve says {expected.core_seconds}"
    for name, rows in (("trunk", contents.runs), ("decay", contents.decays)):
        tokens = sum(row.tokens_trained for row in rows.values())
        if manifest["totals"][f"{name}_tokens"] != tokens:
            yield f"{name} tokens add up to {tokens}, the manifest says {manifest['totals'][f'{name}_tokens']}"
        seconds = [row.core_seconds for row in rows.values()]
        hours = None if None in seconds else sum(s for s in seconds if s is not None) / 3600
        if not _close(manifest["totals"][f"{name}_core_hours"], hours):
            yield f"{name} core-hours add up to {hours}, the manifest says {manifest['totals'][f'{name}_core_hours']}"


def _run_problems(row: RunRecord, contents: Contents) -> Iterator[str]:
    yield from _record_problems(row, row.run, contents)
    yield from _curve_problems(row, 0, contents)


def _decay_problems(row: DecayRecord, contents: Contents) -> Iterator[str]:
    yield from _record_problems(row, row.decay, contents)
    run = contents.runs.get(row.run)
    if run is None:
        yield f"{_name(row)} leaves a trunk that is not in {RUNS}"
    elif row.branch_tokens > run.end_tokens:
        yield f"{_name(row)} leaves its trunk at {row.branch_tokens} tokens, which ends at {run.end_tokens}"
    if row.decay != row.run:
        yield from _curve_problems(row, row.branch_tokens, contents)
    evaluation = contents.evaluations.get(row.evaluation)
    if row.status == "finished" and evaluation is not None and evaluation["every_tokens"]:
        yield from _window_problems(row, evaluation["final_windows"])


def _recipe_problems(row: Record) -> Iterator[str]:
    try:
        read_recipe_text(row)
    except (ValueError, KeyError) as error:
        yield f"{_name(row)} has a recipe that cannot be read ({error})"


def _record_problems(row: Record, name: str, contents: Contents) -> Iterator[str]:
    """Whether the row's ids are known, and its recipe is the one that its address names."""
    if not row.commit:
        yield f"{_name(row)} does not say which commit it comes from"
    unknown = [
        what
        for what, there in (
            ("root", row.root in contents.roots),
            ("evaluation", row.evaluation in contents.evaluations),
            ("numerics", bool(row.numerics) and all(key in contents.numerics for key in row.numerics)),
        )
        if not there
    ]
    for what in unknown:
        yield f"{_name(row)} has {what} that the manifest does not describe"
    recipe = read_recipe_text(row)
    if "root" not in unknown and recipe.state_id(contents.fingerprint(row.root), recipe.tokens) != name:
        yield f"{_name(row)} has a recipe that leads to another address"
    if (recipe.learning_rate, recipe.weight_decay, recipe.batch_size, recipe.tokens) != (
        row.learning_rate,
        row.weight_decay,
        row.batch_size,
        row.tokens,
    ):
        yield f"{_name(row)} has settings that are not its recipe's"


def _curve_problems(row: Record, start_tokens: int, contents: Contents) -> Iterator[str]:
    """Whether the curve goes to the end without a gap, with finite values."""
    curve = contents.curves[_id(row)]
    tokens = curve["tokens"]
    infinite = sorted(name for name, values in curve.items() if np.isinf(values).any())
    if infinite:
        yield f"{_name(row)} has infinite values of {', '.join(infinite)}"
    if (np.diff(tokens) <= 0).any():
        yield f"{_name(row)} has rows out of order"
    recipe = read_recipe_text(row)
    step = max(phase.batch_size for phase in recipe.phases) * recipe.setup.sequence_length
    reached = int(tokens[-1]) if len(tokens) else start_tokens
    end = row.end_tokens
    if reached != end if row.status == "finished" else not end - step <= reached < end:
        yield f"{_name(row)} has a curve up to {reached} of {end} tokens"
    evaluation = contents.evaluations.get(row.evaluation)
    if evaluation is not None and Evaluation(**evaluation).every_tokens:
        widest = _widest_gap(curve, start_tokens, reached)
        if widest >= evaluation["every_tokens"] + step:
            yield f"{_name(row)} has a stretch of {widest} tokens without a val_loss"


def _widest_gap(curve: Curve, start_tokens: int, end_tokens: int) -> int:
    losses = curve.get("val_loss", np.full(len(curve["tokens"]), np.nan))
    measured = curve["tokens"][~np.isnan(losses)]
    return int(np.diff([start_tokens, *measured, end_tokens]).max())


def _window_problems(row: DecayRecord, num_windows: int) -> Iterator[str]:
    losses = row.window_losses
    if losses is None or row.final_val_loss is None or row.val_loss is None:
        yield f"{_name(row)} has no losses at its end"
    elif len(losses) != num_windows:
        yield f"{_name(row)} has {len(losses)} of {num_windows} windows"
    elif not np.isfinite(losses).all() or not math.isfinite(row.final_val_loss):
        yield f"{_name(row)} has losses that are not finite"
    elif abs(losses.mean(dtype=np.float64) - row.final_val_loss) > WINDOW_LOSS_QUANTUM:
        yield f"{_name(row)} has windows with a mean loss of {losses.mean():.4f}, and says {row.final_val_loss:.4f}"


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=_SECONDS_TOLERANCE, abs_tol=_SECONDS_TOLERANCE)


def _id(row: Record) -> str:
    return row.run if isinstance(row, RunRecord) else row.decay


def _name(row: Record) -> str:
    return f"{'run' if isinstance(row, RunRecord) else 'decay'} {_id(row)[:8]}"
