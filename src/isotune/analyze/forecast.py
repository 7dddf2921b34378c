"""Which direction will matter, before anything is trained.

n = ELR * steps forecasts the direction in (log2 LR, log2 WD) along which the loss changes:

    forgotten  r = 1 - 2^(-n / n*)        what AdamW has forgotten of its start; half of it at the shift n*
    angle        = atan(r)                0 degrees: LR alone matters;  45 degrees: ELR

At the shift two runs differ as much at equal LR as at equal ELR: |dL/dlog WD| = |dL/dlog LR - dL/dlog WD|, so the ratio
of the slopes, tan(angle), is 1/2 there. The exponential between is our model, not the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from isotune.analyze.regime import Regime
from isotune.errors import InputError
from isotune.recipe.quantities import (
    parse_tokens,
    require_choice,
    require_not_negative,
    require_positive,
    require_positive_int,
    show,
)

Direction = Literal["LR", "ELR", "WD", "mixed"]  # WD is never forecast; runs may show it
Convention = Literal["coupled", "independent"]

FAR_BELOW = 4.0  # times below the shift: 16 % forgotten, LR alone
FAR_ABOVE = 2.0  # times above it: 75 % forgotten, ELR
# Root mean square of forecast minus measured angle over the seven angles that PROTOTYPE_SHIFT's sweeps gave.
ANGLE_ERROR = 10.0


@dataclass(frozen=True)
class ShiftPoint:
    """The n at which the invariance shifts from LR to ELR, with its interval."""

    memory_times: float
    low: float
    high: float
    source: str


# The interval is the quartiles over neighbouring runs. The exponents of the shift's time were -0.94 (LR), -1.01 (WD).
PROTOTYPE_SHIFT = ShiftPoint(1.3, 1.1, 1.8, "measured on byte-level models of 42K and 133K parameters")


@dataclass(frozen=True)
class DirectionForecast:
    """Which direction will matter at the end of a run: LR (0 degrees), ELR (45 degrees), or something in between."""

    direction: Direction
    memory_times: float
    steps: float
    degrees: float
    degrees_low: float
    degrees_high: float
    shift: ShiftPoint
    reason: str
    warnings: tuple[str, ...] = ()


def forecast_direction(
    learning_rate: float,
    weight_decay: float,
    batch_size: int,
    sequence_length: int,
    tokens: float | str,
    *,
    convention: Convention = "coupled",
    warmup_tokens: float | str = 0,
    shift: ShiftPoint = PROTOTYPE_SHIFT,
    regime: Regime | None = None,
) -> DirectionForecast:
    """Whether LR or ELR will matter after this many tokens, from n = ELR * steps alone; nothing is trained.

    Where weight decay is independent of LR (w *= 1 - WD), ELR is WD. n counts from the end of the warm-up. The band of
    the angle holds the shift's interval and the model's own error.

    >>> forecast_direction(2**-10, 0.1, 8192, 1024, "100B").direction  # the paper's large batch: 11,921 steps
    'mixed'
    >>> forecast_direction(2**-10, 0.1, 512, 1024, "100B").direction
    'ELR'
    """
    rate = require_positive("learning_rate", learning_rate)
    decay = require_not_negative("weight_decay", weight_decay)
    require_choice("convention", convention, ("coupled", "independent"))
    per_step = require_positive_int("batch_size", batch_size) * require_positive_int("sequence_length", sequence_length)
    _check_shift(shift)
    trained = parse_tokens("tokens", tokens) - parse_tokens("warmup_tokens", warmup_tokens)
    if trained <= 0:
        raise InputError(
            f"warmup_tokens={show(warmup_tokens)} leaves nothing of tokens={show(tokens)}: n counts from the warm-up's "
            "end, give more tokens"
        )
    steps = trained / per_step
    n = (rate * decay if convention == "coupled" else decay) * steps
    low, high = (_angle(n, shift.high) - ANGLE_ERROR, _angle(n, shift.low) + ANGLE_ERROR)
    direction, reason = _direction(n, shift)
    return DirectionForecast(
        direction=direction,
        memory_times=n,
        steps=steps,
        degrees=_angle(n, shift.memory_times),
        degrees_low=max(low, 0.0),
        degrees_high=min(high, 45.0),
        shift=shift,
        reason=reason,
        warnings=_forecast_warnings(direction, n, regime),
    )


def _angle(n: float, shift: float) -> float:
    """atan(1 - 2^(-n/n*)) in degrees."""
    return math.degrees(math.atan(-math.expm1(-n / shift * math.log(2))))


def _direction(n: float, shift: ShiftPoint) -> tuple[Direction, str]:
    where = f"the shift at n = {shift.memory_times:g} ({shift.low:g} to {shift.high:g}, {shift.source})"
    if n < shift.low / FAR_BELOW:
        return "LR", f"n = {n:.3g} is far below {where}: runs of equal LR agree, whatever their WD"
    if n > shift.high * FAR_ABOVE:
        return "ELR", f"n = {n:.3g} is well above {where}: runs of equal LR * WD agree"
    return "mixed", f"n = {n:.3g} is near {where}: both LR and WD matter"


def _check_shift(shift: ShiftPoint) -> None:
    if not 0 < shift.low <= shift.memory_times <= shift.high < math.inf:
        raise InputError(
            f"shift={show((shift.low, shift.memory_times, shift.high))} must be a low end, a value and a high end "
            "above 0 that go up: where a fit does not bound it, use the prototype's"
        )


def _forecast_warnings(direction: Direction, n: float, regime: Regime | None) -> tuple[str, ...]:
    if n == 0:
        return ("without weight decay nothing is ever forgotten: LR alone matters, however long the run",)
    if direction == "ELR" and regime is not None and regime.verdict == "large":
        return (
            "the batch is large: n may not decide there (not in the paper's Fig. 4a, nor in tables/nano at batch 64; "
            "but in tables/small32, with more steps): check with a run",
        )
    return ()
