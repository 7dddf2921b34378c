"""Everything that is measured while a segment trains, and the default plan for it. None of it changes the state."""

from __future__ import annotations

from collections.abc import Mapping

from isotune.corpus import Corpus
from isotune.errors import InputError
from isotune.recipe import Step
from isotune.runs import Evaluation, Segment
from isotune.train.evaluation import Evaluator, Measured
from isotune.train.noise import NoiseObserver
from isotune.train.trainer import Trainer

# One evaluation reads as many tokens as 7 between two of them pay for: forward only costs about a third of training,
# so evaluating takes 1 / (3 * 7), under 5 %, of the time.
TOKENS_PER_EVALUATED_TOKEN = 7
# A noise probe trains, as it were, on its sequences: 1 % of the time.
TOKENS_PER_PROBED_TOKEN = 100


class Measurements:
    """The evaluator and the noise meter as one observer."""

    def __init__(self, trainer: Trainer, corpus: Corpus, plan: Evaluation):
        self._evaluator = Evaluator(trainer, corpus, plan)
        self._noise = NoiseObserver(trainer, corpus, plan)

    def are_due(self, step: Step, segment: Segment) -> bool:
        return self._evaluator.is_due(step, segment) or self._noise.is_due(step)

    def at_start(self) -> Measured:
        return self._evaluator.at_start()

    def before(self, step: Step) -> None:
        self._noise.before(step)

    def after(self, step: Step, segment: Segment) -> Measured:
        measured = self._evaluator.after(step, segment)
        noise = self._noise.after(step, segment.recipe.setup.seed)
        return Measured(measured.columns | noise, measured.window_losses)


def make_plan(asked: Mapping[str, int], corpus: Corpus, sequence_length: int) -> Evaluation:
    """What was asked for; else 512 windows on trunks and 4,096 where decays end, or as many as there are."""
    available = max(0, len(corpus.validation) - 1) // sequence_length
    windows = asked.get("windows", min(512, max(1, available)))
    sequences = asked.get("noise_sequences", 8)
    plan = Evaluation(
        every_tokens=asked.get("every_tokens", TOKENS_PER_EVALUATED_TOKEN * windows * sequence_length),
        windows=windows,
        final_windows=asked.get("final_windows", max(windows, min(4096, available))),
        noise_every_tokens=asked.get("noise_every_tokens", TOKENS_PER_PROBED_TOKEN * sequences * sequence_length),
        noise_sequences=sequences,
    )
    if available == 0 and plan.every_tokens:
        raise InputError(
            f"corpus {corpus.name} holds out {len(corpus.validation)} tokens, fewer than one window of "
            f"{sequence_length}: hold out more text or turn evaluation off with --eval-every 0"
        )
    return plan
