"""TensorBoard's event files: a run per folder that has some.

The column `step` is the writer's global step: `mapping={"tokens": "step"}` says that it counts tokens. Files are read
record by record with TensorBoard's own loader. Its `EventAccumulator` would do too, but stops at a damaged record
without a word and forgets what a restart overwrote; here both are noted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, columns_of_series, files_below, need
from isotune.integrations.importers.options import Options

NAME = "tensorboard"
NAMES: Mapping[str, str] = {}

PATTERN = "*tfevents*"
FRAME_BYTES = 16  # length, its checksum and the record's
HPARAMS = "_hparams_/session_start_info"

Series = dict[str, tuple[list[int], list[float]]]


def recognizes(source: Any) -> bool:
    return bool(files_below(source, PATTERN))


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """A run per folder, or that of a single file.

    `add_hparams` writes a folder of its own, whose settings go to the run above it.
    """
    folders: dict[Path, list[Path]] = {}
    for path in files_below(source, PATTERN):
        folders.setdefault(path.parent, []).append(path)
    if not folders:
        raise InputError(f"{source} has no event files (*tfevents*): give a folder that a SummaryWriter wrote")
    contents = {folder: _read_folder(paths, options, notes) for folder, paths in folders.items()}
    for folder, (series, settings) in list(contents.items()):
        if settings and folder.parent in contents:
            contents[folder.parent][1].update(settings)
            del contents[folder]
            for name in series:
                notes.add(f"final value {name} of add_hparams left out: curves are read", str(folder.parent))
    root = Path(source)
    for folder, (series, settings) in contents.items():
        name = folder.resolve().name if root.is_file() or folder == root else str(folder.relative_to(root))
        arrays = {tag: (np.array(at), np.array(values)) for tag, (at, values) in series.items()}
        yield RawRun(
            name=name,
            source=str(root if root.is_file() else folder),
            columns=columns_of_series(arrays, notes, name),
            settings=settings,
        )


def _read_folder(paths: list[Path], options: Options, notes: Notes) -> tuple[Series, dict[str, object]]:
    """All scalars and settings of a run's files, in the order of their names, which begin with the time."""
    series: Series = {}
    settings: dict[str, object] = {}
    for path in paths:
        for event in _events(path, notes):
            for value in event.summary.value:
                if value.tag == HPARAMS:
                    settings.update(_hparams(value.metadata.plugin_data.content))
                    continue
                scalar = _scalar(value)
                if scalar is None:
                    continue
                if not options.wants(value.tag):
                    notes.unused[value.tag] = None
                    continue
                at, values = series.setdefault(value.tag, ([], []))
                at.append(event.step)
                values.append(scalar)
    return series, settings


def _events(path: Path, notes: Notes) -> Iterator[Any]:
    """The file's events, as far as it is whole."""
    loader = need("tensorboard.backend.event_processing.event_file_loader", "TensorBoard's files", "tensorboard")
    event_pb2 = need("tensorboard.compat.proto.event_pb2", "TensorBoard's files", "tensorboard")
    num_bytes, num_refused = 0, 0
    try:
        for record in loader.RawEventFileLoader(str(path)).Load():
            num_bytes += len(record) + FRAME_BYTES
            try:
                event = event_pb2.Event.FromString(record)
            except Exception:  # protobuf's DecodeError, which has no stable home
                num_refused += 1
                continue
            yield event
    except (OSError, struct.error, MemoryError, OverflowError) as error:
        notes.add(f"event files that cannot be read on ({error})", str(path))
    notes.count("records that are no events, left out", num_refused, str(path))
    left = path.stat().st_size - num_bytes
    notes.count("bytes at the end of event files that are cut or damaged, left out", left, str(path))


def _scalar(value: Any) -> float | None:
    """A value's number; None for images, texts and the like. TensorFlow 2 and JAX write scalars as tensors."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or value.metadata.plugin_data.plugin_name not in ("scalars", ""):
        return None
    tensor = need("tensorboard.util.tensor_util", "TensorBoard's files", "tensorboard")
    try:
        array = np.asarray(tensor.make_ndarray(value.tensor))
        return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None
    except (TypeError, ValueError):
        return None


def _hparams(content: bytes) -> dict[str, object]:
    plugin = need("tensorboard.plugins.hparams.plugin_data_pb2", "TensorBoard's files", "tensorboard")
    try:
        values = plugin.HParamsPluginData.FromString(content).session_start_info.hparams
    except Exception:  # protobuf's DecodeError, which has no stable home
        return {}
    kinds = ((name, value, value.WhichOneof("kind")) for name, value in values.items())
    return {name: getattr(value, kind) for name, value, kind in kinds if kind is not None}
