"""Gradient noise of real nano runs: does it collapse along ELR, does the clip correction matter, is the batch small?

    python experiments/noise_on_nano.py train      # repeatable, also two at once; about 15 minutes on two cores
    python experiments/noise_on_nano.py report     # writes experiments/results/noise_on_nano.json

Runs: batch 4, 10,000 steps, LR 2^-11..2^-8 along three ELR diagonals (2^-14, 2^-12, 2^-10), compiled; and one run at
batch 256 for the batch's verdict.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"

import itertools
import json
import random
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from harness import circumstances

from isotune.measure import windows
from isotune.recipe import PRESETS, Setup, constant
from isotune.runs import Study

STUDY = Path("studies/noise-on-nano")
RESULT = Path(__file__).parent / "results" / "noise_on_nano.json"
SETUP = Setup(model=PRESETS["nano"])
TOKENS = 2_560_000
ELRS = [2.0**-14, 2.0**-12, 2.0**-10]
LRS = [2.0**-11, 2.0**-10, 2.0**-9, 2.0**-8]
EVALUATION = {"every_tokens": 512_000, "windows": 256, "noise_every_tokens": 12_800}
PARTS = {"10-25 %": (0.10, 0.25), "25-50 %": (0.25, 0.50), "50-100 %": (0.50, 1.00)}
BINS_PER_PART = 5


def small_batch_recipe(elr, lr):
    return constant(SETUP, tokens=TOKENS, learning_rate=lr, weight_decay=elr / lr, batch_size=4, warmup_tokens="25.6K")


def large_batch_recipe():
    return constant(SETUP, tokens="5.12M", learning_rate=2**-8, weight_decay=0.5, batch_size=256, warmup_tokens="98304")


def train_all():
    from isotune.train import Execution, train

    recipes = [small_batch_recipe(elr, lr) for elr in ELRS for lr in LRS] + [large_batch_recipe()]
    random.shuffle(recipes)  # so that two processes rarely meet
    for recipe in recipes:
        trajectory = train(recipe, STUDY, execution=Execution(compiled=True), evaluation=EVALUATION)
        name = f"LR {recipe.learning_rate:.5f} WD {recipe.weight_decay:.4f} batch {recipe.batch_size}"
        print(f"{name}: {trajectory.info.status}, val loss {trajectory.last('val_loss'):.4f}", flush=True)


def noise_curve(trajectory, kind):
    """The noise in bins of the run: corrected for clipping, uncorrected, or from the optimizer's state alone."""
    columns = trajectory.columns
    position = columns["tokens"] / TOKENS
    measured = ~np.isnan(columns["precond_noise_trace"])
    values = []
    for low, high in PARTS.values():
        for a, b in itertools.pairwise(np.linspace(low, high, BINS_PER_PART + 1)):
            rows = measured & (position > a) & (position <= b)
            lr, batch, clip = (columns[name][rows] for name in ("learning_rate", "batch_size", "noise_clip_factor"))
            if kind == "free":
                values.append(np.mean(lr * columns["root_moment_sum"][rows]) / np.mean(clip))
            else:
                clip = clip if kind == "corrected" else None
                values.append(windows.scaled_noise(columns["precond_noise_trace"][rows], lr, batch, clip).value)
    return np.array(values).reshape(len(PARTS), BINS_PER_PART)


def relative_distance(a, b):
    return np.linalg.norm(a - b) / np.sqrt((np.sum(a**2) + np.sum(b**2)) / 2)


def distances(curves):
    """Mean relative distance of pairs within an ELR group and between groups, per part of the run."""
    result = {}
    for index, part in enumerate(PARTS):
        within, between = [], []
        for (elr_a, lr_a), (elr_b, lr_b) in itertools.combinations(curves, 2):
            distance = relative_distance(curves[elr_a, lr_a][index], curves[elr_b, lr_b][index])
            (within if elr_a == elr_b else between).append(distance)
        result[part] = {
            "within": round(float(np.mean(within)), 4),
            "between": round(float(np.mean(between)), 4),
            "ratio": round(float(np.mean(between) / np.mean(within)), 3),
        }
    return result


