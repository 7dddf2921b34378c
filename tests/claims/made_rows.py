"""Sets of rows made by hand: runs with the curves and decayed losses that a test plants."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from isotune.claims import Tables, judge_claim, read_rules
from isotune.claims.rows import Run
from isotune.runs.trajectory import RunInfo, Trajectory

RULES = read_rules(Path(__file__).parents[2] / "experiments" / "claims.toml")
BUDGETS = (172_032, 344_064, 688_128, 1_376_256, 2_752_512)
END, WARMUP, DECAY = 2_686_976, 24_576, 131_072
SMALL_LR, SMALL_WD = range(-12, -6), range(-8, 1)
LARGE_LR, LARGE_WD = range(-11, -5), range(-4, 5)
LAST = BUDGETS[-1:]
TOKENS = np.append(np.arange(0, END, 12_288), END)


class MadeTables(Tables):
    """Tables of claims.toml with these runs: {"nano-small": [...]}."""

    def __init__(self, made):
        super().__init__(Path(__file__).parent, RULES)
        self.made = made

    def _runs_of(self, table):
        return self.made.get(table, [])


def make_run(
    lr, wd, *, seed=0, batch=4, final=None, decayed=None, windows=None, columns=None, scale=1.0, status="finished"
):
    """A run at 2^lr, 2^wd. `final` and `decayed`: losses of its decays by budget; `columns` may use x = tokens > 0."""
    made = {"tokens": TOKENS, "step": TOKENS / (64.0 * batch), "batch_size": np.full(len(TOKENS), float(batch))}
    made["learning_rate"] = np.where(TOKENS < WARMUP, 2.0**lr * TOKENS / WARMUP, 2.0**lr)
    made["weight_decay"] = np.full(len(TOKENS), 2.0**wd)
    for name, value in (columns or {}).items():
        made[name] = np.broadcast_to(value, TOKENS.shape).astype(float)
    if "val_loss" in made:
        made["val_loss"] = np.where(TOKENS % 61_440 == 0, made["val_loss"], np.nan)
    info = RunInfo(
        learning_rate=2.0**lr,
        weight_decay=2.0**wd,
        batch_size=batch,
        sequence_length=64,
        weight_decay_convention="coupled",
        schedule="",
        seed=seed,
        status=status,
        source="",
    )
    trajectory = Trajectory(made, info)
    record = SimpleNamespace(
        run=f"{lr} {wd} {seed} {batch} {scale}",
        seed=seed,
        tokens=END,
        warmup_tokens=WARMUP,
        status=status,
        init_scale=scale,
    )
    decays = {
        budget: SimpleNamespace(
            final_val_loss=(final or {}).get(budget),
            val_loss=(decayed or {}).get(budget),
            branch_tokens=budget - DECAY,
            decay_tokens=DECAY,
            window_losses=windows,
        )
        for budget in {*(final or {}), *(decayed or {})}
    }
    return Run(record, float(lr), float(wd), SimpleNamespace(trajectory=lambda _: trajectory), decays)


def decayed_grid(loss, lrs, wds, *, seeds=(0,), budgets=BUDGETS, noise=1e-4, random_seed=0):
    """Runs whose final loss is loss(lr, wd, budget) plus noise of each run and budget."""
    rng = np.random.default_rng(random_seed)
    return [
        make_run(lr, wd, seed=seed, final={b: loss(lr, wd, b) + noise * rng.standard_normal() for b in budgets})
        for lr in lrs
        for wd in wds
        for seed in seeds
    ]


def bowl(x0, y0, degrees=45.0, top=0.004, other=0.001, floor=1.5):
    """loss(lr, wd, budget) with its minimum at (x0(b), y0(b)) octaves and its steepest direction at this angle."""
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def loss(lr, wd, budget):
        x, y = lr - value(x0, budget), wd - value(y0, budget)
        along, across = cosine * x + sine * y, -sine * x + cosine * y
        return value(floor, budget) * (1 + top * along**2 + other * across**2)

    return loss


def value(given, budget):
    return given(budget) if callable(given) else given


def surface_tables(small, large=None, type2=None, noise=1e-4):
    made = {
        "nano-small": decayed_grid(small, SMALL_LR, SMALL_WD, noise=noise)
        + decayed_grid(small, range(-11, -7), (-12, -10), noise=noise, random_seed=6)
        + decayed_grid(small, range(-11, -8), range(-8, -5), seeds=(1, 2, 3, 4), noise=noise, random_seed=1)
    }
    if large is not None:
        made["nano-large"] = (
            decayed_grid(large, LARGE_LR, LARGE_WD, noise=noise, random_seed=2)
            + decayed_grid(large, range(-10, -7), (-8, -6, -5), noise=noise, random_seed=7)
            + decayed_grid(large, range(-10, -7), range(-4, -1), seeds=(1, 2), noise=noise, random_seed=3)
        )
    if type2 is not None:
        past = (1_376_256, 1_720_320, 2_162_688, 2_752_512)
        made["nano-type2"] = decayed_grid(
            type2, range(-11, -6), range(-6, 1), budgets=past, noise=noise, random_seed=4
        ) + decayed_grid(type2, (-10, -9), (-4, -3), seeds=(1, 2), budgets=past, noise=noise, random_seed=5)
    return MadeTables(made)


def verdict(claim, tables, draws=200):
    """The claim's verdict on these tables, with fewer draws than the rules ask for."""
    entry = RULES.claims[claim]
    entry = replace(entry, numbers=entry.numbers | {"bootstrap_draws": draws, "permutations": 499})
    return judge_claim(entry, tables)


def statistics(found, part=0):
    return found.judgements[part].measured.statistics
