"""The tuner live: what `make tune` recommends, retrained with three seeds, against the committed table of that recipe.

Three cases, each kept once it is passed:

- `tuning` does what `make tune` does, in a folder of its own, and takes the time: under eight minutes on two cores that
  have nothing else to do (`isotune tune` alone: setting up .venv is left out);
- `retrained` trains the recommendation, and the setting that is best by the table's smooth truth, with seeds that
  neither the tuner nor that choice has seen. Compared seed by seed, the recommendation is within 0.25 % on average;
- `random search`: the same regret is below the median of 20 random searches on the table that spend as many tokens,
  each with noise of its own, scored by the table's truth.

    python proofs/tune_live.py              # all of it: some ten minutes on two cores
    python proofs/tune_live.py --again      # forget the tuning that lies in studies/tune-live, and begin anew
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import proof
from proof import ENVIRONMENT, ROOT, Proof

sys.path.insert(0, str(ROOT / "benchmarks" / "tuners"))  # the truth of a table, and random search on it

from baselines import random as random_search
from landscape import Landscape, table_landscapes
from replay import Replay

from isotune.recipe import Recipe, read_recipe, wsd
from isotune.runs import Evaluation, Study, read_table
from isotune.runs.tables.prefixes import warmup_tokens
from isotune.sweep.run import run_sweep

# As in tune_kills.py.
proof.ROOMS["tune"] = (*proof.TRAINING_ROOMS, "sweep", "tune", "objectives")

RECIPE = ROOT / "recipes" / "nano-tune.toml"
TABLE, FAMILY = ROOT / "tables" / "nano", "batch 4"
STUDY = ROOT / "studies" / "tune-live"
SEEDS = (101, 102, 103)
MAX_SECONDS = 8 * 60
MAX_REGRET = 0.0025
NUM_SEARCHES = 20

Cell = tuple[float, float]  # LR, WD


def main() -> None:
    parser = argparse.ArgumentParser(description="What `make tune` recommends, against the committed table.")
    parser.add_argument("--again", action="store_true", help="begin the tuning anew")
    result = Proof("tune_live")
    if parser.parse_args().again:
        result.cases.clear()
        shutil.rmtree(STUDY, ignore_errors=True)
    result.case("tuning", tuning)
    tuned = result.cases["tuning"]
    chosen: Cell = (tuned["learning_rate"], tuned["weight_decay"])
    recipe = read_recipe(RECIPE)
    landscape = table_landscapes(read_table(TABLE))[FAMILY]
    result.case("retrained", partial(retrained, recipe, landscape, chosen, STUDY.with_name("tune-live-retrained")))
    regret = result.cases["retrained"]["regret"]
    result.case("random search", partial(against_random, landscape, recipe.tokens, tuned["spent_tokens"], regret))
    result.finish()


def tuning() -> dict[str, Any]:
    """`make tune`, for its limits."""
    command = ["make", "--silent", "tune", f"ARGS=--study {STUDY} --json --no-report"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True, text=True)
    facts = json.loads(done.stdout)
    result, best = facts["result"], facts["result"]["recommendation"]
    names = ("learning_rate", "weight_decay", "loss", "regret", "regret_bound")
    return {
        "passed": result["seconds"] < MAX_SECONDS and result["spent_before"] == 0,
        "seconds_of_tuning": round(result["seconds"], 1),
        "spent_tokens": result["spent_tokens"],
        "spent_before": result["spent_before"],  # by a call that was killed: then the time is not the whole
        "share_of_grid": result["spent_tokens"] / result["grid_tokens"],
        "stopped": result["stopped"],
        "num_rounds": result["num_rounds"],
    } | {name: best[name] for name in names}


def retrained(recipe: Recipe, landscape: Landscape, chosen: Cell, folder: Path) -> dict[str, Any]:
    """The recommendation and the table's best setting, seed by seed."""
    best = best_cell(landscape, recipe.tokens)
    comparison = compare(recipe, chosen, best, SEEDS, folder, num_workers=2)
    return {
        "passed": comparison.regret <= MAX_REGRET,
        "regret": comparison.regret,
        "standard_error": comparison.standard_error,
        "seeds": list(SEEDS),
        "recommended": {"learning_rate": chosen[0], "weight_decay": chosen[1], "losses": comparison.losses[chosen]},
        "best_of_table": {"learning_rate": best[0], "weight_decay": best[1], "losses": comparison.losses[best]},
        "truth_of_table": truth_of(landscape, recipe.tokens, chosen),
    }


