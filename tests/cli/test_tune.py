"""`isotune tune`: a stranger's trainer and our own, from the command line."""

import json
import shlex
import signal
import sys
from pathlib import Path

import click
import pytest

from isotune.cli import main
from isotune.cli.tuning_words import DEFAULT_RUNS
from isotune.objectives.table import TableObjective
from isotune.recipe import format_number

TRAINER = Path(__file__).parents[1] / "objectives" / "lonely_trainer.py"
COMMAND = (
    f"{sys.executable} {TRAINER} --lr {{learning_rate}} --wd {{weight_decay}} --max-tokens {{tokens}} --out {{out}}"
)
NANO = Path(__file__).parents[2] / "tables" / "nano"
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


@pytest.fixture
def tune(commands):
    return lambda *arguments: commands.run("tune", *arguments)


def test_a_command_is_tuned_and_what_was_answered_is_not_asked_again(tune, tmp_path):
    options = [*FOREIGN, "--tokens-per-step", 64, "--lr", "2^-13..2^-8", "--octaves", 1, "--study", tmp_path / "runs"]
    options += ["--timeout-hours", 8 / 3600, "--tolerance", 0.4]
    first = tune(*options)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(("LR 2^-10, WD", "LR 2^-11, WD")) and "of a grid of" in first.stdout  # best: 2^-10
    assert "It trains at most 8M tokens: " in first.stderr and "Round 1" in first.stderr
    for word in ("loss", "regret", "evidence", "trained", "ended", "to know more", "torch.optim.AdamW("):
        assert word in first.stdout
    again = tune(*options, "--json", "--quiet")
    facts = json.loads(again.stdout)
    said = format_number(facts["result"]["recommendation"]["learning_rate"])
    assert facts["result"]["num_rounds"] == 0 and first.stdout.startswith(f"LR {said}, WD")
    assert again.stderr == ""


def command_that_goes_on(shown):
    """Its words after `isotune tune`, as a shell takes them apart."""
    (line,) = [line for line in shown.splitlines() if "go on with: isotune tune " in line]
    return shlex.split(line.partition("isotune tune ")[2])


def test_our_trainer_is_tuned_within_a_price(tune, tmp_path, monkeypatch):
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
    assert "would pass --max-tokens (140K)" in first.stdout and "isotune diagnose studies/tune-short" in first.stdout
    given = dict(zip(map(str, options[1::2]), map(str, options[2::2]), strict=True)) | {"--tolerance": "1e-06"}
    words = command_that_goes_on(first.stdout)
    goes_on = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "short.toml" and goes_on.pop("--max-tokens") != given.pop("--max-tokens")
    assert {name: value.removesuffix(".0") for name, value in goes_on.items()} == given  # 1 octave is 1.0
    assert Path("studies/tune-short/report.html").exists()
    (pasted,) = [shlex.split(line) for line in first.stdout.splitlines() if line.startswith("  isotune train ")]
    values = dict(zip(pasted[3::2], pasted[4::2], strict=True))
    assert values["--study"] == "studies/tune-short"
    assert float(values["--lr"]) in [2.0**octave for octave in range(-11, -7)], "not rounded"
    segments = len(list(Path("studies/tune-short/segments").iterdir()))
    assert segments >= 2
    again = tune(*options, "--tolerance", 1e-6, "--json", "--quiet", "--no-report")
    facts = json.loads(again.stdout)["result"]
    assert facts["num_rounds"] == 0 and facts["spent_tokens"] == facts["spent_before"] <= 140_000
    assert facts["more"]["prices"], "the price of knowing more"
    assert len(list(Path("studies/tune-short/segments").iterdir())) == segments


def test_a_replay_says_how_it_would_have_gone(tune):
    options = ["--table", NANO, "--batch-size", 4, "--tokens", 688_128]
    shown = tune(*options)
    assert shown.returncode == 0, shown.stderr
    assert "nothing is trained" in shown.stderr and "Round 1: nothing is known yet" in shown.stderr
    facts = json.loads(tune(*options, "--json", "--quiet").stdout)
    best, table = facts["result"]["recommendation"], facts["table"]
    settings = [f"{name} {format_number(best[key])}" for name, key in (("LR", "learning_rate"), ("WD", "weight_decay"))]
    assert shown.stdout.startswith(", ".join(settings))
    assert f"{table['loss']:.4f}, {100 * table['regret']:.2g} % above the lowest loss" in shown.stdout
    losses = TableObjective(NANO, batch_size=4).losses(688_128)
    assert table["loss"] == losses[best["learning_rate"], best["weight_decay"]]
    assert table["lowest_loss"] == min(losses.values()) and 0 <= table["smooth_regret"] < 0.02
    assert "in " + str(NANO) + ", seed 0\n" in shown.stdout
    counts = facts["evidence"]
    assert f"{counts['runs']} runs, {counts['full_length']} of them of the full length" in shown.stdout
    assert f"n             {facts['n']:.2g} at the end" in shown.stdout
    assert [f"  warning       {words}" for words in facts["warnings"]] == [
        line for line in shown.stdout.splitlines() if line.startswith("  warning")
    ]
    assert facts["failed"] == {"runs": 0, "given_up_from_learning_rate": None, "given_up_ends": {}}
    assert f"isotune table show {NANO} --batch-size 4 --tokens 688128 --seed 0" in shown.stdout


