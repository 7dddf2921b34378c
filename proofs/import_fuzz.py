"""Mangled files never end in a traceback, and what was lost in them is said.

    python proofs/import_fuzz.py

1,000 files each of CSV, JSON lines, Parquet, TensorBoard's events, W&B's logs and `trainer_state.json`. Each holds
three small runs and is mangled in one to three ways: bytes flipped, cut out, inserted or doubled, the file truncated;
columns removed, doubled or of another type, rows doubled, shuffled, ragged or torn, cells that are words, NaN, huge or
negative. Reading one must give runs or an `InputError`. Where fewer losses come back than the file still has, a note
must say so that the whole file has not. Every trajectory must be sound: tokens rising, columns of equal length, no
infinity.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from proof import Proof

from isotune.errors import InputError
from isotune.integrations.importers import Imported, open_source

NUM_FILES = 1000
NUM_ROWS = 20  # of each run
OPTIONS: dict[str, Any] = {
    "mapping": {"val_loss": "eval/loss", "learning_rate": "lr"},
    "settings": {"batch_size": 4, "sequence_length": 16},
}
ODD_VALUES = ("", "oops", "nan", "inf", "-inf", "1e999", "-3", "1e300", "0x10", "1,5", '"', "None", "true", "\x00", "é")

Row = dict[str, Any]
Made = tuple[Path, int]  # a file, and how many losses it still has, at least: counted without isotune
Make = Callable[[random.Random | None], Made]  # writes the next file: whole without a generator, else mangled


def main() -> None:
    proof = Proof("import_fuzz")
    for kind in KINDS:
        proof.case(kind, partial(fuzz, kind, NUM_FILES))
    proof.finish()


def fuzz(kind: str, num_files: int, seed: int = 0) -> dict[str, Any]:
    """Reads mangled files of a kind and counts how that ended."""
    outcomes = {"read without losses": 0, "read, with losses noted": 0, "refused": 0}
    failures = []
    with tempfile.TemporaryDirectory() as name:
        make = KINDS[kind](Path(name))
        of_whole = set(open_source(str(make(None)[0]), **options(kind)).notes)
        for number in range(num_files):
            path, num_there = make(random.Random(f"{kind} {seed} {number}"))
            try:
                imported = open_source(str(path), **options(kind))
            except InputError as error:
                outcomes["refused"] += 1
                if ":" not in str(error):
                    failures.append(f"{number}: no remedy in {error}")
                continue
            except Exception:
                failures.append(f"{number}: {traceback.format_exc(limit=-3)}")
                continue
            problem = unsound(imported)
            num_lost = num_there - num_losses(imported)
            is_noted = bool(set(imported.notes) - of_whole)
            if problem or (num_lost > 0 and not is_noted):
                failures.append(f"{number}: {problem or f'{num_lost} losses lost without a word'}")
            outcomes["read, with losses noted" if num_lost > 0 else "read without losses"] += 1
    return {"passed": not failures, "files": num_files, **outcomes, "failures": failures[:5]}


def options(kind: str) -> dict[str, Any]:
    mapping = {"learning_rate": "lr", "step": "_step"} if kind == "wandb" else {}
    if kind == "trainer":
        return {"settings": OPTIONS["settings"]}
    return OPTIONS | {"mapping": OPTIONS["mapping"] | mapping}


def unsound(imported: Imported) -> str | None:
    """What no trajectory may have."""
    for trajectory in imported.trajectories:
        tokens = trajectory.tokens
        if tokens.dtype != np.int64 or (np.diff(tokens) <= 0).any() or (tokens < 0).any():
            return f"tokens are {tokens}"
        if any(len(values) != len(tokens) for values in trajectory.columns.values()):
            return "columns have several lengths"
        if any(np.isinf(values).any() for values in trajectory.columns.values()):
            return "a column has infinities"
    return None


def num_losses(imported: Imported) -> int:
    return sum(len(trajectory.measured("val_loss")[0]) for trajectory in imported.trajectories)


# Files


def runs() -> list[Row]:
    """Three runs, the last of which diverges."""
    rows = []
    for run in range(3):
        for step in range(0, 10 * NUM_ROWS, 10):
            loss = 5 - step / 100 + run / 10 if run < 2 or step < 150 else float("nan")
            rows.append({"run": f"r{run}", "step": step, "eval/loss": loss, "lr": 2.0**-run, "epoch": 0.5})
    return rows


def make_csv(folder: Path) -> Make:
    def make(rng: random.Random | None) -> Made:
        rows = mangle_rows(runs(), rng)
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([row.get(name, "") for name in names] for row in rows)
        path = write(folder / "csv.csv", text.getvalue().encode("utf-8", "replace"), rng)
        lines = path.read_bytes().split(b"\n")[1:]
        gaps = (b"nan", b",,", b"None")
        return path, sum(bool(line.strip()) and not any(gap in line for gap in gaps) for line in lines)

    return make


def make_jsonl(folder: Path) -> Make:
    def make(rng: random.Random | None) -> Made:
        lines = "".join(json.dumps(row) + "\n" for row in mangle_rows(runs(), rng))
        path = write(folder / "jsonl.jsonl", lines.encode(), rng)
        return path, num_named(path, b'"eval/loss"')

    return make


def make_parquet(folder: Path) -> Make:
    import pyarrow as pa
    from pyarrow import parquet

    def make(rng: random.Random | None) -> Made:
        rows = mangle_rows(runs(), rng)
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {}
        for name in names:
            values = [row.get(name) for row in rows]
            try:
                columns[name] = pa.array(values, from_pandas=False)
            except (pa.ArrowException, OverflowError):
                columns[name] = pa.array([None if value is None else str(value) for value in values])
            columns[name] = other_type(columns[name], rng)
        content = io.BytesIO()
        parquet.write_table(pa.table(columns), content, compression=rng.choice(["none", "snappy"]) if rng else "none")
        is_loss = [type(row.get("eval/loss")) is float and np.isfinite(row["eval/loss"]) for row in rows]
        return write(folder / "parquet.parquet", content.getvalue(), rng), sum(is_loss)

    return make


def make_events(folder: Path) -> Make:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    place = folder / "events"
    place.mkdir()

    def make(rng: random.Random | None) -> Made:
        content = io.BytesIO()
        writer = RecordWriter(content)
        writer.write(Event(wall_time=0, file_version="brain.Event:2").SerializeToString())
        for row in mangle_rows(runs()[:NUM_ROWS], rng):
            for tag in ("eval/loss", "lr", "epoch"):
                value, step = row.get(tag), row.get("step")
                if isinstance(value, float) and type(step) is int and abs(step) < 2**62:
                    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                    writer.write(Event(wall_time=1, step=step, summary=summary).SerializeToString())
        return place, num_named(write(place / "events.out.tfevents.1.fuzz", content.getvalue(), rng), b"eval/loss")

    return make


def make_wandb(folder: Path) -> Make:
    """A file that W&B wrote, bytes mangled."""
    code = f"""
