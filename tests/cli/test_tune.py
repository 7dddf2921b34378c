"""`isotune tune`: a stranger's trainer and our own, from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = Path(__file__).parents[1] / "objectives" / "lonely_trainer.py"
COMMAND = (
    f"{sys.executable} {TRAINER} --lr {{learning_rate}} --wd {{weight_decay}} --max-tokens {{tokens}} --out {{out}}"
)
FOREIGN = ["--command", COMMAND, "--metrics", "{out}/metrics.jsonl", "--wd-convention", "coupled", "--tokens", "1M"]

SHORT = """
model = "nano"
corpus = "python-sources"

[schedule]
kind = "wsd"
tokens = "64K"
learning_rate = "2^-10"
weight_decay = 0.125
batch_size = 4
warmup_tokens = "2K"
decay_tokens = "8K"
"""


def tune(*arguments):
    command = [sys.executable, "-m", "isotune", "tune", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_command_is_tuned_and_what_was_answered_is_not_asked_again(tmp_path):
    options = [*FOREIGN, "--tokens-per-step", 64, "--lr", "2^-13..2^-8", "--octaves", 1, "--study", tmp_path / "runs"]
    options += ["--timeout-hours", 1 / 3600, "--tolerance", 0.4]
    first = tune(*options)
    assert first.returncode == 0, first.stderr
    assert "LR 2^-10" in first.stdout and "of a grid" in first.stdout
    assert "a grid of them would train" in first.stderr and "round 1" in first.stderr
    again = tune(*options, "--json", "--quiet")
    facts = json.loads(again.stdout)
    assert facts["result"]["num_rounds"] == 0 and facts["result"]["recommendation"]["learning_rate"] == 2.0**-10
    assert again.stderr == ""


def test_our_trainer_is_tuned_within_a_price(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(SHORT)
    options = ["short.toml", "--lr", "2^-11..2^-8", "--wd", "2^-6..2^-3", "--octaves", 1]
    options += [
        "--max-tokens",
        "140K",
        "--workers",
        2,
        "--eval-every",
        "16K",
        "--eval-windows",
        64,
        "--final-windows",
        64,
        "--noise-every",
        0,
    ]
    first = tune(*options, "--tolerance", 1e-6)
    assert first.returncode == 0, first.stderr
    assert "ended because: max_tokens" in first.stdout and "isotune diagnose studies/tune-short" in first.stdout
    assert len(list(Path("studies/tune-short/segments").iterdir())) >= 2


def test_runs_without_a_loss_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(SHORT)
    result = tune("short.toml", "--octaves", 1, "--max-tokens", "140K", "--workers", 2, "--eval-every", 0)
    assert result.returncode == 2 and "were not evaluated" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a recipe"),
        (["nano-wsd", *FOREIGN], "give one of them"),
        (["nano-wsd", "--metrics", "x"], "belongs to --command"),
        (["--command", COMMAND], "needs --metrics"),
        ([*FOREIGN, "--lr", "0.001"], "no range"),
        (["nano-cosine", "--max-tokens", "1M"], "WSD"),
        (["nano-wsd", "--tolerance", "0"], "tolerance"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = tune(*arguments)
    assert result.returncode == 2 and words in result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.strip().splitlines()) == 1
