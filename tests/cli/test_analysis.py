"""`isotune diagnose`, `fit` and `advise` as a user runs them, on runs under foreign names; mistakes too."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from test_mistakes import assert_one_sentence

from isotune.cli import isotune as command_line
from isotune.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "analyze"))
from made_sweeps import BUDGETS, best_settings, drifting_optimum

MAP = ["--map", "learning_rate=lr", "--map", "weight_decay=optim.wd", "--map", "val_loss=eval/loss"]
SET = ["--set", "batch_size=4", "--set", "sequence_length=64"]
OPTIONS = [*MAP, *SET, "--run-column", "run_id", "--wd-convention", "coupled"]


def write_csv(path, runs):
    """A row per evaluation, under the names of nobody in particular; seeds and settings in columns of their own."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run_id", "step", "lr", "optim.wd", "eval/loss", "seed", "gpu_hours"])
        for index, run in enumerate(runs):
            columns = run.columns
            for row in range(len(run.tokens)):
                loss = columns["val_loss"][row]
                values = [columns["learning_rate"][row], run.info.weight_decay, "" if np.isnan(loss) else loss]
                writer.writerow([f"run {index}", columns["step"][row], *values, 0, 1.5])
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    runs = drifting_optimum(np.random.default_rng(0), budgets=BUDGETS[:3], wd=np.arange(-7.0, 0.0))
    return write_csv(tmp_path_factory.mktemp("foreign") / "runs.csv", runs)


def call(*arguments):
    """What a command prints, in this process: starting one costs more than the arithmetic."""
    result = CliRunner().invoke(command_line, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def parsed(text):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


# What they say


def test_diagnose_says_verdict_surfaces_and_next_run(source):
    text = call("diagnose", source, *OPTIONS)
    words = " ".join(text.split())
    assert "168 runs" in words
    assert "batch 4: 42 cells, 42 curves" in words
    assert "what the runs are invariant to is undecided" in words or "runs of equal" in words
    assert "the final loss changes most at" in words and "(0 is LR, 45 ELR, 90 WD)" in words
    assert "Next run" in words
    assert "gpu_hours" in words  # a column that nobody has a name for is noted


def test_diagnose_as_json_has_the_same(source):
    read = parsed(call("diagnose", source, *OPTIONS, "--json"))
    (diagnosis,) = read["diagnoses"]
    assert read["num_runs"] == 168 and read["kind"] == "files"
    assert [finding["tokens"] for finding in diagnosis["surfaces"]] == list(BUDGETS[:3])
    assert {finding["stage"] for finding in diagnosis["stages"]} == {"early", "middle", "late"}
    assert diagnosis["next_run"]["why"]
    assert diagnosis["invariant"] in ("LR", "ELR", "WD", "another", "neither", "undecided")


def test_fit_recovers_the_drift_and_says_what_is_missing(source):
    text = call("fit", source, *OPTIONS)
    assert "best LR against tokens" in text and "no law of" in text
    (laws,) = parsed(call("fit", source, *OPTIONS, "--json"))["laws"]
    low, high = laws["optimal_learning_rate"]["exponent_interval"]
    assert low <= -0.3 <= high
    assert laws["noise"] is None and laws["reasons"]["noise"]


def test_advise_gives_settings_with_intervals_and_lines_to_paste(source):
    text = call("advise", source, *OPTIONS, "--tokens", BUDGETS[1])
    lr, wd, _ = best_settings(BUDGETS[1])
    read = parsed(call("advise", source, *OPTIONS, "--tokens", BUDGETS[1], "--json"))["advice"]
    assert read["learning_rate"]["value"] == pytest.approx(lr, rel=0.05)
    assert read["weight_decay"]["value"] == pytest.approx(wd, rel=0.1)
    assert "torch.optim.AdamW(" in text and "(coupled) for 655K tokens" in text
    assert read["lines"]["torch"] in text


def test_settings_may_stand_in_a_file(source, tmp_path):
    """The same runs with lr and wd in a settings file and nothing of them in the rows."""
    rows, settings = [], {}
    with source.open() as file:
        for row in csv.DictReader(file):
            settings[row["run_id"]] = {"optim": {"wd": float(row["optim.wd"])}}
            rows.append([row["run_id"], row["step"], row["lr"], row["eval/loss"], row["seed"]])
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with (tmp_path / "runs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["run_id", "step", "lr", "eval/loss", "seed"], *rows])
    options = [*OPTIONS, "--settings-file", tmp_path / "settings.json", "--json"]
    ours = parsed(call("diagnose", tmp_path / "runs.csv", *options))["diagnoses"]
    theirs = parsed(call("diagnose", source, *OPTIONS, "--json"))["diagnoses"]
    assert ours[0]["surfaces"] == theirs[0]["surfaces"]


def test_independent_weight_decay_is_read_and_advised_as_such(source):
    options = [*MAP, *SET, "--run-column", "run_id", "--wd-convention", "independent"]
    text = call("diagnose", source, *options)
    assert "coupled WD" in text
    with pytest.raises(InputError, match="nothing can be advised yet|were not measured|too far"):
        call("advise", source, *options, "--tokens", "100B")


def test_one_learning_rate_says_why_nothing_is_said(source, tmp_path):
    with source.open() as file:
        rows = list(csv.reader(file))
    kept = [row for row in rows[1:] if float(row[2]) in (2**-9, 0.0) and row[0] == "run 84"]
    with (tmp_path / "one.csv").open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *kept])
    words = " ".join(call("diagnose", tmp_path / "one.csv", *OPTIONS).split())
    assert "no direction can be inferred from one learning rate" in words
    assert "equal ELR" in words


