"""Replay tables against the studies that they were made of."""

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from made import EVALUATION, NUMERICS
from made_tables import (
    FINGERPRINT,
    SECONDS_PER_STEP,
    STEP,
    grid_study,
    made_constant,
    made_study,
    made_wsd,
    note_time,
    setup,
    train_by_hand,
    window_losses,
)

from isotune.errors import InputError
from isotune.recipe import AdamW, batch_switch, constant, cosine, new_settings, square_root_rule
from isotune.runs import Cell, Grid, Study, check_table, export_table, make_grids, merge_tables, read_table
from isotune.runs.provenance import source_commit

FILES = ("runs.parquet", "decays.parquet", "curves.parquet", "manifest.json")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return grid_study(tmp_path_factory.mktemp("grid") / "study", trunk_steps=70)


@pytest.fixture(scope="module")
def exported(study, tmp_path_factory):
    return export_table([study], tmp_path_factory.mktemp("exported") / "table", name="made")


@pytest.fixture
def table(exported, tmp_path):
    """A copy to be spoiled."""
    shutil.copytree(exported.folder, tmp_path / "table")
    return read_table(tmp_path / "table")


def export(tmp_path, *recipes, name="table", **options):
    """A study with these recipes, and its table."""
    study = made_study(tmp_path / f"{name}-study")
    for recipe in recipes:
        train_by_hand(study, recipe, **options)
    return study, export_table([study], tmp_path / name, name=name)


