"""CSV, Parquet and JSON lines, and the rules by which rows of any kind become trajectories."""

import gzip
import json
import math
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from isotune.errors import InputError
from isotune.integrations.importers import open_source, parse_mapping, parse_settings, to_coupled, to_independent

KNOWN = {"batch_size": 4, "sequence_length": 16}
STEP = 4 * 16
CURVES = Path(__file__).parents[3] / "shared" / "data" / "multi-power-law"


def write(path, text):
    path.write_text(text)
    return path


def read(tmp_path, text, name="run.csv", **options):
    options = {"settings": KNOWN} | options
    return open_source(write(tmp_path / name, text), **options)


def only(imported):
    (trajectory,) = imported.trajectories
    return trajectory


def noted(imported, *words):
    return any(all(word in note for word in words) for note in imported.notes)


def rows(count=5):
    return [{"run": f"r{run}", "step": 10 * k, "eval/loss": 5 - k / 10 - run, "lr": 2.0**-run, "seed": run}
            for run in range(2) for k in range(count)]  # fmt: skip


def write_rows(path, table):
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(table), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        lines = [separator.join(table[0]), *(separator.join(map(str, row.values())) for row in table)]
        path.write_text("\n".join(lines) + "\n")
    return path


# Formats


@pytest.mark.parametrize(
    "name", ["runs.csv", "runs.tsv", "runs.parquet", "runs.jsonl", "runs.ndjson", "runs.csv.gz", "runs.tsv.GZ"]
)
def test_every_format_gives_the_same_runs(tmp_path, name):
    path = tmp_path / name
    plain = Path(str(path).replace(".ndjson", ".jsonl").removesuffix(".gz").removesuffix(".GZ"))
    content = write_rows(plain, rows()).read_bytes()
    plain.unlink()
    path.write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    imported = open_source(path, mapping={"val_loss": "eval/loss", "learning_rate": "lr"}, settings=KNOWN)
    assert imported.kind == "files"
    assert [t.info.learning_rate for t in imported.trajectories] == [1, 0.5]
    assert [t.info.seed for t in imported.trajectories] == [0, 1]
    for run, trajectory in enumerate(imported.trajectories):
        assert trajectory.tokens.tolist() == [10 * k * STEP for k in range(5)]
        assert trajectory.tokens.dtype == np.int64
        assert trajectory.columns["val_loss"].tolist() == [5 - k / 10 - run for k in range(5)]
        assert trajectory.columns["step"].tolist() == [0, 10, 20, 30, 40]
        assert trajectory.info.source == f"{path}:r{run}"


def test_a_compressed_file_that_is_cut_is_refused(tmp_path):
    content = gzip.compress(b"tokens,val_loss\n0,5\n64,4\n")
    for part in (content[:-9], b"tokens,val_loss\n0,5\n"):
        (tmp_path / "run.csv.gz").write_bytes(part)
        with pytest.raises(InputError, match="cut or damaged"):
            open_source(tmp_path / "run.csv.gz", settings=KNOWN)


def test_a_compressed_file_has_the_settings_of_its_name(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"tokens,val_loss\n0,5\n64,4\n"))
    settings = write(tmp_path / "settings.json", '{"a": {"seed": 3}}')
    for source in (tmp_path, tmp_path / "a.csv.gz"):
        assert only(open_source(source, settings=KNOWN, settings_file=settings)).info.seed == 3


def test_blanks_around_names_and_cells_are_not_part_of_them(tmp_path):
    lines = ["run, step , val_loss, schedule, lr", "a, 0, 5, cosine, 0.5", "a, 10, NA, cosine, oops", " a, 20, 3,, 0.5"]
    options = {"mapping": {"learning_rate": "lr"}, "settings_file": write(tmp_path / "s.csv", "run, seed\n a, 3\n")}
    trajectory = only(read(tmp_path, "\n".join(lines) + "\n", **options))
    assert trajectory.columns["step"].tolist() == [0, 10, 20]
    assert trajectory.measured("val_loss")[1].tolist() == [5, 3]
    assert (trajectory.info.schedule, trajectory.info.seed, trajectory.info.learning_rate) == ("cosine", 3, 0.5)


def test_names_that_differ_only_in_blanks_are_one_column_twice(tmp_path):
    imported = read(tmp_path, "step,val_loss, val_loss\n0,5,6\n10,4,5\n")
    assert only(imported).columns["val_loss"].tolist() == [5, 4]
    assert noted(imported, "columns that are there twice")


def test_names_of_runs_keep_their_zeros(tmp_path):
    settings = write(tmp_path / "settings.csv", "run,seed\n001,1\n002,2\n1,3\n")
    curves = "run,tokens,val_loss\n001,0,5\n001,64,4\n1,0,3\n002,0,5\n"
    imported = read(tmp_path, curves, settings_file=settings)
    assert [Path(t.info.source).name for t in imported.trajectories] == ["run.csv:001", "run.csv:1", "run.csv:002"]
    assert [t.info.seed for t in imported.trajectories] == [1, 3, 2]
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "001.csv", "tokens,val_loss\n0,5\n64,4\n")
    assert only(open_source(tmp_path / "folder", settings=KNOWN, settings_file=settings)).info.seed == 1


