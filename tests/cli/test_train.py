"""`isotune train`, `runs` and `recipe show`, end to end."""

import fcntl
import json
import signal
import subprocess
import sys
import time

import numpy as np
from made import NUMERICS, STEP, made_constant, made_study, write_rows

from isotune.recipe import format_tokens

TRUNK = 128_000 - 2_560  # of the run that is stopped: its decay has not begun


def test_training_prints_a_curve_and_the_loss(isotune, tiny_recipe):
    done = isotune("train", tiny_recipe, "--study", "study")
    assert done.returncode == 0, done.stderr
    assert "┌" in done.stdout
    assert "tokens" in done.stdout
    assert "finished" in done.stdout
    assert "validation loss after the decay" in done.stdout
    assert "\x1b" not in done.stdout, "colours in a file"


def test_quiet_prints_nothing(isotune, tiny_recipe):
    done = isotune("train", tiny_recipe, "--study", "study", "--eval-every", 0, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_finished_run_is_not_trained_again(isotune, tiny_recipe, trained):
    done = isotune("train", tiny_recipe, "--study", "study")
    assert "training 0 tokens (12.8K of 12.8K are there already)" in done.stderr


def test_a_longer_budget_trains_only_what_is_missing(isotune, tiny_recipe, trained):
    done = isotune("train", tiny_recipe, "--study", "study", "--tokens", "25600")
    # The trunk up to 10,240 tokens is there; the rest of the trunk and the longer budget's decay are not.
    assert "training 15.4K tokens (10.2K of 25.6K are there already)" in done.stderr


def test_runs_are_listed_with_what_they_reached(isotune, tiny_recipe, trained):
    assert isotune("train", tiny_recipe, "--study", "study", "--lr", "2^-9", "--seed", 3, "--quiet").returncode == 0
    rows = json.loads(isotune("runs", "list", "study", "--json").stdout)
    assert [(row["learning_rate"], row["seed"], row["status"]) for row in rows] == [
        (2**-9, 3, "finished"),
        (2**-8, 0, "finished"),
    ]
    assert all(2 < row["final_val_loss"] < 5.6 for row in rows)
    text = isotune("runs", "list", "study").stdout
    assert "2^-9" in text
    assert rows[0]["run"] in text


def test_a_run_is_shown_with_all_its_columns(isotune, trained):
    run = json.loads(isotune("runs", "list", "study", "--json").stdout)[0]["run"]
    shown = json.loads(isotune("runs", "show", "study", run[:4], "--json").stdout)
    columns = shown["columns"]
    assert columns["tokens"] == [0, *range(64, 12_801, 64)]
    evaluated = [
        tokens for tokens, loss in zip(columns["tokens"], columns["val_loss"], strict=True) if loss is not None
    ]
    assert evaluated == [0, 3200, 6400, 9600, 12_800]
    assert np.argmax(columns["learning_rate"]) == 21  # the first step after 1,280 tokens of warm-up
    assert "0.003906 -> 0 over 2.56K" in isotune("runs", "show", "study", run).stdout


def test_a_diverged_run_says_so(isotune, tiny_recipe):
    done = isotune("train", tiny_recipe, "--study", "study", "--lr", "1e30", "--eval-every", 0)
    assert done.returncode == 0, done.stderr
    assert "diverged" in done.stdout
    assert "lower the learning rate" in done.stdout


def test_control_c_saves_and_the_same_command_goes_on(isotune, tiny_recipe, tmp_path):
    command = ["train", str(tiny_recipe), "--study", "stopped", "--tokens", "128K", "--eval-every", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "isotune", *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not any((tmp_path / "stopped").glob("segments/*/segment.json")):  # the warm-up is published: it trains
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "repeat the same command to continue" in errors
    assert "Traceback" not in errors
    assert_listed_as_stopped(isotune, tmp_path / "stopped")
    assert isotune(*command, "--quiet").returncode == 0
    command[command.index("stopped")] = "uninterrupted"
    assert isotune(*command, "--quiet").returncode == 0
    states = [
        {path.name: path.read_bytes() for path in (tmp_path / study / "states").iterdir()}
        for study in ("stopped", "uninterrupted")
    ]
    assert states[0] == states[1]


def assert_listed_as_stopped(isotune, study):
    """Not as running, and with what it has come to; while a process holds its folder, it runs."""
    (row,) = json.loads(isotune("runs", "list", study, "--json").stdout)
    assert (row["status"], row["tokens"]) == ("stopped", TRUNK) and 0 < row["tokens_trained"] < TRUNK
    assert f"{format_tokens(row['tokens_trained'])} of {format_tokens(TRUNK)}" in isotune("runs", "list", study).stdout
    (lock,) = study.glob("attempts/*/lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert json.loads(isotune("runs", "list", study, "--json").stdout)[0]["status"] == "running"


def test_the_loss_of_the_untrained_model_is_not_listed(isotune, tmp_path):
    study = made_study(tmp_path / "study")
    (segment,) = study.missing(made_constant(40))
    write_rows(study.new_attempt(segment, NUMERICS), segment, through_tokens=8 * STEP)
    (row,) = json.loads(isotune("runs", "list", "study", "--json").stdout)
    assert (row["status"], row["tokens_trained"], row["val_loss"]) == ("stopped", 8 * STEP, None)


def test_recipe_show_says_what_a_recipe_means(isotune):
    facts = json.loads(isotune("recipe", "show", "nano-wsd", "--json", "--no-timing").stdout)
    assert facts["parameters"] == 133_440
    assert facts["steps"] == 10_000
    assert [phase["tokens"] for phase in facts["phases"]] == [25_600, 2_406_400, 128_000]
    assert facts["memory_times"] == 9_400 * 2**-10 * 0.125
    assert facts["flops"] == 2_560_000 * (6 * (133_440 - 256 * 64) + 12 * 2 * 64 * 64)


def test_recipe_show_estimates_the_time_here(isotune, tiny_recipe):
    facts = json.loads(isotune("recipe", "show", tiny_recipe, "--json").stdout)
    assert 0 < facts["estimated_seconds"] < 3600


def test_recipe_show_says_what_was_rounded(isotune):
    done = isotune("recipe", "show", "nano-wsd", "--batch-size", 64, "--no-timing")
    assert "asked 128,000" in done.stdout
    assert "rounded" in done.stdout


def test_the_papers_model_has_163_6_million_parameters(isotune):
    facts = json.loads(isotune("recipe", "show", "paper-164m", "--json", "--no-timing").stdout)
    assert round(facts["parameters"] / 1e6, 1) == 163.6
    assert facts["tokens"] == round(105e9 / (512 * 1024)) * (512 * 1024)


def test_training_without_torch_says_what_to_install(tmp_path, tiny_recipe):
    code = "import sys; sys.modules['torch'] = None; from isotune.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", str(tiny_recipe)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'isotune[train]'" in done.stderr


def test_prepared_text_can_be_trained_on(isotune, tiny_recipe, tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(40):
        (tmp_path / "text" / f"{number}.txt").write_text(f"This is document {number}. " * 60)
    done = isotune("prepare", "text", "--out", "corpus", "--tokenizer", "bytes", "--validation-share", 0.2)
    assert done.returncode == 0, done.stderr
    assert "held out" in done.stdout
    done = isotune("train", tiny_recipe, "--corpus", "corpus", "--study", "study", "--quiet")
    assert done.returncode == 0, done.stderr
    assert not [path for path in (tmp_path / "study" / "attempts").iterdir() if path.is_dir()]


def test_a_trained_run_leaves_as_a_llama(isotune, trained, tmp_path):
    from safetensors.numpy import load_file

    run = json.loads(isotune("runs", "list", "study", "--json").stdout)[0]["run"]
    done = isotune("runs", "export", "study", run, "--to", "llama")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "llama" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    tensors = load_file(tmp_path / "llama" / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].shape == (256, 16)
