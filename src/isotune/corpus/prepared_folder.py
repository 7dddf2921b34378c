"""The folder that `prepare` writes: flat little-endian token shards, and corpus.json, which is written last."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from isotune.corpus.corpus import Corpus, as_one
from isotune.errors import InputError

FORMAT_VERSION = 1
MANIFEST = "corpus.json"
PROGRESS = "progress.json"
SPLITS = ("train", "validation")

_BLOCK_BYTES = 2**22


def is_prepared(folder: Path) -> bool:
    """Whether `prepare` wrote here, finished or not."""
    return any((folder / name).exists() for name in (MANIFEST, PROGRESS, shard_name("validation", 0)))


def open_prepared(folder: Path) -> Corpus:
    """The corpus of a prepared folder; its shards are mapped into memory."""
    manifest = read_manifest(folder)
    try:
        dtype = np.dtype(manifest["dtype"])
        streams = {
            split: [_read_shard(folder / shard["file"], dtype, shard["tokens"]) for shard in manifest[split]["shards"]]
            for split in SPLITS
        }
        return Corpus(
            name=folder.resolve().name,
            fingerprint=manifest["fingerprint"],
            tokenizer=manifest["tokenizer"],
            vocabulary_size=manifest["vocabulary_size"],
            train=as_one(streams["train"]),
            validation=as_one(streams["validation"]),
        )
    except (KeyError, TypeError, IndexError):
        raise damaged(folder, f"{MANIFEST} is incomplete") from None


def read_manifest(folder: Path) -> dict:
    """What corpus.json says, in the format version that we know."""
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / PROGRESS).exists():
            raise InputError(f"the preparation of {folder} is not finished: repeat the isotune prepare command")
        raise damaged(folder, f"{MANIFEST} is missing")
    return read_json(path)


def read_json(path: Path) -> dict:
    """A file of ours: a JSON object of the format version that we know."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise damaged(path.parent, f"{path.name} is not readable as JSON") from None
    version = value.get("format_version") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise damaged(path.parent, f"{path.name} has format version {version!r}, not {FORMAT_VERSION}")
    return value


def write_json(path: Path, value: dict) -> None:
    """Replaces the file as a whole, and for good: a crash leaves the old one or the new one."""
    temporary = temporary_path(path)
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"format_version": FORMAT_VERSION} | value, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder last, where the system lets a folder be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shard_name(split: str, number: int) -> str:
    return f"{split}_{number:05d}.bin"


def damaged(folder: Path, what: str) -> InputError:
    return InputError(f"corpus {folder} is damaged ({what}): remove the folder and repeat the isotune prepare command")


class ShardWriter:
    """Appends tokens to train_00000.bin, train_00001.bin, ..., `shard_tokens` in each."""

    def __init__(self, folder: Path, split: str, *, dtype: np.dtype, shard_tokens: int, num_tokens: int = 0) -> None:
        """Continues after `num_tokens`; whatever a crash left behind them is cut off."""
        self.num_tokens = num_tokens
        self._folder, self._split = folder, split
        self._dtype, self._shard_tokens = dtype, shard_tokens
        self._file: BinaryIO | None = None
        self._cut_off()

    def append(self, tokens: np.ndarray) -> None:
        tokens = tokens.astype(self._dtype, copy=False)
        while len(tokens):
            shard, position = divmod(self.num_tokens, self._shard_tokens)
            if position == 0:
                self.close()
            if self._file is None:
                self._file = open(self._path(shard), "ab")  # noqa: SIM115 (closed by close)
            part = tokens[: self._shard_tokens - position]
            self._file.write(part.data)
            self.num_tokens += len(part)
            tokens = tokens[len(part) :]

    def sync(self) -> None:
        """Everything appended so far survives a crash once this returns."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        sync_folder(self._folder)

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

    def _cut_off(self) -> None:
        counts = _shard_counts(self.num_tokens, self._shard_tokens)
        for number, count in enumerate(counts):
            path, size = self._path(number), count * self._dtype.itemsize
            if not path.is_file() or path.stat().st_size < size:
                raise damaged(self._folder, f"{path.name} is shorter than it was")
            os.truncate(path, size)
        number = len(counts)
        while self._path(number).exists():
            self._path(number).unlink()
            number += 1

    def _path(self, number: int) -> Path:
        return self._folder / shard_name(self._split, number)


def describe_shards(folder: Path, split: str, *, num_tokens: int, shard_tokens: int) -> tuple[list[dict], str]:
    """The manifest's entries for a split's shards, read back and hashed, and the sha256 of the stream they make."""
    entries, stream = [], hashlib.sha256()
    for number, count in enumerate(_shard_counts(num_tokens, shard_tokens)):
        sha = hashlib.sha256()
        with open(folder / shard_name(split, number), "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                sha.update(block)
                stream.update(block)
        entries.append({"file": shard_name(split, number), "tokens": count, "sha256": sha.hexdigest()})
    return entries, stream.hexdigest()


def _shard_counts(num_tokens: int, shard_tokens: int) -> list[int]:
    full, rest = divmod(num_tokens, shard_tokens)
    return [shard_tokens] * full + [rest] * (rest > 0)


def _read_shard(path: Path, dtype: np.dtype, num_tokens: int) -> np.ndarray:
    if not path.is_file():
        raise damaged(path.parent, f"{path.name} is missing")
    size = path.stat().st_size
    if size != num_tokens * dtype.itemsize:
        raise damaged(path.parent, f"{path.name} has {size} bytes, not {num_tokens * dtype.itemsize}")
    # A plain array over the mapping: slicing a memmap object costs ten times as much.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