def test_numbers_that_name_runs_are_the_same_in_every_format(tmp_path):
    settings = write(tmp_path / "settings.csv", "job,seed\n1,1\n2.0,2\n")
    table = pa.table({"job": [1.0, 2.0], "tokens": [0, 0], "val_loss": [5, 4]})
    parquet.write_table(table, tmp_path / "run.parquet")
    write(tmp_path / "run.csv", "job,tokens,val_loss\n1.0,0,5\n2,0,4\n")
    for name in ("run.parquet", "run.csv"):
        imported = open_source(tmp_path / name, settings=KNOWN, settings_file=settings, run_column="job")
        assert [t.info.seed for t in imported.trajectories] == [1, 2]


def test_rows_whose_run_is_nan_are_without_a_run(tmp_path):
    table = pa.table({"run": [1.0, math.nan, 2.0, None], "tokens": [0, 0, 0, 0], "val_loss": [5, 4, 3, 2]})
    parquet.write_table(table, tmp_path / "run.parquet")
    text = "run,tokens,val_loss\n1.0,0,5\nnan,0,4\n2.0,0,3\n,0,2\n"
    for imported in (open_source(tmp_path / "run.parquet", settings=KNOWN), read(tmp_path, text)):
        assert [t.info.source.split(":")[-1] for t in imported.trajectories] == ["1", "2"]
        assert noted(imported, "rows without a value of run, left out: 2")
    with pytest.raises(InputError, match=r"holds no runs \(rows without a value of run, left out: 1"):
        read(tmp_path, "run,tokens,val_loss\nNaN,0,4\n")


