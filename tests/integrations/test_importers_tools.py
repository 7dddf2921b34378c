"""Each tool's runs, written by the tool itself."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from types import SimpleNamespace

import numpy as np
import pytest

from isotune.errors import InputError
from isotune.integrations.importers import open_source

STEPS = list(range(0, 100, 10))
KNOWN = {"batch_size": 4, "sequence_length": 16}
STEP = 4 * 16


def loss_at(step, run=0):
    return 5 - step / 100 - run


def only(imported):
    (trajectory,) = imported.trajectories
    return trajectory


def noted(imported, *words):
    return any(all(word in note for word in words) for note in imported.notes)


def run_python(code, folder, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr


# TensorBoard


@pytest.fixture
def writer(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    opened = []

    def open_writer(name, **options):
        opened.append(SummaryWriter(str(tmp_path / "logs" / name), **options))
        return opened[-1]

    yield open_writer
    for one in opened:
        one.close()


tensorboard = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EVENTS = {"mapping": {"val_loss": "eval/loss", "learning_rate": "lr"}}


@tensorboard
def test_tensorboard_folders_are_runs_with_all_their_points(tmp_path, writer):
    for run in range(2):
        log = writer(f"run{run}")
        for step in range(3000):  # far more than TensorBoard itself would keep
            log.add_scalar("eval/loss", loss_at(step, run), step)
            log.add_scalar("lr", 0.5, step)
        log.add_text("notes", "hello")
        log.close()
    imported = open_source(tmp_path / "logs", settings=KNOWN, **EVENTS)
    assert imported.kind == "tensorboard"
    for run, trajectory in enumerate(imported.trajectories):
        assert trajectory.tokens.tolist() == [step * STEP for step in range(3000)]
        np.testing.assert_allclose(trajectory.columns["val_loss"], [loss_at(k, run) for k in range(3000)], rtol=1e-6)
        assert trajectory.info.learning_rate == 0.5


@tensorboard
def test_a_single_event_file_is_one_run(tmp_path, writer, monkeypatch):
    for part in range(2):  # of which only one is asked for
        with writer("tb1", filename_suffix=f".{part}") as log:
            for step in STEPS:
                log.add_scalar("val_loss", loss_at(step, part), step)
    folder = tmp_path / "logs" / "tb1"
    (path,) = folder.glob("*.1")
    monkeypatch.chdir(folder)
    for source in (path, path.name):
        imported = open_source(source, settings=KNOWN)
        assert only(imported).columns["val_loss"].tolist() == pytest.approx([loss_at(step, 1) for step in STEPS])
        assert only(imported).info.source == str(source)
        assert noted(imported, "not known", "(tb1)")
    for source in (f"{folder}/", "."):
        assert noted(open_source(source, settings=KNOWN), "not known", "(tb1)")


@tensorboard
def test_tensorboard_tags_that_are_not_mapped_are_asked_for(tmp_path, writer):
    with writer("a") as one:
        one.add_scalar("eval/loss", 3.0, 10)
    with pytest.raises(InputError, match=r"has no run with val_loss: map it.*its columns are step, eval/loss") as error:
        open_source(tmp_path, settings=KNOWN)
    assert "neither" not in str(error.value)


@tensorboard
def test_tensorboard_hparams_are_settings(tmp_path, writer):
    log = writer("run")
    for step in STEPS:
        log.add_scalar("val_loss", loss_at(step), step)
    log.add_hparams({"lr": 0.25, "weight_decay": 0.1, **KNOWN}, {"hparam/loss": 1.0})
    log.close()
    imported = open_source(tmp_path / "logs", mapping={"learning_rate": "lr"})
    info = only(imported).info
    assert (info.learning_rate, info.weight_decay, info.batch_size, info.sequence_length) == (0.25, 0.1, 4, 16)
    assert noted(imported, "no name for, left out: hparam/loss")


@tensorboard
def test_tensorboard_restarts_keep_the_last_writing(tmp_path, writer):
    log = writer("run", filename_suffix=".a")
    for step in (0, 10, 20):
        log.add_scalar("val_loss", 5.0, step)
    log.close()
    log = writer("run", filename_suffix=".b")
    for step in (10, 20, 30):
        log.add_scalar("val_loss", 4.0, step)
    log.close()
    imported = open_source(tmp_path / "logs", mapping={"tokens": "step"})
    assert only(imported).tokens.tolist() == [0, 10, 20, 30]
    assert only(imported).columns["val_loss"].tolist() == [5, 4, 4, 4]
    assert noted(imported, "val_loss written again at the same step", ": 2")


@tensorboard
def test_tensorboard_restarts_leave_nothing_of_the_branch_that_they_abandoned(tmp_path, writer):
    log = writer("run")
    for step in [*range(0, 50, 10), 15, 25]:
        log.add_scalar("val_loss", loss_at(step), step)
    log.close()
    imported = open_source(tmp_path / "logs", settings=KNOWN)
    assert only(imported).columns["step"].tolist() == [0, 10, 15, 25]
    assert noted(imported, "values of val_loss that a restart abandoned, left out: 3")


@tensorboard
def test_tensorboard_files_that_are_cut_say_how_much_is_lost(tmp_path, writer):
    log = writer("run")
    for step in STEPS:
        log.add_scalar("val_loss", loss_at(step) if step < 90 else float("nan"), step)
    log.close()
    (file,) = (tmp_path / "logs" / "run").iterdir()
    assert only(open_source(tmp_path / "logs", settings=KNOWN)).info.status == "diverged"
    file.write_bytes(file.read_bytes()[:-100])
    imported = open_source(tmp_path / "logs", settings=KNOWN)
    assert 5 < len(only(imported).tokens) < 10
    assert noted(imported, "bytes at the end of event files that are cut or damaged")


@tensorboard
def test_tensorboard_scalars_of_tensorflow_2_are_read(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    with open(tmp_path / "events.out.tfevents.1", "wb") as file:
        writer = RecordWriter(file)
        for step in STEPS:
            writer.write(Event(step=step, summary=scalar_pb("val_loss", loss_at(step))).SerializeToString())
    imported = open_source(tmp_path, settings=KNOWN)
    assert only(imported).columns["val_loss"].tolist() == pytest.approx([loss_at(step) for step in STEPS])


@tensorboard
def test_what_our_own_logger_writes_can_be_read_back(tmp_path):
    from made import made_constant, made_study

    from isotune.integrations.tensorboard import TensorBoardLogger

    study, recipe = made_study(tmp_path / "study"), made_constant(10)
    with TensorBoardLogger(study, recipe) as log:
        for step in recipe.steps():
            log(step, {"tokens": step.tokens, "val_loss": 1 / step.tokens})
    trajectory = only(open_source(study.folder / "logs", mapping={"tokens": "step"}))
    assert trajectory.tokens.tolist() == [step.tokens for step in recipe.steps()]
    assert (trajectory.info.learning_rate, trajectory.info.weight_decay) == (recipe.learning_rate, 0.5)
    assert trajectory.info.batch_size == 4


# W&B


@pytest.fixture(scope="module")
def wandb_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wandb_runs")
    code = f"""
