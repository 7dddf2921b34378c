"""What measuring gradient noise costs: steps with and without the meter, interleaved in one process on one thread.

    python benchmarks/noise_overhead.py [--quick]

A step is two microbatches (8 x 256 tokens; 4 x 64 on nano), clipping and AdamW, not compiled. "every step" is the ratio
of a measured step's time to a plain one's; hooks exist on measured steps only, so one measured step in ten costs a
tenth. The free estimator is one call, far below the noise of a step's time: the call itself is timed, inside steps.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness import circumstances, interleaved, summary, write_results
from torch import nn

from isotune.measure import NoiseMeter, free_noise, hidden_matrices
from isotune.model import Transformer
from isotune.recipe import PRESETS, AdamW, Init, ModelShape, Setup
from isotune.train.trainer import make_optimizer

TWENTY_MILLION = ModelShape(width=160, num_layers=12, num_heads=5, ffn_width=432, vocabulary_size=50_304)
CASES: dict[str, dict[str, Any]] = {
    "nano": {"shape": PRESETS["nano"], "micro_batch": (4, 64), "rounds": 400, "goal_one_in_ten": 0.03},
    "micro": {"shape": PRESETS["micro"], "micro_batch": (8, 256), "rounds": 16, "goal_one_in_ten": 0.01},
    "20M": {"shape": TWENTY_MILLION, "micro_batch": (8, 256), "rounds": 10, "goal_one_in_ten": 0.01},
}
GOAL_FREE = 0.005


def main() -> None:
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv
    about = circumstances()
    results = {}
    for name, case in CASES.items():
        results[name] = measure(case, 3 if quick else case["rounds"])
        print(name, {key: value["median"] for key, value in results[name]["overhead"].items()}, flush=True)
    if not quick:
        print(write_results("noise_overhead", about, results))


def measure(case: dict[str, Any], num_rounds: int) -> dict[str, Any]:
    free_seconds: list[float] = []
    plain, metered, with_free = contenders(case["shape"], *case["micro_batch"], free_seconds)
    for warm_up in (plain, metered, with_free):
        warm_up()
    free_seconds.clear()
    seconds = interleaved({"plain": plain, "metered": metered, "free": with_free}, num_rounds)
    every = seconds["metered"] / seconds["plain"] - 1
    free = np.array(free_seconds) / seconds["plain"]
    one_in_ten = summary(every / 10)
    return {
        "parameters": case["shape"].num_parameters,
        "micro_batch": case["micro_batch"],
        "seconds_per_step": summary(seconds["plain"]),
        "overhead": {
            "every step": summary(every) | {"goal": 0.01},
            "one step in ten": one_in_ten
            | {"goal": case["goal_one_in_ten"], "met": bool(one_in_ten["median"] <= case["goal_one_in_ten"])},
            "free estimator every step": summary(free) | {"goal": GOAL_FREE, "met": bool(np.median(free) <= GOAL_FREE)},
        },
    }


def contenders(shape: ModelShape, batch_size: int, length: int, free_seconds: list[float]) -> list[Callable[[], None]]:
    """The same step three times: alone, with the meter, with the free estimator, whose seconds are noted."""
    setup = Setup(model=shape, sequence_length=length, optimizer=AdamW())
    model = Transformer(shape, length)
    model.initialize(Init(), 0)
    optimizer = make_optimizer(model, setup)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    meter = NoiseMeter(model, optimizer, micro_batch_size=batch_size, every_steps=None)
    names = hidden_matrices(model)
    hidden = [parameter for name, parameter in model.named_parameters() if name in names]
    batches = torch.randint(0, shape.vocabulary_size, (2, batch_size, length + 1))
    parameters = list(model.parameters())

    def step(measure: Callable[[], object]) -> None:
        for batch in batches:
            (model.sequence_losses(batch).mean() / 2).backward()
        measure()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def metered() -> None:
        meter.arm()
        step(meter.measure)

    def free() -> None:
        began = time.perf_counter()
        free_noise(optimizer, hidden)
        free_seconds.append(time.perf_counter() - began)

    return [lambda: step(lambda: None), metered, lambda: step(free)]


if __name__ == "__main__":
    main()
