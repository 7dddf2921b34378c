"""Hugging Face's `trainer_state.json`: a file, or a folder with outputs of `Trainer`.

Settings come from a `training_args.json` beside it or above it (`args.to_json_string()`); the `training_args.bin` that
`Trainer` writes is a pickle, which isotune does not open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, columns_of_rows, files_below, flatten, number
from isotune.integrations.importers.options import Options
from isotune.integrations.importers.tables import parse_json

NAME = "trainer"
NAMES: Mapping[str, str] = {
    "val_loss": "eval_loss",
    "train_loss": "loss",
    "gradient_norm": "grad_norm",
    "tokens": "num_input_tokens_seen",
    "schedule": "lr_scheduler_type",
}
FILE = "trainer_state.json"


def recognizes(source: Any) -> bool:
    return bool(files_below(source, FILE))


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """A run per output folder: of its checkpoints the last, which has the whole history."""
    paths = files_below(source, "*.json" if Path(source).is_file() else FILE)
    if not paths:
        raise InputError(f"{source} has no {FILE}: give a folder that Trainer wrote, or the file itself")
    states: dict[Path, list[tuple[float, Path, dict[str, Any]]]] = {}
    for path in paths:
        state = _read_state(path, notes, is_only=len(paths) == 1)
        if state is not None:
            folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
            states.setdefault(folder, []).append((number(state.get("global_step")) or 0, path, state))
    for folder, found in states.items():
        found.sort(key=lambda entry: (entry[0], str(entry[1])))
        notes.count("earlier checkpoints of the same run, passed over", len(found) - 1, str(folder))
        yield _raw(folder, found[-1][1], found[-1][2], options, notes)


def _read_state(path: Path, notes: Notes, is_only: bool) -> dict[str, Any] | None:
    try:
        state = parse_json(path.read_text(encoding="utf-8"), path, notes)
    except (ValueError, RecursionError, OSError) as error:
        state = error
    if isinstance(state, dict) and isinstance(state.get("log_history"), list):
        return state
    problem = f"{path} is no state of Trainer ({state if isinstance(state, Exception) else 'it has no log_history'})"
    if is_only:
        raise InputError(f"{problem}: give a {FILE} that is whole")
    notes.add(f"left out: {problem}")
    return None


def _raw(folder: Path, path: Path, state: dict[str, Any], options: Options, notes: Notes) -> RawRun:
    name = folder.name or str(folder)
    rows = [row for row in state["log_history"] if isinstance(row, dict)]
    notes.count("entries of log_history that are no objects, left out", len(state["log_history"]) - len(rows), name)
    reached, planned = number(state.get("global_step")), number(state.get("max_steps"))
    is_finished = reached is not None and planned is not None and reached >= planned
    if not is_finished:
        notes.add("runs that are not at their max_steps, taken as running", name)
    return RawRun(
        name=name,
        source=str(path),
        columns=columns_of_rows(rows, options, notes, name),
        settings=_arguments(path, name, options, notes),
        status="finished" if is_finished else "running",
    )


def _arguments(path: Path, name: str, options: Options, notes: Notes) -> dict[str, object]:
    for folder in (path.parent, path.parent.parent):
        file = folder / "training_args.json"
        if file.is_file():
            try:
                arguments = dict(flatten(parse_json(file.read_text(encoding="utf-8"), file, notes)))
            except (ValueError, RecursionError, AttributeError, OSError) as error:
                notes.add(f"left out: {file} is no JSON object ({error})", name)
                continue
            if "batch_size" not in options.settings and "per_device_train_batch_size" in arguments:
                notes.add(
                    f"batch_size is not in training_args.json: it is per_device_train_batch_size "
                    f"({arguments['per_device_train_batch_size']}) x gradient_accumulation_steps "
                    f"({arguments.get('gradient_accumulation_steps', 1)}) x processes; give it in settings",
                    name,
                )
            return arguments
    if (path.parent / "training_args.bin").is_file():
        notes.add("training_args.bin is a pickle and is not opened: write args.to_json_string() beside it", name)
    return {}
