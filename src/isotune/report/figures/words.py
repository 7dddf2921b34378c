"""Sentences that several captions need."""

from __future__ import annotations

import math

from isotune.analyze.diagnosis import StageFinding
from isotune.recipe.quantities import format_tokens


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def name_verdict(stage: StageFinding) -> str:
    """The verdict of a stage of n and what decided it, in a sentence."""
    if stage.invariance is None:
        return f"Verdict where {stage.range}: none, {stage.reason}."
    verdict = {"LR": "equal LR is enough", "ELR": "equal ELR is enough", "WD": "equal WD is enough"}.get(
        stage.verdict, stage.verdict
    )
    place = f"{format_tokens(stage.tokens[0])} to {format_tokens(stage.tokens[1])} tokens"
    return f"Verdict where {stage.range} ({place}): {verdict}; {'; '.join(stage.invariance.reasons[:2])}."


def interval(low: float, high: float, digits: int = 3) -> str:
    """An interval in brackets; an end that is not known is a question mark."""
    ends = (f"{end:.{digits}g}" if math.isfinite(end) else "?" for end in (low, high))
    return "[" + ", ".join(ends) + "]"
