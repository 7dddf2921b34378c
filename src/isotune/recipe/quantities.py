"""Numbers as people write them, and the checks that every setting shares."""

from __future__ import annotations

import itertools
import math
import operator
import re
import reprlib
from decimal import Decimal, InvalidOperation
from numbers import Real

from isotune.errors import InputError

TokenCount = int | float | str
Number = int | float | str

# Whole numbers above this have gaps as floats, and a ramp is evaluated in floats.
MAX_WHOLE_NUMBER = 2**53

_SUFFIXES = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}


def parse_tokens(name: str, value: TokenCount) -> int:
    """A token count from 2560000, "2.56M", "30B" or "1e9".

    >>> parse_tokens("tokens", "2.5M")
    2500000
    """
    hint = "write 2560000, 2.56M or 30B"
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise InputError(f"{name}={show(value)} is not a number of tokens: {hint}")
    whole = whole_number(value)
    if whole is not None and abs(whole) > MAX_WHOLE_NUMBER:
        raise InputError(f"{name}={show(value)} is beyond 2^53, more tokens than isotune counts: {hint}")
    match = re.fullmatch(r"\s*([-+]?[0-9_.]+(?:e[-+]?[0-9]+)?)\s*([KMBT]?)\s*", str(value), flags=re.IGNORECASE)
    try:
        number = Decimal(match[1].replace("_", "")) if match else None
    except InvalidOperation:
        number = None
    if match is None or number is None:
        raise InputError(f"{name}={show(value)} is not a number of tokens: {hint}")
    # Bounded before it is scaled: Decimal itself overflows on "1e999999M".
    if number and not -30 < number.adjusted() < 30:
        raise InputError(f"{name}={show(value)} is out of range: {hint}")
    tokens = number.scaleb(_SUFFIXES[match[2].upper()])
    if tokens < 0:
        raise InputError(f"{name}={show(value)} is negative: token counts start at 0")
    if tokens > MAX_WHOLE_NUMBER:
        raise InputError(f"{name}={show(value)} is beyond 2^53, more tokens than isotune counts: {hint}")
    if tokens != tokens.to_integral_value():
        raise InputError(f"{name}={show(value)} is not a whole number of tokens: {hint}")
    return int(tokens)


def parse_number(name: str, value: Number) -> float:
    """A number from 0.001, "1e-3" or a power such as "2^-10"; finite and not negative.

    >>> parse_number("learning_rate", "2^-10")
    0.0009765625
    """
    if not isinstance(value, str):
        return require_not_negative(name, value)
    base, caret, exponent = value.partition("^")
    try:
        # abs: "-2^2" must not turn into 4.
        result = math.copysign(abs(float(base)) ** float(exponent), float(base)) if caret else float(base)
    except (ValueError, OverflowError, ZeroDivisionError):
        result = math.nan
    if not math.isfinite(result):
        raise InputError(f"{name}={show(value)} is not a number: write 0.001, 1e-3 or 2^-10")
    if result < 0:
        raise InputError(f"{name}={show(value)} must be a number of at least 0")
    return require_not_negative(name, result)


def parse_batch_size(value: int | str) -> int:
    """One batch size, from 64 or "64"."""
    batches = parse_batch_schedule(value)
    if len(batches) > 1:
        raise InputError(f"batch_size={show(value)} is a schedule where one batch size is wanted: write 64")
    return batches[0][1]


def parse_batch_schedule(value: int | str) -> list[tuple[int, int]]:
    """(tokens, batch size) pairs from 512 or from Megatron's syntax.

    >>> parse_batch_schedule("0:512 30B:8192")
    [(0, 512), (30000000000, 8192)]
    """
    if whole_number(value) is not None:
        return [(0, require_positive_int("batch_size", value))]
    hint = 'write a whole number or a schedule such as "0:512 30B:8192"'
    if not isinstance(value, str) or not value.split():
        raise InputError(f"batch_size={show(value)} is not a batch size: {hint}")
    pairs = []
    for item in value.split():
        at, colon, size = item.partition(":")
        if not colon:
            at, size = "0", at
        if not re.fullmatch(r"[0-9]{1,15}", size) or int(size) == 0:
            raise InputError(f"batch_size={show(value)} is not a batch size: {hint}")
        pairs.append((parse_tokens(f"batch_size={show(value)}: position", at), int(size)))
    if pairs[0][0] != 0 or any(a >= b for (a, _), (b, _) in itertools.pairwise(pairs)):
        raise InputError(f"batch_size={show(value)} must start at 0 tokens and go up: {hint}")
    return pairs


def whole_number(value: object) -> int | None:
    """The value as an int, numpy's integers included; None for anything else, 4.0 and True too."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # arrays
        return None


def require_positive_int(name: str, value: object) -> int:
    """The value as an int, if it is a whole number from 1 on."""
    whole = whole_number(value)
    if whole is None or not 1 <= whole <= MAX_WHOLE_NUMBER:
        raise InputError(f"{name}={show(value)} must be a whole number of at least 1 (and at most 2^53)")
    return whole


def require_positive(name: str, value: object) -> float:
    """The value as a float, if it is a finite number above 0."""
    number = _as_float(value)
    if not 0 < number < math.inf:
        raise InputError(f"{name}={show(value)} must be a positive number")
    return number


def require_not_negative(name: str, value: object) -> float:
    """The value as a float, if it is a finite number from 0 on."""
    number = _as_float(value)
    if not 0 <= number < math.inf:
        raise InputError(f"{name}={show(value)} must be a number of at least 0")
    return number + 0.0  # -0.0 is 0.0


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={show(value)} must be one of {', '.join(choices)}")


def settle(instance: object, name: str, value: object) -> None:
    """Set a field while a frozen instance is made.

    1, 1.0 and numpy's 1.0 are one setting, so they become one value here: equal recipes then have equal addresses.
    """
    object.__setattr__(instance, name, value)


def show(value: object) -> str:
    """The value as a message can bear it: one short line, whatever it is.

    >>> show([1, 2]), show("2" * 1000)[:20]
    ('[1, 2]', "'2222222222222222222")
    """
    return _SHORT.repr(value)


def format_tokens(tokens: float) -> str:
    """A token count with a suffix, to three digits.

    >>> format_tokens(2_560_000), format_tokens(999)
    ('2.56M', '999')
    """
    for suffix in ("T", "B", "M", "K"):
        scaled = tokens / 10 ** _SUFFIXES[suffix]
        if scaled >= 0.9995:  # what rounds to 1.00 belongs to this suffix, so nothing reads "1000K"
            return f"{scaled:.3g}{suffix}" if scaled < 999.5 else f"{scaled:.0f}{suffix}"
    return f"{tokens:.0f}"


class _ShortRepr(reprlib.Repr):
    """reprlib cuts strings and containers; Python refuses to print very long whole numbers, so they are described."""

    def repr_int(self, x: int, level: int) -> str:
        return f"(a whole number of {x.bit_length()} bits)" if x.bit_length() > 100 else repr(x)


_SHORT = _ShortRepr()
_SHORT.maxstring = _SHORT.maxother = 60


def _as_float(value: object) -> float:
    """The value as a float; nan, which fails every comparison, for what is not a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def format_number(value: float) -> str:
    """A number as `parse_number` reads it, small powers of two as such.

    >>> format_number(2**-10), format_number(0.1)
    ('2^-10', '0.1')
    """
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent < -3 else f"{value:.4g}"
