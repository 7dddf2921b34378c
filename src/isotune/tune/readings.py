"""Decayed losses read off trunks: what a run at constant LR says about decays that nobody trained.

Every decay that was trained shows what it gained against its trunk where it left it: what the trunk's noise cost, and
half a decay's length of progress. A line through these gains, in what the optimizer's state says of the noise and in
the progress, then reads the decayed loss off every other trunk, and off the same one earlier on. Its coefficients have
a prior, so that the uncertainty is honest after one decay already. The constant takes up what trunks and decays do not
share, such as other validation windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from isotune.analyze.decay import TrunkReading, read_trunk
from isotune.errors import InputError
from isotune.runs.trajectory import Trajectory
from isotune.tune.questions import Answer, Question

# gain / loss = constant + coefficient * free noise / loss + slope * log(1 + half a decay / branch): means and
# deviations before any decay is seen, and the scatter of single gains about the line. As tables/nano has them.
PRIOR_MEAN, PRIOR_DEVIATION = np.array([0.0, 0.2, 0.2]), np.array([0.01, 0.08, 0.1])
SCATTER = 0.008


@dataclass(frozen=True)
class Trunk:
    """A cell's run at constant LR, as far as it was trained."""

    learning_rate: float
    weight_decay: float
    curve: Trajectory
    seed: int = 0
    _readings: dict[float, TrunkReading | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def question(self, tokens: int) -> Question:
        return Question(self.learning_rate, self.weight_decay, tokens, self.seed)

    def reading(self, tokens: float) -> TrunkReading | None:
        """The trunk at a position; None where it was not trained so far, or its noise is not known. Kept, since a tuner
        asks for it with every round."""
        if tokens not in self._readings:
            self._readings[tokens] = _reading(self.curve, tokens)
        return self._readings[tokens]


def read_off(
    trunks: Iterable[Trunk], answers: Sequence[Answer], rungs: Sequence[int], decay_tokens: int
) -> list[Answer]:
    """The losses at rungs that were not asked for, with their noise; nothing as long as no decay was trained."""
    losses = {answer.question: answer.loss for answer in answers if answer.status == "finished"}
    calibration, unknown = [], []
    for trunk in trunks:
        for rung in rungs:
            question, reading = trunk.question(rung), trunk.reading(rung - decay_tokens)
            if reading is None:
                continue
            if question in losses:
                calibration.append((_features(reading, decay_tokens), (reading.loss - losses[question]) / reading.loss))
            else:
                unknown.append((question, reading))
    if not calibration or not unknown:
        return []
    mean, covariance = _fit(*map(np.array, zip(*calibration, strict=True)))
    return [_read(one, reading, _features(reading, decay_tokens), mean, covariance) for one, reading in unknown]


def _reading(curve: Trajectory, tokens: float) -> TrunkReading | None:
    try:
        reading = read_trunk(curve, tokens)
    except InputError:
        return None
    return reading if math.isfinite(reading.free_noise) and math.isfinite(reading.loss) else None


def _features(reading: TrunkReading, decay_tokens: int) -> np.ndarray:
    progress = math.log1p(decay_tokens / 2 / reading.tokens)
    return np.array([1.0, reading.free_noise / reading.loss, progress])


def _fit(features: np.ndarray, gains: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the line's coefficients, given the decays."""
    covariance = np.linalg.inv(np.diag(PRIOR_DEVIATION**-2) + features.T @ features / SCATTER**2)
    return covariance @ (PRIOR_MEAN / PRIOR_DEVIATION**2 + features.T @ gains / SCATTER**2), covariance


def _read(
    question: Question, reading: TrunkReading, features: np.ndarray, mean: np.ndarray, covariance: np.ndarray
) -> Answer:
    noise = math.sqrt(float(features @ covariance @ features) + SCATTER**2)
    return Answer(question, reading.loss * (1 - float(features @ mean)), "read", noise)
