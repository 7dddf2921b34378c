"""Any command as an objective: a script that shares no code with us, with failing, hanging and diverging settings."""

import doctest
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isotune.errors import InputError
from isotune.objectives import keeper, placeholders
from isotune.objectives.command import CommandObjective, _read_metrics
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


def test_a_run_whose_folder_was_deleted_is_not_resumed(tmp_path):
    objective = make(tmp_path, command=COMMAND + " --from={resume}")
    shortest, short, long = (Question(2.0**-10, 2.0**-5, tokens) for tokens in (TOKENS // 4, TOKENS // 2, TOKENS))
    for question in (shortest, short):
        objective.ask([question])
    shutil.rmtree(objective.entries[-1].out)
    assert objective.prices([long]) == [TOKENS - TOKENS // 4], "the next shorter one is there"
    shutil.rmtree(objective.entries[0].out)
    assert objective.prices([long]) == [TOKENS]
    before = objective.spent_tokens()
    objective.ask([long])
    assert objective.entries[-1].status == "finished" and objective.spent_tokens() == before + TOKENS
    assert float((Path(objective.entries[-1].out) / "began_at").read_text()) == 0


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
    wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("code", [0, 1])
def test_what_outlives_its_command_is_ended_before_the_metrics_are_read(tmp_path, code):
    # A launcher that does not wait for its worker, which writes its metrics when it is told to end.
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, pathlib, signal, sys, time\n"
        "out = pathlib.Path(sys.argv[1])\n"
        "def end(*_):\n"
        f"    (out / 'metrics.jsonl').write_text('{{\"tokens\": {TOKENS}, \"val_loss\": 2.5}}')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "(out / 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(120)\n"
    )
    shell = tmp_path / "start.sh"
    shell.write_text(f'{sys.executable} {worker} "$1" &\nwhile ! test -s "$1/pid"; do sleep 0.05; done\nexit {code}\n')
    command = f"bash {shell} {{out}} {{learning_rate}} {{weight_decay}} {{tokens}}"
    objective = make(tmp_path / "study", command=command, timeout_hours=None)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    (entry,) = objective.entries
    pid = int((Path(entry.out) / "pid").read_text())
    try:
        assert not is_alive(pid)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    assert entry.status == ("failed" if code else "finished") and entry.reached_tokens == TOKENS


LAUNCHER = """
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, sys.argv[1], sys.argv[2]], start_new_session=True)
while not pathlib.Path(sys.argv[2], "pid").exists():
    time.sleep(0.05)
time.sleep(float(sys.argv[3]))
"""
LAUNCHED = """
import os, pathlib, signal, sys, time
path = pathlib.Path(sys.argv[1], "signals")
signal.signal(signal.SIGTERM, lambda *_: path.open("a").write("asked to end\\n"))
partial = pathlib.Path(sys.argv[1], "pid.part")
partial.write_text(str(os.getpid()))
partial.rename(partial.with_suffix(""))
until = time.monotonic() + 120
while time.monotonic() < until and not path.exists():
    time.sleep(0.05)
"""


@pytest.mark.parametrize("lasts", [0.2, 600])
def test_workers_in_sessions_of_their_own_end_with_their_command(tmp_path, lasts):
    # As torchrun starts them; the launcher ends before its worker, or is killed.
    launcher, worker = tmp_path / "launcher.py", tmp_path / "worker.py"
    launcher.write_text(LAUNCHER)
    worker.write_text(LAUNCHED)
    command = f"{sys.executable} {launcher} {worker} {{out}} {lasts} {{learning_rate}} {{weight_decay}} {{tokens}}"
    objective = make(tmp_path / "study", command=command, timeout_hours=10.0 / 3600)
    bystander = subprocess.Popen(["sleep", "120"], start_new_session=True)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    (entry,) = objective.entries
    pid = int((Path(entry.out) / "pid").read_text())
    try:
        assert not is_alive(pid) and bystander.poll() is None
        assert (Path(entry.out) / "signals").read_text() == "asked to end\n", "once"
    finally:
        bystander.kill()
        bystander.wait()
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


RESTLESS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
    time.sleep(0.01)
"""


def test_what_begins_while_a_run_is_being_ended_ends_too(monkeypatch):
    monkeypatch.setattr(keeper, "PATIENCE_SECONDS", 0.5)
    seconds = f"600.{os.getpid()}"  # by which its processes are known

    def num_left():
        commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return sum(b"sleep" in words and seconds.encode() in words for words in commands)

    mark = keeper.new_mark()
    restless = subprocess.Popen(
        [sys.executable, "-c", RESTLESS, seconds], start_new_session=True, env=keeper.marked(mark)
    )
    try:
        wait_until(lambda: num_left() > 3)
        keeper.end_runs([keeper.Processes(restless.pid, mark)], restless.poll)
        assert num_left() == 0 and restless.poll() is not None
    finally:
        restless.kill()
        subprocess.run(["pkill", "-f", f"sleep {seconds}"], check=False)


def test_nobody_waits_for_the_dead_of_a_command_that_their_parents_do_not_ask_for():
    dead = subprocess.Popen(["true"], start_new_session=True)
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    os.killpg(dead.pid, 0)  # still there
    assert not keeper._is_running(dead.pid)
    dead.wait()
    living = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert keeper._is_running(living.pid)
    living.kill()
    living.wait()
    assert not keeper._is_running(living.pid)


def is_alive(pid):
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (ProcessLookupError, FileNotFoundError):
        return False


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
    assert silent.entries[0].reason.startswith("it wrote no ") and silent.last_failure() == silent.entries[0].reason
    assert json.loads((tmp_path / "silent" / "answers.jsonl").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"command": "train --lr {learning_rate}"}, r"lacks \{weight_decay\}"),
        ({"command": COMMAND + " {speed}"}, r"\{speed\}"),
        ({"command": COMMAND + " {"}, "braces"),
        ({"command": COMMAND + " 'x"}, "check its quotes"),
        ({"command": COMMAND + " {seed:zz}"}, "cannot be filled in"),
        ({"command": " "}, "empty"),
        ({"metrics": "{out}/{speed}.jsonl"}, r"--metrics has \{speed\}"),
        ({"num_parallel": 0}, "num_parallel"),
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


# A trainer in one line: its rows are its last argument, as JSON.
ROWS = (
    "import json, sys; open(sys.argv[1], 'w').writelines(json.dumps(row) + chr(10) for row in json.loads(sys.argv[2]))"
)


def asked_for_rows(folder, rows, code=0, **changes):
    """The entry of a run that writes these rows and ends with this code."""
    text = json.dumps(rows).replace("{", "{{").replace("}", "}}")
    script = ROWS + f"; sys.exit({code})"
    command = (
        f"{sys.executable} -c \"{script}\" {{out}}/metrics.jsonl '{text}' {{learning_rate}} {{weight_decay}} {{tokens}}"
    )
    objective = make(folder, command=command, **changes)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    return objective.entries[-1]


@pytest.mark.parametrize(
    ("rows", "code", "reached", "words"),
    [
        ([], 1, 0, "exit code 1"),
        ([{"tokens": 250_000, "train_loss": 3.0}], 1, 250_000, "exit code 1"),
        ([{"step": 7, "val_loss": 3.0}], 0, 0, "no tokens with the val_loss in"),
        ([{"tokens": TOKENS, "val_loss": -2.5}], 0, TOKENS, "val_loss is -2.5: losses must be above 0"),
        ([{"tokens": TOKENS, "val_loss": 0}], 0, TOKENS, "losses must be above 0"),
    ],
)
def test_a_failure_has_its_reason_and_costs_what_its_metrics_show(tmp_path, rows, code, reached, words):
    entry = asked_for_rows(tmp_path, rows, code)
    assert entry.status == "failed" and words in entry.reason and entry.trained_tokens == reached
    again = make(tmp_path, command=json.loads((tmp_path / "command.json").read_text())["command"])
    assert again.spent_tokens() == reached and again.failed() == [entry.question]


@pytest.mark.parametrize(
    "rows",
    [
        [{"tokens": 4 * TOKENS, "val_loss": 2.5}],
        [{"tokens": TOKENS, "val_loss": 2.5}, {"tokens": 2 * TOKENS, "val_loss": 2.4}],
        [{"tokens": TOKENS, "val_loss": 2.5}, {"tokens": 1.3 * TOKENS, "train_loss": 2.4}],
        [{"tokens": 4 * TOKENS, "val_loss": math.nan}],  # at the length that was asked for it may have been fine
    ],
)
def test_a_run_that_goes_on_beyond_what_was_asked_has_failed_and_costs_what_it_trained(tmp_path, rows):
    entry = asked_for_rows(tmp_path, rows)
    trained = int(rows[-1]["tokens"])
    words = f"its metrics end at {trained} tokens, {TOKENS} were asked for: let {{tokens}} be its length"
    assert entry.status == "failed" and words in entry.reason
    again = make(tmp_path, command=json.loads((tmp_path / "command.json").read_text())["command"])
    assert again.spent_tokens() == trained


@pytest.mark.parametrize(("reached", "tokens_per_step"), [(1.2 * TOKENS, None), (2 * TOKENS, TOKENS)])
def test_a_run_may_end_with_a_step_or_an_evaluation_which_counts_as_trained(tmp_path, reached, tokens_per_step):
    entry = asked_for_rows(tmp_path, [{"tokens": reached, "val_loss": 2.5}], tokens_per_step=tokens_per_step)
    assert (entry.status, entry.loss, entry.trained_tokens) == ("finished", 2.5, reached)


def test_tokens_and_loss_may_stand_in_rows_of_their_own(tmp_path):
    entry = asked_for_rows(tmp_path, [{"val_loss": 9.0}, {"tokens": TOKENS}, {"val_loss": 2.5}])
    assert (entry.status, entry.loss) == ("finished", 2.5)


def test_a_placeholder_may_say_its_format_and_metrics_may_have_them_all(tmp_path):
    script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    row = '{{\\"tokens\\": {tokens:d}, \\"val_loss\\": {learning_rate:.1e}}}'
    objective = make(
        tmp_path,
        command=f'{sys.executable} -c "{script}" {{out}}/seed{{seed:03d}}.jsonl "{row}" {{weight_decay}}',
        metrics="{out}/seed{seed:03d}.jsonl",
    )
    objective.ask([Question(2.0**-10, 0.5, TOKENS, seed=7)])
    assert [answer.loss for answer in objective.answers()] == [9.8e-4], objective.entries


@pytest.mark.parametrize(
    ("formats", "convention", "said"),
    [
        ("{learning_rate:.3f} {weight_decay}", "coupled", "would write 0.0006905 as 0.001"),
        ("{learning_rate} {weight_decay:.1f}", "coupled", "would write 0.03125 as 0.0"),
        ("{learning_rate} {weight_decay:.4f}", "independent", "as 0.0000"),
    ],
)
def test_formats_that_would_train_another_setting_are_refused(tmp_path, formats, convention, said):
    command = f"{sys.executable} {SCRIPT} {formats} {{tokens}} {{out}}"
    objective = make(tmp_path / "study", command=command, weight_decay_convention=convention)
    with pytest.raises(InputError, match=said):
        objective.ask([Question(2.0**-10.5, 2.0**-5, TOKENS)])
    exact = f"{sys.executable} {SCRIPT} {{learning_rate:.3e}} {{weight_decay:12.6g}} {{tokens}} {{out}}"
    make(tmp_path / "exact", command=exact).require_exact([(2.0**-13, 2.0**-8), (2.0**-6, 1.0)])
    nested = f"{sys.executable} {SCRIPT} {{learning_rate:.{{seed}}f}} {{weight_decay}} {{tokens}} {{out}}"
    with pytest.raises(InputError, match="would write"):
        make(tmp_path / "nested", command=nested).require_exact([(2.0**-13, 2.0**-8)])
    words = f"{sys.executable} {SCRIPT} {{learning_rate:.2%}} {{weight_decay}} {{tokens}} {{out}}"
    make(tmp_path / "words", command=words).require_exact([(2.0**-13, 2.0**-8)])


def test_tokens_per_step_need_not_be_said_again(tmp_path):
    first = make(tmp_path / "study", tokens_per_step=4096)
    first.ask([Question(2.0**-10, 0.5, TOKENS)])
    assert first.answers() and make(tmp_path / "study").tokens_per_step == 4096


def test_a_folder_answers_for_one_command_only(tmp_path):
    make(tmp_path, tokens_per_step=64).ask([Question(2.0**-10, 0.5, TOKENS)])
    make(tmp_path, command=COMMAND.replace(" --wd", "  --wd"))  # more space is no other command
    for changes in (
        {"command": COMMAND + " --from={resume}"},
        {"metrics": "{out}/other.jsonl"},
        {"loss": "train_loss"},
        {"weight_decay_convention": "independent"},
        {"tokens_per_step": 128},
    ):
        with pytest.raises(InputError, match=f"{tmp_path} was begun with another --.*give another --study"):
            make(tmp_path, **changes)


def test_a_command_may_be_mended_as_long_as_it_has_no_answer(tmp_path):
    question = Question(2.0**-10, 0.5, TOKENS)
    wrong = COMMAND.replace(sys.executable, "PATH=x python")
    with pytest.raises(InputError, match="cannot be started.*no shell.*env NAME=value"):
        make(tmp_path, command=wrong).ask([question])
    failing = make(tmp_path, command="false {out} {learning_rate} {weight_decay} {tokens}")
    failing.ask([question])
    assert failing.failed() == [question]
    mended = make(tmp_path)
    mended.ask([question])
    assert len(mended.answers()) == 1
    assert json.loads((tmp_path / "command.json").read_text())["command"] == COMMAND
    with pytest.raises(InputError, match="another --command"):
        make(tmp_path, command=wrong)


def test_two_commands_that_begin_in_one_folder_do_not_mix(tmp_path):
    question = Question(2.0**-10, 0.5, TOKENS)
    one, other = make(tmp_path), make(tmp_path, weight_decay_convention="independent")
    one.ask([question])
    with pytest.raises(InputError, match="another --wd-convention"):
        other.ask([question])
    assert json.loads((tmp_path / "command.json").read_text())["wd-convention"] == "coupled"
    twin = make(tmp_path)
    one.ask([Question(2.0**-9, 0.5, TOKENS)])
    twin.ask([Question(2.0**-8, 0.5, TOKENS)])
    assert len(twin.answers()) == 3, "what the other tuning has found meanwhile is known"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_where_files_cannot_be_locked_a_command_is_tuned_all_the_same(tmp_path, monkeypatch, number):
    def flock(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    objective = make(tmp_path)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    assert len(objective.answers()) == 1


def test_a_command_does_not_begin_in_the_study_of_a_recipe(tmp_path):
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(InputError, match=f"{tmp_path} is the study of a recipe.*give another --study"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["study.json"]


def test_a_folder_that_does_not_say_whose_it_is_is_adopted(tmp_path):
    make(tmp_path).ask([Question(2.0**-10, 0.5, TOKENS)])
    (tmp_path / "command.json").unlink()
    assert len(make(tmp_path).answers()) == 1
    assert json.loads((tmp_path / "command.json").read_text())["command"] == COMMAND
    make(tmp_path, tokens_per_step=64)  # can be told later
    with pytest.raises(InputError, match=r"another --tokens-per-step \(64\)"):
        make(tmp_path, tokens_per_step=128)
    make(tmp_path / "new")
    assert not (tmp_path / "new").exists(), "nothing is written before something is asked"


TUNING = """
import sys
from isotune.objectives.command import CommandObjective
from isotune.tune import Question
command = sys.argv[2] + " {learning_rate} {weight_decay} {tokens}"
objective = CommandObjective(command, sys.argv[1], metrics="{out}/metrics.jsonl", weight_decay_convention="coupled")
objective.ask([Question(2.0**-10, 0.5, 1000)])
"""


@pytest.mark.parametrize("session", ["", "setsid "])
def test_a_killed_tuning_leaves_no_command_running(tmp_path, session):
    sleeper = f"sh -c '{session}sleep 300 & echo $! > {{out}}/pid; wait'"
    tuning = subprocess.Popen([sys.executable, "-c", TUNING, str(tmp_path), sleeper])
    wait_until(lambda: any(path.read_text().strip() for path in tmp_path.glob("runs/*/pid")))
    time.sleep(1.0)  # on a busy machine a command may be faster than the word of it to its keeper
    tuning.kill()
    tuning.wait()
    (pid_file,) = tmp_path.glob("runs/*/pid")
    pid = int(pid_file.read_text())
    wait_until(lambda: not is_alive(pid))
    (pid_file.parent / "metrics.jsonl").write_text('{"tokens": 400, "val_loss": 3}')
    command = json.loads((tmp_path / "command.json").read_text())["command"]
    assert make(tmp_path, command=command).spent_tokens() == 400, "what a killed tuning had trained counts, too"


def wait_until(is_so, seconds=60.0):
    give_up_at = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def test_doctests():
    assert doctest.testmod(placeholders).failed == 0


def test_what_a_command_started_ends_with_it_even_if_it_ignores_being_asked(tmp_path):
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[1], 'pid').write_text(str(os.getpid()))\n"
        "time.sleep(120)\n"
    )
    shell = tmp_path / "start.sh"
    shell.write_text(f'{sys.executable} {stubborn} "$1" & wait\n')
    command = f"bash {shell} {{out}} {{learning_rate}} {{weight_decay}} {{tokens}}"
    objective = make(tmp_path / "study", command=command, timeout_hours=1.5 / 3600)
    objective.ask([Question(0.001, 0.1, 1000)])
    (pid,) = (int(path.read_text()) for path in (tmp_path / "study").glob("runs/*/pid"))
    assert not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize(
    ("command", "begins", "resumes"),
    [
        ("t '' --resume {resume} --out {out}", ["t", "", "--out", "o"], ["t", "", "--resume", "r", "--out", "o"]),
        ("t -v --from={resume} {out}", ["t", "-v", "o"], ["t", "-v", "--from=r", "o"]),
        ("t -v from={resume}/last.pt {out}", ["t", "-v", "o"], ["t", "-v", "from=r/last.pt", "o"]),
        ("t --from {resume}/last.pt {out}", ["t", "o"], ["t", "--from", "r/last.pt", "o"]),
        ("sh -c 'a \"{resume}\" b'", ["sh", "-c", 'a "" b'], ["sh", "-c", 'a "r" b']),
        ("t -x{out}{resume}", ["t", "-xo"], ["t", "-xor"]),
    ],
)
def test_what_is_there_for_resume_alone_is_left_out_where_a_run_begins(command, begins, resumes):
    question = Question(0.001, 0.1, 1000)
    for resume, words in (("", begins), ("r", resumes)):
        assert placeholders.fill_words(command, placeholders.values_of(question, 0.1, "o", resume)) == words


@pytest.mark.parametrize("line", ['{"tokens": ' + "9" * 400 + ', "val_loss": 2}', "[" * 100_000, '{"tokens": 1e999}'])
def test_lines_that_no_number_or_stack_can_hold_are_passed_over(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line + '\n{"tokens": 10, "val_loss": 2.5}\n' + line)
    read = _read_metrics(path, "val_loss")
    assert (read.tokens, read.loss) == (10, 2.5)


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\x85"])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_ends_where_json_lines_do(tmp_path, inside, end):
    path = tmp_path / "metrics.jsonl"
    row = json.dumps({"tokens": 10, "val_loss": 2.5, "note": f"a{inside}b"}, ensure_ascii=False)
    path.write_bytes(('{"tokens": 5, "val_loss": 3}' + (end or "\n") + row + end).encode())
    read = _read_metrics(path, "val_loss")
    assert (read.tokens, read.loss) == (10, 2.5)


def test_a_command_that_hangs_after_its_loss_was_nan_has_diverged(tmp_path):
    rows = '{{\\"tokens\\": 250000, \\"val_loss\\": NaN}}'
    hanging = f"sh -c \"echo '{rows}' > {{out}}/metrics.jsonl; sleep 60\" {{learning_rate}} {{weight_decay}} {{tokens}}"
    objective = make(tmp_path, command=hanging, timeout_hours=1.0 / 3600)
    objective.ask([Question(2.0**-10, 0.5, TOKENS)])
    assert [entry.status for entry in objective.entries] == ["diverged"]
    assert objective.spent_tokens() == 250_000


def test_a_command_that_changes_its_directory_finds_its_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wandering = f"sh -c 'cd / && exec \"$@\"' sh {COMMAND} --from={{resume}}"
    objective = make("study", command=wandering)
    for tokens in (TOKENS // 4, TOKENS):
        objective.ask([Question(2.0**-10, 2.0**-5, tokens)])
    assert [entry.status for entry in objective.entries] == ["finished", "finished"], objective.entries
    assert float((Path(objective.entries[-1].out) / "began_at").read_text()) == TOKENS // 4


# Ends with half of the tokens; of more it reports a quarter, or three if it continues a run, and hangs.
HANGING = f"""
import json, pathlib, sys, time
out, tokens = pathlib.Path(sys.argv[1]), int(sys.argv[2])
ends = tokens <= {TOKENS // 2}
reached = tokens if ends else (3 if "--from" in sys.argv else 1) * tokens // 4
(out / "part").write_text(json.dumps(dict(tokens=reached, val_loss=2.5)))
(out / "part").rename(out / "metrics.jsonl")
time.sleep(0 if ends else 60)
"""


@pytest.fixture
def hanging(tmp_path):
    """The command of a trainer that has to be interrupted."""
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    return f"{sys.executable} {script} {{out}} {{tokens}} {{learning_rate}} {{weight_decay}} --from {{resume}}"


def interrupt(folder, command, question):
    """Asks, and is told to stop as soon as the run has metrics."""

    def num_metrics():
        return len(list(folder.glob("runs/*/metrics.jsonl")))

    before = num_metrics()
    make(folder, command=command, should_stop=lambda: num_metrics() > before, timeout_hours=None).ask([question])


def test_an_interrupted_run_costs_what_its_metrics_show_once(tmp_path, hanging):
    study, question = tmp_path / "study", Question(2.0**-10, 0.5, TOKENS)
    interrupt(study, hanging, question)
    objective = make(study, command=hanging)
    assert objective.spent_tokens() == make(study, command=hanging).spent_tokens() == TOKENS // 4
    assert objective.answers() == [] and objective.failed() == [], "it may be asked again"
    interrupt(study, hanging, question)
    assert objective.spent_tokens() == 2 * (TOKENS // 4), "it was trained twice"


def test_an_interrupted_run_that_continued_another_costs_what_it_added(tmp_path, hanging):
    study = tmp_path / "study"
    make(study, command=hanging).ask([Question(2.0**-10, 0.5, TOKENS // 2)])
    assert make(study, command=hanging).spent_tokens() == TOKENS // 2
    interrupt(study, hanging, Question(2.0**-10, 0.5, TOKENS))
    study.rename(tmp_path / "moved")
    assert make(tmp_path / "moved", command=hanging).spent_tokens() == 3 * TOKENS // 4


def test_a_damaged_note_of_a_run_is_said(tmp_path, hanging):
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "run.json").write_text('{"format": 1, "tokens": 10}')
    with pytest.raises(InputError, match=r"run\.json is damaged.*delete its folder"):
        make(tmp_path, command=hanging).spent_tokens()


def test_a_second_tuning_in_the_same_folder_is_refused(tmp_path):
    from isotune.objectives.command import _alone

    objective = make(tmp_path)
    objective.answers()
    with _alone(tmp_path), pytest.raises(InputError, match="another tuning works"):
        objective.ask([Question(0.001, 0.1, 1000)])
