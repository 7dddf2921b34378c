"""Token files that other projects write: nanoGPT's (flat uint16) and llm.c's (a header, then uint16)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isotune.corpus.corpus import FULLY_HASHED_BYTES, Corpus, as_one, fingerprint, full_digest, sampled_digest
from isotune.errors import InputError

# llm.c, dev/dataloader.h: 256 int32, of which magic, version and number of tokens are used.
_LLMC_MAGIC = 20240520
_LLMC_LLAMA3_MAGIC = 20240801
_LLMC_HEADER_BYTES = 256 * 4


def open_raw_folder(folder: Path) -> Corpus | None:
    """The corpus of a folder with train.bin and val.bin, or with *train*.bin and *val*.bin; None if it has neither."""
    files = sorted(path for path in folder.glob("*.bin") if path.is_file())
    exact = [path for path in files if path.name in ("train.bin", "val.bin")]
    if len(exact) == 2:
        files = exact
    train = [path for path in files if "train" in path.name]
    validation = [path for path in files if "val" in path.name and "train" not in path.name]
    if not train or not validation:
        return None
    return _open(folder.resolve().name, train, validation)


def open_raw_file(path: Path) -> Corpus:
    """The corpus of one training file; `x_train*.bin` is validated on the `x_val*.bin` beside it."""
    prefix, train, _ = path.name.rpartition("train")
    validation = sorted(p for p in path.parent.glob("*.bin") if p.is_file() and p.name.startswith(f"{prefix}val"))
    if not train or not validation:
        raise InputError(
            f"{path} has no validation tokens beside it: name the files train.bin and val.bin, "
            "or something_train.bin and something_val.bin"
        )
    return _open(path.name, [path], validation)


def read_tokens(path: Path) -> np.ndarray:
    """The tokens of one file, mapped into memory, not read."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            magic, version, num_tokens = np.frombuffer(file.read(12).ljust(12, b"\0"), dtype="<i4").tolist()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from None
    if magic == _LLMC_LLAMA3_MAGIC:
        raise InputError(f"{path} holds 32-bit tokens of llm.c's Llama 3 format: only its 16-bit GPT-2 format is read")
    header_bytes = _LLMC_HEADER_BYTES if magic == _LLMC_MAGIC else 0
    if header_bytes and version != 1:
        raise InputError(f"{path} has version {version} of llm.c's token format: only version 1 is read")
    if header_bytes and size != header_bytes + 2 * num_tokens:
        raise InputError(
            f"{path} should hold {num_tokens} tokens but has {max(0, size - header_bytes) / 2:g}: "
            "it is truncated, fetch or write it again"
        )
    if size == header_bytes:
        raise InputError(f"{path} holds no tokens: write it again")
    if size % 2:
        raise InputError(f"{path} has {size} bytes, which is no whole number of 16-bit tokens: write it again")
    # A plain array over the mapping: slicing a memmap object costs ten times as much.
    return np.asarray(np.memmap(path, dtype="<u2", mode="r", offset=header_bytes))


def _open(name: str, train_files: list[Path], validation_files: list[Path]) -> Corpus:
    train = [read_tokens(path) for path in train_files]
    validation = [read_tokens(path) for path in validation_files]
    if sum(tokens.nbytes for tokens in train + validation) <= FULLY_HASHED_BYTES:
        digests = full_digest(train), full_digest(validation)
    else:
        digests = sampled_digest(as_one(train)), sampled_digest(as_one(validation))
    return Corpus(
        name=name,
        fingerprint=fingerprint("unknown", *digests),
        tokenizer="unknown",
        vocabulary_size=0,
        train=as_one(train),
        validation=as_one(validation),
    )