def expected_curve(study, recipe, *, start_tokens=0):
    """The oracle: the study's own rows, thinned by a loop."""
    trajectory = study.trajectory(recipe)
    table = trajectory.columns
    measured = [name for name in ("val_loss", "parameter_norm", "noise_trace", "noise_clip_factor") if name in table]
    last = len(trajectory.tokens) - 1
    rows, steps = [], []
    for k, tokens in enumerate(trajectory.tokens):
        if tokens < start_tokens or (tokens == start_tokens and start_tokens):
            continue
        if tokens > 0:
            steps.append({name: table[name][k] for name in ("train_loss", "gradient_norm", "clip_factor")})
        if k == last or any(not math.isnan(table[name][k]) for name in measured):
            row = {name: table[name][k] for name in (*measured, "tokens", "learning_rate", "step", "batch_size")}
            for name in ("train_loss", "gradient_norm", "clip_factor"):
                row[name] = np.mean([step[name] for step in steps]) if steps else math.nan
            row["clip_factor_sq"] = np.mean([step["clip_factor"] ** 2 for step in steps]) if steps else math.nan
            rows.append(row)
            steps = []
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def assert_curve(trajectory, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(trajectory.columns[name], values, rtol=1e-6, err_msg=name)


# Runs and decays


def test_there_is_one_trunk_for_all_its_budgets(exported):
    assert [(run.learning_rate, run.seed, run.tokens // STEP, run.kind) for run in exported.runs()] == [
        (lr, seed, 70, "trunk") for lr in (2**-7, 2**-6) for seed in (0, 1)
    ]
    for run in exported.runs():
        decays = exported.decays(run.run)
        assert [(d.branch_tokens // STEP, d.decay_tokens // STEP, d.tokens // STEP) for d in decays] == [
            (20, 4, 24),
            (40, 4, 44),
            (60, 4, 64),
        ]
        assert {(d.seed, d.learning_rate, d.status, d.shape) for d in decays} == {
            (run.seed, run.learning_rate, "finished", "linear")
        }
    assert len(exported.decays()) == 12


def test_a_trunk_of_decays_alone_ends_at_the_last_branch(tmp_path):
    _, table = export(tmp_path, made_wsd(24), made_wsd(44))
    assert [run.tokens // STEP for run in table.runs()] == [40]


def test_recipes_come_back_exactly(study, exported):
    leaves = {recipe.state_id(FINGERPRINT, recipe.tokens): recipe for recipe in study.recipes()}
    names = [run.run for run in exported.runs()] + [decay.decay for decay in exported.decays()]
    assert sorted(names) == sorted(leaves)
    assert all(exported.recipe(name) == leaves[name] for name in names)


def test_flat_columns_follow_from_the_recipe(exported):
    for run in exported.runs():
        recipe = exported.recipe(run.run)
        assert run.effective_learning_rate == recipe.effective_learning_rate
        assert run.memory_times == recipe.memory_times
        assert (run.beta2, run.init_std, run.clip_norm) == (0.95, 0.02, 1.0)
        assert run.num_parameters == recipe.setup.model.num_parameters


def test_a_trunks_curve_is_the_studys(study, exported):
    for run in exported.runs():
        trajectory = exported.trajectory(run.run)
        assert_curve(trajectory, expected_curve(study, exported.recipe(run.run)))
        info = study.trajectory(exported.recipe(run.run)).info
        assert trajectory.info == dataclasses.replace(info, source=str(exported.folder))


def test_a_decays_curve_continues_its_trunks(study, exported):
    for decay in exported.decays():
        recipe = exported.recipe(decay.decay)
        behind = expected_curve(study, recipe, start_tokens=decay.branch_tokens)
        trunk = expected_curve(study, exported.recipe(decay.run))
        before = trunk["tokens"] <= decay.branch_tokens
        whole = {name: np.concatenate((trunk[name][before], behind[name])) for name in trunk}
        assert_curve(exported.trajectory(decay.decay), whole)


def test_the_end_of_a_decay_has_its_losses_and_windows(study, exported):
    for decay in exported.decays():
        recipe = exported.recipe(decay.decay)
        exact, trajectory = window_losses(recipe).astype(np.float64), study.trajectory(recipe)
        assert decay.final_val_loss == trajectory.last("final_val_loss")
        assert decay.val_loss == trajectory.last("val_loss")
        assert decay.standard_error == pytest.approx(exact.std(ddof=1) / math.sqrt(len(exact)))
        assert np.abs(decay.window_losses - exact).max() <= 2**-13


def test_a_value_is_read_between_measured_points(study, exported):
    run = exported.runs()[0].run
    at, values = study.trajectory(exported.recipe(run)).measured("val_loss")
    for tokens in np.linspace(0, at[-1], 57):
        assert exported.value(run, "val_loss", tokens) == pytest.approx(np.interp(tokens, at, values), rel=1e-6)
    assert math.isnan(exported.value(run, "val_loss", at[-1] + 1))
    assert math.isnan(exported.value(run, "nothing", 10))


def test_a_value_takes_microseconds(exported):
    run = exported.runs()[0].run
    exported.value(run, "val_loss", 0)
    began = time.process_time()
    for tokens in range(10_000):
        exported.value(run, "val_loss", tokens % 4000)
    assert time.process_time() - began < 0.2  # 20 us each; about 1 on a quiet core


def test_a_divergence_is_a_row(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(20))
    train_by_hand(study, made_constant(60), diverged_at_tokens=33 * STEP)
    table = export_table([study], tmp_path / "table", name="diverged")
    (run,) = table.runs()
    assert (run.status, run.diverged_at_tokens, run.tokens) == ("diverged", 33 * STEP, 60 * STEP)
    assert run.tokens_trained == 33 * STEP
    assert table.trajectory(run.run).tokens[-1] == 32 * STEP
    assert [decay.status for decay in table.decays(run.run)] == ["finished"]
    assert check_table(table.folder) == []


def test_a_decay_can_diverge_and_so_can_a_warm_up(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(20), diverged_at_tokens=18 * STEP)
    steep = constant(
        setup(), tokens=40 * STEP, learning_rate=8.0, weight_decay=0.5, batch_size=4, warmup_tokens=8 * STEP
    )
    train_by_hand(study, steep, diverged_at_tokens=1 * STEP)
    table = export_table([study], tmp_path / "table", name="diverged")
    (decay,) = table.decays()
    assert (decay.status, decay.final_val_loss, decay.window_losses) == ("diverged", None, None)
    assert sorted((run.learning_rate, run.status) for run in table.runs()) == [(2**-6, "finished"), (8.0, "diverged")]
    assert table.has(steep)
    assert check_table(table.folder) == []


def test_cosine_runs_are_whole_and_cost_nothing_twice(tmp_path):
    recipe = cosine(
        setup(), tokens=40 * STEP, learning_rate=2**-6, weight_decay=0.5, batch_size=4, warmup_tokens=8 * STEP
    )
    study, table = export(tmp_path, recipe)
    (run,), (decay,) = table.runs(), table.decays()
    assert (run.kind, run.tokens, run.tokens_trained, run.warmup_tokens) == ("whole", 40 * STEP, 40 * STEP, 8 * STEP)
    assert (decay.decay, decay.run, decay.shape, decay.tokens_trained) == (run.run, run.run, "cosine", 0)
    assert decay.final_val_loss == study.trajectory(recipe).last("final_val_loss")
    assert (table.has(recipe), table.recipe(run.run)) == (True, recipe)
    assert check_table(table.folder) == []


def test_a_batch_switch_inside_a_decay_belongs_to_the_decay(tmp_path):
    from isotune.recipe import wsd

    batches = f"0:4 {32 * STEP}:8"
    recipe = wsd(
        setup(), tokens=40 * STEP, learning_rate=0.01, weight_decay=0.5, batch_size=batches, decay_tokens=16 * STEP
    )
    _, table = export(tmp_path, recipe)
    (run,), (decay,) = table.runs(), table.decays()
    assert (run.tokens, decay.branch_tokens, decay.decay_tokens) == (24 * STEP, 24 * STEP, 16 * STEP)
    assert table.recipe(decay.decay) == recipe
    assert check_table(table.folder) == []


def test_batch_switches_are_runs_of_their_own(tmp_path):
    source = made_constant(40)
    switches = [
        batch_switch(source, switch_tokens=16 * STEP, tokens=64 * STEP, batch_size=16),
        square_root_rule(source, switch_tokens=16 * STEP, tokens=64 * STEP, batch_size=16),
        new_settings(source, switch_tokens=16 * STEP, tokens=64 * STEP, learning_rate=0.5, weight_decay=0.1),
    ]
    _, table = export(tmp_path, made_wsd(20), source, *switches)
    assert {table.recipe(run.run) for run in table.runs()} == {source, *switches}
    shares = {table.recipe(run.run): run.tokens_trained for run in table.runs()}
    assert shares == {source: 40 * STEP} | dict.fromkeys(switches, 48 * STEP)
    assert table.contents.runs[table.decays()[0].run].tokens == 40 * STEP
    assert check_table(table.folder) == []


def test_a_source_that_ends_at_the_switch_has_a_row_if_it_decays_there(tmp_path):
    switched = batch_switch(made_constant(16), switch_tokens=16 * STEP, tokens=64 * STEP, batch_size=16)
    _, table = export(tmp_path, made_wsd(20), switched)
    assert sorted((run.batch_size, run.tokens // STEP, run.tokens_trained // STEP) for run in table.runs()) == [
        (4, 16, 16),
        (16, 64, 48),
    ]


# Costs


def test_unique_tokens_and_seconds_are_the_segments(study, exported):
    records = study.records()
    tokens = sum(record.segment.tokens for record in records)
    totals = exported.manifest["totals"]
    assert totals["trunk_tokens"] + totals["decay_tokens"] == tokens
    assert totals["trunk_tokens"] == 4 * 70 * STEP
    seconds = sum(row.core_seconds for row in (*exported.runs(), *exported.decays()))
    assert seconds == pytest.approx(tokens / STEP * SECONDS_PER_STEP)
    hours = totals["trunk_core_hours"] + totals["decay_core_hours"]
    assert hours == pytest.approx(seconds / 3600, abs=1e-5)


def test_lost_sittings_do_not_count(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_constant(40))
    (record,) = study.records()
    (record.folder / "timing.jsonl").unlink()
    for begin, end, seconds in ((0, 10, 2.0), (0, 20, 4.0), (0, 30, 9.0), (20, 25, 1.0), (20, 40, 5.0)):
        note_time(record.folder, begin * STEP, end * STEP, seconds)
    table = export_table([study], tmp_path / "table", name="timing")
    (run,) = table.runs()
    assert run.core_seconds == pytest.approx(4.0 + 5.0)
    assert table.value(run.run, "core_seconds", 40 * STEP) == pytest.approx(9.0)
    assert table.value(run.run, "core_seconds", 20 * STEP) == pytest.approx(4.0)


def test_a_sitting_that_began_again_replaces_the_lost_one(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_constant(40))
    (record,) = study.records()
    (record.folder / "timing.jsonl").unlink()
    for end, seconds in ((10, 7.0), (10, 2.0), (40, 8.0)):
        note_time(record.folder, 0, end * STEP, seconds)
    table = export_table([study], tmp_path / "table", name="timing")
    assert table.runs()[0].core_seconds == pytest.approx(8.0)


def test_threads_and_processes_are_cores(tmp_path):
    numerics = dataclasses.replace(NUMERICS, threads=2, world_size=3)
    _, table = export(tmp_path, made_constant(40), numerics=numerics)
    assert table.runs()[0].core_seconds == pytest.approx(6 * 40 * SECONDS_PER_STEP)


def test_without_timing_the_cost_is_unknown_and_said_so(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_constant(40))
    (study.records()[0].folder / "timing.jsonl").unlink()
    table = export_table([study], tmp_path / "table", name="untimed")
    assert table.runs()[0].core_seconds is None
    assert table.manifest["totals"]["trunk_core_hours"] is None
    assert check_table(table.folder) == []


# Files


def test_equal_studies_give_equal_bytes(study, exported, tmp_path):
    again = export_table([Study.open(study.folder)], tmp_path / "again", name="made")
    for name in FILES:
        assert (again.folder / name).read_bytes() == (exported.folder / name).read_bytes(), name


def test_nothing_but_the_four_files_is_left(exported):
    assert sorted(path.name for path in exported.folder.iterdir()) == sorted(FILES)


def test_a_table_that_is_there_is_not_overwritten(study, table, tmp_path):
    with pytest.raises(InputError, match="holds a table already: export to another folder"):
        export_table([study], table.folder, name="other")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "draft.txt").touch()
    with pytest.raises(InputError, match="is there and is no table: choose a new or empty folder"):
        export_table([study], tmp_path / "papers", name="other")
    assert export_table([study], table.folder, name="other", replace=True).name == "other"


def test_an_empty_study_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no finished segment yet: train something"):
        export_table([made_study(tmp_path / "study")], tmp_path / "table", name="empty")


def test_deleted_segments_are_named(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(20))
    shutil.rmtree(next(r.folder for r in study.records() if r.segment.start_tokens == 0))
    with pytest.raises(InputError, match="lacks its segments from 0 tokens on: repeat its training command"):
        export_table([Study.open(study.folder)], tmp_path / "table", name="gap")


def test_a_write_that_fails_leaves_the_old_table(study, table, monkeypatch):
    before = {name: (table.folder / name).read_bytes() for name in FILES}

    def fail(path, value):
        raise OSError("No space left on device")

    monkeypatch.setattr("isotune.runs.tables.folder.write_json", fail)
    with pytest.raises(OSError, match="No space left"):
        export_table([study], table.folder, name="new", replace=True)
    assert {path.name: path.read_bytes() for path in table.folder.iterdir()} == before


@pytest.mark.parametrize("num_moves", range(5))
def test_a_kill_while_files_are_moved_leaves_the_new_table(study, table, monkeypatch, num_moves):
    done = []

    def move_some(source, path):
        if len(done) == num_moves:
            raise KeyboardInterrupt
        done.append(path)
        os.replace(source, path)

    monkeypatch.setattr("isotune.runs.tables.folder.move", move_some)
    if num_moves < 4:
        with pytest.raises(KeyboardInterrupt):
            export_table([study], table.folder, name="new", replace=True)
    else:
        export_table([study], table.folder, name="new", replace=True)
    monkeypatch.undo()
    assert read_table(table.folder).name == "new"
    assert check_table(table.folder) == []
    merge_tables(table.folder, [])
    assert sorted(path.name for path in table.folder.iterdir()) == sorted(FILES)


def test_importing_tables_imports_neither_torch_nor_pyarrow():
    script = "import sys, isotune.runs.tables; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# Damage


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_file_is_refused_with_a_remedy(table, name, share):
    path = table.folder / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=rf"{name} is cut, damaged .*: restore it from a copy, or export"):
        read_table(table.folder)
    assert len(check_table(table.folder)) == 1


@pytest.mark.parametrize("name", FILES[:3])
def test_a_file_of_noise_that_the_manifest_believes_in_is_refused_too(table, name):
    path, manifest = table.folder / name, json.loads((table.folder / "manifest.json").read_text())
    path.write_bytes(path.read_bytes()[:-100] + b"\x00" * 100)
    import hashlib

    manifest["files"][name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (table.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=rf"{name} is damaged \(.*\): restore it"):
        read_table(table.folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(table, name):
    (table.folder / name).unlink()
    with pytest.raises(InputError, match=name):
        read_table(table.folder)
    (problem,) = check_table(table.folder)
    assert name in problem


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a table \(it has no manifest.json\): give a folder that"):
        read_table(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 1, "files": {}}')
    with pytest.raises(InputError, match=r"is not the manifest of a table \(it lacks 'name'\)"):
        read_table(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 1,')
    with pytest.raises(InputError, match="damaged"):
        read_table(tmp_path)


def test_a_newer_format_is_refused(table):
    path = table.folder / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match="has format 2, this version of isotune reads format 1"):
        read_table(table.folder)


def test_an_unknown_run_is_named(exported):
    for ask in (exported.trajectory, exported.recipe, exported.decays):
        with pytest.raises(InputError, match="has no run 'zzz': take one of those"):
            ask("zzz")


# Checking


def rewritten(table, **changes):
    """The table with other contents, its checksums right."""
    from isotune.runs.tables import folder

    contents = dataclasses.replace(table.contents, **changes)
    folder.write_contents(table.folder, contents)
    return check_table(table.folder)


def test_a_recipe_that_cannot_be_read_is_found(table, monkeypatch):
    name, run = next(iter(table.contents.runs.items()))
    spoiled = dataclasses.replace(table.contents, runs={name: dataclasses.replace(run, recipe='{"model": "nano"')})
    monkeypatch.setattr("isotune.runs.tables.check.read_contents", lambda folder: (table.manifest, spoiled))
    assert "has a recipe that cannot be read" in check_table(table.folder)[0]


def with_run(table, **changes):
    name, run = next(iter(table.contents.runs.items()))
    return {"runs": table.contents.runs | {name: dataclasses.replace(run, **changes)}}


def with_decay(table, **changes):
    name, decay = next(iter(table.contents.decays.items()))
    return {"decays": table.contents.decays | {name: dataclasses.replace(decay, **changes)}}


def with_curve(table, change):
    name = next(iter(table.contents.runs))
    return {"curves": table.contents.curves | {name: change(dict(table.contents.curves[name]))}}


def test_a_sound_table_has_no_problems(table):
    assert check_table(table.folder) == []
    assert rewritten(table) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda t: with_run(t, commit=""), "which commit"),
        (lambda t: with_run(t, numerics=()), "numerics"),
        (lambda t: with_run(t, numerics=("other",)), "numerics"),
        (lambda t: with_run(t, learning_rate=1.0), "settings that are not its recipe's"),
        (lambda t: with_decay(t, run="nowhere"), "not in runs.parquet"),
        (lambda t: with_decay(t, window_losses=None), "no losses at its end"),
        (lambda t: with_decay(t, window_losses=np.ones(5, dtype=np.float32)), "5 of 32 windows"),
        (lambda t: with_decay(t, window_losses=np.ones(32, dtype=np.float32)), "mean loss of 1.0000"),
        (lambda t: with_decay(t, window_losses=np.full(32, np.inf, dtype=np.float32)), "not finite"),
        (lambda t: with_curve(t, lambda c: {k: v[:-1] for k, v in c.items()}), "of 4480 tokens"),
        (lambda t: with_curve(t, lambda c: c | {"val_loss": c["val_loss"] * np.inf}), "infinite values of val_loss"),
        (lambda t: with_curve(t, lambda c: c | {"val_loss": c["val_loss"] * np.nan}), "without a val_loss"),
        (lambda t: with_curve(t, lambda c: {k: v[::-1] for k, v in c.items()}), "out of order"),
        (lambda t: {"evaluations": {}}, "evaluation that the manifest"),
    ],
)
def test_what_is_wrong_is_found(table, changes, words):
    problems = rewritten(table, **changes(table))
    assert any(words in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["totals"].update(trunk_tokens=1), "trunk tokens add up to 17920, the manifest says 1"),
        (lambda m: m["totals"].update(decay_core_hours=1.0), "decay core-hours add up to"),
        (lambda m: m["files"]["curves.parquet"].update(rows=1), "the manifest says 1"),
        (lambda m: next(iter(m["roots"].values()))["root"].update(corpus=""), "no fingerprint"),
        (lambda m: m["roots"].clear(), "root that the manifest does not describe"),
    ],
)
def test_a_manifest_that_contradicts_the_rows_is_found(table, change, words):
    path = table.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    problems = check_table(table.folder)
    assert any(words in problem for problem in problems), problems