def free_against_meter(trajectory):
    """The free estimator over the metered noise + signal, in the second half of a run."""
    columns = trajectory.columns
    rows = ~np.isnan(columns["precond_noise_trace"]) & (columns["tokens"] > TOKENS / 2)
    lr, batch, clip = (columns[name][rows] for name in ("learning_rate", "batch_size", "noise_clip_factor"))
    noise = windows.scaled_noise(columns["precond_noise_trace"][rows], lr, batch, clip)
    signal = windows.scaled_gradient(columns["precond_gradient_sq_norm"][rows], lr, clip)
    all_clips = columns["clip_factor"][columns["tokens"] > TOKENS / 2]
    free = float(np.mean(lr * columns["root_moment_sum"][rows]) / np.mean(all_clips))
    return {
        "free": round(free, 4),
        "noise": round(noise.value, 4),
        "noise_interval": [round(noise.low, 4), round(noise.high, 4)],
        "signal": round(signal.value, 4),
        "free / (noise + signal)": round(free / (noise.value + signal.value), 4),
    }


def batch_verdicts(trajectory, after_share):
    columns = trajectory.columns
    rows = ~np.isnan(columns["precond_noise_trace"]) & (columns["tokens"] > after_share * columns["tokens"][-1])
    noise, signal, batch = (
        columns[name][rows] for name in ("precond_noise_trace", "precond_gradient_sq_norm", "batch_size")
    )
    verdict, scale = windows.batch_verdict(noise, signal, batch), windows.noise_scale(noise, signal)
    return {
        "batch_size": int(batch[0]),
        "verdict": verdict.verdict,
        "noise_scale": round(scale.value, 1),
        "noise_scale_interval": [round(scale.low, 1), round(scale.high, 1)],
        "level": scale.level,
        "num_values": scale.num_values,
        "warnings": list(scale.warnings),
    }


def report():
    study = Study.open(STUDY)
    trajectories = {(elr, lr): study.trajectory(small_batch_recipe(elr, lr)) for elr in ELRS for lr in LRS}
    unfinished = [key for key, trajectory in trajectories.items() if trajectory.info.status != "finished"]
    if unfinished:
        raise SystemExit(f"not finished: {unfinished}; run `train` first")
    kinds = ("corrected", "uncorrected", "free")
    curves = {kind: {key: noise_curve(t, kind) for key, t in trajectories.items()} for kind in kinds}
    large = study.trajectory(large_batch_recipe())
    result = circumstances() | {
        "distances_by_elr": {kind: distances(curves[kind]) for kind in kinds},
        "late_noise": {
            kind: {
                f"ELR {elr:.3g}": {f"LR {lr:.3g}": round(float(curves[kind][elr, lr][-1].mean()), 4) for lr in LRS}
                for elr in ELRS
            }
            for kind in kinds
        },
        "mean_clip_factor": {
            f"ELR {elr:.3g} LR {lr:.3g}": round(float(np.nanmean(t.columns["clip_factor"][5000:])), 3)
            for (elr, lr), t in trajectories.items()
        },
        "free_against_meter": {
            f"ELR {elr:.3g} LR {lr:.3g}": free_against_meter(t) for (elr, lr), t in trajectories.items()
        },
        "batch_verdicts": {
            "batch 4, LR 2^-10, ELR 2^-12": batch_verdicts(trajectories[2.0**-12, 2.0**-10], 0.1),
            "batch 256, LR 2^-8, WD 0.5": batch_verdicts(large, 0.2),
        },
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("distances_by_elr", "batch_verdicts")}, indent=1))


if __name__ == "__main__":
    {"train": train_all, "report": report}[sys.argv[1] if len(sys.argv) > 1 else "train"]()
