"""Any command as an objective: a script that shares no code with us, with failing, hanging and diverging settings."""

import json
import math
import os
import sys
import time
from pathlib import Path

import pytest

from isotune.errors import InputError
from isotune.objectives.command import CommandObjective
from isotune.tune import Goal, Question, Space, tune

SCRIPT = Path(__file__).parent / "lonely_trainer.py"
COMMAND = (
    f"{sys.executable} {SCRIPT} --lr {{learning_rate}} --wd {{weight_decay}} --max-tokens {{tokens}} --out {{out}}"
)
TOKENS = 1_000_000
CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-13, -6) for wd in (-8, -5, -2, 0))


def make(folder, **changes):
    settings = {
        "metrics": "{out}/metrics.jsonl",
        "weight_decay_convention": "coupled",
        "num_parallel": 2,
        "timeout_hours": 6 / 3600,
    }
    return CommandObjective(changes.pop("command", COMMAND), folder, **(settings | changes))


def test_it_tunes_a_stranger_with_failing_hanging_and_diverging_settings(tmp_path):
    goal = Goal(tokens=TOKENS, space=Space(only=CELLS), tokens_per_step=64, tolerance=0.004)
    objective = make(tmp_path)
    tuned = tune(objective, goal)
    assert tuned.stopped == "good enough"
    assert (
        abs(math.log2(tuned.recommendation.learning_rate) + 10) <= 1
    )  # of the best, which no run of full length found
    reasons = [entry.reason for entry in objective.entries if entry.status == "failed"]
    assert all("exit code 3: cuda out of memory, or so" in reason or "killed" in reason for reason in reasons)
    again = make(tmp_path)
    assert tune(again, goal).num_rounds == 0, "what was answered is not asked again"


def test_each_ending_is_told_apart(tmp_path):
    objective = make(tmp_path)
    good, failing, hanging, diverging = (
        Question(2.0**-10, 2.0**-5, TOKENS),
        Question(2.0**-12, 2.0**-8, TOKENS),
        Question(2.0**-12, 1.0, TOKENS),
        Question(2.0**-7, 2.0**-5, TOKENS),
    )
    objective.ask([good, failing, hanging, diverging])
    endings = {entry.question: entry for entry in objective.entries}
    assert {question: endings[question].status for question in endings} == {
        good: "finished",
        failing: "failed",
        hanging: "failed",
        diverging: "diverged",
    }
    assert endings[good].loss == pytest.approx(
        2.0 * math.exp(0.01 * math.log2(1 + 2.0**-15 * TOKENS / 64) ** 2 - 0.05 * math.log2(1))
    )
    assert "killed" in endings[hanging].reason
    assert {answer.question for answer in objective.answers()} == {good, diverging}


def test_a_longer_run_resumes_the_shorter_one_where_the_command_can(tmp_path):
    objective = make(tmp_path, command=COMMAND + " --from={resume}")
    short, long = Question(2.0**-10, 2.0**-5, TOKENS // 4), Question(2.0**-10, 2.0**-5, TOKENS)
    assert objective.prices([long]) == [TOKENS]
    objective.ask([short])
    assert objective.prices([long, short]) == [TOKENS - TOKENS // 4, TOKENS // 4]
    objective.ask([long])
    assert float((Path(objective.entries[-1].out) / "began_at").read_text()) == TOKENS // 4
    plain = make(tmp_path / "plain")
    plain.ask([short])
    assert plain.prices([long]) == [TOKENS]


def test_independent_weight_decay_is_what_the_command_gets(tmp_path):
    script = tmp_path / "echo.py"
    script.write_text(
        "import json, sys\n"
        "row = {'tokens': int(sys.argv[2]), 'val_loss': float(sys.argv[1])}\n"
        "open(sys.argv[3] + '/metrics.jsonl', 'w').write(json.dumps(row))\n"
    )
    echo = f"{sys.executable} {script} {{weight_decay}} {{tokens}} {{out}} {{learning_rate}}"
    objective = make(tmp_path, command=echo, weight_decay_convention="independent")
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    assert objective.answers()[0].loss == pytest.approx(2.0**-11)


def test_nothing_of_a_command_is_left_running(tmp_path):
    sleeper = "sh -c 'sleep 300 & echo $! > {out}/pid; wait' {learning_rate} {weight_decay} {tokens}"
    objective = make(tmp_path, command=sleeper, timeout_hours=1.0 / 3600)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    (pid_file,) = tmp_path.glob("runs/*/pid")
    pid = int(pid_file.read_text())
    give_up_at = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    assert not is_alive(pid)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_metrics_that_end_early_or_are_torn_are_no_answer(tmp_path):
    script = tmp_path / "short.py"
    script.write_text(
        "import sys\n"
        "open(sys.argv[1] + '/metrics.jsonl', 'w').write('{\"tokens\": 10, \"val_loss\": 1.0}\\n{\"tokens\": 1000')\n"
    )
    short = f"{sys.executable} {script} {{out}} {{learning_rate}} {{weight_decay}} {{tokens}}"
    objective = make(tmp_path, command=short)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    assert "end at 10 of 1000000 tokens" in objective.entries[0].reason
    silent = make(tmp_path / "silent", command="true {learning_rate} {weight_decay} {tokens} {out}")
    silent.ask([Question(2.0**-10, 0.5, TOKENS)])
    assert "no val_loss in" in silent.entries[0].reason
    assert json.loads((tmp_path / "silent" / "answers.jsonl").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"command": "train --lr {learning_rate}"}, r"lacks \{weight_decay\}"),
        ({"command": COMMAND + " {speed}"}, r"\{speed\}"),
        ({"command": COMMAND + " {"}, "braces"),
        ({"metrics": "metrics.jsonl"}, r"--metrics lacks \{out\}"),
        ({"weight_decay_convention": "unknown"}, "coupled"),
        ({"timeout_hours": 0}, "timeout_hours"),
    ],
)
def test_mistakes_are_sentences(tmp_path, changes, word):
    with pytest.raises(InputError, match=word):
        make(tmp_path, **changes)


def test_a_command_that_does_not_exist_is_said(tmp_path):
    objective = make(tmp_path, command="no-such-program {learning_rate} {weight_decay} {tokens} {out}")
    with pytest.raises(InputError, match="no-such-program cannot be started"):
        objective.ask([Question(2.0**-10, 0.5, TOKENS)])