# Plans


def test_a_table_knows_what_it_lacks(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(24))
    planned = [made_constant(20), made_wsd(24), made_wsd(44, max_epochs=3), made_wsd(24, seed=5)]
    table = export_table([study], tmp_path / "table", name="partial", planned=planned)
    assert table.is_complete is False
    assert set(table.planned()) == set(planned)
    assert set(table.missing()) == {made_wsd(44, max_epochs=3), made_wsd(24, seed=5)}
    assert table.manifest["totals"]["planned_tokens"] == (40 + 4 + 4 + 24) * STEP
    assert check_table(table.folder) == []


def test_merging_completes_a_plan(tmp_path):
    planned = [made_wsd(24), made_wsd(44)]
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(24))
    table = export_table([study], tmp_path / "table", name="first", planned=planned)
    _, rest = export(tmp_path, made_wsd(44), name="rest")
    assert rest.is_complete is None
    merge_tables(table.folder, [rest.folder])
    merged = read_table(table.folder)
    assert (merged.is_complete, merged.missing()) == (True, [])
    assert check_table(table.folder) == []


def test_a_table_that_claims_to_be_complete_is_found_out(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(24))
    table = export_table([study], tmp_path / "table", name="partial", planned=[made_wsd(24), made_wsd(44)])
    path = table.folder / "manifest.json"
    path.write_text(path.read_text().replace('"complete": false', '"complete": true'))
    assert any("lacks 1 of 2 planned runs" in problem for problem in check_table(table.folder))


