"""A trainer that shares no code with isotune: plain Python, a made-up loss, and bad habits in parts of its range."""

import argparse
import json
import math
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
for option in ("--lr", "--wd", "--max-tokens"):
    parser.add_argument(option, type=float, required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--from", dest="resume", default="")
options = parser.parse_args()

begin = 0
if options.resume:
    begin = json.loads((Path(options.resume) / "metrics.jsonl").read_text().splitlines()[-1])["tokens"]
(Path(options.out) / "began_at").write_text(str(begin))
u, v = math.log2(options.lr) + 10, math.log2(options.wd)
if v == -8 and u < -1:
    print("cuda out of memory, or so", file=sys.stderr)
    sys.exit(3)
if v == 0 and u < 0:
    time.sleep(600)  # hangs
with open(Path(options.out) / "metrics.jsonl", "w") as file:
    for part in range(1, 5):
        tokens = begin + (options.max_tokens - begin) * part / 4
        n = options.lr * options.wd * tokens / 64
        loss = 2 * math.exp(0.01 * u * u + 0.01 * math.log2(1 + n) ** 2 - 0.05 * math.log2(tokens / 1e6))
        if u > 2 and part > 2:
            loss = math.nan
        file.write(json.dumps({"step": part, "tokens": tokens, "val_loss": loss, "grad_norm": 1.0}) + "\n")
