"""Whether the first stretch of a table's run, trained again, gives the rows that the table keeps.

On equal numerics (torch, processor, compiled, threads, microbatch) the rows must be equal byte for byte. On others the
training loss must lie no farther from the table's than runs that differ by chance alone lie from each other.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from table_twins import Named, seed_pairs, twin_pairs

from isotune.analyze.distances import FLOOR_QUANTILE, relative_distances
from isotune.corpus import open_corpus
from isotune.errors import InputError
from isotune.recipe import Recipe
from isotune.runs import Evaluation, RunRecord, Study, Table, columns
from isotune.runs.tables.export import thinned
from isotune.train import Execution, World, train

UNREPEATABLE = "core_seconds"


def verify_table(table: Table, beside: Sequence[Table] = ()) -> dict[str, Any]:
    """Trains the shortest first stretch of the table's runs again, and compares."""
    run, end = shortest_beginning(table)
    result: dict[str, Any] = {
        "table": table.name,
        "run": run.run,
        "learning_rate": run.learning_rate,
        "weight_decay": run.weight_decay,
        "batch_size": run.batch_size,
        "seed": run.seed,
        "tokens": end,
    }
    try:
        corpus = open_corpus(table.recipe(run.run).setup.corpus)
    except InputError as error:
        return result | {"passed": False, "reason": str(error)}
    if corpus.fingerprint != table.contents.fingerprint(run.root):
        return result | {"passed": False, "reason": "the corpus here is not the one that the table was trained on"}
    began = time.monotonic()
    fresh, numerics = train_again(table, run, end)
    recorded = [table.contents.numerics[name] for name in run.numerics]
    has_equal_numerics = all(numerics == there for there in recorded)
    result |= {"numerics": numerics, "numerics_are_equal": has_equal_numerics, **compare(table, run, end, fresh)}
    if not has_equal_numerics:
        result |= {"recorded_numerics": recorded, **against_floor(table, run, end, fresh, beside)}
    result["passed"] = result["identical"] if has_equal_numerics else result["within_floor"]
    return result | {"seconds": round(time.monotonic() - began, 1)}


def shortest_beginning(table: Table) -> tuple[RunRecord, int]:
    """The run whose first decay leaves it soonest (small batches first: more steps), and where that is."""
    ends = []
    for run in table.runs():
        branches = [decay.branch_tokens for decay in table.decays(run.run) if decay.branch_tokens]
        ends.append((run, min([run.end_tokens, *branches])))
    return min(ends, key=lambda pair: (pair[1], pair[0].batch_size, pair[0].seed, pair[0].run))


def train_again(table: Table, run: RunRecord, end: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The curve of the first `end` tokens as a table would keep it, and the numerics that it was trained with."""
    recipe = table.recipe(run.run)
    recorded = table.contents.numerics[run.numerics[0]]
    execution = Execution(
        compiled=recorded["compiled"], threads=recorded["threads"], micro_batch_size=recorded["micro_batch_size"]
    )
    with tempfile.TemporaryDirectory() as folder:
        study_folder = Path(folder) / "study"
        train(
            Recipe(recipe.setup, recipe.prefix(end)),
            study_folder,
            execution=execution,
            evaluation=Evaluation(**table.contents.evaluations[run.evaluation]),
        )
        rows = [row for record in Study.open(study_folder).records() for row in record.rows()]
    rows.sort(key=lambda row: row["tokens"])
    return thinned(columns(rows)), dataclasses.asdict(execution.numerics(World(execution.device)))


def compare(table: Table, run: RunRecord, end: int, fresh: dict[str, np.ndarray]) -> dict[str, Any]:
    """Which of the rows and columns that the table keeps came back to the byte."""
    kept = _beginning(table, run.run, end)
    place = {tokens: row for row, tokens in enumerate(fresh["tokens"].tolist())}
    rows = [place.get(tokens) for tokens in kept["tokens"].tolist()]
    if None in rows:
        return {"rows": len(rows), "columns": len(kept), "identical": False, "different": ["tokens"]}
    nothing = np.full(len(fresh["tokens"]), np.nan, np.float32)
    different = [name for name, values in kept.items() if fresh.get(name, nothing)[rows].tobytes() != values.tobytes()]
    return {"rows": len(rows), "columns": len(kept), "identical": not different, "different": different}


def against_floor(
    table: Table, run: RunRecord, end: int, fresh: dict[str, np.ndarray], beside: Sequence[Table]
) -> dict[str, Any]:
    """The distance of the training losses, and what chance alone does in the same stretch."""
    kept = _beginning(table, run.run, end)
    distance = _distance(kept, fresh)
    pairs, kind = twin_pairs(table, beside), "perturbed twins"
    if not pairs:
        pairs, kind = seed_pairs(table), "seeds"
    # What may be wrong with this run would widen the floor.
    pairs = [pair for pair in pairs if not any(one is table and name == run.run for one, name in pair)]
    floor = [_distance(_of(one, end), _of(other, end)) for one, other in pairs]
    floor = [value for value in floor if np.isfinite(value)]
    limit = float(np.quantile(floor, FLOOR_QUANTILE)) if floor else float("nan")
    return {
        "distance": distance,
        "floor": {"of": kind, "pairs": len(floor), "percentile_95": limit if floor else None},
        "within_floor": bool(distance <= limit),
    }


def _of(named: Named, end: int) -> dict[str, np.ndarray]:
    return _beginning(*named, end)


def _beginning(table: Table, run: str, end: int) -> dict[str, np.ndarray]:
    curve = table.contents.curves[run]
    rows = curve["tokens"] <= end
    return {name: values[rows] for name, values in curve.items() if name != UNREPEATABLE}


def _distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The relative distance of the training losses at the rows of both; NaN if there are none."""
    _, first, second = np.intersect1d(one["tokens"], other["tokens"], return_indices=True)
    losses = np.array([one["train_loss"][first], other["train_loss"][second]], dtype=float)
    losses = losses[:, np.isfinite(losses).all(axis=0)]
    return float(relative_distances(losses)[0, 1]) if losses.shape[1] else float("nan")