def test_a_plan_on_another_corpus_is_refused(study, tmp_path):
    with pytest.raises(InputError, match="knows no corpus by the name 'other'"):
        export_table([study], tmp_path / "table", name="x", planned=[made_wsd(24, corpus="other")])


# What a table answers for


def test_shorter_runs_are_there_and_decays_need_their_row(exported):
    for recipe in (made_constant(70), made_constant(33), made_wsd(24), made_wsd(64), made_wsd(64, seed=1)):
        assert exported.has(recipe)
    for recipe in (
        made_constant(71),
        made_wsd(25),
        made_wsd(64, decay_steps=8),
        made_wsd(64, seed=2),
        made_wsd(64, learning_rate=2**-5),
        made_wsd(64, optimizer=AdamW(beta2=0.99)),
        batch_switch(made_constant(40), switch_tokens=16 * STEP, tokens=40 * STEP, batch_size=16),
    ):
        assert not exported.has(recipe)


def test_what_diverges_on_the_way_is_answered(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_constant(60), diverged_at_tokens=33 * STEP)
    table = export_table([study], tmp_path / "table", name="diverged")
    for recipe in (made_constant(32), made_constant(33), made_constant(90), made_wsd(60)):
        assert table.has(recipe)
        assert study.missing(recipe) == []
    assert not table.has(made_wsd(34))  # leaves at 30


