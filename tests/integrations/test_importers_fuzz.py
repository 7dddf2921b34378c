"""A smaller, seeded share of proofs/import_fuzz.py: no traceback on mangled files, and nothing is lost unsaid."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def import_fuzz(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "proofs"))
    return importlib.import_module("import_fuzz")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "events", "trainer"])
def test_mangled_files_are_read_or_refused_in_words(import_fuzz, kind):
    result = import_fuzz.fuzz(kind, 120, seed=1)
    assert result["passed"], result["failures"]
    assert min(result["refused"], result["read without losses"], result["read, with losses noted"]) > 0


def test_a_traceback_and_a_silent_loss_would_be_seen(import_fuzz, monkeypatch):
    def raising(*_, **__):
        raise KeyError("a defect")

    whole = import_fuzz.open_source

    def losing(source, **options):
        imported = whole(source, **options)
        return type(imported)(
            kind="files", source="", loss="val_loss", trajectories=imported.trajectories[1:], notes=()
        )

    for broken in (raising, losing):
        calls = iter([whole, *[broken] * 20])
        monkeypatch.setattr(import_fuzz, "open_source", lambda *a, calls=calls, **k: next(calls)(*a, **k))
        assert not import_fuzz.fuzz("csv", 20)["passed"]
