"""Twenty runs of the nano model, each killed several times with SIGKILL, end with the bytes of one that was not.

A run is `isotune train` on 200K tokens with a state every .3 seconds, so that kills fall into training, evaluation, the
writing of states and publication alike. After its kills the same command completes it.
"""

import json
import random
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from proof import ENVIRONMENT, ISOTUNE, Proof, contents, write_recipe

NUM_RUNS = 20
NUM_TOKENS = 200_000
OPTIONS = ["--save-seconds", "0.3", "--eval-every", "10K", "--eval-windows", "32", "--final-windows", "256", "--quiet"]


def main() -> None:
    proof = Proof("kills")
    names = [f"run {number}" for number in range(NUM_RUNS)]
    if proof.needs(names):
        with tempfile.TemporaryDirectory() as folder:
            recipe = write_recipe(Path(folder) / "recipe.toml", str(NUM_TOKENS))
            subprocess.run(command(recipe, Path(folder) / "straight"), env=ENVIRONMENT, check=True)
            print("one run is trained without interruption", flush=True)
            expected = contents(Path(folder) / "straight")
            for number, name in enumerate(names):
                study = Path(folder) / str(number)
                proof.case(name, partial(killed_run, recipe, study, expected, number))
    proof.finish()


def command(recipe: Path, study: Path) -> list[str]:
    return [ISOTUNE, "train", str(recipe), "--study", str(study), *OPTIONS]


def killed_run(recipe: Path, study: Path, expected: dict[str, bytes], seed: int) -> dict[str, Any]:
    """Kills a run a moment after it has passed each of three random positions, then lets it end."""
    rng, tokens_at_kills = random.Random(seed), []
    for position in sorted(rng.randrange(NUM_TOKENS) for _ in range(3)):
        process = subprocess.Popen(command(recipe, study), env=ENVIRONMENT)
        while process.poll() is None and last_tokens(study) < position:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1))
        process.kill()
        if process.wait() == -signal.SIGKILL:
            tokens_at_kills.append(last_tokens(study))
    completed = subprocess.run(command(recipe, study), env=ENVIRONMENT, stderr=subprocess.PIPE, check=False)
    found = contents(study)
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    leftovers = [str(path.relative_to(study)) for path in study.rglob("*.part")] + [
        path.name for path in study.glob("attempts/?*.*")
    ]
    return {
        "passed": bool(tokens_at_kills) and completed.returncode == 0 and not differing and not leftovers,
        "tokens_at_kills": tokens_at_kills,
        "files_compared": len(expected),
        "differing_files": differing,
        "leftovers": leftovers,
    }


def last_tokens(study: Path) -> int:
    """The position of the last row that is on disk."""
    last = 0
    for curve in [*study.glob("segments/*/curve.jsonl"), *study.glob("attempts/*/curve.jsonl")]:
        with suppress(FileNotFoundError):  # published meanwhile
            for line in curve.read_bytes().split(b"\n")[:-1]:
                last = max(last, json.loads(line)["tokens"])
    return last


if __name__ == "__main__":
    main()