def test_a_corpus_is_known_by_name_or_fingerprint(exported):
    moved = made_wsd(24, corpus="elsewhere")
    with pytest.raises(InputError, match="knows no corpus by the name 'elsewhere': give its corpus_fingerprint"):
        exported.has(moved)
    assert exported.has(moved, FINGERPRINT)
    assert not exported.has(moved, "e" * 32)


def test_a_table_and_its_study_agree_on_what_is_missing(study, exported):
    rng = np.random.default_rng(0)
    for _ in range(60):
        steps, seed, lr = int(rng.integers(5, 75)), int(rng.integers(0, 3)), 2.0 ** -int(rng.integers(6, 9))
        for recipe in (made_constant(steps, seed=seed, learning_rate=lr), made_wsd(steps, seed=seed, learning_rate=lr)):
            assert exported.has(recipe) == (study.missing(recipe) == [])


# Merging


def test_merging_gives_what_one_study_would_have(tmp_path, monkeypatch):
    recipes = [made_wsd(24), made_wsd(44), made_wsd(24, seed=1), made_constant(60)]
    _, one = export(tmp_path, *recipes, name="one")
    _, first = export(tmp_path, recipes[0], recipes[2], name="first")
    _, second = export(tmp_path, recipes[1], name="second")
    _, third = export(tmp_path, recipes[3], name="third")
    merged = merge_tables(first.folder, [second.folder, third.folder])
    assert (merged.runs_added, merged.runs_lengthened, merged.decays_added) == (0, 2, 1)
    for name in ("runs.parquet", "decays.parquet"):
        assert (first.folder / name).read_bytes() == (one.folder / name).read_bytes(), name
    together = read_table(first.folder)
    for name in [run.run for run in one.runs()] + [decay.decay for decay in one.decays()]:
        for column, values in one.trajectory(name).columns.items():
            np.testing.assert_allclose(together.trajectory(name).columns[column], values, err_msg=column)
    assert check_table(first.folder) == []


