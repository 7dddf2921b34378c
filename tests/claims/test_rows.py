"""Rows by name. Oracle: the cells that claims.toml states for each set, counted on the sweeps' own recipes."""

import numpy as np
import pytest
from planted import NANO_SWEEPS, RULES, PlantedTable, PlantedTables, recipes_of

from isotune.claims import Rows, RowsMissing
from isotune.claims.rows import ENOUGH_CELLS
from isotune.errors import InputError
from isotune.recipe import falling_tokens


def no_columns(recipe, tokens):
    return {}


@pytest.fixture(scope="module")
def tables():
    return PlantedTables(
        {name: PlantedTable(sweeps, no_columns, lambda _: 1.0) for name, sweeps in NANO_SWEEPS.items()}
    )


@pytest.mark.parametrize("name", [name for name, rows in RULES.rows.items() if rows["planned"]])
def test_the_sweeps_have_the_cells_that_the_rules_count(tables, name):
    rows, wanted = tables.rows(name), RULES.rows[name]
    num_tables = wanted["table"].count(",") + 1
    cells = {(run.table.recipe(run.record.run).setup.optimizer, run.record.init_scale, run.cell) for run in rows.runs}
    if name == "large_seeds":  # "at least four"
        assert len(cells) == 9 and len(rows.runs) == 27
    else:
        assert len(cells) == wanted["cells"] * num_tables
        assert len(rows.runs) == wanted["cells"] * num_tables * len(wanted["seeds"])
    assert set(rows.seeds) == set(wanted["seeds"])
    assert rows.missing == ""


def test_sets_of_one_folder_do_not_mix(tables):
    """Each trunk of the nano folder belongs to one table of the rules, or to none (LR 2^-10 of type 1, LR 2^-12)."""
    names = ("nano-small", "nano-large", "nano-batch-256", "nano-type1", "nano-type2", "nano-square-root")
    found = [run.record.run for name in names for run in tables._runs_of(name)]
    assert len(found) == len(set(found)) == len(tables._open("nano").runs())


def test_sets_of_the_variants_do_not_mix(tables):
    """Of the variants, only large-batch twins and the other LRs of scaled inits belong to no table of the rules."""
    names = ("nano-late", "nano-perturbed", "nano-beta2-0.9", "nano-beta2-0.99", "nano-init-<s>")
    found = {name: [run.record.run for run in tables._runs_of(name)] for name in names}
    assert {name: len(runs) for name, runs in found.items()} == dict(zip(names, (10, 19, 6, 6, 4), strict=True))
    together = [run for runs in found.values() for run in runs]
    assert len(together) == len(set(together)) == len(tables._open("nano-variants").runs()) - 6 - 4 * 2


def test_more_lrs_at_late_elrs_stay_out_of_the_grid_that_they_extend(tables):
    wide, late = tables.rows("late_wide"), tables.rows("small_late")
    assert {run.log2_lr for run in wide.runs} == {-12, -6}
    assert {run.log2_elr for run in wide.runs} == {run.log2_elr for run in late.runs} == set(range(-11, -6))
    assert all(list(run.decays) == [2_752_512] for run in wide.runs)
    without = PlantedTables({"nano-variants": tables._open("nano-variants")})
    assert not without.rows("small_all").runs and len(without.rows("late_wide").runs) == 10


def test_a_square_root_run_stands_where_it_was_before_the_switch(tables):
    for run in tables.rows("square_root").runs:
        assert run.record.learning_rate == 4 * 2.0**run.log2_lr
        assert run.log2_elr == -12


def test_a_decay_is_found_by_its_budget_and_a_missing_one_is_named(tables):
    run = tables.rows("type2_laws").runs[0]
    assert sorted(run.decays) == [1_376_256, 1_720_320, 2_162_688, 2_752_512]
    assert run.final_val_loss(1_376_256) == 1.0
    with pytest.raises(RowsMissing, match="172,032"):
        run.final_val_loss(172_032)


def test_rows_that_are_not_there_are_named_with_their_sweep():
    rows = Rows(PlantedTables({}))
    with pytest.raises(RowsMissing, match=r"perturbed_late \(none; sweep nano-perturbed\)"):
        rows["perturbed_late"]
    assert rows.missing(["large_seeds", "square_root"]) == [
        "large_seeds (none; sweep nano-large-seeds)",
        "square_root (none; sweep nano-switch)",
    ]
    assert not rows.has("small_all")


