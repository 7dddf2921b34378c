"""A corpus in memory: two token streams, and the windows that training and evaluation take from them."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from isotune.corpus.shuffle import shuffled
from isotune.errors import InputError
from isotune.recipe import digest

# Up to this size a fingerprint reads every byte; above it, this many blocks of this size, evenly spread.
FULLY_HASHED_BYTES = 2**30
NUM_SAMPLED_BLOCKS = 1024
SAMPLED_BLOCK_BYTES = 2**16


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens held out, with an identity."""

    name: str
    fingerprint: str  # covers the tokens, their split and the tokenizer
    tokenizer: str  # "bytes", "gpt2", or "unknown" for token files that do not say
    vocabulary_size: int  # 0 if unknown
    train: np.ndarray | Tokens = field(repr=False, compare=False)
    validation: np.ndarray | Tokens = field(repr=False, compare=False)

    def num_sequences(self, sequence_length: int) -> int:
        """How many windows one pass over the training tokens has."""
        return _num_windows(self.train, sequence_length)

    def sequences(self, first: int, count: int, *, sequence_length: int, seed: int) -> np.ndarray:
        """Sequences first, first + 1, ... of the training stream: int64 [count, sequence_length + 1].

        A row is a window of inputs and the token after them. A pass visits every window once, in an order of
        its own; the stream goes on with the next pass for as long as it is read.
        """
        num_windows = self.num_sequences(sequence_length)
        if num_windows == 0:
            raise InputError(
                f"corpus {self.name} has {len(self.train)} training tokens, fewer than one sequence of "
                f"sequence_length={sequence_length} and the token after it: shorten the sequence or add text"
            )
        windows = shuffled(first, count, num_windows, seed=seed)
        return _windows_at(self.train, windows, sequence_length)

    def validation_windows(self, count: int, *, sequence_length: int) -> np.ndarray:
        """The same `count` windows at every call, evenly spread over the held-out tokens: int64 [count, length + 1]."""
        num_windows = _num_windows(self.validation, sequence_length)
        if count > num_windows:
            raise InputError(
                f"{count} validation windows of {sequence_length} tokens are more than the {num_windows} "
                f"that corpus {self.name} holds out: evaluate on at most {num_windows} or hold out more text"
            )
        windows = (2 * np.arange(count) + 1) * num_windows // (2 * max(count, 1))
        return _windows_at(self.validation, windows, sequence_length)

    def require(self, tokens: int, *, sequence_length: int, max_epochs: int) -> None:
        """Raises an error unless `tokens` can be read in at most `max_epochs` passes."""
        one_pass = self.num_sequences(sequence_length) * sequence_length
        missing = tokens - one_pass * max_epochs
        if missing <= 0:
            return
        remedy = f"train on at most {one_pass * max_epochs} tokens or add text"
        if one_pass:
            remedy = f"train on at most {one_pass * max_epochs} tokens, add text, or set max_epochs = "
            remedy += str(-(-tokens // one_pass))
        raise InputError(
            f"{tokens} training tokens are {missing} more than corpus {self.name} gives with max_epochs={max_epochs} "
            f"({one_pass} tokens in a pass at sequence_length={sequence_length}): {remedy}"
        )


class Tokens(Sequence):
    """Several token arrays read as one long array, without joining them in memory."""

    def __init__(self, shards: Sequence[np.ndarray]) -> None:
        assert shards, "a token stream has at least one shard"
        self.shards = tuple(shards)
        self.dtype = self.shards[0].dtype
        self._ends = list(accumulate(len(shard) for shard in self.shards))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, slice):
            position = range(len(self))[key]
            shard = bisect.bisect_right(self._ends, position)
            return self.shards[shard][position - self._start(shard)]
        start, stop, step = key.indices(len(self))
        if step != 1:
            return np.asarray(self)[key]
        parts = list(self._parts(start, stop))
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self.shards).astype(dtype or self.dtype, copy=False)

    def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        shard = bisect.bisect_right(self._ends, start)
        while start < stop:
            offset = self._start(shard)
            end = min(stop, self._ends[shard])
            yield self.shards[shard][start - offset : end - offset]
            start, shard = end, shard + 1

    def _start(self, shard: int) -> int:
        return self._ends[shard] - len(self.shards[shard])


def as_one(shards: Sequence[np.ndarray]) -> np.ndarray | Tokens:
    """One array as it is, several as one."""
    return shards[0] if len(shards) == 1 else Tokens(shards)


def fingerprint(tokenizer: str, train_digest: str, validation_digest: str) -> str:
    """The identity of a corpus: its tokenizer and the digests of its two streams, however they are sharded."""
    return digest({"tokenizer": tokenizer, "train": train_digest, "validation": validation_digest})


def full_digest(arrays: Iterable[np.ndarray]) -> str:
    """The sha256 of a stream's bytes."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def sampled_digest(tokens: np.ndarray | Tokens) -> str:
    """The sha256 of a stream's size and of evenly spread blocks: for streams too long to read at every start."""
    length = SAMPLED_BLOCK_BYTES // tokens.dtype.itemsize
    last_start = max(0, len(tokens) - length)
    starts = [k * last_start // (NUM_SAMPLED_BLOCKS - 1) for k in range(NUM_SAMPLED_BLOCKS)]
    size = np.array([len(tokens)], dtype="<i8")
    return full_digest([size, *(tokens[start : start + length] for start in starts)])


def _num_windows(tokens: np.ndarray | Tokens, sequence_length: int) -> int:
    return max(0, len(tokens) - 1) // sequence_length


def _windows_at(tokens: np.ndarray | Tokens, windows: np.ndarray, sequence_length: int) -> np.ndarray:
    rows = np.empty((len(windows), sequence_length + 1), dtype=np.int64)
    for row, start in zip(rows, (windows * sequence_length).tolist(), strict=True):
        row[:] = tokens[start : start + sequence_length + 1]
    return rows
