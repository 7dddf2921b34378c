"""`isotune report` and the pages that sweeps and tunings leave behind."""

import csv
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from made import made_constant, made_study, train_by_hand
from made_pages import SCRIPT, hundred_runs
from surfaces import TOKENS, TOKENS_PER_STEP, nano_like

from isotune.cli import isotune as command_line
from isotune.cli import report
from isotune.errors import InputError
from isotune.objectives.function import FunctionObjective
from isotune.report.figures import cost
from isotune.sweep.plans import remember
from isotune.tune import Goal, Space, tune

CELLS = tuple((2.0**lr, 2.0**wd) for lr in range(-12, -7) for wd in (-8, -5, -2))
GOAL = Goal(tokens=TOKENS, space=Space(only=CELLS), decay_tokens=131_072, tokens_per_step=TOKENS_PER_STEP)


def call(*arguments):
    result = CliRunner().invoke(command_line, ["report", *(str(argument) for argument in arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Runs under a stranger's names, one of them a script."""
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "my runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "step", "learning_rate", "weight_decay", "val_loss", "gpu_hours"])
        for index, run in enumerate(hundred_runs()[:8]):
            for row, loss in enumerate(run.columns["val_loss"]):
                values = [run.columns[name][row] for name in ("step", "learning_rate", "weight_decay")]
                writer.writerow([index or SCRIPT, *values, "" if np.isnan(loss) else loss, 1])
    return "my runs.csv"


OPTIONS = ["--run-column", "run", "--wd-convention", "coupled", "--set", "batch_size=4", "--set", "sequence_length=64"]


def test_a_page_stands_beside_and_says_how_it_was_made(source, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/isotune", "report", source, *OPTIONS])
    output = call(source, *OPTIONS)
    assert "my-runs-report.html" in output
    page = (tmp_path / "my-runs-report.html").read_text()
    assert "isotune report &#x27;my runs.csv&#x27; --run-column run" in page
    assert "<dt>source</dt><dd>my runs.csv</dd>" in page and "<dt>numpy</dt>" in page and "<dt>commit</dt>" in page
    assert "gpu_hours" in page  # what was left out is said
    assert "8 runs (8 finished)" in page and SCRIPT not in page


def test_out_names_the_file_and_a_folder_that_is_not_there_is_refused(source, tmp_path):
    call(source, *OPTIONS, "--out", tmp_path / "x.html")
    assert (tmp_path / "x.html").exists()
    with pytest.raises(InputError, match="is no folder"):
        call(source, *OPTIONS, "--out", tmp_path / "nowhere" / "x.html")


def test_a_defect_in_one_figure_leaves_the_others_and_is_told(source, tmp_path, monkeypatch):
    def broken(families):
        raise KeyError("tokens <of> nobody")

    monkeypatch.setattr(cost, "costs_of", broken)
    output = call(source, *OPTIONS)
    assert "isotune: the figure cost could not be drawn: KeyError: 'tokens <of> nobody'" in output
    page = (tmp_path / "my-runs-report.html").read_text()
    assert "Tokens trained: drawing it failed (KeyError: &#x27;tokens &lt;of&gt; nobody&#x27;), which is" in page
    assert 'id="loss-by-lr"' in page and 'id="cost"' not in page
    files = ["figures", source, *OPTIONS, "--format", "json", "--out", "files"]
    assert isinstance(CliRunner().invoke(command_line, files).exception, KeyError)  # whoever wants files is not spared


def test_a_sweep_that_has_not_ended_says_how_far_it_is(tmp_path):
    study = made_study(tmp_path / "study")
    planned = [made_constant(40, learning_rate=2.0**lr) for lr in (-8, -7, -6)]
    remember(study, planned)
    train_by_hand(study, planned[0])
    call(tmp_path / "study")
    page = (tmp_path / "study" / "report.html").read_text()
    assert "the sweep has not ended: segments 2 waiting; 2.56K of 7.68K tokens are there" in page
    for recipe in planned[1:]:
        train_by_hand(study, recipe)
    call(tmp_path / "study")
    assert "has not ended" not in (tmp_path / "study" / "report.html").read_text()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path, capsys):
    report.report_sweep(tmp_path / "nothing", quiet=True)
    assert "isotune: no report was written: " in capsys.readouterr().err
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_constant(40))
    (tmp_path / "study" / "report.html").mkdir()
    report.report_sweep(tmp_path / "study", quiet=True)
    assert "isotune: no report was written: " in capsys.readouterr().err


def test_a_tuning_tells_what_it_asked_and_recommends_what_it_found(tmp_path, capsys):
    objective, rounds = FunctionObjective(nano_like, tmp_path / "answers.jsonl"), []
    tuned = tune(objective, GOAL, on_round=rounds.append)
    report.report_tuning(tmp_path, tuned, GOAL, result="LR and WD", rounds=rounds, quiet=False)
    assert capsys.readouterr().err == f"report: {tmp_path / 'report.html'}\n"
    page = (tmp_path / "report.html").read_text()
    best = tuned.recommendation
    assert f"lr={best.learning_rate:.4g}, weight_decay={best.weight_decay:.4g}" in page
    assert page.count("<tr>") >= 2 * len(objective.answers())  # asked, and listed as runs
    assert all(reason.split(":")[0] in page for one in rounds for reason in one.suggestion.reasons)
    assert "What the tuner found" in page and "LR and WD</pre>" in page
    (tmp_path / "report.html").unlink()
    call(tmp_path)  # later, of the folder alone
    assert f'data-total="{len(objective.answers())}"' in (tmp_path / "report.html").read_text()


def test_passwords_of_addresses_stay_at_home():
    hidden = report._no_password("isotune report optuna:mysql://me:s3cret@host:3306/trials --out x.html")
    assert hidden == "isotune report optuna:mysql://me:...@host:3306/trials --out x.html"
    assert report._no_password("C:/runs:a@b") == "C:/runs:a@b"