import wandb
run = wandb.init(project="fuzz", id="fuzz", dir={str(folder)!r}, config={{"weight_decay": 0.1}})
for step in range({NUM_ROWS}):
    run.log({{"eval/loss": 5 - step / 100, "lr": 0.5}})
run.finish()
"""
    environment = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    (file,) = folder.rglob("*.wandb")
    whole = file.read_bytes()
    return lambda rng: (write(folder / "wandb.wandb", whole, rng), NUM_ROWS)


def make_trainer(folder: Path) -> Make:
    place = folder / "trainer"
    place.mkdir()

    def make(rng: random.Random | None) -> Made:
        names = {"eval/loss": "eval_loss", "lr": "learning_rate"}
        rows = mangle_rows(runs()[:NUM_ROWS], rng)
        history = [{names.get(name, name): value for name, value in row.items() if name != "run"} for row in rows]
        state = {"global_step": 190, "max_steps": 190, "log_history": history}
        path = write(place / "trainer_state.json", json.dumps(state).encode(), rng)
        return path, num_named(path, b'"eval_loss"')

    return make


KINDS: dict[str, Callable[[Path], Make]] = {
    "csv": make_csv,
    "jsonl": make_jsonl,
    "parquet": make_parquet,
    "events": make_events,
    "wandb": make_wandb,
    "trainer": make_trainer,
}


def num_named(path: Path, name: bytes) -> int:
    """How often the loss is there and finite; in torn lines too, so leaving one out has to be noted."""
    content = path.read_bytes()
    not_finite = rb': (null|NaN|-?Infinity|"(nan|-?inf|1e999)")'
    return content.count(name) - len(re.findall(re.escape(name) + not_finite, content))


# Mangling


def mangle_rows(rows: list[Row], rng: random.Random | None) -> list[Row]:
    """Up to two changes of cells, columns and rows."""
    if rng is None:
        return rows
    for _ in range(rng.choice([0, 1, 1, 2])):
        rows = rng.choice(ROW_CHANGES)(rows, rng) if rows else rows
    return rows


def odd_cells(rows: list[Row], rng: random.Random) -> list[Row]:
    name = rng.choice(["run", "step", "eval/loss", "lr"])
    chosen = set(rng.sample(range(len(rows)), min(len(rows), rng.choice([1, 3, 60]))))
    return [row | ({name: rng.choice(ODD_VALUES)} if k in chosen else {}) for k, row in enumerate(rows)]


def odd_numbers(rows: list[Row], rng: random.Random) -> list[Row]:
    name = rng.choice(["step", "eval/loss", "lr"])
    number = rng.choice([float("nan"), float("inf"), -1, 1.5, 2**60, 10**30, True, None, [1], {"a": 1.0}])
    k = rng.randrange(len(rows))
    return [*rows[:k], rows[k] | {name: number}, *rows[k + 1 :]]


def without_column(rows: list[Row], rng: random.Random) -> list[Row]:
    name = rng.choice(["run", "step", "eval/loss", "lr"])
    return [{key: value for key, value in row.items() if key != name} for row in rows]


def without_cells(rows: list[Row], rng: random.Random) -> list[Row]:
    name = rng.choice(["run", "step", "eval/loss", "lr"])
    return [{key: value for key, value in row.items() if key != name or rng.random() < 0.5} for row in rows]


def shuffled(rows: list[Row], rng: random.Random) -> list[Row]:
    return rng.sample(rows, len(rows))


def doubled(rows: list[Row], rng: random.Random) -> list[Row]:
    k = rng.randrange(len(rows))
    return rows[: k + 5] + rows[k:]


def no_rows(rows: list[Row], rng: random.Random) -> list[Row]:
    return rows[: rng.choice([0, 1])]


ROW_CHANGES = (odd_cells, odd_numbers, without_column, without_cells, shuffled, doubled, no_rows)


def other_type(column: Any, rng: random.Random | None) -> Any:
    """Now and then, the column as text, dictionary, half-sized number or list."""
    import pyarrow as pa

    if rng is None or rng.random() < 0.85:
        return column
    try:
        kind = rng.choice(["string", "dictionary", "float16", "decimal", "list", "int8", "timestamp"])
        if kind == "dictionary":
            return column.dictionary_encode()
        if kind == "list":
            return pa.array([[value] for value in column.to_pylist()])
        types = {"string": pa.string(), "float16": pa.float16(), "decimal": pa.decimal128(20, 8), "int8": pa.int8()}
        return column.cast(types.get(kind, pa.timestamp("s")), safe=False)
    except (pa.ArrowException, OverflowError, TypeError):
        return column


def write(path: Path, content: bytes, rng: random.Random | None) -> Path:
    """The file, with up to two changes of its bytes."""
    for _ in range(0 if rng is None else rng.choice([0, 1, 1, 2])):
        content = rng.choice(BYTE_CHANGES)(content, rng) if rng and content else content
    path.write_bytes(content)
    return path


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 4, 30])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def cut(content: bytes, rng: random.Random) -> bytes:
    k = rng.randrange(len(content))
    return content[:k] + content[k + rng.randrange(1, 50) :]


def inserted(content: bytes, rng: random.Random) -> bytes:
    k = rng.randrange(len(content))
    return content[:k] + rng.randbytes(rng.randrange(1, 20)) + content[k:]


def repeated(content: bytes, rng: random.Random) -> bytes:
    k = rng.randrange(len(content))
    return content[: k + rng.randrange(1, 200)] + content[k:]


BYTE_CHANGES = (flipped, truncated, cut, inserted, repeated)


if __name__ == "__main__":
    main()