def test_a_part_of_a_set_is_counted():
    def leave_out(recipe):
        return recipe.learning_rate == 2.0**-7 and not falling_tokens(recipe)

    tables = PlantedTables({"nano": PlantedTable(("nano-small",), no_columns, leave_out=leave_out)})
    assert tables.rows("small_late").missing == "small_late (10 of 15 runs; sweep nano-small)"


def test_a_note_that_asks_for_fewer_cells_is_heard():
    def leave_out(recipe):  # LR 2^-9..2^-6 at three ELR are 12 of the 15 cells
        return recipe.learning_rate < 2.0**-9

    tables = PlantedTables({"nano": PlantedTable(("nano-large",), no_columns, leave_out=leave_out)})
    assert len(tables.rows("large_above_3").runs) == ENOUGH_CELLS["large_above_3"] == 12
    assert tables.rows("large_above_3").missing == ""
    assert tables.rows("large_below_1").missing != ""


def test_diverged_runs_are_left_out_counted_and_not_missing(tables, monkeypatch):
    source = PlantedTable(("nano-small",), no_columns)
    records = source.runs()
    for record in records:
        record.status = "diverged" if record.learning_rate == 2.0**-7 else "finished"
    monkeypatch.setattr(source, "runs", lambda: records)
    rows = PlantedTables({"nano": source}).rows("small_late")
    assert (len(rows.runs), rows.num_diverged, rows.missing) == (10, 5, "")


def test_an_unknown_set_is_refused(tables):
    with pytest.raises(InputError, match="no rows 'small'"):
        tables.rows("small")


# Replications


def test_a_replication_gives_the_counterparts_and_their_windows(tables):
    rows = Rows(tables, None, ("small32_late", "small32_perturbed"))
    assert rows["small_late"].name == "small32_late"
    assert rows["perturbed_late"].name == "small32_perturbed"
    assert rows.window("late") == (6_389_760, 10_240_000)
    assert not rows.has("large_common") and not rows.has("perturbed_early")
    assert rows.budgets("budgets", rows["small_late"], min_budget=688_128) == [2_625_536, 5_251_072, 10_502_144]
    assert rows.budgets("last_budget", rows["small_late"]) == [10_502_144]
    assert {run.seed for run in rows["small_seeds"].runs} == {0, 1, 2, 3}
    with pytest.raises(RowsMissing, match="after_switch"):
        rows.window("after_switch")


def test_large_batches_of_a_replication_are_split_at_the_same_n(tables):
    rows = Rows(tables, "large_below_1", ("small32_large",))
    steps = (10_240_000 - 102_400) / 4096
    below = {run.cell for run in rows["large_below_1"].runs}
    everything = {run.cell for run in rows["large_common"].runs}
    assert below == {cell for cell in everything if 2.0 ** sum(cell) * steps < 1}
    assert 0 < len(below) < len(everything)
    assert not rows.has("large_above_3")  # n = 2.998 at the window's start in the last cell


def test_a_table_can_be_the_part_that_is_judged(tables):
    rows = Rows(tables, "nano-beta2-0.9")
    betas = {run.table.recipe(run.record.run).setup.optimizer.beta2 for run in rows["beta2"].runs}
    assert betas == {0.9} and len(rows["beta2"].runs) == 4
    assert len(rows["small_late"].runs) == 15


def test_windows_are_those_of_the_file():
    rows = Rows(PlantedTables({}))
    assert rows.window("late") == (1_597_440, 2_686_976)
    assert rows.windows_between("octaves")[0] == (86_016, 172_032)
    assert rows.budgets("budgets", min_budget=688_128) == [688_128, 1_376_256, 2_752_512]


def test_n_of_the_rows_keeps_to_the_windows(tables):
    """What the file says of its windows: n < .3 early, n > 3 late."""
    rows = Rows(tables)
    early, late = rows.window("early"), rows.window("late")

    def memory_times(run, tokens):
        return run.table.recipe(run.record.run).memory_times_at(int(tokens))

    assert max(memory_times(run, early[1] // 256 * 256) for run in rows["small_early"].runs) < 0.3
    assert min(memory_times(run, late[0]) for run in rows["small_late"].runs) > 2.99
    assert np.all(rows["small_early"].log2_elr <= -12)
    assert len(recipes_of("nano-small")) == 54 * 6


def test_decays_belong_to_the_trunk_of_their_own_switch(tables):
    """Type 1 and Type 2 have cells of the same LR and WD: their decays must not be mixed up."""
    assert all(len(run.decays) == 4 for run in tables.rows("type2_laws").runs)
    assert all(len(run.decays) == 2 for run in tables.rows("type1_below_1").runs)
