import importlib.metadata
import time

import numpy as np
import pytest

from isotune.corpus import open_corpus, python_sources
from isotune.errors import InputError


@pytest.fixture(scope="module")
def corpus():
    return open_corpus("python-sources")


@pytest.fixture(scope="module")
def files():
    return list(python_sources.read_sources(python_sources.source_files()[1]))


def test_it_is_the_known_corpus(corpus):
    assert corpus.name == "sympy-1.14.0"
    assert corpus.fingerprint == "4cc105c034cb4eabb7b0e9eb2dfb6a8f"
    assert (corpus.tokenizer, corpus.vocabulary_size) == ("bytes", 256)


def test_it_opens_in_a_moment():
    start = time.perf_counter()
    open_corpus("python-sources")
    assert time.perf_counter() - start < 3


def test_every_document_is_followed_by_one_nul(corpus, files):
    train = [content for file, content in files if not file.is_held_out]
    validation = [content for file, content in files if file.is_held_out]
    assert not any(b"\0" in content for _, content in files)
    assert corpus.train.tobytes() == b"".join(content + b"\0" for content in train)
    assert corpus.validation.tobytes().split(b"\0") == [*validation, b""]


def test_hundreds_of_files_are_held_out_and_none_of_them_is_trained_on(corpus, files):
    held_out = [content for file, content in files if file.is_held_out]
    assert 200 <= len(held_out) <= 0.2 * len(files)
    train = corpus.train.tobytes()
    # Short files (a few imports) may well be a part of another one.
    assert not any(content in train for content in held_out if len(content) > 1000)


def test_it_has_enough_validation_windows_for_the_end_of_a_decay(corpus):
    windows = corpus.validation_windows(4096, sequence_length=64)
    assert windows.shape == (4096, 65) and windows.max() < 256
    documents_before = np.cumsum(corpus.validation == 0)
    starts = (2 * np.arange(4096) + 1) * ((len(corpus.validation) - 1) // 64) // 8192 * 64
    assert np.array_equal(windows[:, 0], corpus.validation[starts])
    assert len(set(documents_before[starts])) > 150


def test_bytecode_and_foreign_files_in_the_record_do_not_count(monkeypatch):
    real = importlib.metadata.distribution("sympy")
    extra = ["sympy/__pycache__/abc.cpython-311.pyc", "isympy.py", "sympy/notes.txt"]
    files = [*real.files, *map(importlib.metadata.PackagePath, extra)]
    monkeypatch.setattr(python_sources.importlib.metadata, "distribution", lambda name: Installed(real, files))
    assert open_corpus("python-sources").fingerprint == "4cc105c034cb4eabb7b0e9eb2dfb6a8f"


def test_the_order_of_the_record_does_not_matter(monkeypatch):
    real = importlib.metadata.distribution("sympy")
    monkeypatch.setattr(
        python_sources.importlib.metadata, "distribution", lambda name: Installed(real, real.files[::-1])
    )
    assert open_corpus("python-sources").fingerprint == "4cc105c034cb4eabb7b0e9eb2dfb6a8f"


class Installed:
    """A distribution with another record or version."""

    def __init__(self, real, files, version="1.14.0"):
        self.files, self.version = files, version
        self.locate_file = real.locate_file


REINSTALL = "pip install --force-reinstall --no-deps sympy==1.14.0"


def test_an_incomplete_sympy_is_refused(monkeypatch):
    real = importlib.metadata.distribution("sympy")
    for files in (real.files[:100], [], None, [*real.files, importlib.metadata.PackagePath("sympy/missing.py")]):
        installed = Installed(real, files)
        monkeypatch.setattr(python_sources.importlib.metadata, "distribution", lambda name, i=installed: i)
        with pytest.raises(InputError, match="edited or incomplete") as error:
            open_corpus("python-sources")
        assert REINSTALL in str(error.value)


def test_another_version_is_another_corpus(monkeypatch):
    real = importlib.metadata.distribution("sympy")
    installed = Installed(real, real.files[:100], version="1.15.0")
    monkeypatch.setattr(python_sources.importlib.metadata, "distribution", lambda name: installed)
    other = open_corpus("python-sources")
    assert other.name == "sympy-1.15.0" and other.fingerprint != "4cc105c034cb4eabb7b0e9eb2dfb6a8f"


def test_without_sympy_the_remedy_is_named(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(python_sources.importlib.metadata, "distribution", missing)
    with pytest.raises(InputError, match=r"pip install 'isotune\[train\]'"):
        open_corpus("python-sources")
