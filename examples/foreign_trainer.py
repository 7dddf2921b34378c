"""Somebody else's trainer: numpy, its own AdamW, its own options, nothing of isotune. With the bad habits of real ones.

It fits 40 weights to noisy gradients of a quadratic loss, with warm-up, constant LR and a decay to zero. A "token" is
one sample. With a WD of 1 and more it runs out of memory, or so it says; below an LR of 2^-9 it never ends; and a loss
that reaches 8 becomes NaN.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

BATCH = 16

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--wd", type=float, required=True)
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--dir", type=Path, required=True)
options = parser.parse_args()

if options.wd >= 1:
    print("out of memory", file=sys.stderr)
    sys.exit(1)
if options.lr < 2**-9:
    time.sleep(3600)

rng = np.random.default_rng(0)
curvatures, target = np.logspace(-2, 0, 40), rng.standard_normal(40)
weights, first, second = np.zeros(40), np.zeros(40), np.zeros(40)
num_steps = options.samples // BATCH
with open(options.dir / "log.jsonl", "w") as log:
    for step in range(1, num_steps + 1):
        lr = options.lr * min(1.0, step / 10, (num_steps - step + 1) / (0.2 * num_steps))
        gradient = curvatures * (weights - target) + rng.standard_normal(40) / math.sqrt(BATCH)
        first = 0.9 * first + 0.1 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        update = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.95**step)) + 1e-8)
        weights -= lr * (update + options.wd * weights)
        if step % 10 == 0 or step == num_steps:
            loss = 2 + float(curvatures @ (weights - target) ** 2) / 2
            row = {"tokens": step * BATCH, "val_loss": loss if loss < 8 else math.nan}
            log.write(json.dumps(row) + "\n")
            if loss >= 8:
                break