import wandb
for number, fails in enumerate((False, True)):
    run = wandb.init(project="p", id=f"run{{number}}", name=f"name{{number}}",
                     config={{"lr": 2.0**-number, "optim": {{"weight_decay": 0.1}}, "seed": number}})
    for step in {STEPS}:
        run.log({{"train/loss": 6 - step / 100}}, step=step)
        run.log({{"eval": {{"loss": 5 - step / 100 - number}}, "text": "x"}}, step=step)
    if fails:
        run.log({{"eval": {{"loss": float("nan")}}}}, step=100)
    run.finish(exit_code=int(fails))
"""
    run_python(code, folder, WANDB_MODE="offline", WANDB_SILENT="true")
    return folder / "wandb"


WANDB = {
    "mapping": {"step": "_step", "val_loss": "eval.loss", "learning_rate": "lr", "weight_decay": "optim.weight_decay"},
    "settings": KNOWN,
}


def test_wandb_offline_runs_are_read_whole(wandb_folder):
    imported = open_source(wandb_folder, **WANDB)
    assert imported.kind == "wandb"
    first, second = sorted(imported.trajectories, key=lambda t: t.info.seed)
    assert first.tokens.tolist() == [step * STEP for step in STEPS]
    assert first.columns["val_loss"].tolist() == pytest.approx([loss_at(step) for step in STEPS])
    assert (first.info.learning_rate, first.info.weight_decay, first.info.status) == (1, 0.1, "finished")
    assert (second.info.learning_rate, second.info.seed, second.info.status) == (0.5, 1, "diverged")
    assert noted(imported, "no name for, left out", "train/loss")


def test_wandb_runs_resumed_offline_are_one_run(wandb_folder, tmp_path):
    (first,) = wandb_folder.glob("offline-run-*-run0")
    shutil.copytree(first, tmp_path / "offline-run-1-run0")
    shutil.copytree(first, tmp_path / "offline-run-2-run0")
    imported = open_source(tmp_path, **WANDB)
    assert len(only(imported).tokens) == len(STEPS)
    assert noted(imported, "written again at the same step")


def test_wandb_files_that_are_cut_say_so(wandb_folder, tmp_path):
    (file,) = wandb_folder.glob("offline-run-*-run0/*.wandb")
    content = file.read_bytes()
    (tmp_path / "run.wandb").write_bytes(content[: len(content) // 2])
    imported = open_source(tmp_path, **WANDB)
    assert 0 < len(only(imported).tokens) < len(STEPS)
    assert only(imported).info.status == "running"
    assert noted(imported, "bytes of W&B files that are cut or damaged")
    assert noted(imported, "runs without an end")


class OnlineRun:
    """As `wandb.Api().run()` gives one; `history` samples, so nobody may call it."""

    id, name, state, path = "abc", "swift-tree-1", "crashed", ["team", "project", "abc"]

    @property
    def config(self):
        return {"lr": 0.5, "_wandb": {"version": 1}, "optim": {"weight_decay": 0.1}}

    def scan_history(self, keys=None):
        assert keys is None, "W&B then gives only rows that have all of them"
        for step in range(2000):
            yield {"_step": step, "train/loss": 6.0, "_timestamp": 1.0}
            if step % 10 == 0:
                yield {"_step": step, "eval": {"loss": loss_at(step)}}

    def history(self, *_, **__):
        raise AssertionError("history samples 500 points")


def test_wandb_online_runs_are_scanned():
    imported = open_source(OnlineRun(), **WANDB)
    trajectory = only(imported)
    assert len(trajectory.measured("val_loss")[0]) == 200
    assert trajectory.last("val_loss") == pytest.approx(loss_at(1990))
    info = trajectory.info
    assert (info.learning_rate, info.weight_decay, info.status) == (0.5, 0.1, "failed")
    assert info.source == "team/project/abc"


def test_wandb_addresses_name_runs_and_projects(monkeypatch):
    asked = []

    class Api:
        def run(self, path):
            asked.append(path)
            return OnlineRun()

        def runs(self, path):
            asked.append(path)
            return [OnlineRun(), OnlineRun()]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Api=Api))
    assert len(open_source("wandb:team/project/abc", **WANDB).trajectories) == 1
    assert len(open_source("wandb:team/project", **WANDB).trajectories) == 2
    assert len(open_source("https://wandb.ai/team/project/runs/abc?nw=x", **WANDB).trajectories) == 1
    assert len(open_source("https://wandb.ai/team/project", **WANDB).trajectories) == 2
    assert asked == ["team/project/abc", "team/project"] * 2
    with pytest.raises(InputError, match="give entity/project/run"):
        open_source("wandb:project")

    def refuse(self, path):
        raise RuntimeError("no such run")

    Api.run = refuse
    with pytest.raises(InputError, match="W&B does not give .*no such run.*wandb login"):
        open_source("wandb:team/project/abc")


# MLflow


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    code = f"""
import mlflow
from mlflow.entities import Metric, Param
client = mlflow.MlflowClient("sqlite:///mlflow.db")
for number, status in enumerate(("FINISHED", "KILLED")):
    experiment = client.create_experiment(f"experiment{{number}}")
    run = client.create_run(experiment, run_name=f"run{{number}}").info.run_id
    params = [Param("lr", str(2.0**-number)), Param("batch_size", "4"), Param("sequence_length", "16")]
    losses = [Metric("eval/loss", 5 - step / 100 - number, step, step) for step in {STEPS}]
    again = [Metric("eval/loss", 9.0, 1, 0), Metric("system/gpu", 1.0, 0, 0)]
    rates = [Metric("train_loss", 6.0, step, step) for step in {STEPS[::2]}]
    client.log_batch(run, metrics=[*losses, *rates, *again], params=params)
    client.set_terminated(run, status)
