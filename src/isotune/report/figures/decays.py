"""What a decay gains against the noise of its trunk, and how far off each predictor of decayed losses is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isotune.analyze.decay import THEORY, Decay, calibrate
from isotune.analyze.families import Family
from isotune.analyze.scaling import Laws, decays_of
from isotune.errors import InputError
from isotune.report.figures.drawing import (
    CATEGORIES,
    INK,
    Drawing,
    Scale,
    lines,
    log_axis,
    plain_axis,
    points,
    thin,
)

MAX_DECAYS = 500
KIND_WORDS = {"nothing": "none", "constant": "constant", "power": "ELR<sup>q</sup>", "noise": "noise", "free": "free"}
LONG_WORDS = {
    "nothing": "no correction",
    "constant": "a constant",
    "power": "a power of ELR",
    "noise": "the measured noise",
    "free": "the free estimator",
}


@dataclass(frozen=True)
class DecayGains:
    """Gains against noise, with the calibrated k; relative errors of each predictor on decays left out."""

    noise: np.ndarray
    gain: np.ndarray
    log2_elr: np.ndarray
    coefficient: float  # k of gain = k * noise, by least squares
    errors: dict[str, np.ndarray]  # |predicted - decayed| / decayed
    best: str
    reason: str  # why predictors were not compared


def decay_gains(family: Family, laws: Laws) -> DecayGains:
    """The decays whose trunks' noise was measured."""
    decays = [decay for decay in decays_of(family) if math.isfinite(decay.gain)]
    if not decays:
        raise InputError(
            "no decay branches off a run at constant LR that goes on for half a decay: let trunks go on past the branch"
        )
    metered = [decay for decay in decays if math.isfinite(decay.trunk.scaled_noise)]
    if not metered:
        raise InputError("the gradient noise of the decays' trunks was not measured: train with the meter on")
    errors, best = _errors(laws, metered, decays)
    return DecayGains(
        np.array([decay.trunk.scaled_noise for decay in metered]),
        np.array([decay.gain for decay in metered]),
        np.log2([decay.trunk.effective_learning_rate for decay in metered]),
        calibrate(metered, "noise").coefficient,
        errors,
        best,
        laws.reasons.get("decays", ""),
    )


def _errors(laws: Laws, metered: Sequence[Decay], decays: Sequence[Decay]) -> tuple[dict[str, np.ndarray], str]:
    if laws.decays is None:
        return {}, ""
    errors = {}
    for kind, score in laws.decays.scores.items():
        # The comparison was made of the metered decays, or of all of them where these are too few.
        compared = metered if len(score.predicted) == len(metered) else decays
        if len(score.predicted) == len(compared):
            truth = np.array([decay.decayed_loss for decay in compared])
            errors[str(kind)] = np.abs(score.predicted - truth) / truth
    return errors, str(laws.decays.best)


def draw_decay_gains(data: DecayGains) -> dict[str, Any]:
    """Gain over noise left; relative errors right."""
    drawing = Drawing(2 if data.errors else 1, gap=0.2)
    scale = Scale.of("ELR", data.log2_elr)
    rows = thin(np.argsort(data.noise), MAX_DECAYS)
    reach = np.array([0.0, float(data.noise.max())])
    drawing.add(
        0,
        lines(reach, data.coefficient * reach, color=INK, name=f"k = {data.coefficient:.2g} (fitted)", showlegend=True),
    )
    drawing.add(0, lines(reach, THEORY * reach, color=INK, dash="dot", name="k = 1/4 (theory)", showlegend=True))
    marker = {"color": data.log2_elr[rows], "coloraxis": "coloraxis", "size": 5, "opacity": 0.8}
    drawing.add(
        0,
        points(
            data.noise[rows],
            data.gain[rows],
            color=INK,
            marker=marker,
            name="decay",
            showlegend=False,
            hovertemplate="%{y:.4f}",
        ),
    )
    drawing.axes(
        0,
        plain_axis("noise of the trunk (nats)", [0.0, *np.quantile(data.noise, [0, 0.995])]) | {"nticks": 5},
        plain_axis("gain of the decay (nats)", [0.0, *np.quantile(data.gain, [0.002, 0.998])], pad=0.08),
        "gain against noise" if data.errors else "",
    )
    for place, (kind, errors) in enumerate(data.errors.items()):
        drawing.add(1, _box(errors, KIND_WORDS.get(kind, kind), CATEGORIES[place % len(CATEGORIES)]))
    if data.errors:
        ends = [end for errors in data.errors.values() for end in np.quantile(100 * errors, [0.05, 0.95])]
        y = {"title": {"text": ""}, "autorange": "reversed", "showgrid": False}
        drawing.axes(1, log_axis("relative error (%)", ends), y, "gain read off")
    drawing.set(coloraxis=scale.axis())
    return drawing.finish()


def _box(errors: np.ndarray, name: str, color: str) -> dict[str, Any]:
    low, first, middle, third, high = np.quantile(100 * errors, [0.05, 0.25, 0.5, 0.75, 0.95])
    box = {"q1": [first], "median": [middle], "q3": [third], "lowerfence": [low], "upperfence": [high], "y": [name]}
    return {
        "type": "box",
        "orientation": "h",
        "name": name,
        "line": {"color": color, "width": 1.5},
        "showlegend": False,
    } | box


def decay_caption(data: DecayGains) -> str:
    words = [
        f"What {len(data.gain):,} decays to zero gained at equal flow time, against the noise of their trunks: "
        f"k = {data.coefficient:.2g} by least squares, 1/4 in theory."
    ]
    if data.errors:
        medians = {kind: float(np.median(errors)) for kind, errors in data.errors.items()}
        best = LONG_WORDS.get(data.best, data.best)
        words.append(
            "Boxes: relative error of predicted decayed losses, 5 to 95 %, whole ELR groups left out; lowest RMSE: "
            f"{best} (median error {100 * medians.get(data.best, math.nan):.2g} %, without correction "
            f"{100 * medians.get('nothing', math.nan):.2g} %)."
        )
    elif data.reason:
        words.append(f"Predictors are not compared: {data.reason}.")
    return " ".join(words)
