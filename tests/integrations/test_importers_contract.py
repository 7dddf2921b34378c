"""What every importer keeps to; a new one is tested here by being listed in IMPORTERS."""

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from isotune.errors import InputError
from isotune.integrations.importers import IMPORTERS, Notes, open_source, parse_mapping
from isotune.integrations.importers.databases import TABLES

OPTIONAL = ("torch", "pyarrow", "tensorboard", "wandb", "mlflow", "optuna", "transformers")
EXTRAS = {
    "tensorboard": "TensorBoard's files",
    "wandb": "W&B runs",
    "mlflow": "MLflow runs",
    "optuna": "Optuna studies",
}

importers = pytest.mark.parametrize("importer", IMPORTERS, ids=lambda importer: importer.NAME)


def test_importing_the_importers_imports_nothing_optional():
    code = f"""
import sys
import isotune.integrations.importers
print([name for name in {OPTIONAL} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@importers
def test_nonsense_is_not_recognized(importer, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    for source in (str(tmp_path), str(tmp_path / "notes.txt"), str(tmp_path / "absent"), "x:y", 5, None, object()):
        assert importer.recognizes(source) is False


@importers
@pytest.mark.filterwarnings("ignore")
def test_an_empty_folder_is_refused_in_words(importer, tmp_path):
    with pytest.raises(InputError, match=": "):
        open_source(tmp_path, kind=importer.NAME)


@importers
def test_names_of_a_tool_are_for_names_of_ours(importer):
    from isotune.integrations.importers.options import COLUMNS, SETTINGS

    assert set(importer.NAMES) <= {*COLUMNS, *SETTINGS}


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_library_is_named_with_its_extra(module, tmp_path):
    place = {"tensorboard": "events.out.tfevents.1", "wandb": "run-1.wandb", "mlflow": "m.db", "optuna": "o.db"}[module]
    if place.endswith(".db"):
        with closing(sqlite3.connect(tmp_path / place)) as connection:
            for table in TABLES[module]:
                connection.execute(f"create table {table} (x)")
    else:
        (tmp_path / place).write_bytes(b":W&B\xe1\xbe\x00" + bytes(20))
    code = f"""
import sys
sys.modules[{module!r}] = None
from isotune.errors import InputError
from isotune.integrations.importers import open_source
try:
    open_source({str(tmp_path / place)!r}, kind={module!r})
except InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f"reading {EXTRAS[module]} needs {module}: pip install 'isotune[{module}]'"
    assert done.stdout.strip() == expected, done.stderr


def test_a_source_that_is_not_there_is_said(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        open_source(tmp_path / "absent.csv")
    with pytest.raises(
        InputError, match="holds no runs that isotune recognizes: give files.*or say what it is with kind="
    ):
        open_source(tmp_path)
    with pytest.raises(InputError, match="kind='excel' is not known: give one of study, table, answers, files"):
        open_source(tmp_path, kind="excel")
    with pytest.raises(InputError, match="source='' is no name"):
        open_source("")
    with pytest.raises(InputError, match="is no source of runs"):
        open_source(5)


@pytest.mark.parametrize("name", ["runs.json", "runs.txt", "runs.zip"])
def test_a_file_of_another_ending_is_told_the_endings(tmp_path, name):
    (tmp_path / name).write_text("tokens,val_loss\n0,5\n")
    for source in (tmp_path, tmp_path / name):
        with pytest.raises(
            InputError, match=r"give files that end in \.csv, \.tsv, .*\.parquet \(or these with \.gz\)"
        ):
            open_source(source)


def test_names_that_cannot_be_looked_up_are_refused(tmp_path):
    for name in ("x" * 300, f"sqlite:///{'x' * 300}.db", f"{tmp_path}/{'x' * 300}/runs.csv"):
        for kind in (None, *(importer.NAME for importer in IMPORTERS)):
            with pytest.raises(InputError, match=r"source='.*cannot be looked up \(File name too long\)"):
                open_source(name, kind=kind)
    with pytest.raises(InputError, match="source=.*cannot be looked up"):
        open_source("\udcff\ud800")
    (tmp_path / "runs.csv").write_text("tokens,val_loss\n0,5\n")
    with pytest.raises(InputError, match="settings_file='.*cannot be looked up"):
        open_source(tmp_path / "runs.csv", settings_file="x" * 300)


def test_a_folder_of_several_kinds_asks_for_one(tmp_path):
    (tmp_path / "a.csv").write_text("tokens,val_loss\n0,5\n")
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    with pytest.raises(InputError, match="several kinds: give kind=files or trainer"):
        open_source(tmp_path)
    assert open_source(f"files:{tmp_path}").kind == "files"


def test_equal_notes_are_one_sentence():
    notes = Notes()
    for run in range(1000):
        notes.count("rows left out", 2, f"r{run}")
    assert notes.sentences() == ("rows left out: 2000 (1000 runs: r0, r1, r2 and 997 more)",)


def test_notes_count_runs_also_where_files_give_them_the_same_names(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("run,tokens,val_loss\n" + "".join(f"r{run},0,5\n" for run in range(5)))
    notes = open_source(tmp_path).notes
    assert any("taken as finished (10 runs: r0, r1, r2 and 7 more)" in note for note in notes)


def test_the_example_of_the_documentation_parses():
    assert parse_mapping(["val_loss=eval/loss"]) == {"val_loss": "eval/loss"}
