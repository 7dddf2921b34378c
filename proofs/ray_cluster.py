"""A sweep on a Ray cluster of two nodes has the bytes of a local one, also if one of the nodes is lost midway.

Both nodes are on this machine, with Ray's own processes for each. The sweep has 21 segments of the nano model, a few
seconds each. Three times it is run through the command line:

- undisturbed;
- one node is lost: all its processes are killed (-9) once a third of the tokens is there;
- one raylet is killed (-9), the process that manages a node, and what it managed is left alone: Ray itself notices
  late, or never, that the segment there has no one to answer to.

What a lost node costs is at most one failure of each segment that ran there, and the tokens after its last state.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from proof import ENVIRONMENT, ISOTUNE, Proof, contents, write_recipe
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
SWEEP = ["--lr", "2^-10..2^-8", "--budgets", "60K,100K,140K", "--save-seconds", "0.5", "--quiet"]
MEASUREMENTS = ["--eval-every", "10K", "--eval-windows", "32", "--final-windows", "256", "--noise-every", "10K"]
NUM_TOKENS = 3 * (120_000 + 3 * 20_000)  # of each trunk, and of its three decays


def main() -> None:
    proof = Proof("ray_cluster")
    losses: dict[str, Callable[[Cluster], None]] = {
        "two nodes": lambda cluster: None,
        "a node is lost": lose_node,
        "a raylet is killed": kill_raylet,
    }
    if proof.needs(list(losses)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            recipe = write_recipe(folder / "recipe.toml", "60K")
            command = [ISOTUNE, "sweep", "run", str(recipe), *SWEEP, *MEASUREMENTS]
            local = [*command, "--workers", "2", "--study", str(folder / "local")]
            subprocess.run(local, env=ENVIRONMENT, check=True)
            print("the sweep is trained without Ray", flush=True)
            for number, (case, lose) in enumerate(losses.items()):
                study = folder / f"ray-{number}"
                proof.case(case, partial(sweep_on_ray, command, study, everything(folder / "local"), lose))
    proof.finish()


def sweep_on_ray(
    command: list[str], study: Path, expected: dict[str, bytes], lose: Callable[[Cluster], None]
) -> dict[str, Any]:
    """Runs the sweep on a fresh cluster and loses something once a third of its tokens is there."""
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        on_ray = [*command, "--study", str(study), "--on", "ray", "--ray-address", cluster.address]
        sweep = subprocess.Popen(on_ray, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while sweep.poll() is None and not (tokens_there(study) > NUM_TOKENS / 3 and num_running(study) == 2):
            time.sleep(0.1)
        tokens_at_loss = tokens_there(study)
        lose(cluster)
        stdout, stderr = sweep.communicate()
    finally:
        cluster.shutdown()
    found = everything(study)
    differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    journal = read_journal(study)
    crashes = [note for note in journal if note["kind"] == "crashed"]
    each_once = len({note["segment"] for note in crashes}) == len(crashes)
    was_lost = lose.__name__ != "<lambda>"
    return {
        "passed": sweep.returncode == 0 and not differing and each_once and bool(crashes) == was_lost,
        "exit_code": sweep.returncode,
        "segments": len({note["segment"] for note in journal}),
        "files_compared": len(expected),
        "differing_files": differing,
        "tokens_at_loss": tokens_at_loss if was_lost else None,
        "crashes": [without_names(note["reason"]) for note in crashes],
        "tokens_trained_again": sum(note["repeated_tokens"] for note in journal),
        # The first segment of a process opens the corpus and builds the model, the others do not.
        "ready_seconds": {"most": max(ready(journal)), "median": median(ready(journal))},
        "words_on_the_terminal": (stdout + stderr).strip(),
    }


def lose_node(cluster: Cluster) -> None:
    """Kills everything of the second node."""
    cluster.remove_node(second_node(cluster), allow_graceful=False)


def kill_raylet(cluster: Cluster) -> None:
    """Kills the process that manages the second node, and no other."""
    os.kill(second_node(cluster).all_processes["raylet"][0].process.pid, signal.SIGKILL)


def second_node(cluster: Cluster) -> Any:
    return next(node for node in cluster.list_all_nodes() if not node.is_head())


def everything(study: Path) -> dict[str, bytes]:
    """States, curves, windows' losses, and the segments' descriptions; not the timing."""
    records = study.glob("segments/*/segment.json")
    return contents(study) | {str(path.relative_to(study)): path.read_bytes() for path in records}


def tokens_there(study: Path) -> int:
    """Tokens of published segments."""
    records = [json.loads(path.read_text()) for path in study.glob("segments/*/segment.json")]
    return sum(record["end"]["tokens"] - record["start"]["tokens"] for record in records)


def num_running(study: Path) -> int:
    return len(list(study.glob("attempts/*.*/state.safetensors")))


def read_journal(study: Path) -> list[dict[str, Any]]:
    lines = [line for path in study.glob("drivers/*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def ready(journal: list[dict[str, Any]]) -> list[float]:
    return [note["ready_seconds"] for note in journal if note["kind"] == "finished"]


def without_names(reason: str) -> str:
    """A reason without the names of hosts, which are nobody's business."""
    before, _, after = reason.partition(" node ")
    return f"{before} node {after.partition(') ')[2]}" if after else before


if __name__ == "__main__":
    main()
