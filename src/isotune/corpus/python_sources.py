"""The built-in corpus: the Python sources of the installed package sympy, as bytes."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isotune.corpus.corpus import Corpus, fingerprint, full_digest
from isotune.errors import InputError

NAME = "python-sources"

# What pip installs as sympy 1.14.0. Other versions are other corpora and are named so.
_CHECKED_VERSION = "1.14.0"
_CHECKED_FINGERPRINT = "4cc105c034cb4eabb7b0e9eb2dfb6a8f"

_VALIDATION_PERCENT = 15


@dataclass(frozen=True)
class SourceFile:
    """A file of the corpus; its path inside the package decides whether it is held out."""

    name: str
    path: Path

    @property
    def is_held_out(self) -> bool:
        number = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8], "big")
        return number % 100 < _VALIDATION_PERCENT


def open_python_sources() -> Corpus:
    """The corpus, named after sympy's version: every file's bytes and a NUL, split by file."""
    version, files = source_files()
    documents: dict[bool, list[bytes]] = {False: [], True: []}
    for file, content in read_sources(files):
        documents[file.is_held_out] += [content, b"\0"]
    train, validation = (np.frombuffer(b"".join(documents[held_out]), dtype=np.uint8) for held_out in (False, True))
    corpus = Corpus(
        name=f"sympy-{version}",
        fingerprint=fingerprint("bytes", full_digest([train]), full_digest([validation])),
        tokenizer="bytes",
        vocabulary_size=256,
        train=train,
        validation=validation,
    )
    if version == _CHECKED_VERSION and corpus.fingerprint != _CHECKED_FINGERPRINT:
        raise _damaged(version)
    return corpus


def source_files() -> tuple[str, list[SourceFile]]:
    """sympy's version and its .py files by path, as its installer recorded them."""
    try:
        distribution = importlib.metadata.distribution("sympy")
    except importlib.metadata.PackageNotFoundError:
        raise InputError(
            f"corpus {NAME} is made of the package sympy, which is not installed: pip install 'isotune[train]'"
        ) from None
    # The record, not the folder: so files that something else put there, such as bytecode, do not count.
    files = [
        SourceFile(file.as_posix(), Path(str(distribution.locate_file(file))))
        for file in distribution.files or ()
        if file.suffix == ".py" and file.parts[0] == "sympy"
    ]
    if not files:
        raise _damaged(distribution.version)
    return distribution.version, sorted(files, key=lambda file: file.name)


def read_sources(files: list[SourceFile]) -> Iterator[tuple[SourceFile, bytes]]:
    """Each file with its content."""
    for file in files:
        try:
            yield file, file.path.read_bytes()
        except OSError:
            raise _damaged(source_files()[0]) from None


def _damaged(version: str) -> InputError:
    return InputError(
        f"the installed sympy {version} is edited or incomplete, so corpus {NAME} would not be the known one: "
        f"pip install --force-reinstall --no-deps sympy=={version}"
    )
