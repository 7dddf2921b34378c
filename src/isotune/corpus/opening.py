"""A corpus by its name or path."""

from __future__ import annotations

from pathlib import Path

from isotune.corpus import python_sources
from isotune.corpus.corpus import Corpus
from isotune.corpus.prepared_folder import is_prepared, open_prepared
from isotune.corpus.python_sources import open_python_sources
from isotune.corpus.raw import open_raw_file, open_raw_folder
from isotune.errors import InputError


def open_corpus(name: str | Path) -> Corpus:
    """The corpus called "python-sources", or the one at a path.

    A path is a folder that `prepare` wrote, a folder with token files of nanoGPT (train.bin, val.bin) or llm.c
    (*train*.bin, *val*.bin), or one such training file with its validation file beside it.
    """
    if str(name) == python_sources.NAME:
        return open_python_sources()
    path = Path(name)
    if path.is_dir():
        corpus = open_prepared(path) if is_prepared(path) else open_raw_folder(path)
        if corpus is None:
            raise InputError(
                f"folder {name} holds no corpus: isotune prepare writes one, and train.bin with val.bin is read too"
            )
        return corpus
    if path.suffix == ".bin" and path.is_file():
        if is_prepared(path.parent):
            raise InputError(f"{name} is a part of the corpus in its folder: give {path.parent} instead")
        return open_raw_file(path)
    if path.exists():
        raise InputError(f"{name} is not a token file (.bin): make a corpus of text with isotune prepare")
    raise InputError(f"there is no corpus {str(name)!r}: write {python_sources.NAME} or the path of a prepared folder")