# Mistakes, in a process of their own


@pytest.fixture
def here(source, tmp_path):
    (tmp_path / "runs.csv").write_bytes(source.read_bytes())
    return tmp_path


def test_a_convention_that_nobody_gave_is_asked_for(isotune, here):
    done = isotune("diagnose", "runs.csv", *MAP, *SET, "--run-column", "run_id")
    assert_one_sentence(done, "coupled", "independent", "--wd-convention")


def test_a_refusal_to_advise_is_a_sentence_and_exit_code_2(isotune, here):
    assert_one_sentence(isotune("advise", "runs.csv", *OPTIONS, "--tokens", "900T"), "too far")


MISTAKES = [
    (["diagnose", "runs.csv", *SET, *OPTIONS[-4:]], ["val_loss", "--map", "eval/loss"]),
    (["diagnose", "nowhere.csv"], ["nowhere.csv does not exist"]),
    (["diagnose", "runs.csv", *MAP[:2], *SET], ["'run_id'", "--run-column run_id"]),
    (["diagnose", "runs.csv", *OPTIONS, "--map", "val_loss"], ["--map", "OURS=THEIRS"]),
    (["diagnose", "runs.csv", *OPTIONS, "--map", "train_loss=loss"], ["'loss'", "its columns are"]),
    (["diagnose", "runs.csv", *OPTIONS, "--set", "batch=4"], ["'batch'", "batch_size"]),
    (["diagnose", "runs.csv", *MAP, "--set", "batch_size=many"], ["batch_size='many'", "whole number"]),
    (["diagnose", "runs.csv", *MAP, "--run-column", "run_id"], ["tokens of a step are not known", "--set"]),
    (["diagnose", "runs.csv", *OPTIONS, "--settings-file", "none.csv"], ["none.csv does not exist"]),
    (["advise", "runs.csv", *OPTIONS, "--tokens", "lots"], ["tokens='lots'"]),
    (["advise", "runs.csv", *OPTIONS, "--tokens", "1M", "--batch-size", "64"], ["batch size 64", "only 4"]),
    (["advise", "runs.csv", *OPTIONS, "--tokens", "1M", "--parameters", "1B"], ["unknown", "num_parameters"]),
    (["advise", "runs.csv", *OPTIONS, "--tokens", "1M", "--family", "x"], ["'x'", "'batch 4'"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[" ".join(a[-2:]) for a, _ in MISTAKES])
def test_a_mistake_is_an_input_error_with_a_remedy(here, monkeypatch, arguments, words):
    monkeypatch.chdir(here)
    with pytest.raises(InputError) as refusal:
        call(*arguments)
    sentence = str(refusal.value)
    assert "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


def test_a_usage_error_names_the_help(isotune, here):
    assert_one_sentence(isotune("advise", "runs.csv"), "--tokens", "--help")
