"""A seeded order of windows that needs no memory: any position can be asked for by itself."""

from __future__ import annotations

import functools

import numpy as np

# Four rounds make a Feistel network a pseudo-random permutation; small domains need more to mix.
_NUM_ROUNDS = 8
# Positions are worked out in blocks, because numpy is slow on the few that one batch needs.
_BLOCK = 4096


def shuffled(first: int, count: int, size: int, *, seed: int) -> np.ndarray:
    """Which of `size` windows stand at positions first, first + 1, ... of the training stream.

    Pass e is positions e*size to (e+1)*size - 1: each window once, in an order that depends on (seed, e) alone.

    >>> sorted(shuffled(0, 5, 5, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    blocks = range(first // _BLOCK, (first + count - 1) // _BLOCK + 1)
    windows = np.concatenate([np.empty(0, np.int64), *(_shuffled_block(block, size, seed) for block in blocks)])
    return windows[first - blocks.start * _BLOCK :][:count]


@functools.lru_cache(maxsize=16)
def _shuffled_block(block: int, size: int, seed: int) -> np.ndarray:
    positions = np.arange(block * _BLOCK, (block + 1) * _BLOCK, dtype=np.uint64)
    epochs, places = np.divmod(positions, np.uint64(size))
    keys = _mix(_mix(np.full_like(epochs, seed)) + epochs)
    round_keys = np.stack([_mix(keys + np.uint64(number)) for number in range(_NUM_ROUNDS)])
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    windows = _feistel(places, round_keys, half_bits)
    # The network permutes 4^half_bits values, at most four times as many as there are windows. Walking along its
    # cycles until a value lies below `size` gives a permutation of the windows.
    outside = np.flatnonzero(windows >= size)
    while outside.size:
        windows[outside] = _feistel(windows[outside], round_keys[:, outside], half_bits)
        outside = outside[windows[outside] >= size]
    windows = windows.astype(np.int64)
    windows.setflags(write=False)  # it is shared by all callers
    return windows


def _feistel(values: np.ndarray, round_keys: np.ndarray, half_bits: int) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64(2**half_bits - 1)
    left, right = values >> bits, values & mask
    for key in round_keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea and Flood 2014), on arrays of uint64 (which wrap around)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
