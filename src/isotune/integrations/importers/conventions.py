"""The two conventions of weight decay: coupled multiplies w by 1 - lr*wd (PyTorch's AdamW), independent by 1 - wd."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from isotune.errors import InputError
from isotune.recipe import format_number

Numbers = TypeVar("Numbers", float, np.ndarray)


def to_coupled(weight_decay: Numbers, learning_rate: Numbers) -> Numbers:
    """The coupled weight decay that shrinks the weights as much as this independent one: wd / lr.

    >>> to_coupled(1e-4, 1e-3)
    0.1
    """
    if not np.all(np.asarray(learning_rate) > 0):
        lowest = format_number(float(np.min(learning_rate)))
        raise InputError(f"learning_rate={lowest} has no coupled weight decay: it must be above 0")
    return weight_decay / learning_rate


def to_independent(weight_decay: Numbers, learning_rate: Numbers) -> Numbers:
    """The independent weight decay that shrinks the weights as much as this coupled one: lr * wd.

    >>> to_independent(0.1, 1e-3)
    0.0001
    """
    return weight_decay * learning_rate
