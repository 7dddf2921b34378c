"""Axes in words: from "2^-11..2^-7" to its values.

>>> parse_axis("learning_rate", "2^-4..2^-2 by 2^0.5, 1")
(0.0625, 0.08838834764831845, 0.125, 0.1767766952966369, 0.25, 1.0)
>>> parse_axis("seed", "0..2")
(0, 1, 2)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, NamedTuple

from isotune.errors import InputError
from isotune.recipe import parse_number, parse_tokens
from isotune.recipe.quantities import show, whole_number

# More is a slip of the pen (a ratio near 1, seeds up to a token count).
MAX_VALUES = 1000

_NUMBER_HINT = "write 2^-11..2^-7, 2^-11..2^-7 by 2^0.5, or 0.1,0.2,2^-3"
_HINTS = {
    "batch_size": "write 4,64 or 4..64 by 4",
    "budgets": "write 640K,2.56M or 640K..2.56M",
    "seed": "write 0..4 or 0,1,5",
}
_POWER = re.compile(r"([0-9.]+)\^([-+]?[0-9.]{1,20})")


def parse_axis(name: str, value: object) -> tuple[Any, ...]:
    """The values of an axis (`learning_rate`, `batch_size`, `budgets`, `seed` ...) from a number, a text or a list.

    A text holds values and ranges between commas. A range goes up by a ratio: 2, unless its ends are powers of another
    base or "by" says otherwise; seeds count by one.
    """
    items = value if isinstance(value, list | tuple | range) else [value]
    parts = [part for item in items for part in (item.split(",") if isinstance(item, str) else [item])]
    values = [found for part in parts for found in _values(name, part)]
    if not values:
        raise InputError(f"{name}={show(value)} holds no value: {_HINTS.get(name, _NUMBER_HINT)}")
    if len(values) > MAX_VALUES:
        raise _too_many(name, value)
    for index, found in enumerate(values):
        if found in values[:index]:
            raise InputError(f"{name}={show(value)} holds {show(found)} twice: remove one of them")
    return tuple(values)


def _values(name: str, part: object) -> Sequence[Any]:
    if isinstance(part, str) and ".." in part:
        return _range(name, part)
    return [_read_item(name, part)]


def _read_item(name: str, value: Any) -> Any:
    """One value of an axis."""
    return _ITEMS.get(name, parse_number)(name, value)


def _read_seed(name: str, value: object) -> int:
    seed = _whole(value)
    if seed is None or not 0 <= seed < 2**32:
        raise InputError(f"{name}={show(value)} must be a whole number from 0 to 2^32 - 1: {_HINTS['seed']}")
    return seed


def read_batch_size(name: str, value: object) -> int:
    if isinstance(value, str) and ":" in value:
        raise InputError(
            f"{name}={show(value)} is a schedule: give the batch size before the switch as batch_size, and the rest as "
            f"switch, switch_tokens and switch_batch_size"
        )
    size = _whole(value)
    if size is None or size < 1:
        raise InputError(f"{name}={show(value)} must be a whole number of at least 1: {_HINTS['batch_size']}")
    return size


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"\s*[0-9]{1,15}\s*", value) else None
    return whole_number(value)


_ITEMS: Mapping[str, Callable[[str, Any], Any]] = {
    "batch_size": read_batch_size,
    "budgets": parse_tokens,
    "seed": _read_seed,
}


def _range(name: str, text: str) -> Sequence[Any]:
    match = re.fullmatch(r"\s*(\S+?)\s*\.\.\s*(\S+?)(?:\s+by\s+(\S+))?\s*", text)
    if match is None:
        raise InputError(f"{name}={show(text)} is not a range: {_HINTS.get(name, _NUMBER_HINT)}")
    first, last, by = match.groups()
    low, high = _read_item(name, first), _read_item(name, last)
    if low > high:
        raise InputError(f"{name}={show(text)} goes down: write {last}..{first}")
    if name == "seed":
        return _counted(text, low, high, by)
    exponents = _exponents(first, last, by)
    if exponents is not None and name not in _HINTS:
        base = first.partition("^")[0]
        steps = _steps(name, text, exponents)
        return [parse_number(name, f"{base}^{float(exponents.first + k * exponents.step)}") for k in steps]
    return _geometric(name, text, _exact(first, low), _exact(last, high), by)


def _counted(text: str, low: int, high: int, by: str | None) -> range:
    if by is not None:
        raise InputError(f"seed={show(text)}: seeds count by one: {_HINTS['seed']}")
    if high - low >= MAX_VALUES:
        raise _too_many("seed", text)
    return range(low, high + 1)


class _Exponents(NamedTuple):
    first: Fraction
    last: Fraction
    step: Fraction


def _exponents(first: str, last: str, by: str | None) -> _Exponents | None:
    """A range whose ends and ratio are powers of one base; None for any other."""
    powers = [_POWER.fullmatch(text) for text in (first, last, by or "")]
    bases = {power[1] for power in powers if power}
    if len(bases) != 1 or not powers[0] or not powers[1]:
        return None
    try:
        ends = [Fraction(Decimal(power[2])) for power in powers if power]
    except InvalidOperation:
        return None
    if by is None or by in bases:
        return _Exponents(ends[0], ends[1], Fraction(1))
    return _Exponents(*ends) if len(ends) == 3 else None


def _steps(name: str, text: str, exponents: _Exponents) -> range:
    first, last, step = exponents
    if step <= 0:
        raise InputError(f"{name}={show(text)} does not go up: write a ratio above 1, such as by 2^0.5")
    num_steps = (last - first) / step
    if num_steps >= MAX_VALUES:
        raise _too_many(name, text)
    if num_steps.denominator != 1 or num_steps < 0:
        raise _misses(name, text)
    return range(int(num_steps) + 1)


def _geometric(name: str, text: str, low: Fraction, high: Fraction, by: str | None) -> list[Any]:
    ratio = Fraction(2) if by is None else _exact(by, parse_number(f"{name}={show(text)}: by", by))
    if ratio <= 1 or low <= 0:
        raise InputError(
            f"{name}={show(text)} does not go up by a ratio: start above 0 and take a ratio above 1 "
            f"(a 0 may stand beside a range: 0,2^-6..2^-2)"
        )
    log_span, log_ratio = math.log(high) - math.log(low), math.log1p(ratio - 1)
    if log_span >= MAX_VALUES * log_ratio:
        raise _too_many(name, text)
    values = [low * ratio**k for k in range(round(log_span / log_ratio) + 1)]
    if values[-1] != high:
        raise _misses(name, text)
    # Between whole ends, whole values: a ratio p/q reaches the end in k steps only if q^k divides the start.
    return [int(value) if name in _HINTS else float(value) for value in values]


def _exact(text: str, value: float) -> Fraction:
    """A number as written: 0.1 is a tenth, so that 0.1..0.8 meets its end."""
    return Fraction(text) if isinstance(value, float) and value > 0 and "^" not in text else Fraction(value)


def _misses(name: str, text: str) -> InputError:
    return InputError(
        f"{name}={show(text)} does not meet its end in equal ratios (2 unless it says another): "
        f"move the end, or {_HINTS.get(name, _NUMBER_HINT)}"
    )


def _too_many(name: str, value: object) -> InputError:
    return InputError(f"{name}={show(value)} has more than {MAX_VALUES} values: {_HINTS.get(name, _NUMBER_HINT)}")
