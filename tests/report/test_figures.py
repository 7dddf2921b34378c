"""Figures: their data come back as planted, their drawings are plotly's, and what cannot be drawn says why."""

import dataclasses
import json
import math

import numpy as np
import plotly.graph_objects as graphs
import pytest
from made_sweeps import (
    BUDGETS,
    DECAY,
    LR_EXPONENT,
    K,
    best_settings,
    decay_off,
    drifting_optimum,
    planted_decays,
    run,
    with_info,
    without,
)
from synthetic import EVERY_TOKENS, grid, sweep, trajectory

from isotune.analyze.families import make_families
from isotune.errors import InputError
from isotune.integrations.importers import open_source
from isotune.report.figures import KINDS, curves, figures_of
from isotune.report.figures.cost import Cost, cost_of, draw_costs
from isotune.report.figures.curves import MAX_CURVES, MAX_POINTS, branched_curves, loss_curves, noise_curves
from isotune.report.figures.decays import decay_gains
from isotune.report.figures.distances import distance_matrices
from isotune.report.figures.drawing import Drawing, Scale, compact, log_axis, points, power_of_two
from isotune.report.figures.laws import family_optima
from isotune.report.figures.shift import shift_data
from isotune.report.figures.square_root import square_root_data
from isotune.report.figures.surfaces import eigen, surface_maps
from isotune.report.findings import find
from isotune.report.words import stage_table
from isotune.runs.trajectory import Trajectory

NANO = "tables/nano"
NOISE_EXPONENT = 0.3


def with_noise(one, level, scale=50.0):
    """The run with noise columns of a known scaled_noise and noise scale."""
    lr, batch = one.info.learning_rate, one.info.batch_size
    trace = np.full(len(one.tokens), level * batch / lr)
    noise = {"precond_noise_trace": trace, "precond_gradient_sq_norm": trace / scale}
    return Trajectory(one.columns | noise, one.info)


@pytest.fixture(scope="module")
def shifting():
    """A grid whose curves know LR early and ELR late, with noise that is a power of ELR."""
    runs = sweep(np.random.default_rng(0), *grid(), noise=5e-4)
    runs = [with_info(one, decay_tokens=0) for one in runs]
    elr = [one.info.learning_rate * one.info.weight_decay for one in runs]
    return find([with_noise(one, value**NOISE_EXPONENT) for one, value in zip(runs, elr, strict=True)], label="made")


@pytest.fixture(scope="module")
def drifting():
    return find(drifting_optimum(np.random.default_rng(1)), label="made")


@pytest.fixture(scope="module")
def nano():
    """Some cells of the real table, decays included."""
    runs = [
        one
        for one in open_source(NANO).trajectories
        if one.info.seed == 0
        and one.info.batch_size == 4
        and -11 <= math.log2(one.info.learning_rate) <= -7
        and -4 <= math.log2(one.info.weight_decay) <= 0
    ]
    return find(runs, label=NANO)


def kinds_drawn(figures):
    return {figure.kind for figure in figures if figure.drawing}