def test_a_folder_is_a_run_per_file(tmp_path):
    for name in ("a", "deep/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / f"{name}.csv", "tokens,val_loss\n0,5\n64,4\n")
    imported = open_source(tmp_path, settings=KNOWN)
    assert [Path(t.info.source).stem for t in imported.trajectories] == ["a", "b"]


def test_one_bad_file_of_many_is_left_out_and_said(tmp_path):
    write(tmp_path / "a.csv", "tokens,val_loss\n0,5\n64,4\n")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 not at all")
    write(tmp_path / "c.csv", "")
    write(tmp_path / "d.csv", "tokens,val_loss\n")
    imported = open_source(tmp_path, settings=KNOWN)
    assert len(imported.trajectories) == 1
    assert noted(imported, "left out", "b.parquet")
    assert noted(imported, "left out", "c.csv is empty")
    assert noted(imported, "without rows", "d.csv")


def test_settings_come_from_a_file_of_their_own(tmp_path):
    curves = write_rows(tmp_path / "curves.csv", rows())
    for name, text in {
        "s.csv": "run,weight_decay,schedule\nr0,0.1,cosine\nr9,0.2,wsd\n",
        "s.json": '{"r0": {"weight_decay": 0.1, "schedule": "cosine"}, "r9": {}}',
    }.items():
        imported = open_source(
            curves,
            mapping={"val_loss": "eval/loss"},
            settings=KNOWN,
            settings_file=write(tmp_path / name, text),
            weight_decay_convention="coupled",
        )
        first, second = (t.info for t in imported.trajectories)
        assert (first.weight_decay, first.weight_decay_convention, first.schedule) == (0.1, "coupled", "cosine")
        assert (second.weight_decay, second.schedule) == ("unknown", "unknown")
        assert noted(imported, f"not in {tmp_path / name}", "r1")
        assert noted(imported, "without a curve", "r9")


def test_a_settings_file_inside_the_folder_is_not_a_run(tmp_path):
    write(tmp_path / "a.csv", "step,val_loss\n0,5\n10,4\n")
    settings = write(tmp_path / "settings.csv", "run,batch_size,sequence_length\na,4,16\n")
    trajectory = only(open_source(tmp_path, settings_file=settings))
    assert trajectory.info.batch_size == 4
    assert trajectory.tokens.tolist() == [0, 10 * STEP]


def test_runs_are_not_merged_because_their_column_has_another_name(tmp_path):
    text = "run_id,step,val_loss\na,0,5\na,10,4\nb,0,6\nb,10,5\n"
    with pytest.raises(InputError, match="give run_column='run_id'"):
        read(tmp_path, text)
    assert len(read(tmp_path, text, run_column="run_id").trajectories) == 2


@pytest.mark.parametrize("name", ["runs.csv", "runs.parquet", "runs.jsonl", "nested.jsonl"])
def test_the_column_that_names_the_run_may_be_mapped(tmp_path, name):
    is_nested = name.startswith("nested")
    table = [{"step": k, "val_loss": 5 - k, "job": run} for run in "ab" for k in range(3)]
    nested = [{"step": row["step"], "val_loss": row["val_loss"], "exp": {"name": row["job"]}} for row in table]
    path = write_rows(tmp_path / name, nested if is_nested else table)
    theirs = "exp.name" if is_nested else "job"
    imported = open_source(path, mapping={"run": theirs}, settings=KNOWN)
    assert [t.info.source for t in imported.trajectories] == [f"{path}:a", f"{path}:b"]
    with pytest.raises(InputError, match="has no column 'batch' to tell runs apart: its columns are"):
        open_source(path, mapping={"run": "batch"}, settings=KNOWN)


GRID = [(lr, wd) for lr in (0.001, 0.002) for wd in (0.1, 0.2, 0.4)]


def long_table(loss=lambda lr, wd, k: 5 - k / 10 - lr - wd, rate=lambda lr, k: lr, runs=GRID):
    lines = [f"{100 * k},{loss(lr, wd, k)},{rate(lr, k)},{wd}" for lr, wd in runs for k in range(1, 6)]
    return "tokens,val_loss,lr,wd\n" + "\n".join(lines) + "\n"


NAMES = {"learning_rate": "lr", "weight_decay": "wd"}


@pytest.mark.parametrize("is_sorted_by_position", [False, True])
def test_rows_that_differ_in_settings_at_one_position_are_several_runs(tmp_path, is_sorted_by_position):
    header, *lines = long_table().splitlines()
    if is_sorted_by_position:
        lines.sort(key=lambda line: int(line.partition(",")[0]))
    imported = read(tmp_path, "\n".join([header, *lines]) + "\n", mapping=NAMES)
    assert noted(imported, "rows differ in learning_rate, weight_decay", "6 of them")
    assert not noted(imported, "written again")
    assert [(one.info.learning_rate, one.info.weight_decay) for one in imported.trajectories] == GRID
    for trajectory in imported.trajectories:
        expected = [5 - k / 10 - trajectory.info.learning_rate - trajectory.info.weight_decay for k in range(1, 6)]
        np.testing.assert_allclose(trajectory.measured("val_loss")[1], expected)


def test_a_table_with_a_row_per_run_is_as_many_runs(tmp_path):
    text = "tokens,val_loss,lr,wd\n" + "".join(f"1000,{lr + wd},{lr},{wd}\n" for lr, wd in GRID)
    imported = read(tmp_path, text, mapping=NAMES)
    assert [(one.info.learning_rate, one.info.weight_decay) for one in imported.trajectories] == GRID
    assert {one.info.schedule for one in imported.trajectories} == {"unknown"}, "one row shows no schedule"


def test_rows_of_two_seeds_are_two_runs_wherever_they_lie(tmp_path):
    imported = read(tmp_path, "tokens,val_loss,seed\n100,4,0\n200,3,0\n150,4,1\n250,3,1\n")
    assert [one.info.seed for one in imported.trajectories] == [0, 1]
    assert [list(one.tokens) for one in imported.trajectories] == [[100, 200], [150, 250]]


def test_what_is_written_twice_in_one_combination_is_still_told(tmp_path):
    imported = read(tmp_path, long_table(runs=[*GRID, GRID[0]]), mapping=NAMES)
    assert len(imported.trajectories) == 6 and noted(imported, "written again at the same tokens")


def test_runs_whose_learning_rate_follows_a_schedule_need_a_column_that_tells_them_apart(tmp_path):
    text = long_table(rate=lambda lr, k: lr * (1 - k / 6))
    with pytest.raises(InputError, match="learning rate changes along the runs.*--run-column"):
        read(tmp_path, text, mapping=NAMES)


def test_one_run_may_change_its_settings_and_be_restarted_with_others(tmp_path):
    lines = [f"{100 * k},{5 - k / 10},{0.001 * (1 - k / 12)},{0.1 if k < 5 else 0.2}" for k in range(1, 11)]
    again = [f"{100 * k},{5 - k / 10},{0.0009 * (1 - k / 12)},0.2" for k in range(8, 12)]
    imported = read(tmp_path, "\n".join(["tokens,val_loss,lr,wd", *lines, *again]) + "\n", mapping=NAMES)
    assert len(only(imported).tokens) == 11 and noted(imported, "written again at the same tokens")


def test_settings_that_only_some_rows_have_split_no_run(tmp_path):
    text = "tokens,val_loss,seed,setup\n100,4,3,tiny\n200,3,,\n200,3,,\n"
    assert only(read(tmp_path, text)).info.seed == 3
    assert only(read(tmp_path, text)).info.setup == "tiny"


def test_odd_types_of_parquet_are_numbers_or_noted(tmp_path):
    table = pa.table(
        {
            "run": pa.array([1, 1, 2]).dictionary_encode(),
            "tokens": pa.array(["0", " 64 ", "0"]),
            "val_loss": pa.array([5, 4, 3], pa.decimal128(5, 2)),
            "train_loss": pa.array([[1.0], [2.0], [3.0]]),
        }
    )
    parquet.write_table(table, tmp_path / "odd.parquet")
    imported = open_source(tmp_path / "odd.parquet", settings=KNOWN)
    assert [t.columns["val_loss"].tolist() for t in imported.trajectories] == [[5, 4], [3]]
    assert noted(imported, "train_loss", "not numbers")


# The token axis


def test_steps_need_the_tokens_of_a_step(tmp_path):
    with pytest.raises(InputError, match=r"give batch_size and sequence_length \(or tokens_per_step\) in settings"):
        read(tmp_path, "step,val_loss\n0,5\n10,4\n", settings={})
    assert only(
        read(tmp_path, "step,val_loss\n0,5\n10,4\n", settings={"tokens_per_step": 100})
    ).tokens.tolist() == [0, 1000]  # fmt: skip


def test_every_reason_why_runs_have_no_tokens_is_told(tmp_path):
    write(tmp_path / "a.csv", "step,val_loss\n0,5\n10,4\n")
    write(tmp_path / "b.csv", "iteration,val_loss\n0,5\n10,4\n")
    write(tmp_path / "c.csv", "tokens,val_loss\nfew,5\nmany,4\n")
    with pytest.raises(InputError) as error:
        open_source(tmp_path)
    assert "has runs (b) with neither tokens nor step: map one" in str(error.value)
    assert "and it has runs (c) with a column tokens or step without a number in it" in str(error.value)
    assert "and it has runs (a) with steps and no tokens" in str(error.value)
    assert "give batch_size and sequence_length" in str(error.value)


def test_a_column_of_words_is_not_said_to_be_absent(tmp_path):
    with pytest.raises(InputError, match="has a column tokens or step without a number.*values of tokens that are not"):
        read(tmp_path, "tokens,val_loss\nfew,5\nmany,4\n")
    write(tmp_path / "good.csv", "tokens,val_loss\n0,5\n")
    assert noted(open_source(tmp_path, settings=KNOWN), "runs without a number in tokens or step, left out: 1 (run)")


def test_tokens_may_be_written_with_a_suffix(tmp_path):
    text = "num_tokens,val_loss,num_parameters\n500K,5,1.5B\n1M,4,1.5B\n2_000_000,3,1.5B\nmany,2,1.5B\n2.5 m,1,1.5B\n"
    imported = read(tmp_path, text, mapping={"tokens": "num_tokens"})
    assert only(imported).tokens.tolist() == [500_000, 1_000_000, 2_000_000, 2_500_000]
    assert only(imported).info.num_parameters == 1_500_000_000
    assert noted(imported, "values of num_tokens that are not numbers", ": 1")
    assert not noted(read(tmp_path, "tokens,val_loss\n1M,5\n2M,4\n"), "not numbers")


def test_a_batch_size_that_changes_is_added_up(tmp_path):
    imported = read(
        tmp_path,
        "step,val_loss,batch_size\n10,5,4\n20,4,4\n30,3,8\n",
        settings={"sequence_length": 16},
    )
    assert only(imported).tokens.tolist() == [640, 1280, 2560]
    assert only(imported).info.batch_size == 8
    assert noted(imported, "batch size of each row")


def test_rows_without_tokens_get_them_from_their_step(tmp_path):
    imported = read(tmp_path, "step,tokens,val_loss,train_loss\n10,100,,5\n15,,4,\n20,200,,3\n40,,1,\n")
    assert only(imported).tokens.tolist() == [100, 150, 200]
    assert noted(imported, "interpolated from their step: 1")
    assert noted(imported, "tokens is missing", ": 1")


def test_a_step_may_be_said_to_count_tokens(tmp_path):
    trajectory = only(read(tmp_path, "step,val_loss\n0,5\n10,4\n", mapping={"tokens": "step"}, settings={}))
    assert trajectory.tokens.tolist() == [0, 10]
    assert "step" not in trajectory.columns


# Ragged, torn, doubled, unsorted


def test_restarts_keep_the_last_writing_of_each_step(tmp_path):
    imported = read(tmp_path, "step,val_loss\n0,5\n10,4\n20,3\n10,4.5\n20,3.5\n30,2\n")
    assert only(imported).columns["val_loss"].tolist() == [5, 4.5, 3.5, 2]
    assert noted(imported, "step goes back", ": 1")
    assert noted(imported, "written again", "the last is kept: 2")


def curve(steps, loss=5.0):
    return "".join(f"{step},{loss - step / 10_000}\n" for step in steps)


def test_a_restart_leaves_nothing_of_the_branch_that_it_abandoned(tmp_path):
    abandoned, restarted = curve(range(1000, 5000, 1000)), curve((1500, 2500), loss=4.0)
    imported = read(tmp_path, "step,val_loss\n" + abandoned + restarted)
    assert only(imported).columns["step"].tolist() == [1000, 1500, 2500]
    assert only(imported).columns["val_loss"].tolist() == [4.9, 3.85, 3.75]
    assert noted(imported, "rows of a stretch that a restart abandoned, left out: 3 (run)")
    again = read(tmp_path, "step,val_loss\n" + abandoned + restarted + curve((1200, 2200, 3200), loss=3.0))
    assert only(again).columns["step"].tolist() == [1000, 1200, 2200, 3200]


def test_a_branch_that_diverged_and_was_abandoned_does_not_count(tmp_path):
    text = "step,val_loss,train_loss\n0,5,5\n10,4,4\n20,nan,3\n30,nan,nan\n5,,4.5\n10,4,4\n15,,3\n"
    assert only(read(tmp_path, text)).info.status == "finished"
    assert only(read(tmp_path, text)).columns["val_loss"].tolist()[-2:] == pytest.approx([4, np.nan], nan_ok=True)


OUT_OF_ORDER = {
    "newest first": range(20, 0, -1),
    "as text": sorted(range(100, 2100, 100), key=str),
    "parts in the wrong order": [*range(10), *range(20, 30), *range(10, 20)],
    "one late row": [10, 20, 30, 50, 40, 60, 70],
    "shuffled": np.random.default_rng(1).permutation(40).tolist(),
}


@pytest.mark.parametrize("order", OUT_OF_ORDER)
def test_rows_out_of_order_are_no_restart(tmp_path, order):
    steps = list(OUT_OF_ORDER[order])
    imported = read(tmp_path, "step,val_loss\n" + curve(steps))
    assert only(imported).columns["step"].tolist() == sorted(steps)
    assert noted(imported, "step goes back") and not noted(imported, "abandoned")


def test_columns_that_are_written_one_after_the_other_are_no_restart(tmp_path):
    train = "".join(f"{step},{5 - step / 100},,0.1\n" for step in range(0, 100, 10))
    val = "".join(f"{step},,{5 - step / 100},0.1\n" for step in range(5, 100, 20))
    imported = read(tmp_path, "step,train_loss,val_loss,learning_rate\n" + train + val)
    assert len(only(imported).measured("train_loss")[0]) == 10 and len(only(imported).measured("val_loss")[0]) == 5
    assert not noted(imported, "abandoned")


def test_rows_of_one_step_with_different_columns_become_one(tmp_path):
    imported = read(tmp_path, "step,train_loss,val_loss\n0,6,\n0,,5\n10,5,\n10,,4\n")
    assert only(imported).columns["train_loss"].tolist() == [6, 5]
    assert only(imported).columns["val_loss"].tolist() == [5, 4]
    assert noted(imported, "made into one: 2")
    assert not noted(imported, "written again")


def test_a_shuffled_file_reads_as_the_sorted_one(tmp_path):
    table = rows(50)
    shuffled = [table[k] for k in np.random.default_rng(0).permutation(len(table))]
    options = {"mapping": {"val_loss": "eval/loss"}, "settings": KNOWN}
    a, b = (
        {
            t.info.source.split(":")[-1]: t
            for t in open_source(write_rows(tmp_path / name, part), **options).trajectories
        }
        for name, part in (("a.csv", table), ("b.csv", shuffled))
    )
    for run in a:
        for name, values in a[run].columns.items():
            np.testing.assert_array_equal(values, b[run].columns[name])


def test_ragged_and_wordy_lines_are_counted(tmp_path):
    imported = read(tmp_path, "step,val_loss\n0,5\n10\n20,oops\n30,3,3\nx,2\n-10,9\n40,2\n")
    assert only(imported).columns["step"].tolist() == [0, 20, 40]
    assert noted(imported, "not as many fields as the first", ": 2")
    assert noted(imported, "values of val_loss that are not numbers", ": 1")
    assert noted(imported, "step is missing, negative or no number, left out: 2")


def test_a_decimal_comma_is_said_not_to_be_read(tmp_path):
    with pytest.raises(
        InputError, match=r"has a column loss without a number in it, as '3,5' is none: a decimal comma"
    ):
        read(tmp_path, "step;loss\n0;3,5\n10;3,25\n", mapping={"val_loss": "loss"})
    imported = read(tmp_path, "step;val_loss;learning_rate;weight_decay\n0;3.5;0,001;1e-1\n10;3.25;0,001;1e-1\n")
    assert only(imported).info.learning_rate == "unknown"
    words = "a decimal comma is not read, nor one between thousands: 0,001 is no number (in learning_rate)"
    assert imported.notes[0] == words
    with pytest.raises(InputError, match="has a column val_loss without a number in it, as 'high' is none;"):
        read(tmp_path, "step,val_loss\n0,high\n10,low\n")


@pytest.mark.parametrize("end", ['{"step": 20, "val_l', "[1, 2]", '{"step": NaN}{'])
def test_a_half_written_last_line_is_left_out(tmp_path, end):
    imported = read(tmp_path, '{"step": 0, "val_loss": 5}\n{"step": 10, "val_loss": 4}\n' + end, "run.jsonl")
    assert only(imported).columns["val_loss"].tolist() == [5, 4]
    assert noted(imported, "last line is half-written")


def test_a_csv_without_a_last_line_end_is_suspicious(tmp_path):
    assert noted(read(tmp_path, "step,val_loss\n0,5\n10,4"), "the last line has no end")


@pytest.mark.parametrize("name", ["run.jsonl", "trainer_state.json"])
def test_a_name_that_is_twice_in_an_object_is_noted(tmp_path, name):
    row = '{"step": 0, "val_loss": 5, "val_loss": 4}'
    text = row + "\n" if name == "run.jsonl" else f'{{"log_history": [{row}]}}'
    imported = read(tmp_path, text, name, mapping={"val_loss": "val_loss"})
    assert only(imported).columns["val_loss"].tolist() == [4]
    assert noted(imported, "twice in one JSON object, of which the last counts: 1")


def test_nested_json_has_names_with_dots(tmp_path):
    line = '{"step": %d, "eval": {"loss": %g}, "optim": {"lr": 0.5}}\n'
    text = "".join(line % (k, 5 - k) for k in range(3))
    trajectory = only(read(tmp_path, text, "run.jsonl", mapping={"val_loss": "eval.loss", "learning_rate": "optim.lr"}))
    assert trajectory.columns["val_loss"].tolist() == [5, 4, 3]
    assert trajectory.info.learning_rate == 0.5


# NaN and infinity


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf", "Infinity", "1e999"])
def test_a_loss_that_ends_as_no_number_has_diverged(tmp_path, word):
    imported = read(tmp_path, f"step,val_loss\n0,5\n10,4\n20,{word}\n30,{word}\n")
    assert only(imported).info.status == "diverged"
    assert only(imported).last("val_loss") == 4
    assert noted(imported, "taken as diverged: 1")


def test_a_loss_that_recovers_has_not_diverged(tmp_path):
    imported = read(tmp_path, "step,val_loss\n0,5\n10,nan\n20,3\n")
    assert only(imported).info.status == "finished"
    assert math.isnan(only(imported).columns["val_loss"][1])
    assert noted(imported, "val_loss that are not finite", ": 1")


def test_an_empty_cell_is_no_divergence(tmp_path):
    assert only(read(tmp_path, "step,val_loss,train_loss\n0,5,5\n10,,4\n")).info.status == "finished"


def test_a_run_that_never_had_a_loss_is_left_out_and_said(tmp_path):
    imported = read(tmp_path, "run,step,val_loss\na,0,5\na,10,4\nb,0,\nb,10,\nc,0,nan\n")
    assert [t.info.status for t in imported.trajectories] == ["finished", "diverged"]
    assert noted(imported, "runs without val_loss, left out: 1 (b)")


# Names and settings


def test_another_loss_can_be_named(tmp_path):
    text = "step,loss\n0,5\n10,4\n"
    with pytest.raises(InputError, match="has no run with val_loss: map it, .*its columns are step, loss"):
        read(tmp_path, text)
    assert only(read(tmp_path, text, mapping={"train_loss": "loss"}, loss="train_loss")).last("train_loss") == 4
    assert only(read(tmp_path, text, loss="loss")).last("loss") == 4


def test_losses_in_rows_without_a_position_are_no_losses(tmp_path):
    with pytest.raises(InputError, match="no val_loss in any row with a position: map both tokens and step"):
        read(tmp_path, "tokens,val_loss,train_loss\n10,,5\n,4,\n")


def test_a_mapped_name_that_is_nowhere_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no 'eval/los' to read as val_loss: its columns are step, val_loss"):
        read(tmp_path, "step,val_loss\n0,5\n", mapping={"val_loss": "eval/los"})


def test_a_column_with_our_name_gives_way_to_the_mapped_one(tmp_path):
    imported = read(tmp_path, "step,val_loss,ema\n0,5,6\n10,4,5\n", mapping={"val_loss": "ema"})
    assert only(imported).last("val_loss") == 5
    assert noted(imported, "column val_loss left out, since ema is to be read as val_loss")


def test_columns_without_a_name_of_ours_are_listed(tmp_path):
    assert noted(read(tmp_path, "step,val_loss,epoch,gpu\n0,5,0,a\n"), "no name for, left out: epoch, gpu")


def test_the_convention_of_weight_decay_is_never_guessed(tmp_path):
    text = "step,val_loss,weight_decay\n0,5,0.1\n"
    imported = read(tmp_path, text)
    assert only(imported).info.weight_decay_convention == "unknown"
    assert noted(imported, "say coupled (w *= 1 - lr*wd, PyTorch)")
    assert noted(imported, "weight_decay_convention= or --wd-convention")
    imported = read(tmp_path, text, weight_decay_convention="independent")
    assert only(imported).info.weight_decay_convention == "independent"
    assert not noted(imported, "convention")


def test_conventions_convert_to_and_fro():
    assert to_coupled(1e-4, 1e-3) == pytest.approx(0.1)
    assert to_independent(to_coupled(1e-4, 1e-3), 1e-3) == pytest.approx(1e-4)
    np.testing.assert_allclose(to_coupled(np.array([1e-4, 2e-4]), np.array([1e-3, 1e-3])), [0.1, 0.2])
    with pytest.raises(InputError, match="above 0"):
        to_coupled(0.1, 0.0)


@pytest.mark.parametrize(
    ("rates", "expected", "words"),
    [
        ([3, 3, 3, 3], 3, "constant at 3"),
        ([1, 2, 3, 3, 3], 3, "rising to 3, constant at 3"),
        ([1, 3, 3, 2, 1, 0, 0], 3, "rising to 3, constant at 3, falling to 0, constant at 0"),
        ([3, 2.5, 2, 1, 0.1], 3, "falling to 0.1"),
        ([3, 3, 1, 1, 1], 1, "constant at 3, falling to 1, constant at 1"),
        ([1, 2, 3], 3, "rising to 3"),
    ],
)
def test_the_rate_of_a_schedule_is_that_of_its_last_row_before_a_decay(tmp_path, rates, expected, words):
    text = "step,val_loss,learning_rate\n" + "".join(f"{k},5,{rate}\n" for k, rate in enumerate(rates))
    info = only(read(tmp_path, text)).info
    assert (info.learning_rate, info.schedule) == (expected, words)
    assert only(read(tmp_path, text)).columns["learning_rate"].tolist() == rates


def test_what_the_user_says_counts_and_a_contradiction_is_noted(tmp_path):
    text = "step,val_loss,learning_rate,batch_size\n0,5,0.1,8\n10,4,0.1,8\n"
    imported = read(tmp_path, text, settings={"learning_rate": "2^-3", "batch_size": 4, "sequence_length": 16})
    assert (only(imported).info.learning_rate, only(imported).info.batch_size) == (0.125, 4)
    assert only(imported).tokens.tolist() == [0, 10 * STEP]
    assert noted(imported, "learning_rate of the rows replaced by the one that was given")
    assert noted(imported, "batch_size of the rows replaced by the one that was given")


def test_settings_that_make_no_sense_are_unknown_in_files_and_refused_from_the_user(tmp_path):
    imported = read(tmp_path, "step,val_loss,seed\n0,5,1.5\n")
    assert only(imported).info.seed == "unknown"
    assert noted(imported, "seed=1.5 must be a whole number", "read as unknown")
    with pytest.raises(InputError, match="batch_size='many' must be a whole number"):
        read(tmp_path, "step,val_loss\n0,5\n", settings={"batch_size": "many"})
    with pytest.raises(InputError, match="settings has 'lr', which is none"):
        read(tmp_path, "step,val_loss\n0,5\n", settings={"lr": 1})
    with pytest.raises(InputError, match="weight_decay_convention='both' must be one of"):
        read(tmp_path, "step,val_loss\n0,5\n", weight_decay_convention="both")


def test_a_status_column_says_how_runs_ended(tmp_path):
    text = "run,step,val_loss,status\na,0,5,finished\nb,0,5,failed\nc,0,5,exploded\n"
    imported = read(tmp_path, text)
    assert [t.info.status for t in imported.trajectories] == ["finished", "failed", "finished"]
    assert noted(imported, "status='exploded' must be one of", "(c)")


def test_the_command_line_spells_mappings_and_settings():
    assert parse_mapping(["val_loss=eval/loss", "tokens=a=b"]) == {"val_loss": "eval/loss", "tokens": "a=b"}
    assert parse_settings(["batch_size=64", "learning_rate=2^-10"]) == {"batch_size": 64, "learning_rate": 2**-10}
    for words in (["val_loss"], ["=x"], ["val_loss="], ["a=b", "a=c"]):
        with pytest.raises(InputError, match="--map"):
            parse_mapping(words)


@pytest.mark.parametrize("text", ["", "\n\n", "\x00", "step,val_loss\n"])
def test_files_without_rows_are_refused(tmp_path, text):
    with pytest.raises(InputError):
        read(tmp_path, text)


# Size, and curves that others made


def test_ten_thousand_runs_take_seconds(tmp_path):
    num_runs, num_rows = 10_000, 20
    run = np.repeat(np.arange(num_runs), num_rows)
    table = pa.table(
        {
            "run": run,
            "step": np.tile(np.arange(num_rows), num_runs),
            "val_loss": 5 - run / num_runs,
            "learning_rate": np.repeat(np.linspace(1e-4, 1e-2, num_runs), num_rows),
        }
    )
    parquet.write_table(table, tmp_path / "many.parquet")
    began = time.process_time()
    imported = open_source(tmp_path / "many.parquet", settings=KNOWN)
    assert time.process_time() - began < 30
    assert len(imported.trajectories) == num_runs
    assert imported.trajectories[-1].last("val_loss") == 5 - (num_runs - 1) / num_runs
    assert len(" ".join(imported.notes)) < 2000, "a thousand equal notes are one"


def test_curves_of_the_multi_power_law_are_read():
    for folder in sorted(CURVES.glob("csv_*")):  # where they are not, there is nothing to read
        imported = open_source(
            folder, mapping={"val_loss": "loss", "learning_rate": "lr"}, settings={"tokens_per_step": 1}
        )
        rates = {Path(t.info.source).stem: t.info for t in imported.trajectories}
        assert len(rates) == 9
        assert all(len(t.tokens) > 90 for t in imported.trajectories)
        assert rates["constant_24000"].schedule == "constant at 0.0003"
        assert rates["wsd_20000_24000"].learning_rate == pytest.approx(3e-4)
        assert rates["wsdcon_9"].learning_rate < 3e-4, "a lower plateau is the last phase"


@pytest.mark.parametrize(
    ("rates", "history"),
    [
        ([0.1, 0.3, 0.3, 0.3, 0.3, 0.3], ""),
        ([0.3, 0.3, 0.3, 0.2, 0.1, 0.0], ""),
        ([0.3, 0.3, 0.3, 0.1, 0.1, 0.1], "LR 0.3 until 128"),
        ([0.3, 0.3, 0.2, 0.1, 0.1, 0.0], "LR 0.3 until 64"),
    ],
    ids=["warm-up", "decay", "step", "step and decay"],
)
def test_a_run_that_stepped_down_has_a_history_and_one_that_ends_falling_has_none(tmp_path, rates, history):
    rows = "".join(f"{step},5,{rate}\n" for step, rate in enumerate(rates))
    settings = {"batch_size": 4, "sequence_length": 16}
    run = only(read(tmp_path, f"step,val_loss,learning_rate\n{rows}", settings=settings))
    assert run.info.history == history


def test_earlier_weight_decays_and_batch_sizes_are_history(tmp_path):
    rows = "0,5,0.1,4\n1,5,0.1,4\n2,5,0.2,4\n3,5,0.2,8\n4,5,0.2,8\n"
    run = only(read(tmp_path, f"step,val_loss,weight_decay,batch_size\n{rows}", settings={"tokens_per_step": 64}))
    assert run.info.history == "WD 0.1 until 64, batch 4 until 128"


def test_a_learning_rate_that_is_logged_between_the_losses_has_its_plateau(tmp_path):
    rows = [(10 * k, "", 0.1 if k < 4 else 0.1 * (7 - k) / 4) for k in range(7)] + [
        (10 * k + 5, 5, "") for k in range(7)
    ]
    text = "step,val_loss,learning_rate\n" + "".join(f"{a},{b},{c}\n" for a, b, c in sorted(rows, key=lambda r: r[0]))
    info = only(read(tmp_path, text)).info
    assert (info.learning_rate, info.has_plateau) == (0.1, True)
    assert info.schedule == "constant at 0.1, falling to 0.025"
    assert info.decay_tokens == (65 - 30) * STEP


@pytest.mark.parametrize(
    ("first", "stated", "expected", "is_noted"), [(10, None, 0.09, True), (10, 0.1, 0.1, False), (0, None, 0.1, False)]
)
def test_a_peak_that_is_not_among_the_rows_is_not_made_up(tmp_path, first, stated, expected, is_noted):
    lines = "".join(f"{step},5,{0.1 * (1 - step / 100)}\n" for step in range(first, 100, 10))
    (tmp_path / "settings.json").write_text(json.dumps({"run": {"learning_rate": stated}}))
    options = {"settings_file": tmp_path / "settings.json"}
    imported = read(tmp_path, "step,val_loss,learning_rate\n" + lines, **options)
    assert only(imported).info.learning_rate == pytest.approx(expected)
    assert noted(imported, "falls from its first row on") == is_noted


@pytest.mark.parametrize(
    ("rates", "stated", "expected"),
    [
        ([0.99, 0.98, 0.97], 1.0, 1.0),  # a linear fall that was first logged after a step
        ([0.99, 0.98, 0.97], 9.0, 0.99),  # no line through these rows is as high
        ([0.99, 0.98, 0.97], 0.5, 0.99),
        ([0.5, 0.98, 0.9], 1.0, 1.0),  # a peak between two rows
        ([0.5, 0.98, 0.9], 3.0, 0.98),
        ([0.98, 0.98, 0.9], 1.0, 0.98),  # a plateau
        ([0.5, 0.7, 0.9], 1.0, 0.9),  # no peak yet
    ],
)
def test_a_stated_rate_counts_where_the_peak_may_lie_between_rows(tmp_path, rates, stated, expected):
    rates = [*rates, *(rates[-1] + (rates[-1] - rates[-2]) * k / 1000 for k in range(1, 198))]
    lines = "".join(f"{step},5,{rate!r}\n" for step, rate in enumerate(rates, 1))
    settings = write(tmp_path / "settings.json", json.dumps({"run": {"learning_rate": stated}}))
    info = only(read(tmp_path, "step,val_loss,learning_rate\n" + lines, settings_file=settings)).info
    assert info.learning_rate == (rates[-1] if expected == 0.9 else expected)


def test_mistakes_in_names_are_understood(tmp_path):
    with pytest.raises(InputError, match="wrong way round.*OURS=THEIRS, val_loss=eval/loss"):
        read(tmp_path, "step,eval/loss\n1,5\n", mapping={"eval/loss": "val_loss"})
    with pytest.raises(InputError, match="did you mean 'batch_size'"):
        read(tmp_path, "step,val_loss\n1,5\n", settings={"batchsize": 4})


def test_powers_of_two_in_a_column_are_numbers(tmp_path):
    text = "tokens,val_loss,learning_rate\n64,3.0,2^-10\n128,2.5,2^-10\n"
    assert only(read(tmp_path, text)).info.learning_rate == 2.0**-10


def test_views_of_text_are_read_as_text_is(tmp_path):
    rates = pa.array(["0.5", "0.5"]).cast(pa.string_view())
    table = pa.table({"tokens": [64, 128], "val_loss": [3.0, 2.5], "learning_rate": rates})
    parquet.write_table(table, tmp_path / "run.parquet")
    assert only(open_source(tmp_path / "run.parquet", settings=KNOWN)).info.learning_rate == 0.5


def test_the_tokens_of_a_step_give_steps_where_rows_have_tokens(tmp_path):
    text = "tokens,val_loss\n64,3.0\n128,2.5\n"
    trajectory = only(read(tmp_path, text, settings={"tokens_per_step": 32}))
    assert trajectory.columns["step"].tolist() == [2, 4]


def test_a_decay_that_is_longer_than_the_run_is_not_used_and_said(tmp_path):
    imported = read(tmp_path, "tokens,val_loss\n64,3.0\n128,2.5\n", settings=KNOWN | {"decay_tokens": 1000})
    assert only(imported).info.decay_tokens == "unknown"
    assert noted(imported, "decay_tokens=1K", "longer than the run")


def test_values_that_are_no_numbers_are_named_where_nothing_is_left(tmp_path):
    with pytest.raises(InputError, match="values of val_loss that are not numbers"):
        read(tmp_path, 'tokens,val_loss\n64,"3,0"\n128,"2,5"\n')
