"""A loss that is not finite ends a run as `diverged`: recorded, never trained again, inherited by what comes after."""

import numpy as np
import pytest
from small import EVALUATION, STEP, TokenCounter, rows, small_constant, small_wsd

from isotune.runs import Study
from isotune.train import Trainer, train

DIVERGES_AT = 50 * STEP


@pytest.fixture
def diverging(monkeypatch):
    """Steps whose loss is NaN from position 50 on."""
    original = Trainer.step

    def step(self, windows, step):
        values = original(self, windows, step)
        return values * float("nan") if step.tokens >= DIVERGES_AT else values

    monkeypatch.setattr(Trainer, "step", step)


def test_it_is_recorded_with_its_position_and_keeps_the_rows_before(corpus, tmp_path, monkeypatch):
    straight = train(small_wsd(corpus), tmp_path / "straight", evaluation=EVALUATION)
    original = Trainer.step
    monkeypatch.setattr(
        Trainer,
        "step",
        lambda self, windows, step: original(self, windows, step) * (np.nan if step.tokens >= DIVERGES_AT else 1.0),
    )
    trajectory = train(small_wsd(corpus), tmp_path / "study", evaluation=EVALUATION)
    assert trajectory.info.status == "diverged"
    assert trajectory.tokens.tolist() == [STEP * k for k in range(50)]
    assert (trajectory.columns["train_loss"][1:] == straight.columns["train_loss"][1:50]).all()
    assert (trajectory.measured("val_loss")[1] == straight.measured("val_loss")[1][:5]).all()
    records = [record for record in Study.open(tmp_path / "study").records() if record.status == "diverged"]
    assert [record.diverged_at_tokens for record in records] == [DIVERGES_AT]


def test_it_is_not_trained_again_and_its_children_diverge_without_running(corpus, tmp_path, diverging):
    study = tmp_path / "study"
    first = train(small_constant(corpus), study, evaluation=EVALUATION)
    assert first.info.status == "diverged"
    for recipe in (small_constant(corpus), small_wsd(corpus), small_constant(corpus, 320), small_wsd(corpus, 90)):
        counter = TokenCounter()
        trajectory = train(recipe, study, evaluation=EVALUATION, observers=[counter])
        assert trajectory.info.status == "diverged"
        assert counter.tokens == 0
        assert rows(trajectory) == rows(first)  # they share all 49 steps, settings included


def test_recipes_that_leave_before_it_are_not_affected(corpus, tmp_path, diverging):
    study = tmp_path / "study"
    train(small_constant(corpus), study, evaluation=EVALUATION)
    short = train(small_constant(corpus, 49), study, evaluation=EVALUATION)
    assert short.info.status == "finished"
    assert train(small_constant(corpus, 50), study, evaluation=EVALUATION).info.status == "diverged"
    counter = TokenCounter()
    other = small_constant(corpus, 48, learning_rate=2**-7)
    assert train(other, study, evaluation=EVALUATION, observers=[counter]).info.status == "finished"
    assert counter.tokens == 48 * STEP


def test_a_decay_that_leaves_before_it_runs(corpus, tmp_path, diverging, monkeypatch):
    study = tmp_path / "study"
    train(small_constant(corpus), study, evaluation=EVALUATION)
    monkeypatch.undo()  # the decay's own steps are sound
    decayed = train(small_wsd(corpus, 80), study, evaluation=EVALUATION)  # leaves at 40
    assert decayed.info.status == "finished"
    assert decayed.tokens[-1] == 80 * STEP
    assert Study.open(study).trajectory(small_constant(corpus)).info.status == "diverged"


def test_an_evaluation_that_is_not_finite_is_a_divergence_too(corpus, tmp_path, monkeypatch):
    original, calls = Trainer.evaluate, []

    def evaluate(self, windows):
        calls.append(len(windows))
        return original(self, windows) * (np.float32("inf") if len(calls) == 4 else 1)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    trajectory = train(small_constant(corpus), tmp_path / "study", evaluation=EVALUATION)
    assert trajectory.info.status == "diverged"
    assert trajectory.tokens[-1] == 29 * STEP  # evaluated at 0, 10, 20 and 30
    assert "inf" not in "".join(p.read_text().lower() for p in (tmp_path / "study").glob("segments/*/curve.jsonl"))


def test_a_rate_that_explodes_by_itself_diverges(corpus, tmp_path):
    recipe = small_constant(corpus, learning_rate=1e30)
    trajectory = train(recipe, tmp_path / "study", evaluation=EVALUATION)
    assert trajectory.info.status == "diverged"
    assert np.isfinite(trajectory.measured("train_loss")[1]).all()