def check_drawing(drawing):
    """Plain JSON that plotly accepts, with axes that have titles and a background that shows the page's."""
    again = json.loads(json.dumps(drawing, allow_nan=False))
    assert again == drawing
    figure = graphs.Figure(drawing)
    assert len(figure.data) == len(drawing["data"]) > 0
    assert drawing["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    axes = [axis for name, axis in drawing["layout"].items() if name.startswith(("xaxis", "yaxis"))]
    assert any(axis["title"]["text"] for axis in axes)


# Planted truths


def test_loss_curves_are_the_runs_after_their_warm_up(shifting):
    family = shifting.families[0]
    data = loss_curves(family)
    assert len(data.curves) == data.num_runs == 25 and not data.left_out
    by_words = {curve.words: curve for curve in data.curves}
    one = family.curves[0]
    curve = by_words["LR 2^-11, WD 0.0625, seed 0"]
    at, values = one.measured("val_loss")
    assert (curve.tokens == at[at >= EVERY_TOKENS]).all() and (curve.values == values[at >= EVERY_TOKENS]).all()
    assert (curve.log2_lr, curve.log2_elr) == (-11, -15)


def test_noise_curves_have_the_planted_level(shifting):
    data = noise_curves(shifting.families[0], "scaled_noise")
    assert len(data.curves) == 25
    for curve in data.curves:
        assert curve.values == pytest.approx(2.0 ** (NOISE_EXPONENT * curve.log2_elr))


def test_distances_group_by_lr_early_and_by_elr_late(shifting):
    diagnosis = shifting.diagnoses[0]
    early, late = (distance_matrices(diagnosis, "val_loss", when) for when in ("early", "latest"))
    assert early.stage.stage == "early" and late.stage.stage == "late"
    assert early.by_lr.ratio > 2 * early.by_elr.ratio
    assert late.by_elr.ratio > 2 * late.by_lr.ratio
    assert early.pairwise.shape == (len(early.log2_lr),) * 2
    noise = distance_matrices(diagnosis, "scaled_noise", "latest")
    same = np.abs(noise.log2_elr[:, None] - noise.log2_elr) < 0.01
    assert noise.pairwise[same].max() < 1e-9 < noise.pairwise[~same].min()


def test_curves_without_distances_are_a_missing_figure(shifting):
    """Runs of one trunk, before they branch off: drawn, they would be four empty panels."""
    alike = shifting.trajectories[0].columns
    runs = [Trajectory(run.columns | {"val_loss": alike["val_loss"]}, run.info) for run in shifting.trajectories]
    (diagnosis,) = find(runs).diagnoses
    with pytest.raises(InputError, match=r"all loss curves are the same where n < 0\.3 \("):
        distance_matrices(diagnosis, "val_loss", "early")
    row = stage_table(diagnosis.stages).rows[0]
    assert row[3:6] == ("undecided", "-", "-")


def test_the_shift_is_drawn_where_it_was_found(shifting):
    data = shift_data(shifting.diagnoses[0])
    assert data.shift.value == shifting.diagnoses[0].shift.memory_times.value
    assert data.angles[0] < 22.5 < data.angles[-1]
    assert (np.diff(data.memory_times) > 0).all()


def test_surfaces_are_drawn_around_the_planted_minimum(drifting):
    maps = surface_maps(drifting.diagnoses[0])
    assert [one.tokens for one in maps] == list(BUDGETS)
    for one in maps[1:]:
        lr, wd, loss = best_settings(one.tokens)
        row, column = np.unravel_index(np.nanargmin(one.fitted), one.fitted.shape)
        assert one.grid_lr[column] == pytest.approx(math.log2(lr), abs=0.25)
        assert one.grid_wd[row] == pytest.approx(math.log2(wd), abs=0.4)
        assert np.nanmin(one.fitted) == pytest.approx(loss, rel=2e-3)
        assert one.flat_limit > np.nanmin(one.fitted)


def test_eigenvalues_are_those_of_the_planted_paraboloid(drifting):
    data = eigen(drifting.diagnoses[0])
    for place, tokens in enumerate(data.tokens):
        loss = best_settings(tokens)[2]
        values = np.linalg.eigvalsh(2 * loss * np.array([[0.004, 0.001], [0.001, 0.001]]))
        assert [data.second[place], data.first[place]] == pytest.approx(values.tolist(), rel=0.15)


def test_optima_follow_the_planted_law_and_lowest_cells_are_cells(drifting):
    found = family_optima(drifting.diagnoses[0], drifting.laws[0])
    best = found.quantities["learning_rate"]
    assert best.values == pytest.approx([best_settings(tokens)[0] for tokens in best.tokens], rel=0.1)
    slope = np.polyfit(np.log(best.line.x), np.log(best.line.value), 1)[0]
    assert slope == pytest.approx(LR_EXPONENT, abs=0.05)
    assert (best.line.low <= best.line.value).all() and (best.line.value <= best.line.high).all()
    octaves = np.log2(best.best_values)
    assert octaves == pytest.approx(octaves.round()) and len(octaves) == len(BUDGETS)


def test_gains_lie_on_the_planted_coefficient():
    findings = find(planted_decays(np.random.default_rng(3)))
    data = decay_gains(findings.families[0], findings.laws[0])
    assert data.coefficient == pytest.approx(K, rel=0.02)
    assert data.gain == pytest.approx(K * data.noise, abs=2e-3)
    assert np.median(data.errors["noise"]) < 0.2 * np.median(data.errors["nothing"])


def test_branches_leave_their_trunk_and_end_at_their_loss():
    trunk = run(2.0**-9, 0.5)
    end = 10 * EVERY_TOKENS
    data = branched_curves(make_families([trunk, decay_off(trunk, end, 1.25)])[0])
    (branch,) = data.branches
    at, values = trunk.measured("val_loss")
    assert branch.tokens[0] == end - DECAY and branch.tokens[-1] == end and branch.values[-1] == 1.25
    assert values[at <= branch.tokens[0]][-1] >= branch.values[0] > 1.25


def test_costs_are_those_of_shared_trunks():
    lr, wd = (-10.0, -9.0), (-3.0, -2.0, -1.0)
    runs = drifting_optimum(np.random.default_rng(4), lr=np.array(lr), wd=np.array(wd))
    cost = cost_of(make_families(runs)[0])
    trunk = BUDGETS[-1] // EVERY_TOKENS * EVERY_TOKENS  # goes on past the last branch, to its last row
    assert cost.shared == 6 * (trunk + len(BUDGETS) * DECAY)
    assert cost.from_scratch == cost.full_grid == 6 * sum(BUDGETS)
    corner = [one for one in runs if (one.info.learning_rate, one.info.weight_decay) != (2.0**-9, 0.5)]
    cost = cost_of(make_families(corner)[0])
    assert (cost.from_scratch, cost.full_grid) == (5 * sum(BUDGETS), 6 * sum(BUDGETS))


def test_runs_of_the_square_root_rule_meet_those_that_kept_their_lr():
    runs = []
    for x in (-11.0, -10.0, -9.0):
        for history, factor, loss in (
            ("batch 4 until 500K", 1.0, 2.0 + 0.1 * x),
            ("LR by the square-root rule and batch 4 until 500K", 4.0, 2.5 + 0.1 * x),
        ):
            trunk = run(2.0**x, 0.25, batch_size=64, history=history, learning_rate=factor * 2.0**x)
            late = trunk.tokens > 500_000
            rate = np.where(late, factor, 1.0) * trunk.columns["learning_rate"]
            columns = {"batch_size": np.where(late, 64.0, 4.0), "learning_rate": rate}
            trunk = Trajectory(trunk.columns | columns, trunk.info)
            runs += [trunk, decay_off(trunk, 20 * EVERY_TOKENS, loss)]
    (pairs,) = square_root_data(find(runs).diagnoses).pairs
    assert pairs.log2_lr.tolist() == [-11.0, -10.0, -9.0]
    assert pairs.scaled - pairs.kept == pytest.approx(0.5)


# Drawings


def test_every_kind_is_drawn_from_the_real_table(nano):
    figures = figures_of(nano)
    assert kinds_drawn(figures) == set(KINDS) - {"square-root-rule"}
    assert [figure.kind for figure in figures] == list(KINDS)
    for figure in figures:
        if figure.drawing:
            check_drawing(figure.drawing)
            assert figure.caption and figure.title and not figure.missing
        else:
            assert "two batch sizes" in figure.missing
    verdict = next(figure for figure in figures if figure.kind == "loss-by-lr").caption
    assert "Verdict where n < 0.3" in verdict


def test_figures_of_several_families_have_names_of_their_own():
    runs = drifting_optimum(np.random.default_rng(5), BUDGETS[:1], lr=np.array([-9.0, -8.0]), wd=np.array([-4.0, -3.0]))
    others = [with_info(one, batch_size=64, setup="<b>odd</b> setup") for one in runs]
    figures = figures_of(find([*runs, *others]))
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
    assert len({figure.group for figure in figures if figure.kind == "final-loss"}) == 2
    cost = next(figure for figure in figures if figure.kind == "cost")
    assert "<b>" not in json.dumps(cost.drawing) and any(
        "&lt;b&gt;odd" in name for name in cost.drawing["data"][0]["y"]
    )


def test_long_names_of_families_leave_room_for_the_bars():
    """Below the bars, turned, they took all of the height, and nothing was drawn."""
    name = "batch 64 after LR by the square-root rule and batch 4 until 1.05M"
    drawing = draw_costs([Cost(name, 1.0, 2.0, 3.0, 1, 1)])
    (shown,) = drawing["data"][0]["y"]
    assert shown.replace("<br>", " ") == name and max(map(len, shown.split("<br>"))) <= 17


def test_a_thousand_runs_make_small_figures():
    tokens = np.arange(1, 1001) * 4096
    lr, wd = np.linspace(-12, -7, 40), np.linspace(-6, 0, 25)
    runs = [trajectory(x, y, tokens, 3 + x / 10 + y / 20 + 10 / np.sqrt(tokens)) for x in lr for y in wd]
    data = loss_curves(make_families([with_info(one, decay_tokens=0) for one in runs])[0])
    assert len(data.curves) == MAX_CURVES and "100 of 1000 runs" in data.left_out
    assert sum(len(curve.tokens) for curve in data.curves) <= MAX_POINTS
    assert data.curves[0].log2_elr == pytest.approx(-18) and data.curves[-1].log2_elr == pytest.approx(-7)
    assert all(curve.tokens[-1] == tokens[-1] for curve in data.curves)


def test_numbers_are_short_and_no_nan_is_written():
    assert compact({"a": np.array([math.pi, math.nan, math.inf]), "b": (1.0, np.float32(2.5), "x", None)}) == {
        "a": [3.1416, None, None],
        "b": [1, 2.5, "x", None],
    }


def test_a_name_stands_once_in_the_legend_wherever_it_comes_first():
    drawing = Drawing(2)
    drawing.add(0, points([1.0], [1.0], color="#000000", name="a", showlegend=True))
    for name in ("a", "b"):
        drawing.add(1, points([1.0], [1.0], color="#000000", name=name, showlegend=True))
    done = drawing.finish()
    assert [(trace["name"], trace["showlegend"]) for trace in done["data"]] == [("a", True), ("a", False), ("b", True)]
    assert done["layout"]["showlegend"]


def test_panels_do_not_overlap():
    drawing = Drawing(4)
    for panel in range(4):
        drawing.add(panel, points([1.0], [1.0], color="#000000"))
        drawing.axes(panel, {}, {})
    layout = drawing.finish()["layout"]
    boxes = [(layout[f"xaxis{n}"]["domain"], layout[f"yaxis{n}"]["domain"]) for n in ("", "2", "3", "4")]
    for i, (x, y) in enumerate(boxes):
        assert 0 <= x[0] < x[1] <= 1 and 0 <= y[0] < y[1] <= 1
        for other_x, other_y in boxes[:i]:
            assert x[0] >= other_x[1] or x[1] <= other_x[0] or y[0] >= other_y[1] or y[1] <= other_y[0]


def test_colours_are_ordered_and_their_bar_says_powers_of_two():
    scale = Scale.of("ELR", [-12.0, -10.0, -8.0, math.nan])
    brightness = [sum(int(scale.color(value)[i : i + 2], 16) for i in (1, 3, 5)) for value in (-12.0, -10.0, -8.0)]
    assert brightness == sorted(brightness) and len(set(brightness)) == 3
    assert scale.axis()["colorbar"]["ticktext"][0] == power_of_two(-12) == "2<sup>-12</sup>"
    assert power_of_two(math.log2(3e-4)) == "0.0003"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((1e-6, 1e-3), ["10<sup>-6</sup>", "10<sup>-5</sup>", "10<sup>-4</sup>", "0.001"]),
        ((0.6, 1.3), ["0.6", "0.8", "1", "1.2"]),
        ((3.0, 3.0), ["2.9", "3", "3.1"]),
    ],
)
def test_ticks_are_round_numbers(values, ticks):
    axis = log_axis("x", values, most=4)
    assert axis["ticktext"] == ticks
    low, high = axis["range"]
    assert low <= math.log10(values[0]) <= math.log10(values[1]) <= high


