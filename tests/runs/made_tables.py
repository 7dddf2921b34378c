"""Studies made by hand with everything that a table keeps: losses, noise, windows, timing. All are functions of the
recipe and of the position, so that tests can tell what must come back."""

import json
import math

import numpy as np
from made import EVALUATION, FINGERPRINT, NUMERICS, STEP, made_constant, made_study, made_wsd, setup

from isotune.runs import CurveWriter, Study

__all__ = ["FINGERPRINT", "STEP", "made_constant", "made_study", "made_wsd", "setup"]

SECONDS_PER_STEP = 0.25
NOISE_STEPS = 7  # apart; evaluations are 10 apart


def val_loss_at(recipe, tokens):
    lr = recipe.phase_at(tokens).peak_learning_rate
    return 3 + recipe.setup.seed / 10 + math.log2(1 + lr) + recipe.weight_decay / 8 + 50 / (50 + tokens)


def step_values(recipe, step):
    return {
        "train_loss": val_loss_at(recipe, step.tokens) + math.sin(step.tokens),
        "gradient_norm": 1 + math.cos(step.tokens) ** 2,
        "clip_factor": 0.5 + math.sin(step.tokens) ** 2 / 2,
    }


def window_losses(recipe):
    rng = np.random.default_rng(recipe.tokens + recipe.setup.seed)
    return rng.gamma(4, val_loss_at(recipe, recipe.tokens) / 4, EVALUATION.final_windows).astype(np.float32)


def train_by_hand(study, recipe, *, diverged_at_tokens=None, numerics=NUMERICS, shift=0.0):
    """Publishes the segments that the study lacks of a recipe."""
    for segment in study.missing(recipe):
        folder = study.new_attempt(segment, numerics)
        diverges = diverged_at_tokens is not None and diverged_at_tokens <= segment.end_tokens
        last = diverged_at_tokens - STEP if diverges else segment.end_tokens
        rows = [_row(study, segment, step, shift) for step in segment.recipe.steps(segment.start_tokens, last)]
        if segment.start_tokens == 0 and study.evaluation.every_tokens:
            rows.insert(0, {"tokens": 0, "val_loss": 5.0, "parameter_norm": 1.0})
        if rows and "final_val_loss" in rows[-1]:
            np.save(folder / "windows.npy", window_losses(segment.recipe))
        writer = CurveWriter(folder / "curve.jsonl", -1)
        writer.write(rows)
        writer.close()
        end = diverged_at_tokens if diverges else segment.end_tokens
        note_time(folder, segment.start_tokens, end, (end - segment.start_tokens) / STEP * SECONDS_PER_STEP)
        study.describe(
            folder, segment, numerics, "diverged" if diverges else "finished", diverged_at_tokens if diverges else None
        )
        if not diverges:
            study.state_path(segment.end_state).parent.mkdir(exist_ok=True)
            study.state_path(segment.end_state).touch()
        assert study.publish(folder, segment.id)
        if diverges:
            break


def note_time(folder, from_tokens, tokens, seconds):
    with open(folder / "timing.jsonl", "a") as file:
        file.write(json.dumps({"from_tokens": from_tokens, "tokens": tokens, "seconds": seconds}) + "\n")


def _row(study, segment, step, shift):
    recipe = segment.recipe
    row = {"tokens": step.tokens} | step_values(recipe, step)
    ends_decay = step.tokens == segment.end_tokens and recipe.phases[-1].ends_a_decay
    if study.evaluation.is_due(step.tokens_before, step.tokens) or ends_decay:
        row |= {"val_loss": val_loss_at(recipe, step.tokens) + shift, "parameter_norm": 1 + step.tokens / 1e4}
    if recipe.steps_at(step.tokens) % NOISE_STEPS == 0:
        row |= {"noise_trace": 1e3 / step.tokens, "noise_clip_factor": 0.75}
    if ends_decay:
        row["final_val_loss"] = float(window_losses(recipe).mean(dtype=np.float64))
    return row


def grid_study(folder, *, seeds=(0, 1), learning_rates=(2**-7, 2**-6), budgets=(24, 44, 64), trunk_steps=None):
    """WSD runs of several budgets on one trunk for each learning rate and seed."""
    study = made_study(folder)
    for seed in seeds:
        for learning_rate in learning_rates:
            for budget in budgets:
                train_by_hand(study, made_wsd(budget, learning_rate=learning_rate, seed=seed))
            if trunk_steps:
                train_by_hand(study, made_constant(trunk_steps, learning_rate=learning_rate, seed=seed))
    return Study.open(folder)