def test_merging_again_changes_no_byte(tmp_path):
    _, first = export(tmp_path, made_wsd(24), name="first")
    _, second = export(tmp_path, made_wsd(44), made_wsd(24, seed=3), name="second")
    merge_tables(first.folder, [second.folder])
    before = {name: (first.folder / name).read_bytes() for name in FILES}
    again = merge_tables(first.folder, [second.folder, first.folder])
    assert (again.runs_added, again.runs_lengthened, again.decays_added) == (0, 0, 0)
    assert {name: (first.folder / name).read_bytes() for name in FILES} == before


def test_a_shorter_trunk_adds_only_its_decays(tmp_path):
    _, long = export(tmp_path, made_constant(60), name="long")
    _, short = export(tmp_path, made_wsd(24), name="short")
    merged = merge_tables(long.folder, [short.folder])
    assert (merged.runs_added, merged.runs_lengthened, merged.decays_added, merged.runs_kept) == (0, 0, 1, 1)
    table = read_table(long.folder)
    (run,) = table.runs()
    assert run.tokens == 60 * STEP
    assert [decay.tokens for decay in table.decays(run.run)] == [24 * STEP]
    assert check_table(long.folder) == []


@pytest.mark.parametrize("recipes", [(made_constant(40), made_constant(40)), (made_constant(40), made_constant(60))])
def test_other_numbers_for_one_training_are_refused(tmp_path, recipes):
    _, first = export(tmp_path, recipes[0], name="first")
    _, second = export(tmp_path, recipes[1], name="second", shift=0.01)
    before = {name: (first.folder / name).read_bytes() for name in FILES}
    with pytest.raises(
        InputError, match=r"second contradicts the table on .*val_loss differs at 640 tokens.*leave one"
    ):
        merge_tables(first.folder, [second.folder])
    assert {name: (first.folder / name).read_bytes() for name in FILES} == before