# What cannot be drawn


def test_one_run_has_its_curve_and_reasons_for_the_rest():
    findings = find([run(2.0**-9, 0.1)])
    figures = {figure.kind: figure for figure in figures_of(findings)}
    assert kinds_drawn(figures.values()) == {"loss-by-lr", "loss-by-elr", "cost"}
    for figure in figures.values():
        assert bool(figure.drawing) != bool(figure.missing)
    assert "one learning rate" in figures["distances-loss"].missing
    assert "meter" in figures["noise"].missing
    assert "decay" in figures["wsd"].missing
    assert "one learning rate" in figures["loss-by-lr"].caption


def test_diverged_runs_are_drawn_as_far_as_they_came():
    def breaking(tokens):
        return np.where(tokens > 10 * EVERY_TOKENS, np.inf, 3.0)

    runs = [run(2.0**x, 0.1, loss=breaking, status="diverged") for x in (-6.0, -5.0)]
    figures = {figure.kind: figure for figure in figures_of(find(runs))}
    assert kinds_drawn(figures.values()) == {"loss-by-lr", "loss-by-elr"}
    assert "2 runs that diverged" in figures["loss-by-lr"].caption
    check_drawing(figures["loss-by-lr"].drawing)
    drawn = figures["loss-by-lr"].drawing["data"]
    crosses = [one for one in drawn if one.get("marker", {}).get("symbol") == "x"]
    assert [cross["x"] for cross in crosses] == [[10 * EVERY_TOKENS]] * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_losses_that_are_no_numbers_raise_nothing(bad):
    good = [run(2.0**x, 2.0**y) for x in (-10.0, -9.0, -8.0) for y in (-3.0, -2.0, -1.0)]
    broken = [run(2.0**-7, 2.0**y, loss=lambda tokens: np.full(len(tokens), bad)) for y in (-3.0, -2.0)]
    for runs in (broken, [*good, *broken]):
        for figure in figures_of(find(runs)):
            assert bool(figure.drawing) != bool(figure.missing)
            if figure.drawing:
                check_drawing(figure.drawing)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy says that numbers overflow
