"""Steps of the trainer against references: AdamW from its equations, torch's own, whole batches, the order of data."""

import numpy as np
import pytest
import torch
from small import NO_EVALUATION, STEP, small_constant, small_wsd

from isotune.corpus import open_corpus
from isotune.recipe import AdamW, Step
from isotune.train import Execution, Trainer, World, train


def trainer_of(recipe, **execution):
    trainer = Trainer(recipe.setup, Execution(**execution), World())
    trainer.start(recipe.setup.seed)
    return trainer


def windows_of(recipe, step):
    length, seed = recipe.setup.sequence_length, recipe.setup.seed
    corpus = open_corpus(recipe.setup.corpus)
    return corpus.sequences(step.tokens_before // length, step.batch_size, sequence_length=length, seed=seed)


class Float64AdamW:
    """AdamW as its equations say, in float64, given the trainer's model for the gradients."""

    def __init__(self, recipe):
        self.trainer, self.settings = trainer_of(recipe), recipe.setup.optimizer
        self.model = self.trainer.model.double()
        self.m = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self.v = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self.num_steps = 0

    def step(self, windows, step):
        s, parameters = self.settings, dict(self.model.named_parameters())
        loss = self.loss(windows)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
        factor = min(1.0, s.clip_norm / (norm + 1e-6))
        self.num_steps += 1
        with torch.no_grad():
            for (name, w), gradient in zip(parameters.items(), gradients, strict=True):
                g = gradient * factor
                self.m[name] = s.beta1 * self.m[name] + (1 - s.beta1) * g
                self.v[name] = s.beta2 * self.v[name] + (1 - s.beta2) * g**2
                m_hat = self.m[name] / (1 - s.beta1**self.num_steps)
                v_hat = self.v[name] / (1 - s.beta2**self.num_steps)
                decay = step.weight_decay if w.ndim >= 2 else 0.0
                w *= 1 - step.learning_rate * decay
                w -= step.learning_rate * m_hat / (v_hat.sqrt() + s.epsilon)
        return float(loss.detach()), norm, factor

    def loss(self, windows):
        tokens = torch.from_numpy(windows)
        logits = self.model(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("clip_norm", [0.5, float("inf")])
def test_steps_match_adamw_in_float64(corpus, clip_norm):
    recipe = small_wsd(corpus, 60, optimizer=AdamW(clip_norm=clip_norm, epsilon=1e-4))  # a small eps amplifies rounding
    trainer, reference = trainer_of(recipe), Float64AdamW(recipe)
    factors = []
    for step in list(recipe.steps())[:20]:
        windows = windows_of(recipe, step)
        loss, norm, factor = trainer.step(windows, step).tolist()
        assert (loss, norm, factor) == pytest.approx(reference.step(windows, step), rel=1e-4)
        factors.append(factor)
    for ours, exact in zip(trainer.model.parameters(), reference.model.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-6)
    assert (min(factors) < 1) == (clip_norm == 0.5)  # the clipping was tested, too


def test_steps_match_torch_adamw_and_its_clipping(corpus):
    recipe = small_wsd(corpus, 60)
    trainer, other = trainer_of(recipe), trainer_of(recipe)
    settings, model = recipe.setup.optimizer, other.model
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2]}]
    groups += [{"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    betas = (settings.beta1, settings.beta2)
    reference = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=settings.epsilon, foreach=False, fused=False)
    for step in list(recipe.steps())[:20]:
        windows = windows_of(recipe, step)
        for group, decay in zip(reference.param_groups, (step.weight_decay, 0.0), strict=True):
            group |= {"lr": step.learning_rate, "weight_decay": decay}
        reference.zero_grad()
        model.sequence_losses(torch.from_numpy(windows)).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        reference.step()
        trainer.step(windows, step)
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_norms_are_not_decayed(corpus):
    trainer = trainer_of(small_wsd(corpus))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    step = Step(0, STEP, 2**-6, 0.5, 4)
    windows = np.zeros((4, 17), dtype=np.int64)
    trainer.step(windows, step)
    row = trainer.model.embedding.weight[5]  # a token that was not seen: only the decay touches it
    torch.testing.assert_close(row, before["embedding.weight"][5] * (1 - 2**-6 * 0.5))
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.5, 0.0]
    assert all(p.ndim == 1 for p in trainer.optimizer.param_groups[1]["params"])


def test_microbatches_give_the_gradient_of_the_whole_batch(corpus):
    recipe = small_constant(corpus, batch_size=8)
    step = next(iter(recipe.steps()))
    windows, seen = windows_of(recipe, step), {}
    for size in (None, 4, 2, 1):
        trainer = trainer_of(recipe, micro_batch_size=size)
        kept = []
        trainer.optimizer.register_step_pre_hook(
            lambda optimizer, *_, kept=kept: kept.extend(
                p.grad.clone() for group in optimizer.param_groups for p in group["params"]
            )
        )
        seen[size] = trainer.step(windows, step), kept
    values, gradients = seen.pop(None)
    for other_values, other_gradients in seen.values():
        torch.testing.assert_close(other_values, values)
        for ours, theirs in zip(other_gradients, gradients, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_batches_of_4_and_of_8_see_the_same_sequences_in_the_same_order(corpus, tmp_path, monkeypatch):
    seen = {}
    for batch_size in (4, 8):
        kept, original = [], Trainer.step

        def keeping(self, windows, step, kept=kept, original=original):
            kept.append(windows)
            return original(self, windows, step)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", keeping)
            recipe = small_constant(corpus, 80, batch_size=batch_size)
            train(recipe, tmp_path / str(batch_size), evaluation=NO_EVALUATION)
        assert len(kept) == 320 // batch_size
        seen[batch_size] = np.concatenate(kept)
    assert (seen[4] == seen[8]).all()
    assert len(np.unique(seen[4], axis=0)) > 300


def test_training_learns_the_rule(corpus, tmp_path):
    trajectory = train(small_constant(corpus, 320), tmp_path / "study", evaluation=NO_EVALUATION)
    losses = trajectory.measured("train_loss")[1]
    assert losses[0] == pytest.approx(np.log(32), rel=0.01)
    assert losses[-20:].mean() < 2.0  # the entropy of the rule and its noise is 1.7


def test_a_state_is_a_function_of_nothing_but_the_steps(corpus, tmp_path):
    recipe = small_wsd(corpus, 60)
    steps = list(recipe.steps())[:10]
    for name in ("a", "b"):
        trainer = trainer_of(recipe)
        if name == "b":  # from a trainer that was somewhere else before
            trainer.step(windows_of(recipe, steps[5]), steps[5])
            trainer.start(recipe.setup.seed)
        for step in steps:
            trainer.step(windows_of(recipe, step), step)
        trainer.save(tmp_path / name, steps[-1].tokens, len(steps))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
