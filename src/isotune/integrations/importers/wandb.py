"""Weights & Biases: offline run folders, or runs of a project through its API.

Offline files are LevelDB logs of W&B's protocol buffers. W&B has had no Python reader for them of late, so the framing
is read here and the records by W&B's own messages. Online, rows come from `scan_history`: `history` samples 500.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, columns_of_rows, files_below, flatten, need
from isotune.integrations.importers.options import Options
from isotune.runs.trajectory import Status

NAME = "wandb"
NAMES: Mapping[str, str] = {}

ADDRESS = re.compile(r"https?://[^/]+/(?P<entity>[^/]+)/(?P<project>[^/?]+)(/runs/(?P<run>[^/?]+))?[/?]?.*")
BLOCK_BYTES, HEADER_BYTES, FILE_HEADER = 32768, 7, b":W&B"
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
STATES: dict[str, Status] = {"finished": "finished", "running": "running", "pending": "running"}


def recognizes(source: Any) -> bool:
    if not isinstance(source, str):
        return hasattr(source, "scan_history")
    return bool(files_below(source, "*.wandb")) or "wandb.ai/" in source


def read(source: Any, options: Options, notes: Notes) -> Iterator[RawRun]:
    """From a folder, a file, "entity/project/run", a project, an address, or a run object of `wandb.Api()`."""
    if not isinstance(source, str):
        yield _online_run(source, options, notes)
    elif Path(source).exists():
        yield from _offline_runs(source, options, notes)
    else:
        for run in _online_runs(source):
            yield _online_run(run, options, notes)


# Offline


def _offline_runs(source: str, options: Options, notes: Notes) -> Iterator[RawRun]:
    """A run per id: one that was resumed has several folders, whose names begin with the time."""
    paths = files_below(source, "*.wandb")
    if not paths:
        raise InputError(f"{source} has no *.wandb file: give a wandb folder or one of its offline-run-* folders")
    runs: dict[str, _OfflineRun] = {}
    for path in paths:
        part = _OfflineRun(path)
        for record in _records(path, notes):
            part.take(record)
        if part.run_id is None:
            notes.add("W&B files that describe no run, left out", str(path))
        elif part.run_id in runs:
            runs[part.run_id].continue_with(part)
        else:
            runs[part.run_id] = part
    for run in runs.values():
        if run.status == "running":
            notes.add("runs without an end, still running or killed", run.name)
        yield RawRun(
            name=run.name,
            source=str(run.path.parent),
            columns=columns_of_rows(run.rows, options, notes, run.name),
            settings=run.settings,
            status=run.status,
        )


class _OfflineRun:
    """What a file's records say of a run."""

    def __init__(self, path: Path):
        self.path = path
        self.run_id: str | None = None
        self.name = path.stem
        self.settings: dict[str, object] = {}
        self.rows: list[Mapping[str, Any]] = []
        self.status: Status = "running"

    def take(self, record: Any) -> None:
        kind = record.WhichOneof("record_type")
        if kind == "run":
            self.run_id = record.run.run_id
            self.name = record.run.display_name or record.run.run_id
            self._configure(record.run.config)
        elif kind == "config":
            self._configure(record.config)
        elif kind == "history":
            self.rows.append({_key(item): _value(item) for item in record.history.item})
        elif kind == "exit":
            self.status = "finished" if record.exit.exit_code == 0 else "failed"

    def continue_with(self, later: _OfflineRun) -> None:
        self.rows += later.rows
        self.settings |= later.settings
        self.status = later.status

    def _configure(self, config: Any) -> None:
        update = {_key(item): _value(item) for item in config.update}
        self.settings |= dict(flatten({name: value for name, value in update.items() if name != "_wandb"}))


def _key(item: Any) -> str:
    return ".".join(item.nested_key) or item.key


def _value(item: Any) -> Any:
    try:
        return json.loads(item.value_json)
    except (ValueError, RecursionError):
        return None


def _records(path: Path, notes: Notes) -> Iterator[Any]:
    messages = need("wandb.proto.wandb_internal_pb2", "W&B runs", "wandb")
    content = path.read_bytes()
    if not content.startswith(FILE_HEADER):
        notes.add("files that are not W&B's, left out", str(path))
        return
    for data in _frames(content, path, notes):
        record = messages.Record()
        try:
            record.ParseFromString(data)
        except Exception:  # protobuf's DecodeError, which has no stable home
            notes.count("W&B records that cannot be read, left out", 1, str(path))
            continue
        yield record


def _frames(content: bytes, path: Path, notes: Notes) -> Iterator[bytes]:
    """The log's records; from a damaged one on, the rest of its block is left out."""
    position, begun = HEADER_BYTES, None
    lost = 0
    while position + HEADER_BYTES <= len(content):
        block_end = (position // BLOCK_BYTES + 1) * BLOCK_BYTES
        if block_end - position < HEADER_BYTES:
            position = block_end
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, position)
        data = content[position + HEADER_BYTES : position + HEADER_BYTES + length]
        if len(data) < length or not WHOLE <= kind <= LAST or zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            lost += min(block_end, len(content)) - position
            position, begun = block_end, None
            continue
        position += HEADER_BYTES + length
        if kind == WHOLE:
            yield data
        elif kind == FIRST:
            begun = data
        elif begun is not None:
            begun += data
            if kind == LAST:
                yield begun
                begun = None
    lost += max(0, len(content) - position) + len(begun or b"")
    notes.count("bytes of W&B files that are cut or damaged, left out", lost, str(path))


# Online


def _online_runs(source: str) -> list[Any]:
    address = ADDRESS.fullmatch(source)
    parts = [part for part in address.group("entity", "project", "run") if part] if address else source.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise InputError(f"{source!r} is no W&B run: give entity/project/run, entity/project or a wandb folder")
    api = need("wandb", "W&B runs", "wandb").Api()
    try:
        return [api.run("/".join(parts))] if len(parts) == 3 else list(api.runs("/".join(parts)))
    except Exception as error:  # W&B's own and its transport's, which share no base
        raise InputError(f"W&B does not give {source!r} ({error}): check its name and `wandb login`") from None


def _online_run(run: Any, options: Options, notes: Notes) -> RawRun:
    name = str(getattr(run, "name", None) or run.id)
    rows = [dict(flatten(row)) for row in run.scan_history()]  # no keys=: W&B gives only rows that have all of them
    settings = dict(flatten({key: value for key, value in run.config.items() if key != "_wandb"}))
    return RawRun(
        name=name,
        source="/".join(map(str, getattr(run, "path", [name]))),
        columns=columns_of_rows(rows, options, notes, name),
        settings=settings,
        status=STATES.get(str(run.state), "failed"),
    )