def test_losses_near_the_largest_number_have_no_surface_and_say_so():
    def exploding(tokens):
        return np.where(tokens > 1e6, 1e300, 3.0)

    runs = [run(2.0**x, 2.0**y, loss=exploding) for x in (-10.0, -9.0, -8.0) for y in (-3.0, -2.0, -1.0)]
    figures = {figure.kind: figure for figure in figures_of(find(runs))}
    assert "No surface is fitted" in figures["final-loss"].caption


def test_runs_without_an_lr_column_are_drawn_from_their_first_token_on():
    runs = [run(2.0**x, 2.0**y) for x in (-10.0, -9.0, -8.0) for y in (-3.0, -2.0, -1.0)]
    assert all(one.tokens[0] == 0 for one in runs)
    figures = {figure.kind: figure for figure in figures_of(find([without(one, "learning_rate") for one in runs]))}
    line = figures["loss-by-lr"].drawing["data"][0]
    assert line["x"][0] == EVERY_TOKENS


def test_a_running_sweep_is_drawn_as_far_as_it_is():
    runs = [
        run(2.0**x, 2.0**y, (4 + 3 * place) * EVERY_TOKENS, status="running")
        for place, (x, y) in enumerate(zip(*grid(np.arange(-10.0, -7.0), np.arange(-3.0, 0.0)), strict=True))
    ]
    figures = {figure.kind: figure for figure in figures_of(find(runs))}
    assert figures["loss-by-elr"].drawing and not figures["final-loss"].drawing
    assert "no two runs ended" in figures["final-loss"].missing