"""
    run_python(code, folder)
    return folder / "mlflow.db"


@pytest.mark.filterwarnings("ignore")
def test_mlflow_runs_have_their_whole_history(mlflow_store):
    options = {"mapping": {"val_loss": "eval/loss", "learning_rate": "lr"}}
    for source in (mlflow_store, f"sqlite:///{mlflow_store}", f"mlflow:sqlite:///{mlflow_store}"):
        imported = open_source(source, **options)
        assert imported.kind == "mlflow"
        first, second = sorted(imported.trajectories, key=lambda t: -t.info.learning_rate)
        assert first.tokens.tolist() == [step * STEP for step in STEPS]
        assert first.columns["val_loss"].tolist() == pytest.approx([9.0, *(loss_at(step) for step in STEPS[1:])])
        assert len(first.measured("train_loss")[0]) == 5
        assert (first.info.learning_rate, first.info.batch_size, first.info.status) == (1, 4, "finished")
        assert (second.info.learning_rate, second.info.status) == (0.5, "failed")
        assert noted(imported, "eval/loss written again at the same step", ": 2")
        assert noted(imported, "no name for, left out: system/gpu")
    assert only(open_source(mlflow_store, experiment="experiment1", **options)).info.learning_rate == 0.5
    with pytest.raises(InputError, match="has no experiment 'x': give one of experiment1, experiment0"):
        open_source(mlflow_store, experiment="x", **options)


@pytest.mark.filterwarnings("ignore")
def test_an_infinite_loss_in_mlflow_is_a_divergence(tmp_path):
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    run = client.create_run(client.create_experiment("one")).info.run_id
    for step, loss in enumerate((3.0, 2.0, float("inf"))):
        client.log_metric(run, "val_loss", loss, step=step)
    client.set_terminated(run)
    trajectory = only(open_source(tmp_path / "mlflow.db", settings=KNOWN))
    assert trajectory.info.status == "diverged"
    assert trajectory.measured("val_loss")[1].tolist() == [3.0, 2.0]


@pytest.mark.filterwarnings("ignore")
def test_an_mlflow_store_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: x")
    with pytest.raises(InputError, match=r"MLflow cannot read|holds no runs"):
        open_source(tmp_path / "mlruns")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["mlflow", "optuna"])
def test_a_file_that_is_no_database_is_refused_in_a_sentence(tmp_path, kind):
    path = tmp_path / "junk.db"
    for content in (b"SQLite format 3\0garbage", b"", b"step,val_loss\n"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"is no database of {kind}.*leave kind="):
            open_source(path, kind=kind)
        with pytest.raises(InputError, match=f"is no database of {kind}"):
            open_source(f"sqlite+pysqlite:///{path}?timeout=3", kind=kind)
        assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["junk.db"]


@pytest.mark.parametrize("kind", ["mlflow", "optuna"])
def test_a_mistyped_address_makes_no_database(tmp_path, kind):
    with pytest.raises(InputError, match="does not exist"):
        open_source(f"{kind}:sqlite:///{tmp_path}/nope.db")
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_no_mlflow_store_stays_as_it_is(tmp_path):
    (tmp_path / "events").mkdir()
    for source in (tmp_path, tmp_path / "absent", tmp_path.as_uri(), (tmp_path / "absent").as_uri()):
        with pytest.raises(InputError, match=r"meta\.yaml"):
            open_source(f"mlflow:{source}")
    assert [path.name for path in tmp_path.iterdir()] == ["events"]


@pytest.mark.filterwarnings("ignore")
def test_a_database_of_another_kind_is_refused_and_stays_as_it_is(mlflow_store, optuna_study, tmp_path):
    for path, kind, right in ((mlflow_store, "optuna", "mlflow"), (tmp_path / "optuna.db", "mlflow", "optuna")):
        before = path.read_bytes()
        for source in (path, f"sqlite:///{path}"):
            with pytest.raises(InputError, match=f"is a database of {right}, not of {kind}: give kind={right}"):
                open_source(source, kind=kind)
        assert path.read_bytes() == before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["mlflow", "optuna"])
def test_a_database_that_lacks_a_table_of_the_tool_is_not_given_it(mlflow_store, optuna_study, tmp_path, kind):
    path = tmp_path / f"{kind}.db"
    if kind == "mlflow":
        shutil.copy(mlflow_store, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("drop table " + {"mlflow": "trace_tags", "optuna": "trial_heartbeats"}[kind])
    before = path.read_bytes()
    with suppress(InputError):
        open_source(path, kind=kind, mapping={"learning_rate": "lr"}, settings=KNOWN)
    assert path.read_bytes() == before


# Hugging Face


@pytest.fixture
def trainer_folder(tmp_path):
    from transformers import TrainerState

    state = TrainerState(max_steps=90, global_step=90)
    for step in STEPS:
        state.log_history.append({"step": step, "loss": 6.0, "learning_rate": 0.5, "grad_norm": 1.0, "epoch": 0.1})
        state.log_history.append({"step": step, "eval_loss": loss_at(step), "eval_runtime": 1.0, "epoch": 0.1})
    state.log_history.append({"step": 90, "train_loss": 3.0, "train_runtime": 1.0, "epoch": 1.0})
    folder = tmp_path / "output"
    for name in ("", "checkpoint-90"):
        (folder / name).mkdir(exist_ok=True)
        state.save_to_json(str(folder / name / "trainer_state.json"))
    return folder


@pytest.mark.filterwarnings("ignore")
def test_trainer_states_are_read_with_trainer_names(trainer_folder):
    from transformers import TrainingArguments

    arguments = TrainingArguments(output_dir=str(trainer_folder), weight_decay=0.1, seed=7, use_cpu=True)
    (trainer_folder / "training_args.json").write_text(arguments.to_json_string())
    imported = open_source(trainer_folder, settings=KNOWN, weight_decay_convention="coupled")
    assert imported.kind == "trainer"
    trajectory = only(imported)
    assert trajectory.tokens.tolist() == [step * STEP for step in STEPS]
    assert trajectory.columns["val_loss"].tolist() == pytest.approx([loss_at(step) for step in STEPS])
    assert set(trajectory.columns["train_loss"]) == {6.0}, "and not the mean at the end, which is called train_loss"
    assert trajectory.last("gradient_norm") == 1
    info = trajectory.info
    assert (info.learning_rate, info.weight_decay, info.seed, info.schedule) == (0.5, 0.1, 7, "linear")
    assert (info.status, info.weight_decay_convention) == ("finished", "coupled")
    assert noted(imported, "earlier checkpoints of the same run, passed over: 1")
    assert noted(imported, "learning_rate is 5e-05 in the settings and 0.5 in the rows")


def test_the_arguments_of_a_trainer_say_the_peak_of_a_linear_decay(tmp_path):
    """As `Trainer` logs with logging_steps=1: the rate after each step, so that the first row is below the peak."""
    rows = [{"step": k, "loss": 5.0, "learning_rate": 0.001 * (1 - k / 100)} for k in range(1, 101)]
    state = {"global_step": 100, "max_steps": 100, "log_history": [*rows, {"step": 100, "eval_loss": 4.0}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert only(open_source(tmp_path, settings=KNOWN)).info.learning_rate == 0.00099
    (tmp_path / "training_args.json").write_text(json.dumps({"learning_rate": 0.001}))
    imported = open_source(tmp_path, settings=KNOWN)
    assert only(imported).info.learning_rate == 0.001
    assert not noted(imported, "in the rows, which count")


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_batch_is_not_guessed(trainer_folder):
    (trainer_folder / "training_args.json").write_text(
        json.dumps({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2})
    )
    imported = open_source(trainer_folder / "trainer_state.json", settings={"tokens_per_step": 64})
    assert only(imported).info.batch_size == "unknown"
    assert noted(imported, "per_device_train_batch_size (8) x gradient_accumulation_steps (2) x processes")


# Optuna


@pytest.fixture
def optuna_study(tmp_path):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        rate = trial.suggest_float("lr", 1e-4, 1e-2, log=True)
        trial.suggest_float("weight_decay", 0.01, 1.0)
        trial.set_user_attr("seed", trial.number)
        for step in STEPS:
            trial.report(loss_at(step) if trial.number != 3 else float("nan"), step)
            if trial.number == 1 and step == 50:
                raise optuna.TrialPruned
        if trial.number == 2:
            raise ValueError("out of memory")
        return 2 + rate

    storage = f"sqlite:///{tmp_path}/optuna.db"
    study = optuna.create_study(storage=storage, study_name="first", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=4, catch=(ValueError,))
    study.enqueue_trial({"lr": 1e-3})
    return study, storage


OPTUNA = {"mapping": {"learning_rate": "lr"}, "settings": KNOWN, "weight_decay_convention": "coupled"}


@pytest.mark.filterwarnings("ignore")
def test_optuna_trials_are_runs(optuna_study, tmp_path):
    study, storage = optuna_study
    for source in (study, storage, f"optuna:{storage}", tmp_path / "optuna.db"):
        imported = open_source(source, **OPTUNA)
        assert imported.kind == "optuna"
        complete, pruned, failed, diverged = imported.trajectories
        assert complete.tokens.tolist() == [step * STEP for step in STEPS]
        assert complete.columns["val_loss"].tolist() == [loss_at(step) for step in STEPS]
        assert complete.last("final_val_loss") == study.trials[0].value
        assert complete.info.learning_rate == study.trials[0].params["lr"]
        assert complete.info.weight_decay == study.trials[0].params["weight_decay"]
        statuses = [t.info.status for t in (complete, pruned, failed, diverged)]
        assert statuses == ["finished", "running", "failed", "diverged"]
        assert len(pruned.tokens) == 6
        assert [t.info.seed for t in imported.trajectories] == [0, 1, 2, 3]
        assert noted(imported, "pruned trials")
        assert noted(imported, "trials that have not begun, left out: 1 (trial 4)")


@pytest.mark.filterwarnings("ignore")
def test_optuna_trials_without_a_curve_are_points(tmp_path):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1.0), n_trials=3)
    with pytest.raises(InputError, match="give its length, settings="):
        open_source(study, mapping={"learning_rate": "lr"})
    imported = open_source(study, mapping={"learning_rate": "lr"}, settings={"tokens": "1M"})
    for trajectory in imported.trajectories:
        assert trajectory.tokens.tolist() == [1_000_000]
        assert trajectory.last("val_loss") == trajectory.last("final_val_loss") == trajectory.info.learning_rate


@pytest.mark.filterwarnings("ignore")
def test_optuna_trials_that_end_with_infinity_have_diverged_and_failures_without_a_value_are_told():
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        trial.suggest_float("lr", 0.1, 1.0)
        if trial.number != 1:
            trial.report(2.6, 10)
        return [float("inf"), float("nan"), 2.5][trial.number]

    study = optuna.create_study()
    study.optimize(objective, n_trials=3)
    imported = open_source(study, **OPTUNA)
    assert [one.info.status for one in imported.trajectories] == ["diverged", "finished"]
    assert noted(imported, "final value is infinite", ": 1 (trial 0)")
    assert noted(imported, "failed trials without any value", "left out: 1 (trial 1)")


@pytest.mark.filterwarnings("ignore")
def test_optuna_storages_with_several_studies_and_maxima_are_asked_about(optuna_study, tmp_path):
    import optuna

    _, storage = optuna_study
    optuna.create_study(storage=storage, study_name="second", direction="maximize")
    with pytest.raises(InputError, match="has the studies first, second: give one of them as experiment="):
        open_source(storage, **OPTUNA)
    assert len(open_source(storage, experiment="first", **OPTUNA).trajectories) == 4
    with pytest.raises(InputError, match="'second' wants to maximize"):
        open_source(storage, experiment="second", **OPTUNA)


@pytest.mark.filterwarnings("ignore")
def test_optuna_journals_are_read(tmp_path):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log"))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend))
    study.optimize(lambda trial: trial.suggest_float("lr", 0.1, 1.0), n_trials=2)
    options = {"mapping": {"learning_rate": "lr"}, "settings": {"tokens": 1000}}
    assert len(open_source(tmp_path / "journal.log", **options).trajectories) == 2