def test_the_command_that_is_printed_goes_on(tune, tmp_path):
    table = tmp_path / "my nano"
    table.symlink_to(NANO)
    options = ["--table", table, "--batch-size", 4, "--tokens", 344_064, "--max-tokens", "20M", "--workers", 2]
    options += ["--tolerance", 0.01]
    first = tune(*options)
    spent = json.loads(tune(*options, "--json").stdout)["result"]["spent_tokens"]
    assert "as --tolerance asks" in first.stdout and spent >= DEFAULT_RUNS * 344_064, "all that the default allows"
    words = command_that_goes_on(first.stdout)
    assert words[:2] == ["--table", str(table)] and {"--workers", "20M"} < set(words)
    second = tune(*words, "--json", "--quiet")
    assert json.loads(second.stdout)["result"]["spent_tokens"] > spent
    (step,) = [line for line in first.stdout.splitlines() if "isotune table show" in line]
    assert shlex.split(step)[3] == str(table)


def test_without_a_recipe_the_default_one_is_tuned(tune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = tune("--max-tokens", 1, "--workers", 1)
    assert "nano-tune (batch size 4) for 1.38M tokens" in shown.stderr and "Round" not in shown.stderr
    assert shown.returncode == 2 and "do not pay for a first run of 344K tokens" in shown.stderr
    assert not Path("studies").exists(), "nothing was trained"


def test_where_no_run_gives_a_loss_the_reason_is_said(tune, tmp_path):
    silent = ["--command", "sh -c 'echo no such device >&2; exit 3' {learning_rate} {weight_decay} {tokens} {out}"]
    result = tune(*silent, *FOREIGN[2:], "--study", tmp_path / "runs")
    assert result.returncode == 2 and "none of 3 runs gave a loss (exit code 3: no such device)" in result.stderr


# Told to fail, it does so at LR above 2^-9 until the file `mended` is there; told to diverge, always.
FAILING = """
import json, os, sys
lr, tokens, out, mode = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if lr > 2**-9 and mode == "fail" and not os.path.exists("mended"):
    sys.exit("no memory")
loss = float("nan") if mode == "diverge" else 2 + abs(lr - 2**-10)
open(out + "/metrics.jsonl", "w").write(json.dumps({"tokens": tokens, "val_loss": loss}))
"""


@pytest.fixture
def failing(tune, tmp_path, monkeypatch):
    """Tunes a trainer that fails, or diverges, in parts of its range."""
    monkeypatch.chdir(tmp_path)
    Path("trainer.py").write_text(FAILING)
    command = f"{sys.executable} trainer.py {{learning_rate}} {{tokens}} {{out}} %s {{weight_decay}}"
    options = [*FOREIGN[2:], "--octaves", 2, "--max-tokens", "1.5M", "--no-report"]
    return lambda mode, *more: tune("--command", command % mode, *options, *more)


def test_failures_are_told_not_repeated_and_repeated_on_demand(failing):
    def failed():
        lines = Path("studies/tune-trainer/answers.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["status"] == "failed"]

    first = failing("fail")
    assert first.returncode == 0, first.stderr
    num_failed = len(failed())
    assert num_failed >= 3 and f"{num_failed} runs gave no loss; LR 2^-7 and above was given up" in first.stdout
    assert "exit code 1: no memory; they are asked again with --retry-failed" in first.stderr
    facts = json.loads(failing("fail", "--json").stdout)
    assert len(failed()) == num_failed, "what failed is not asked again"
    given_up = {"given_up_from_learning_rate": 2.0**-7, "given_up_ends": {}}
    assert facts["failed"] == {"runs": num_failed} | given_up and facts["n"] is None
    Path("mended").touch()
    mended = failing("fail", "--retry-failed", "--max-tokens", "4M")
    assert len(failed()) == num_failed and "gave no loss" not in mended.stdout + mended.stderr
    other = failing("diverge")
    assert other.returncode == 2 and "was begun with another --command" in other.stderr


def test_where_all_runs_diverge_nothing_is_recommended(failing):
    shown = failing("diverge")
    assert shown.returncode == 2 and shown.stdout == ""
    assert "runs diverged, down to LR 2^-13: lower --lr" in shown.stderr and "no run has finished yet" in shown.stderr


def test_that_weight_decay_is_coupled_is_said_where_the_command_has_it_otherwise(failing):
    words = "the command gets LR x WD as its {weight_decay}"
    for convention in ("independent", "coupled"):
        shown = failing("ok", "--wd-convention", convention, "--max-tokens", 1)  # too little for a run
        assert (words in shown.stderr) is (convention == "independent") and "Runs go to" in shown.stderr


def test_runs_without_a_loss_are_refused(tune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(SHORT)
    result = tune("short.toml", "--octaves", 1, "--max-tokens", "140K", "--workers", 2, "--eval-every", 0)
    assert result.returncode == 2 and "were not evaluated" in result.stderr


def test_the_options_of_training_are_known_by_name():
    from isotune.cli.execution import OF_EXECUTION, with_execution

    command = click.command()(with_execution(lambda **arguments: None))
    assert [option.name for option in command.params] == list(OF_EXECUTION)


@pytest.fixture
def kept_signals():
    """The command takes Ctrl-C for itself; here it runs in the tests' own process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nano-wsd", *FOREIGN], "give one of them"),
        (["nano-wsd", "--table", NANO], "give one of them"),
        (["nano-wsd", "--metrics", "x"], "belongs to --command"),
        (["nano-wsd", "--batch-size", 4], "belongs to --table"),
        (["--table", NANO, "--batch-size", 4, "--lr", "2^-10..2^-8"], "the cells of a table"),
        (["--table", NANO], "one of 4, 64"),
        (["--table", "nowhere"], "nowhere"),
        (["--command", COMMAND], "needs --metrics"),
        ([*FOREIGN, "--lr", "0.001"], "no range"),
        ([*FOREIGN, "--lr", "2^-7..2^-9"], "write 2^-9..2^-7"),
        ([*FOREIGN, "--wd", "0..2^-9"], "write 2^-8..0.1"),
        (["nano-cosine", "--max-tokens", "1M"], "WSD"),
        (["nano-wsd", "--tolerance", "0"], "--tolerance 0 must be above 0: write percent of the loss, such as 0.1"),
        ([*FOREIGN, "--tolerance", "-1"], "--tolerance -1 must be above 0"),
        (["--table", NANO, "--batch-size", 4, "--tolerance", "nan"], "--tolerance nan must be above 0"),
        ([*FOREIGN, "--wd", "0..0.1"], "--wd '0..0.1' must go from a number above 0"),
        (["nano-wsd", "--lr", "2^-7..2^-9"], "--lr '2^-7..2^-9' must go from"),
        ([*FOREIGN, "--octaves", "-1"], "--octaves=-1"),
        (["--table", NANO, "--batch-size", 4, "--loss", "val_loss"], "--loss belongs to --command"),
        (["nano-wsd", "--loss", "foo"], "--loss belongs to --command"),
        (["--table", NANO, "--batch-size", 4, "--device", "cuda"], "--device belongs to recipes; a replay"),
        (["--table", NANO, "--batch-size", 4, "--threads", 3], "--threads belongs to recipes; a replay"),
        (["--table", NANO, "--batch-size", 4, "--no-compile"], "--compile belongs to recipes; a replay"),
        ([*FOREIGN, "--device", "cpu"], "--device belongs to recipes; the command"),
        ([*FOREIGN, "--eval-every", "1M"], "--eval-every belongs to recipes; the command"),
        (["nano-wsd", "--tokens", "10Q"], "nano-wsd with --tokens: tokens='10Q' is not a number"),
        (["nano-wsd", "--retry-failed"], "belongs to --command"),
        ([*FOREIGN, "--workers", "-1"], "--workers"),
        ([*FOREIGN, "--workers", "0"], "--workers"),
        ([*FOREIGN, "--tokens-per-step", "0"], "--tokens-per-step"),
        (["--command", COMMAND + " 'x", *FOREIGN[2:]], "check its quotes"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, capsys, kept_signals, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["isotune", "tune", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and words in printed and len(printed.strip().splitlines()) == 1
