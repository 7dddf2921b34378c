"""Files of text -> documents, in bounded memory.

A document is a text file or a record of a JSONL file. It comes as units: what the split between training and
validation moves as a whole. A unit is cut into pieces for the tokenizer.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from isotune.corpus import python_sources
from isotune.corpus.tokenizers import WHITE_SPACE
from isotune.errors import InputError

# A text file longer than this is split by stretches of about this many characters.
STRETCH_CHARACTERS = 2**16
# Without white space to cut at, a piece is cut here, wherever that is: it costs a token, and bounds the memory.
LONGEST_PIECE_CHARACTERS = 2**20
LONGEST_LINE_BYTES = 2**25

_BLOCK_BYTES = 2**20
# Small, because one compressed byte can stand for 32 KiB of text.
_COMPRESSED_BLOCK_BYTES = 2**10

_TEXT_SUFFIXES = (".txt", ".md", ".py")
_JSONL_SUFFIXES = (".jsonl", ".json")
_COMPRESSED_SUFFIXES = (".gz", ".zst")

# Between a visible character and white space: GPT-2's pre-tokeniser never spans this place and never looks
# across it, so both sides tokenise as they do in the whole.
_CUT = re.compile(f"[^{WHITE_SPACE}](?=[{WHITE_SPACE}])")


@dataclass(frozen=True)
class Source:
    """An input: a file, or the built-in corpus (which brings a split of its own)."""

    name: str  # without the place where it is stored, so that results do not depend on it
    num_bytes: int
    path: Path | None = field(compare=False)
    identity: str = ""  # beyond name and size; only the built-in corpus has one


@dataclass(frozen=True)
class Unit:
    """Text that goes to training or validation as a whole."""

    text: str
    ends_document: bool
    is_held_out: bool | None  # None: the split decides
    bytes_read: int  # of the source so far, as it is stored


def find_sources(inputs: Iterable[str | Path], *, leave_out: Path) -> list[Source]:
    """The files that these paths name, folders recursively and in order; nothing under `leave_out`."""
    sources = []
    for given in inputs:
        path = Path(given)
        if str(given) == python_sources.NAME:
            sources.append(_built_in_source())
        elif path.is_dir():
            sources += _folder_sources(path, leave_out.resolve())
        elif path.is_file():
            sources.append(Source(path.name, path.stat().st_size, path))
        else:
            raise InputError(
                f"there is no file or folder {str(given)!r}: give paths of text or JSONL, or {python_sources.NAME}"
            )
    return sources


def read_units(source: Source, *, text_key: str) -> Iterator[Unit]:
    """The units of a source, in order."""
    if source.path is None:
        return _built_in_units()
    if _suffix(source.path) in _JSONL_SUFFIXES:
        return _jsonl_units(source.path, text_key)
    return _text_units(source.path)


def cut(blocks: Iterable[str]) -> Iterator[str]:
    """Pieces of a text that comes in blocks; they tokenise as the whole, and do not depend on the blocks.

    Only where a text goes on for `LONGEST_PIECE_CHARACTERS` without a place to cut, a token may be torn.
    """
    text, start = "", 0
    for block in blocks:
        text, start = text[start:] + block, 0
        while end := _next_cut(text, start):
            yield text[start:end]
            start = end
    yield text[start:]


def _next_cut(text: str, start: int) -> int | None:
    """Where the piece from `start` ends; None if that needs more text."""
    limit = start + LONGEST_PIECE_CHARACTERS
    if match := _CUT.search(text, start + STRETCH_CHARACTERS - 1, limit + 1):
        return match.end()
    return limit if len(text) > limit else None


def _built_in_source() -> Source:
    version, files = python_sources.source_files()
    corpus = python_sources.open_python_sources()  # refuses an edited one
    num_bytes = len(corpus.train) + len(corpus.validation) - len(files)
    return Source(f"sympy-{version}", num_bytes, None, corpus.fingerprint)


def _folder_sources(folder: Path, leave_out: Path) -> list[Source]:
    known = _TEXT_SUFFIXES + _JSONL_SUFFIXES
    files = [
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*")
        if _suffix(path) in known and path.is_file() and leave_out not in path.resolve().parents
    ]
    if not files:
        raise InputError(
            f"folder {folder} has no files named *{', *'.join(known)} (or these with "
            f"{' or '.join(_COMPRESSED_SUFFIXES)}): name files of another kind one by one"
        )
    name = folder.resolve().name
    return [Source(f"{name}/{relative}", path.stat().st_size, path) for relative, path in sorted(files)]


def _suffix(path: Path) -> str:
    """The kind of a file: its last suffix, that of a compression left out."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _built_in_units() -> Iterator[Unit]:
    bytes_read = 0
    for file, content in python_sources.read_sources(python_sources.source_files()[1]):
        bytes_read += len(content)
        # A version that nobody checked may hold other encodings.
        yield Unit(content.decode(errors="replace"), True, file.is_held_out, bytes_read)


