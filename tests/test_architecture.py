"""The arrows of ARCHITECTURE.md, checked against what every file really imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "isotune"

# Room -> the rooms that it may import. Everything may import `errors`; a room may import itself.
MAY_IMPORT = {
    "errors": set(),
    "recipe": set(),
    "corpus": {"recipe"},
    "model": {"recipe"},
    "runs": {"recipe"},
    "measure": {"model", "corpus", "runs", "recipe"},
    "train": {"measure", "model", "corpus", "runs", "recipe"},
    "sweep": {"train", "measure", "model", "corpus", "runs", "recipe"},
    "analyze": {"measure", "runs", "recipe"},  # of `measure` the windows, which need no torch
    "claims": {"analyze", "measure", "runs", "recipe"},  # of `measure` the windows
    "tune": {"analyze", "runs", "recipe"},
    "report": {"claims", "analyze", "runs", "recipe"},
    "objectives": {"tune", "sweep", "train", "measure", "model", "corpus", "runs", "analyze", "recipe"},
    "integrations": {"objectives", "tune", "analyze", "measure", "runs", "recipe"},
    "cli": None,  # the top: anything
    "__main__": {"cli"},
}
WITHOUT_TORCH = (
    "isotune",
    "isotune.recipe",
    "isotune.runs",
    "isotune.analyze",
    "isotune.tune",
    "isotune.report",
    "isotune.claims",
    "isotune.sweep",
    "isotune.cli",
)


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "isotune":
                names = [f"isotune.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "isotune" and len(parts) > 1:
                yield parts[1]


def room_of(path):
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


FILES = sorted(path for path in SOURCES.rglob("*.py") if path != SOURCES / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_a_file_imports_only_the_rooms_below_its_own(path):
    room = room_of(path)
    allowed = MAY_IMPORT[room]
    if allowed is not None:
        assert set(imported_rooms(path)) <= allowed | {room, "errors"}


def test_an_arrow_against_the_architecture_would_be_seen(tmp_path):
    offender = tmp_path / "offender.py"
    offender.write_text("import isotune.train\nfrom isotune import sweep\nfrom isotune.tune import ask\n")
    assert set(imported_rooms(offender)) == {"train", "sweep", "tune"}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_the_arithmetic_half_imports_without_torch(module):
    code = f"import sys; sys.modules['torch'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_exists():
    import isotune

    for name in isotune.__all__:
        assert getattr(isotune, name) is not None