def test_a_divergence_that_only_one_saw_is_refused(tmp_path):
    _, first = export(tmp_path, made_constant(40), name="first")
    _, second = export(tmp_path, made_constant(40), name="second", diverged_at_tokens=20 * STEP)
    with pytest.raises(InputError, match="one diverges at 1280 tokens, the other does not"):
        merge_tables(first.folder, [second.folder])


def test_other_numerics_may_give_other_numbers_and_what_is_there_stays(tmp_path):
    _, first = export(tmp_path, made_constant(40), name="first")
    numerics = dataclasses.replace(NUMERICS, torch="2.7")
    _, second = export(tmp_path, made_constant(40), made_wsd(24), name="second", shift=0.01, numerics=numerics)
    merged = merge_tables(first.folder, [second.folder])
    assert (merged.runs_added, merged.runs_kept, merged.decays_added) == (0, 1, 1)
    table = read_table(first.folder)
    (run,) = table.runs()
    assert table.trajectory(run.run).last("val_loss") == first.trajectory(run.run).last("val_loss")
    assert table.decays()[0].numerics != run.numerics
    assert check_table(first.folder) == []


def test_several_roots_live_in_one_table(tmp_path):
    _, usual = export(tmp_path, made_wsd(24), name="usual")
    other = Study.create(
        tmp_path / "other", setup(optimizer=AdamW(beta2=0.99)), "made", FINGERPRINT, EVALUATION, NUMERICS
    )
    recipe = made_wsd(24, optimizer=AdamW(beta2=0.99))
    train_by_hand(other, recipe)
    export_table([other], tmp_path / "slow", name="slow")
    merge_tables(usual.folder, [tmp_path / "slow"])
    table = read_table(usual.folder)
    assert sorted(run.beta2 for run in table.runs()) == [0.95, 0.99]
    assert table.has(recipe) and table.has(made_wsd(24))
    assert table.manifest["totals"]["trunk_tokens"] == 2 * 20 * STEP
    assert len(make_grids(table)) == 2
    both = export_table([Study.open(tmp_path / "usual-study"), other], tmp_path / "both", name="both")
    assert {run.run for run in both.runs()} == {run.run for run in table.runs()}


def test_a_run_that_is_never_clipped_comes_back(tmp_path):
    never = AdamW(clip_norm=math.inf)
    study = Study.create(tmp_path / "study", setup(optimizer=never), "made", FINGERPRINT, EVALUATION, NUMERICS)
    recipe = made_wsd(24, optimizer=never)
    train_by_hand(study, recipe)
    table = export_table([study], tmp_path / "table", name="never", planned=[recipe])
    assert table.runs()[0].clip_norm == math.inf
    assert table.recipe(table.decays()[0].decay) == recipe
    assert table.planned() == [recipe]
    assert check_table(table.folder) == []


def test_studies_that_contradict_each_other_are_refused(tmp_path):
    for name, shift in (("a", 0.0), ("b", 0.5)):
        train_by_hand(made_study(tmp_path / name), made_constant(40), shift=shift)
    with pytest.raises(InputError, match=r"the study .*b contradicts the table on .*val_loss differs"):
        export_table([Study.open(tmp_path / "a"), Study.open(tmp_path / "b")], tmp_path / "table", name="both")
    assert not (tmp_path / "table").exists()


# Commits


def test_rows_carry_the_commit_of_the_sources(exported):
    commits = {(row.commit, row.commit_is_dirty) for row in (*exported.runs(), *exported.decays())}
    assert commits == {(c["commit"], c["is_dirty"]) for c in exported.manifest["commits"]}


def test_a_row_carries_the_commit_that_it_was_trained_with(tmp_path):
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_constant(40))
    for path in study.folder.glob("segments/*/timing.jsonl"):
        path.write_text('{"from_tokens":0,"tokens":2560,"seconds":1.0,"commit":"abc","is_dirty":true}\n')
    table = export_table([Study.open(study.folder)], tmp_path / "table", name="t")
    assert {(row.commit, row.commit_is_dirty) for row in table.runs()} == {("abc", True)}


