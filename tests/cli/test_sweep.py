"""`isotune sweep` from the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from test_mistakes import assert_one_sentence

GRID = ["--lr", "2^-9,2^-8", "--budgets", "3200,6400", "--decay-tokens", "1280"]
MEASURE = ["--eval-every", "1280", "--eval-windows", 4, "--final-windows", 8, "--workers", 2]


def test_a_sweep_from_plan_to_clean(isotune, tiny_recipe):
    plan = json.loads(isotune("sweep", "plan", tiny_recipe, *GRID, "--no-timing", "--json").stdout)
    assert (
        plan["recipes"] == 4 and plan["tokens"]["to_train"] == plan["tokens"]["shared"] < plan["tokens"]["separately"]
    )
    done = isotune("sweep", "run", tiny_recipe, *GRID, *MEASURE)
    assert done.returncode == 0, done.stderr
    trained = re.search(r"trained (\S+) tokens", done.stdout)[1]
    assert trained == re.search(r"to train (\S+) in", done.stderr)[1], "the sweep trains what the plan said"
    status = json.loads(isotune("sweep", "status", "studies/tiny", "--json").stdout)
    assert status["segments"]["waiting"] == 0 and status["num_recipes"] == 4
    assert status["price"]["there"] == plan["tokens"]["to_train"] and status["wasted_tokens"] == 0
    assert "4 runs" in isotune("sweep", "status", "studies/tiny").stdout
    assert "delete them with --yes" in isotune("sweep", "clean", "studies/tiny").stdout
    assert "deleted" in isotune("sweep", "clean", "studies/tiny", "--yes").stdout
    again = json.loads(isotune("sweep", "plan", tiny_recipe, *GRID, "--no-timing", "--json").stdout)
    assert again["missing_segments"] == 0


def test_a_plan_says_how_long_it_takes(isotune, tiny_recipe):
    assert re.search(
        r"time: \d+ s \(measured here, 2 single", isotune("sweep", "plan", tiny_recipe, *GRID, "--workers", 2).stdout
    )


def test_ctrl_c_saves_everything_and_the_same_command_continues(isotune, tiny_recipe, tmp_path):
    arguments = ["--lr", "2^-9", "--budgets", "6.4M", "--decay-tokens", "1280", "--workers", "1", "--eval-every", "0"]
    command = [sys.executable, "-m", "isotune", "sweep", "run", str(tiny_recipe), *arguments]
    process = subprocess.Popen(
        command, cwd=tiny_recipe.parent, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    attempts = tiny_recipe.parent / "studies" / "tiny" / "attempts"
    until = time.monotonic() + 90
    while not [p for p in attempts.glob("*/curve.jsonl") if p.stat().st_size > 30_000]:
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130 and "repeat the same command to continue" in errors
    assert "Traceback" not in errors
    assert list(attempts.glob("*/state.safetensors")), "the worker saved its state"
    assert not list((attempts.parent / "claims").iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lr", "2^-9..2^-7 by 3"], ["learning_rate", "2^-9..2^-7 by 3"]),
        (["--lr", "fast"], ["fast"]),
        (["--workers", "0"], ["--workers 0", "at least 1"]),
        (["--stale-seconds", "5"], ["--stale-seconds 5", "at least 10"]),
        (["--budgets", "128", "--decay-tokens", "1280"], ["128"]),
        (["--wd", "0.1", "--elr", "2^-12"], ["weight_decay"]),
        (["--table", "nothing-here"], ["nothing-here"]),
    ],
)
def test_a_mistake_is_one_sentence(isotune, tiny_recipe, arguments, words):
    assert_one_sentence(isotune("sweep", "run", tiny_recipe, *arguments), *words)
    assert not (tiny_recipe.parent / "studies").exists(), "nothing was written before everything was looked at"


def test_the_status_of_what_is_no_study(isotune, tiny_recipe):
    assert_one_sentence(isotune("sweep", "status", "nowhere"), "nowhere", "not a study")


def test_a_state_to_keep_that_is_not_there(isotune, tiny_recipe):
    isotune("train", tiny_recipe, "--eval-every", 0)
    assert_one_sentence(isotune("sweep", "clean", "studies/tiny", "--keep", "zzz"), "zzz", "runs list")
