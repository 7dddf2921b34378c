"""The noise scale during training, with the batch as a dotted line: below it the batch is small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.diagnosis import Diagnosis, RunRegime
from isotune.analyze.regime import NoiseWindow
from isotune.errors import InputError
from isotune.report.figures.curves import Curve, CurveSet, log2_settings_of, run_words
from isotune.report.figures.drawing import Drawing, Scale, error_bars, lines, log_axis, token_axis
from isotune.report.figures.words import count

LABEL = "noise scale (sequences)"


@dataclass(frozen=True)
class ScaleCurve:
    """One run's noise scale in windows of tokens, with intervals."""

    curve: Curve
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class NoiseScales:
    """Noise scales of a few runs by the preconditioner's power p, and the batch."""

    by_power: dict[float, tuple[ScaleCurve, ...]]
    batch_size: float
    verdicts: tuple[str, ...]


def noise_scales(diagnosis: Diagnosis) -> NoiseScales:
    """The noise scales of the runs whose regime was judged."""
    curves: dict[float, list[ScaleCurve]] = {}
    for one in diagnosis.regimes:
        other = 1.0 if one.regime.p == 0.5 else 0.5
        for power, windows in ((one.regime.p, one.regime.windows), (other, one.regime.beside)):
            found = _scale_curve(one, windows)
            if found is not None:
                curves.setdefault(power, []).append(found)
    if not curves:
        raise InputError(
            "the noise scale is not known: train with the meter on, or log precond_noise_trace and "
            "precond_gradient_sq_norm (docs/gradient-noise.md)"
        )
    batch = diagnosis.family.batch_size
    by_power = {power: tuple(found) for power, found in sorted(curves.items())}
    size = math.nan if isinstance(batch, str) else float(batch)
    return NoiseScales(by_power, size, tuple(one.regime.verdict for one in diagnosis.regimes))


def as_curves(data: NoiseScales) -> CurveSet:
    """The noise scales at p = 1/2 as plain curves, for a small panel."""
    found = data.by_power.get(0.5) or next(iter(data.by_power.values()))
    return CurveSet(tuple(one.curve for one in found), len(found), LABEL, is_log=True)


def draw_noise_scales(data: NoiseScales) -> dict[str, Any]:
    """A panel for each power, with error bars and the batch."""
    every = [one for found in data.by_power.values() for one in found]
    scale = Scale.of("ELR", (one.curve.log2_elr for one in every))
    drawing = Drawing(len(data.by_power))
    values = np.concatenate([one.curve.values for one in every])
    known = [float(values.min()), float(values.max())]
    known += [data.batch_size] if math.isfinite(data.batch_size) else []
    low_end, high_end = min(known) / 2, max(known) * 2
    tokens = np.concatenate([one.curve.tokens for one in every])
    for panel, (power, found) in enumerate(data.by_power.items()):
        for place, one in enumerate(found):
            color = scale.color(one.curve.log2_elr)
            # Bars of several runs at one window would hide each other.
            x = one.curve.tokens * 2.0 ** (0.25 * (place / max(len(found) - 1, 1) - 0.5))
            ends = list(zip(np.maximum(one.low, low_end / 2), np.minimum(one.high, high_end * 2), strict=True))
            bars = error_bars(one.curve.values.tolist(), ends, color)
            trace = lines(x, one.curve.values, color=color, name=one.curve.words)
            marker = {"size": 5, "color": color}
            hover = "%{x:.3s} tokens: %{y:.3g} sequences"
            drawing.add(
                panel, trace | {"mode": "lines+markers", "marker": marker, "error_y": bars, "hovertemplate": hover}
            )
        x_axis = token_axis(float(tokens.min()) / 1.2, float(tokens.max()) * 1.2, most=4)
        y_axis = log_axis(LABEL if panel == 0 else "", [low_end, high_end], pad=0.0)
        drawing.axes(panel, x_axis, y_axis, f"p = {power:g}" if len(data.by_power) > 1 else "")
        if math.isfinite(data.batch_size):
            drawing.line(panel, y=data.batch_size, words="batch")
    drawing.add(0, scale.carrier())
    drawing.set(coloraxis=scale.axis())
    return drawing.finish()


def noise_scale_caption(data: NoiseScales) -> str:
    kinds = [f"{kind} in {data.verdicts.count(kind)}" for kind in dict.fromkeys(data.verdicts)]
    powers = " p = 0.5 is Adam's own preconditioner, p = 1 the paper's text." if len(data.by_power) > 1 else ""
    return (
        f"Noise scale of {count(len(data.verdicts), 'run')} with 90 % intervals; the batch is dotted. "
        f"A batch below the noise scale is small, above it large: {', '.join(kinds)}.{powers}"
    )


def _scale_curve(one: RunRegime, windows: Sequence[NoiseWindow]) -> ScaleCurve | None:
    kept = [window for window in windows if math.isfinite(window.noise_scale.value) and window.noise_scale.value > 0]
    if not kept:
        return None
    tokens = np.array([math.sqrt(max(window.start_tokens, 1.0) * window.end_tokens) for window in kept])
    values = np.array([window.noise_scale.value for window in kept])
    low = np.array([max(window.noise_scale.low, 0.0) for window in kept])
    high = np.array([window.noise_scale.high for window in kept])
    curve = Curve(*log2_settings_of(one.info), run_words(one.info), tokens, values)
    return ScaleCurve(curve, low, high)
