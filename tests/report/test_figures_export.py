"""Figures as files, and `isotune figures`: real vector files by a real browser, refusals in words without one."""

import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from made_sweeps import run

from isotune.cli.figures import choose
from isotune.cli.figures import figures as figures_command
from isotune.errors import InputError
from isotune.report.export import BROWSERS, find_browser, on_paper, write_figures
from isotune.report.figure import Figure
from isotune.report.figures import KINDS, figures_of
from isotune.report.findings import find

NO_BROWSER = not any(shutil.which(name) for name in BROWSERS)


@pytest.fixture(scope="module")
def figures():
    return figures_of(find([run(2.0**x, 0.1) for x in (-10.0, -9.0)]))


@pytest.fixture
def csv(tmp_path):
    """Runs of another tool: a row per evaluation."""
    rows = ["run,learning_rate,weight_decay,tokens,val_loss"]
    for name, lr in (("a", 1e-3), ("b", 3e-3)):
        rows += [f"{name},{lr},0.1,{1000 * step},{3 + 1 / step}" for step in range(1, 12)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows))
    return path


def options(csv, out):
    return [str(csv), "--out", str(out), "--run-column", "run", "--wd-convention", "coupled"]


def test_files_have_a_white_ground_and_the_drawing_keeps_its_own(figures):
    figure = figures[0]
    white = on_paper(figure.drawing)
    assert white["layout"]["paper_bgcolor"] == "#ffffff" != figure.drawing["layout"]["paper_bgcolor"]
    assert white["data"] == figure.drawing["data"]


def test_json_and_html_need_no_browser(figures, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    paths = write_figures(figures, tmp_path / "out", "json")
    drawn = [figure for figure in figures if figure.drawing]
    assert [path.name for path in paths] == [f"{figure.name}.json" for figure in drawn]
    assert json.loads(paths[0].read_text()) == drawn[0].drawing
    (page,) = write_figures(figures[:1], tmp_path / "out", "html")
    text = page.read_text()
    assert "<html" in text and 'src="http' not in text


def test_an_image_without_a_browser_says_what_to_install(figures, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    with pytest.raises(InputError, match="install chromium.*--format html"):
        write_figures(figures, tmp_path / "out", "svg")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="BROWSER_PATH"):
        find_browser()


@pytest.mark.skipif(NO_BROWSER, reason="no Chrome or Chromium is installed")
def test_vector_files_have_their_labels_as_text(figures, tmp_path):
    wanted = tuple(figure for figure in figures if figure.kind == "loss-by-elr")
    (path,) = write_figures(wanted, tmp_path, "svg", width=340)
    root = ElementTree.parse(path).getroot()
    assert root.get("width") == "340"
    words = " ".join("".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text"))
    for label in ("tokens", "validation loss", "ELR"):
        assert label in words


def test_the_command_writes_the_figures_that_were_asked_for(csv, tmp_path):
    out = tmp_path / "figures"
    done = CliRunner().invoke(
        figures_command, [*options(csv, out), "--format", "json", "--only", "loss-by-lr", "--only", "noise"]
    )
    assert done.exit_code == 0, done.output
    assert [path.name for path in out.iterdir()] == ["loss-by-lr.json"]
    drawing = json.loads((out / "loss-by-lr.json").read_text())
    lines = [trace for trace in drawing["data"] if trace.get("name", "").startswith("LR ")]
    assert np.array([line["y"][-1] for line in lines]) == pytest.approx(3 + 1 / 11, rel=1e-4)
    assert "no noise: " in done.output


def refusal(*arguments):
    done = CliRunner().invoke(figures_command, list(map(str, arguments)))
    assert isinstance(done.exception, InputError), done.output
    return str(done.exception)


def test_a_mistyped_figure_is_refused_before_the_source_is_read(tmp_path):
    said = refusal("nowhere", "--out", tmp_path, "--format", "json", "--only", "final-los")
    assert "did you mean final-loss?" in said and said.endswith(", ".join(KINDS))
    assert "did you mean" not in refusal("nowhere", "--out", tmp_path, "--format", "json", "--only", "zzz")


def test_a_figure_of_a_family_that_is_not_there_is_refused_with_those_that_are(csv, tmp_path):
    said = refusal(*options(csv, tmp_path), "--format", "json", "--only", "noise-batch-5")
    assert said.endswith("noise-batch-5 is no figure of this source: give one of noise")


def test_what_an_image_needs_is_asked_for_before_the_source_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'isotune[figures]'" in refusal("nowhere", "--out", tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nothing"))
    assert "BROWSER_PATH" in refusal("nowhere", "--out", tmp_path)


def test_a_folder_that_cannot_be_written_is_refused_before_the_source_is_read(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in refusal("nowhere", "--out", tmp_path / "file" / "figures", "--format", "json")


def test_a_kind_stands_for_the_figures_of_all_families():
    made = tuple(Figure(f"noise-{b}", "", "", {}, "", b, "noise") for b in ("batch-4", "batch-64"))
    assert choose(made, ("noise",)) == made
    assert choose(made, ("noise-batch-64",)) == made[1:]
    assert choose(made, ()) == made