def test_without_a_repository_the_version_stands_for_the_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    commit, is_dirty = source_commit.__wrapped__()
    assert commit.startswith("version ") and not is_dirty


# Grids


def test_a_grid_has_the_mean_over_seeds_and_the_best_cell(exported):
    (grid,) = make_grids(exported)
    assert (grid.column, grid.tokens, grid.path) == ("final_val_loss", 64 * STEP, "decay of 256")
    by_cell = {}
    for decay in exported.decays():
        if decay.tokens == 64 * STEP:
            by_cell.setdefault((decay.learning_rate, decay.weight_decay), []).append(decay.final_val_loss)
    means = {cell: np.mean(values) for cell, values in by_cell.items()}
    assert grid.means == pytest.approx(means)
    assert grid.best == min(means, key=means.get)
    (alone,) = make_grids(exported, seed=1, tokens=[24 * STEP])
    assert alone.seeds == [1]


def test_cells_are_compared_by_the_seeds_that_they_share():
    """Seed 1 lies lower: a mean over all would star the cell that has it, though both others are better at seed 0."""
    values = {0.1: {0: 2.0}, 0.2: {0: 2.1}, 0.3: {0: 2.2, 1: 1.0}, 0.4: {1: 0.9}, 0.5: {0: 1.5, 1: math.nan}}
    grid = Grid("val_loss", 64, 4, "root", "", {(lr, 0.5): Cell(of) for lr, of in values.items()})
    assert (grid.seeds, grid.other_seeds) == ([0], [1])
    assert grid.best == (0.1, 0.5)
    assert grid.means == pytest.approx(
        {(0.1, 0.5): 2.0, (0.2, 0.5): 2.1, (0.3, 0.5): 2.2, (0.5, 0.5): math.nan}, nan_ok=True
    )
    several = Grid("val_loss", 64, 4, "root", "", {(0.1, 0.5): Cell({0: 2.0, 1: 1.0}), (0.2, 0.5): Cell({0: 1, 1: 1})})
    assert (several.seeds, several.other_seeds, several.means[0.1, 0.5]) == ([0, 1], [], 1.5)


def test_a_grid_of_a_curve_reads_it_at_the_budget(exported):
    (grid,) = make_grids(exported, "val_loss", tokens=[45 * STEP], seed=0)
    for run in exported.runs():
        if run.seed == 0:
            mean = grid.means[run.learning_rate, run.weight_decay]
            assert mean == exported.value(run.run, "val_loss", 45 * STEP)


def test_runs_that_diverged_before_the_budget_are_in_its_grid(tmp_path):
    study = grid_study(tmp_path / "study", seeds=(0,))
    train_by_hand(study, made_constant(70, learning_rate=0.5), diverged_at_tokens=10 * STEP)
    table = export_table([study], tmp_path / "table", name="diverged")
    for column in (None, "val_loss"):
        (grid,) = make_grids(table, column)
        assert grid.cells[0.5, 0.5].has_diverged
        assert grid.best is not None and grid.best[0] != 0.5


def test_schedules_get_grids_of_their_own(tmp_path):
    source = made_constant(40)
    recipes = [made_constant(40, learning_rate=2**-7), source]
    for of in list(recipes):
        switch = {"switch_tokens": 16 * STEP, "tokens": 64 * STEP, "batch_size": 16}
        recipes += [batch_switch(of, **switch), square_root_rule(of, **switch)]
    _, table = export(tmp_path, *recipes)
    grids = {(grid.batch_size, grid.path): grid for grid in make_grids(table, "val_loss")}
    assert sorted(grids) == [
        (4, ""),
        (16, "LR by the square-root rule and batch 4 until 1.02K"),
        (16, "batch 4 until 1.02K"),
    ]
    assert all(len(grid.cells) == 2 for grid in grids.values())


def test_grids_that_do_not_exist_are_refused(exported):
    with pytest.raises(InputError, match="has no column 'lost': choose one of clip_factor"):
        make_grids(exported, "lost")
    with pytest.raises(InputError, match=r"no decay that ends there: choose --tokens among 1.54K, 2.82K, 4.1K"):
        make_grids(exported, tokens=[100])
    with pytest.raises(InputError, match="no run of seed 9: choose among 0, 1"):
        make_grids(exported, seed=9)
    with pytest.raises(InputError, match="no run of batch size 5: choose among 4"):
        make_grids(exported, batch_sizes=[4, 5])