def test_runs_of_unknown_lr_are_drawn_in_one_colour():
    findings = find([run(2.0**-9, 0.1, learning_rate="unknown")])
    (figure,) = figures_of(findings)
    assert figure.drawing and "learning_rate is unknown" in figure.caption
    check_drawing(figure.drawing)


def test_no_runs_are_words():
    findings = find([])
    (figure,) = figures_of(findings)
    assert not figure.drawing and "no run" in figure.missing and "no runs" in findings.reason


def test_losses_of_another_name_are_drawn_under_it():
    runs = [run(2.0**x, 2.0**y) for x in (-10.0, -9.0, -8.0) for y in (-3.0, -2.0)]
    renamed = [Trajectory({**one.columns, "perplexity": one.columns["val_loss"]}, one.info) for one in runs]
    figures = {figure.kind: figure for figure in figures_of(find(renamed, loss="perplexity"))}
    assert figures["loss-by-lr"].drawing["layout"]["yaxis"]["title"]["text"] == "perplexity"


def test_noise_that_was_not_measured_is_asked_for(drifting):
    with pytest.raises(InputError, match="meter"):
        noise_curves(dataclasses.replace(drifting.families[0]), "scaled_noise")


def test_a_trunk_that_ended_before_its_first_evaluation_is_drawn_without_it():
    none = np.zeros(0)
    trunks = curves.CurveSet((curves.Curve(-10.0, -14.0, "short", none, none),), 1, "validation loss")
    branch = curves.Branch(-10.0, -14.0, "short", np.array([1000.0, 2000.0]), np.array([2.0, 1.9]))
    drawing = curves.draw_branched(curves.BranchedCurves(trunks, (branch,)))
    assert [list(trace["x"]) for trace in drawing["data"] if trace.get("name") == "short, decay"] == [[1000, 2000]]
