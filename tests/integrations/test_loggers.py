"""Live logging, read back with each tool's own reader."""

import subprocess
import sys

import pytest

from isotune.runs import Study

RECIPE = """
sequence_length = 16
[model]
width = 16
num_layers = 1
num_heads = 2
ffn_width = 32
vocabulary_size = 256
[schedule]
kind = "constant"
tokens = "6400"
learning_rate = "2^-8"
weight_decay = 0.1
batch_size = 4
"""


def train(commands, tmp_path, logger, environment=None, tokens="6400"):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    command = ["train", "tiny.toml", "--study", "study", "--log", logger]
    command += ["--tokens", tokens, "--eval-every", "3200", "--eval-windows", "16", "--final-windows", "16"]
    done = commands.run(*command, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    study = Study.open(tmp_path / "study")
    (recipe,) = study.recipes()
    return study, recipe, study.trajectory(recipe)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_curve_back(commands, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    study, recipe, trajectory = train(commands, tmp_path, "tensorboard")
    folder = study.folder / "logs" / "tensorboard" / study.run_id(recipe)
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    for name in ("train_loss", "gradient_norm", "learning_rate"):
        assert [event.step for event in events.Scalars(name)] == trajectory.tokens[1:].tolist()
    assert [event.value for event in events.Scalars("train_loss")] == pytest.approx(
        trajectory.columns["train_loss"][1:].tolist()
    )
    assert [event.step for event in events.Scalars("val_loss")] == [3200, 6400]


def test_mlflow_reads_the_curve_back(commands, tmp_path):
    address = f"sqlite:///{tmp_path}/mlflow.db"
    study, recipe, trajectory = train(commands, tmp_path, "mlflow", {"MLFLOW_TRACKING_URI": address})
    # In a process of its own: mlflow warns about itself on import, and warnings are errors here.
    code = f"""
import json, mlflow
client = mlflow.MlflowClient("{address}")
experiment = client.get_experiment_by_name("isotune")
(run,) = client.search_runs([experiment.experiment_id])
history = client.get_metric_history(run.info.run_id, "train_loss")
print("RESULT", json.dumps([run.info.run_name, run.info.status, run.data.params["learning_rate"],
      [metric.step for metric in history], [metric.value for metric in history]]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    import json

    name, status, rate, steps, losses = json.loads(done.stdout.split("RESULT ")[1])
    assert (name, status, float(rate)) == (study.run_id(recipe), "FINISHED", 2**-8)
    assert steps == trajectory.tokens[1:].tolist()
    assert losses == pytest.approx(trajectory.columns["train_loss"][1:].tolist())


def test_wandb_writes_an_offline_run(commands, tmp_path):
    study, _, _ = train(commands, tmp_path, "wandb", {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    (file,) = study.folder.rglob("*.wandb")
    assert file.stat().st_size > 10_000, "100 rows take more"


def test_a_logger_that_is_not_installed_says_what_to_install(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    code = "import sys; sys.modules['wandb'] = None; from isotune.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "tiny.toml", "--log", "wandb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "pip install 'isotune[wandb]'" in done.stderr
    assert "Traceback" not in done.stderr