def _text_units(path: Path) -> Iterator[Unit]:
    with _Reader(path) as reader:
        pieces = cut(_decoded_blocks(reader))
        previous = next(pieces)
        for text in pieces:
            yield Unit(previous, False, None, reader.bytes_read)
            previous = text
        yield Unit(previous, True, None, reader.bytes_read)


def _decoded_blocks(reader: _Reader) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0
    while True:
        block = reader.read(_BLOCK_BYTES)
        pending = len(decoder.getstate()[0])
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_utf8(f"{reader.path}", position - pending + error.start) from None
        if not block:
            return
        position += len(block)


def _jsonl_units(path: Path, text_key: str) -> Iterator[Unit]:
    with _Reader(path) as reader:
        number = position = 0
        while line := reader.readline(LONGEST_LINE_BYTES + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > LONGEST_LINE_BYTES:
                raise InputError(
                    f"{where} is longer than {LONGEST_LINE_BYTES >> 20} MiB: cut the record up, "
                    "or give the file as text (.txt) if it is no JSONL"
                )
            try:
                record = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(where, position + error.start) from None
            position += len(line)
            if record.strip():
                yield Unit(_text_of(record, text_key, where), True, None, reader.bytes_read)


def _text_of(record: str, text_key: str, where: str) -> str:
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{where} is not a JSON object: JSONL has one object on each line, other text is named .txt")
    text = value.get(text_key)
    if not isinstance(text, str):
        strings = [key for key in value if isinstance(value[key], str)][:5]
        found = f"its strings are {', '.join(map(repr, strings))}" if strings else "it has no strings"
        raise InputError(f"{where} has no string {text_key!r} ({found}): name the right one with --text-key")
    return _without_lone_surrogates(text)


def _without_lone_surrogates(text: str) -> str:
    """The text with U+FFFD for escapes such as \\ud800 that stand for no character; JSON allows them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _not_utf8(where: str, offset: int) -> InputError:
    return InputError(f"{where} is not UTF-8 at byte {offset}: convert it, for example with iconv -t UTF-8")


class _Reader:
    """A file's text as bytes, decompressed; what goes wrong in reading it is the user's to mend."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): check its permissions") from None
        suffix = path.suffix.lower()
        if suffix == ".gz":
            self._stream: BinaryIO | gzip.GzipFile | io.BufferedReader = gzip.GzipFile(fileobj=self._file)
        elif suffix == ".zst":
            self._stream = io.BufferedReader(_ZstdFile(self._file, path), _BLOCK_BYTES)
        else:
            self._stream = self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def bytes_read(self) -> int:
        return self._file.tell()

    def read(self, size: int) -> bytes:
        return self._checked(self._stream.read, size)

    def readline(self, limit: int) -> bytes:
        return self._checked(self._stream.readline, limit)

    def _checked(self, method: Callable[[int], bytes], size: int) -> bytes:
        try:
            return method(size)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"{self.path} cannot be read to its end ({error}): fetch or compress it again") from None


class _ZstdFile(io.RawIOBase):
    """The content of a .zst file, of one frame or many; unlike zstandard's own reader it notices a missing end."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        try:
            import zstandard
        except ImportError:
            raise InputError(f"{path} is compressed with zstd: pip install zstandard, or decompress it") from None
        self._file = file
        self._zstandard = zstandard
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._compressed = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text:
            if not self._compressed:
                self._compressed = self._file.read(_COMPRESSED_BLOCK_BYTES)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("the end is missing")
                return 0
            self._decompress()
        size = min(len(buffer), len(self._text))
        buffer[:size] = self._text[:size]
        self._text = self._text[size:]
        return size

    def _decompress(self) -> None:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            self._text = memoryview(self._frame.decompress(self._compressed))
        except self._zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        self._compressed = b""
        if self._frame.eof:
            self._compressed, self._frame = self._frame.unused_data, None
