"""Curves up to where decays leave them."""

from __future__ import annotations

from isotune.runs.trajectory import Trajectory


def until(curve: Trajectory, tokens: int) -> Trajectory:
    """The part of a curve that ends at this position."""
    kept = curve.tokens <= tokens
    return Trajectory({name: values[kept] for name, values in curve.columns.items()}, curve.info)
