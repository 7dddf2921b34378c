"""What a seed does to the loss after a decay, and how far neighbours share it.

    python experiments/seed_noise.py [TABLE ...]

For each family of the tables that has cells with several seeds: the deviation of one run at each budget beyond what its
seed adds to all cells, over how many octaves of LR and over how much of log2(1 + n) runs of one seed share it, the part
that each has by itself (isotune/analyze/seed_noise.py), and how much seeds scatter at each LR.
Writes experiments/results/seed_noise.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "tuners"))
from landscape import Landscape
from scenarios import TABLES, landscapes

HERE = Path(__file__).resolve().parent


def main() -> None:
    names = sys.argv[1:] or sorted(folder.parent.name for folder in TABLES.glob("*/manifest.json"))
    found = {}
    for name in names:
        for family, landscape in landscapes(name).items():
            if landscape.noise is not None:
                found[f"{name}, {family}"] = described(landscape)
    text = json.dumps(found, indent=1)
    (HERE / "results" / "seed_noise.json").write_text(text + "\n")
    print(text)


def described(landscape: Landscape) -> dict[str, object]:
    noise = landscape.noise
    assert noise is not None
    losses = np.array(list(landscape.by_seed.values()))
    several = np.isfinite(losses).all(axis=2).sum(axis=0)
    relative = noise.deviations / landscape.truths.min(axis=0)
    levels = np.nanmean(losses - losses[0], axis=1)[:, -1] / landscape.truths[:, -1].min()
    return {
        "level_by_seed_at_the_last_budget": {
            str(seed): float(f"{value:.3g}") for seed, value in zip(landscape.by_seed, levels, strict=True)
        },
        "cells_by_number_of_seeds": {str(count): int(np.sum(several == count)) for count in np.unique(several)},
        "relative_deviation_by_budget": {
            str(budget): float(f"{value:.3g}") for budget, value in zip(landscape.budgets, relative, strict=True)
        },
        "shared_over_octaves_of_lr": noise.lr_length,
        "shared_over_log2_of_1_plus_n": noise.memory_length,
        "own_part_of_variance": noise.own,
        "level": float(f"{noise.level / landscape.truths[:, -1].min():.3g}"),
        "scatter_at_the_last_budget_by_log2_lr": scatter_by_lr(landscape),
    }


def scatter_by_lr(landscape: Landscape) -> dict[str, float]:
    """The relative deviation of a cell's seeds, levels included; root of the mean square over the cells of an LR."""
    losses = np.array(list(landscape.by_seed.values()))[:, :, -1]
    several = np.isfinite(losses).sum(axis=0) >= 2
    found = {}
    for lr in np.unique(landscape.log2_lr[several]):
        cells = losses[:, several & (landscape.log2_lr == lr)]
        squares = np.nanvar(np.log(cells), axis=0, ddof=1)
        found[f"{lr:g}"] = float(f"{np.sqrt(squares.mean()):.3g}")
    return found


if __name__ == "__main__":
    main()
