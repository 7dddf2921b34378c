"""Two processes that share the batches of a nano run have one process's losses, and continue after a kill."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from proof import ENVIRONMENT, ISOTUNE, Proof, contents, write_recipe

from isotune.recipe import read_recipe
from isotune.runs import Study, Trajectory

NUM_STEPS = 50
RELATIVE_TOLERANCE = 1e-5
OPTIONS = ["--save-seconds", "0", "--eval-every", "2560", "--eval-windows", "32", "--final-windows", "64", "--quiet"]


def main() -> None:
    proof = Proof("ranks")
    if proof.needs(["losses", "continued"]):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            recipe = write_recipe(folder / "recipe.toml", "17920", "2560")  # 70 steps, the last 10 decay
            for ranks in (1, 2):
                subprocess.run(command(recipe, folder / str(ranks), ranks), env=ENVIRONMENT, check=True)
            proof.case("losses", lambda: losses(read(recipe, folder / "1"), read(recipe, folder / "2")))
            proof.case("continued", lambda: continued(recipe, folder))
    proof.finish()


def command(recipe: Path, study: Path, ranks: int) -> list[str]:
    arguments = [ISOTUNE, "train", str(recipe), "--study", str(study), *OPTIONS]
    if ranks == 1:
        return arguments
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, "-m", *launcher, *arguments]


def read(recipe: Path, study: Path) -> Trajectory:
    return Study.open(study).trajectory(read_recipe(recipe))


def losses(one: Trajectory, two: Trajectory) -> dict[str, Any]:
    differences = {}
    for name in ("train_loss", "val_loss", "gradient_norm"):
        a, b = (trajectory.columns[name][: NUM_STEPS + 1] for trajectory in (one, two))
        there = ~np.isnan(a)
        differences[name] = float(np.max(np.abs(b[there] / a[there] - 1)))
    passed = max(differences["train_loss"], differences["val_loss"]) < RELATIVE_TOLERANCE
    return {"passed": passed, "steps": NUM_STEPS, "largest_relative_difference": differences}


def continued(recipe: Path, folder: Path) -> dict[str, Any]:
    """Kills both processes once a state is there, then repeats the command."""
    study = folder / "killed"
    launcher = subprocess.Popen(command(recipe, study, 2), env=ENVIRONMENT, stderr=subprocess.DEVNULL)  # it complains
    while launcher.poll() is None and not list(study.glob("attempts/*/state.safetensors")):
        time.sleep(0.01)
    for child in _children(launcher.pid):
        os.kill(child, signal.SIGKILL)
    status = launcher.wait()
    interrupted = len(list(study.glob("attempts/*/state.safetensors")))
    subprocess.run(command(recipe, study, 2), env=ENVIRONMENT, check=True)
    same = contents(study) == contents(folder / "2")
    return {"passed": status != 0 and same, "states_when_killed": interrupted, "equal_bytes": same}


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


if __name__ == "__main__":
    main()