def against_random(landscape: Landscape, budget: int, spent_tokens: int, regret: float) -> dict[str, Any]:
    """Random searches that spend no more."""
    regrets = [random_regret(landscape, budget, spent_tokens, seed) for seed in range(1, NUM_SEARCHES + 1)]
    return {
        "passed": regret < float(np.median(regrets)),
        "regret": regret,
        "median_of_random": float(np.median(regrets)),
        "regrets_of_random": sorted(regrets),
        "runs_of_each": spent_tokens // budget,
    }


# The table


def best_cell(landscape: Landscape, budget: int) -> Cell:
    index = int(np.argmin(landscape.truth(budget)))
    return 2.0 ** float(landscape.log2_lr[index]), 2.0 ** float(landscape.log2_wd[index])


def truth_of(landscape: Landscape, budget: int, cell: Cell) -> dict[str, float] | None:
    """The regret of a setting by the table itself; None if it is not one of its cells."""
    near = np.isclose(landscape.log2_lr, math.log2(cell[0])) & np.isclose(landscape.log2_wd, math.log2(cell[1]))
    return {"regret": float(landscape.regrets(budget)[near][0])} if near.any() else None


def random_regret(landscape: Landscape, budget: int, spent_tokens: int, seed: int) -> float:
    """Of the setting with the lowest loss among as many as the tokens pay for; of a random one if for none."""
    replay, rng = Replay(landscape, budget, seed), np.random.default_rng(seed)
    chosen: int | None = int(rng.integers(landscape.num_cells))
    for spent in random_search(replay, rng):
        if spent.tokens > spent_tokens:
            break
        chosen = spent.cell
    return math.inf if chosen is None else float(landscape.regrets(budget)[chosen])


# Training


@dataclass(frozen=True)
class Comparison:
    """Losses of two settings, by seed, and how much worse the first is."""

    losses: dict[Cell, list[float]]
    regret: float
    standard_error: float


def compare(
    recipe: Recipe,
    chosen: Cell,
    best: Cell,
    seeds: Sequence[int],
    folder: Path,
    *,
    num_workers: int,
    evaluation: Evaluation | None = None,
) -> Comparison:
    """Trains both settings with each seed, and compares within seeds: a seed moves both alike."""
    from isotune.sweep.run import local_workers

    recipes = {(cell, seed): with_settings(recipe, cell, seed) for cell in {chosen, best} for seed in seeds}
    run_sweep(list(recipes.values()), folder, evaluation=evaluation, make_executor=local_workers(num_workers))
    study = Study.open(folder)
    losses = {
        cell: [study.trajectory(recipes[cell, seed]).last("final_val_loss") for seed in seeds]
        for cell in dict.fromkeys((chosen, best))
    }
    regrets = np.array(losses[chosen]) / np.array(losses[best]) - 1
    return Comparison(losses, float(regrets.mean()), float(regrets.std(ddof=1) / math.sqrt(len(regrets))))


def with_settings(recipe: Recipe, cell: Cell, seed: int) -> Recipe:
    decay_tokens = recipe.phases[-1].tokens
    return wsd(
        replace(recipe.setup, seed=seed),
        tokens=recipe.tokens,
        learning_rate=cell[0],
        weight_decay=cell[1],
        batch_size=recipe.batch_size,
        warmup_tokens=warmup_tokens(recipe),
        decay_tokens=decay_tokens,
    )


if __name__ == "__main__":
    main()
