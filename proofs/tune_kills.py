"""`isotune tune`, killed (-9, with its workers) at twenty random moments, goes on and recommends what it would have.

A model of a few thousand parameters and a budget of 25,600 tokens: a run takes a second or two. Two tunings, one with
one worker, one with two. Each is killed twenty times, a random moment after it has trained a random number of tokens
(one in four soon after the kill before, while processes start), and continued by the same command. Then:

- with one worker it has asked the same questions, spent the same tokens and recommends the same as one that nobody
  killed: what it asks is a function of what the study holds;
- with two, a kill may leave a round half answered, so that the next one asks something else. Both recommendations are
  trained at the full budget, and the killed tuning's is at most its own regret bound worse.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import proof
from proof import ENVIRONMENT, ISOTUNE, Proof

# Set here: proof.py is part of every proof's digest, so that a new line there would make all of them be run again.
proof.ROOMS["tune"] = (*proof.TRAINING_ROOMS, "sweep", "tune", "objectives")

NUM_KILLS = 20
SECONDS_BETWEEN_LOOKS = 0.02
TOKENS, MAX_TOKENS = 25_600, 160_000
RECIPE = f"""
sequence_length = 16
corpus = "python-sources"
[model]
width = 16
num_layers = 1
num_heads = 2
ffn_width = 32
vocabulary_size = 256
[schedule]
kind = "wsd"
tokens = {TOKENS}
learning_rate = "2^-8"
weight_decay = 0.1
batch_size = 4
warmup_tokens = 1280
decay_tokens = 3200
"""
OPTIONS = ["--lr", "2^-10..2^-4", "--wd", "2^-6..1", "--octaves", "1", "--max-tokens", str(MAX_TOKENS)]
# A tolerance that is never reached: the price limit ends it, after a known number of tokens.
OPTIONS += ["--tolerance", "0.0001", "--save-seconds", "0.2", "--json", "--quiet", "--no-report"]
MEASUREMENTS = ["--eval-every", "12800", "--eval-windows", "16", "--final-windows", "256", "--noise-every", "0"]


def main() -> None:
    result = Proof("tune_kills")
    cases = {f"{number} worker{'s' * (number > 1)}": number for number in (1, 2)}
    if result.needs(list(cases)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "tiny.toml").write_text(RECIPE)
            for case, num_workers in cases.items():
                result.case(case, partial(compared, folder, num_workers))
    result.finish()


def compared(folder: Path, num_workers: int) -> dict[str, Any]:
    """A tuning that nobody disturbs, and one that is killed."""
    recipe, straight, study = folder / "tiny.toml", folder / f"straight-{num_workers}", folder / f"killed-{num_workers}"
    expected = json.loads(subprocess.run(command(recipe, straight, num_workers), **QUIET).stdout)["result"]
    kills = kill_many(command(recipe, study, num_workers), study, expected["spent_tokens"], random.Random(num_workers))
    ended = subprocess.run(command(recipe, study, num_workers), **QUIET)
    found = json.loads(ended.stdout)["result"]
    is_same = found["recommendation"] == expected["recommendation"]
    facts = {
        "kills": len(kills),
        "tokens_at_kills": kills,
        "questions": len(asked(study)),
        "same_questions": asked(study) == asked(straight),
        "same_recommendation": is_same,
        "spent_tokens": {"undisturbed": expected["spent_tokens"], "killed": found["spent_tokens"]},
        "recommended": {"undisturbed": settings(expected), "killed": settings(found)},
    }
    if num_workers == 1:
        same_price = found["spent_tokens"] == expected["spent_tokens"]
        return facts | {"passed": is_same and facts["same_questions"] and same_price and len(kills) == NUM_KILLS}
    losses = [loss_of(recipe, folder / "checked", settings(one)) for one in (expected, found)]
    regret, bound = losses[1] / losses[0] - 1, found["recommendation"]["regret_bound"]
    facts |= {"losses": {"undisturbed": losses[0], "killed": losses[1]}, "regret": regret, "stated_regret_bound": bound}
    return facts | {"passed": regret <= bound and len(kills) == NUM_KILLS}


QUIET: dict[str, Any] = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "check": True, "text": True}


def command(recipe: Path, study: Path, num_workers: int) -> list[str]:
    where = ["--study", str(study), "--workers", str(num_workers)]
    return [ISOTUNE, "tune", str(recipe), *OPTIONS, *MEASUREMENTS, *where]


def kill_many(command: list[str], study: Path, num_tokens: int, rng: random.Random) -> list[int]:
    """Kills and continues it; returns how many tokens had been trained at each kill."""
    kills = []
    positions = sorted(rng.randrange(9 * num_tokens // 10) for _ in range(NUM_KILLS))
    for position in positions:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        wanted = position if rng.random() < 0.75 else 0
        while process.poll() is None and trained_tokens(study) < wanted:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        time.sleep(rng.uniform(0, 2))
        if process.poll() is None:
            kills.append(trained_tokens(study))
        kill_with_workers(process)
    return kills


def kill_with_workers(process: subprocess.Popen[bytes]) -> None:
    """Ends the command and its workers, which have sessions of their own, at once."""
    with contextlib.suppress(OSError):
        process.send_signal(signal.SIGSTOP)  # so that it starts no worker meanwhile
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, workers)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def trained_tokens(study: Path) -> int:
    """What lies on the disk, published or not."""
    total = 0
    for curve in [*study.glob("segments/*/curve.jsonl"), *study.glob("attempts/*/curve.jsonl")]:
        with contextlib.suppress(OSError, IndexError, ValueError):  # published meanwhile, or no row yet
            rows = curve.read_bytes().split(b"\n")[:-1]
            total += json.loads(rows[-1])["tokens"] - json.loads(rows[0])["tokens"]
    return total


def asked(study: Path) -> set[str]:
    """The recipes that were asked for."""
    return {
        json.dumps(recipe, sort_keys=True)
        for path in study.glob("plans/*.json")
        for recipe in json.loads(path.read_text())["recipes"]
    }


def settings(result: dict[str, Any]) -> dict[str, float]:
    return {name: result["recommendation"][name] for name in ("learning_rate", "weight_decay")}


def loss_of(recipe: Path, study: Path, chosen: dict[str, float]) -> float:
    """What a setting gives at the full budget."""
    options = ["--lr", repr(chosen["learning_rate"]), "--wd", repr(chosen["weight_decay"]), "--study", str(study)]
    subprocess.run([ISOTUNE, "train", str(recipe), *options, *MEASUREMENTS, "--quiet"], **QUIET)
    from isotune.recipe import read_recipe
    from isotune.runs import Study

    trained = read_recipe(recipe, {name: repr(value) for name, value in chosen.items()})
    return float(Study.open(study).trajectory(trained).last("final_val_loss"))


if __name__ == "__main__":
    main()
