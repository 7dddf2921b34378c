"""Figures as files: vector and pixel images by a headless browser, pages and JSON without one."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from isotune.errors import InputError
from isotune.report.figure import Figure
from isotune.runs.files import write_whole

Format = Literal["svg", "pdf", "png", "html", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)
WITHOUT_BROWSER: tuple[Format, ...] = ("html", "json")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
WIDTH = 460  # pixels: shrunk to a column of 3.4 inches, labels are 6.4 points high
PAPER, PAPER_INK = "#ffffff", "#222222"
TIMEOUT = 600  # seconds for one image: a busy machine takes its time
PIXELS_PER_PIXEL = 2  # of PNG, for screens and slides


def write_figures(figures: Sequence[Figure], folder: Path, format: Format = "svg", *, width: int = WIDTH) -> list[Path]:
    """Writes each figure that has a drawing as NAME.FORMAT on white; gives the paths."""
    drawn = [figure for figure in figures if figure.drawing]
    paths = [folder / f"{figure.name}.{format}" for figure in drawn]
    folder.mkdir(parents=True, exist_ok=True)
    if format == "json":
        for figure, path in zip(drawn, paths, strict=True):
            _write_text(path, json.dumps(figure.drawing, allow_nan=False))
    elif format == "html":
        for figure, path in zip(drawn, paths, strict=True):
            _write_text(path, _page(figure))
    elif drawn:
        _write_images(drawn, paths, format, width)
    return paths


def on_paper(drawing: dict[str, Any]) -> dict[str, Any]:
    """The drawing with a white background and dark ink."""
    white = copy.deepcopy(drawing)
    layout = white["layout"]
    layout["paper_bgcolor"] = layout["plot_bgcolor"] = PAPER
    layout["font"] = layout.get("font", {}) | {"color": PAPER_INK}
    return white


def find_browser() -> str:
    """The Chrome or Chromium that draws images: BROWSER_PATH, or the first on PATH."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        found = shutil.which(named)
        if found is None:
            raise InputError(f"BROWSER_PATH={named} is no program: give the path of Chrome or Chromium")
        return found
    for name in BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise InputError(
        "images are drawn by Chrome or Chromium, and none is on PATH: install chromium, set BROWSER_PATH, or use "
        "--format html or json"
    )


def require_drawing(format: Format) -> None:
    """Refuses a format that cannot be written here; callers ask before the minutes that an analysis may take."""
    if format in WITHOUT_BROWSER:
        return
    if importlib.util.find_spec("kaleido") is None:
        raise InputError(f"{format} needs kaleido: pip install 'isotune[figures]', or use --format html or json")
    find_browser()


def _write_images(figures: Sequence[Figure], paths: Sequence[Path], format: Format, width: int) -> None:
    require_drawing(format)
    import kaleido

    wanted = []
    for figure, path in zip(figures, paths, strict=True):
        height = figure.drawing["layout"].get("height", 340)
        size = {"format": format, "width": width, "height": height, "scale": PIXELS_PER_PIXEL if format == "png" else 1}
        wanted.append({"fig": on_paper(figure.drawing), "path": path, "opts": size})
    options = {"path": find_browser(), "mathjax": False, "plotlyjs": _plotly_script(), "timeout": TIMEOUT}
    kaleido.write_fig_from_object_sync(wanted, kopts=options, cancel_on_error=True)


def _plotly_script() -> str:
    """plotly.js as the plotly package has it: the browser shall ask no network for it."""
    import plotly

    return (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").as_uri()


def _write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_whole(path, write)


def _page(figure: Figure) -> str:
    import plotly.graph_objects as graphs

    html: str = graphs.Figure(on_paper(figure.drawing)).to_html(include_plotlyjs=True, full_html=True)
    return html
