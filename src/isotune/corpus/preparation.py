"""Text -> a folder of tokens: streaming, resumable, and the same bytes every time."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path

import numpy as np

from isotune.corpus.corpus import fingerprint
from isotune.corpus.documents import Source, Unit, cut, find_sources, read_units
from isotune.corpus.prepared_folder import (
    FORMAT_VERSION,
    MANIFEST,
    PROGRESS,
    SPLITS,
    ShardWriter,
    damaged,
    describe_shards,
    open_prepared,
    read_json,
    read_manifest,
    temporary_path,
    write_json,
)
from isotune.corpus.tokenizers import Tokenizer, load_tokenizer
from isotune.errors import InputError
from isotune.recipe import digest
from isotune.recipe.quantities import require_positive_int

# Text between two safe points: what a crash can cost.
CHECKPOINT_CHARACTERS = 16_000_000
# Text handed to the tokenizer at once: its tokens, as Python integers, take ten times as much memory.
_BATCH_CHARACTERS = 2**20
_SECONDS_BETWEEN_REPORTS = 0.3


@dataclass(frozen=True)
class Progress:
    """How far a preparation is; bytes are those of the inputs as they are stored."""

    bytes_done: int
    bytes_total: int
    tokens: int


@dataclass(frozen=True)
class Prepared:
    """A finished folder. Documents count the ends of documents: a stretch cut out of a long text is one."""

    folder: Path
    fingerprint: str
    tokenizer: str
    train_tokens: int
    validation_tokens: int
    train_documents: int
    validation_documents: int


def prepare(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: str = "gpt2",
    validation: Sequence[str | Path] = (),
    validation_share: float = 0.01,
    shard_tokens: int = 100_000_000,
    text_key: str = "text",
    progress: Callable[[Progress], None] | None = None,
) -> Prepared:
    """The folder `out`, filled with the tokens of text and JSONL files (plain, .gz or .zst) or of "python-sources".

    Held out is every (1/validation_share)-th unit, beginning with the first, or else what `validation` names; a unit
    is a record, a file, or a stretch of about 64 KiB of a longer file. Repeating an interrupted call continues it;
    repeating a finished one does nothing.
    """
    out = Path(out)
    options = _Options(tokenizer, _parse_share(validation_share), shard_tokens, text_key)
    require_positive_int("shard_tokens", shard_tokens)
    encoder = load_tokenizer(tokenizer)
    plan = _Plan(options, tuple(find_sources(inputs, leave_out=out)), tuple(find_sources(validation, leave_out=out)))
    if not plan.train:
        raise InputError("there are no inputs: give at least one file or folder of text")
    with _folder_to_ourselves(out):
        if (out / MANIFEST).exists():
            return _already_finished(out, plan)
        position = _saved_position(out, plan)
        try:
            _write_tokens(out, plan, encoder, position, _throttled(progress))
            return _finish(out, plan, encoder, position)
        except OSError as error:
            raise InputError(
                f"folder {out} cannot be written ({error.strerror or error}): "
                "make room or mend it, then repeat the command, and it continues"
            ) from None


@dataclass(frozen=True)
class _Options:
    """What the output depends on besides the inputs."""

    tokenizer: str
    validation_share: Fraction
    shard_tokens: int
    text_key: str


@dataclass(frozen=True)
class _Plan:
    """The inputs in order, and which of their units are held out."""

    options: _Options
    train: tuple[Source, ...]
    validation: tuple[Source, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return self.train + self.validation

    @property
    def digest(self) -> str:
        """Equal for calls that give equal bytes, as far as names and sizes of the inputs tell."""
        described = [[[s.name, s.num_bytes, s.identity] for s in part] for part in (self.train, self.validation)]
        options = dataclasses.asdict(self.options) | {"validation_share": str(self.options.validation_share)}
        return digest([FORMAT_VERSION, options, described])

    def split_of(self, source_index: int, unit: Unit, unit_number: int) -> str:
        """Where a unit goes; numbers count the units that no other rule decides."""
        if source_index >= len(self.train):
            held_out = True
        elif unit.is_held_out is not None:
            held_out = unit.is_held_out
        else:
            held_out = not self.validation and self._is_turn(unit_number)
        return "validation" if held_out else "train"

    def _is_turn(self, unit_number: int) -> bool:
        # Whether the number of units held out so far, ceil(n * share), grows at this one. In whole numbers, because
        # this is asked for every record.
        share = self.options.validation_share
        p, q = share.numerator, share.denominator
        return -((unit_number + 1) * -p // q) > -(unit_number * -p // q)


@dataclass
class _Position:
    """Where a preparation stands: all that it needs to continue."""

    source_index: int = 0
    units_of_source: int = 0
    unit_number: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))


def _parse_share(share: float) -> Fraction:
    """The share as it is written: 0.01 is 1/100."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        raise InputError(f"validation_share={share!r} must lie between 0 and 1: try 0.01")
    return Fraction(str(share))


@contextlib.contextmanager
def _folder_to_ourselves(out: Path) -> Iterator[None]:
    """The output folder, made if need be; a second process that would write to it is refused."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {out} cannot be made ({error.strerror}): choose another") from None
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(f"folder {out} is being prepared by another process: wait for it or choose another") from None
    except OSError:
        pass  # no locks on this storage: then it is up to the user
    try:
        yield
    finally:
        os.close(descriptor)


def _already_finished(out: Path, plan: _Plan) -> Prepared:
    manifest = read_manifest(out)
    if manifest.get("options_digest") != plan.digest:
        raise InputError(
            f"folder {out} holds a corpus of other inputs or options: choose another folder, or remove this one"
        )
    open_prepared(out)  # refuses a damaged one
    _remove_progress(out)
    return _result(out, manifest)


def _saved_position(out: Path, plan: _Plan) -> _Position:
    """Where an interrupted preparation stood, or the beginning."""
    path = out / PROGRESS
    beginning = _Position()
    if path.exists():
        saved = read_json(path)
        try:
            position = _Position(**saved["position"])
        except (KeyError, TypeError):
            raise damaged(out, f"{PROGRESS} is incomplete") from None
        if saved.get("options_digest") == plan.digest:
            return position
        if position != beginning:
            raise InputError(
                f"folder {out} holds an unfinished preparation of other inputs or options: "
                "choose another folder, or remove this one"
            )
    else:
        foreign = sorted({entry.name for entry in out.iterdir()} - {temporary_path(path).name})
        if foreign:
            raise InputError(
                f"folder {out} is not empty (it holds {foreign[0]}): choose another, nothing is overwritten"
            )
    _save_position(out, plan, beginning)
    return beginning


def _save_position(out: Path, plan: _Plan, position: _Position) -> None:
    write_json(out / PROGRESS, {"options_digest": plan.digest, "position": vars(position)})


def _throttled(progress: Callable[[Progress], None] | None) -> Callable[..., None]:
    """The callback, called a few times a second and at the end."""
    last = -math.inf

    def report(now: Progress, *, is_last: bool = False) -> None:
        nonlocal last
        if progress is not None and (is_last or time.monotonic() - last > _SECONDS_BETWEEN_REPORTS):
            last = time.monotonic()
            progress(now)

    return report


def _write_tokens(out: Path, plan: _Plan, encoder: Tokenizer, position: _Position, report: Callable[..., None]) -> None:
    """Appends the tokens of everything after `position`, which moves along."""
    sources = plan.sources
    bytes_total = sum(source.num_bytes for source in sources)
    bytes_before = sum(source.num_bytes for source in sources[: position.source_index])
    characters = 0
    with contextlib.closing(_Output(out, plan.options.shard_tokens, encoder, position)) as output:
        for index, source in enumerate(sources[position.source_index :], start=position.source_index):
            units = read_units(source, text_key=plan.options.text_key)
            for unit in islice(units, position.units_of_source, None):
                _write_unit(output, plan, index, unit, position)
                characters += len(unit.text)
                if characters >= CHECKPOINT_CHARACTERS:
                    output.sync()
                    _save_position(out, plan, position)
                    characters = 0
                report(Progress(bytes_before + unit.bytes_read, bytes_total, sum(position.tokens.values())))
            bytes_before += source.num_bytes
            position.source_index, position.units_of_source = index + 1, 0
        output.sync()
        _save_position(out, plan, position)
    report(Progress(bytes_total, bytes_total, sum(position.tokens.values())), is_last=True)


def _write_unit(output: _Output, plan: _Plan, source_index: int, unit: Unit, position: _Position) -> None:
    split = plan.split_of(source_index, unit, position.unit_number)
    for piece in cut([unit.text]):
        output.append(split, piece)
    # What stands on both sides of a stretch that went elsewhere is no running text, so it ends there.
    next_split = plan.split_of(source_index, unit, position.unit_number + 1)
    if unit.ends_document or next_split != split:
        output.end_document(split)
    position.units_of_source += 1
    position.unit_number += unit.is_held_out is None and source_index < len(plan.train)


class _Output:
    """Text in, tokens on disk; `position` counts them once they are written."""

    def __init__(self, out: Path, shard_tokens: int, encoder: Tokenizer, position: _Position) -> None:
        self._encoder, self._position = encoder, position
        self._writers = {
            split: ShardWriter(
                out, split, dtype=encoder.dtype, shard_tokens=shard_tokens, num_tokens=position.tokens[split]
            )
            for split in SPLITS
        }
        self._end = np.array([encoder.end_of_document], dtype=encoder.dtype)
        self._waiting: list[tuple[str, str | None]] = []  # (split, text); None ends a document
        self._waiting_characters = 0

    def append(self, split: str, text: str) -> None:
        self._waiting.append((split, text))
        self._waiting_characters += len(text)
        if self._waiting_characters >= _BATCH_CHARACTERS:
            self._encode()

    def end_document(self, split: str) -> None:
        self._waiting.append((split, None))

    def sync(self) -> None:
        self._encode()
        for writer in self._writers.values():
            writer.sync()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _encode(self) -> None:
        encoded = iter(self._encoder.encode_pieces([text for _, text in self._waiting if text is not None]))
        for split, text in self._waiting:
            self._writers[split].append(self._end if text is None else next(encoded))
            self._position.documents[split] += text is None
        for split, writer in self._writers.items():
            self._position.tokens[split] = writer.num_tokens
        self._waiting, self._waiting_characters = [], 0


def _finish(out: Path, plan: _Plan, encoder: Tokenizer, position: _Position) -> Prepared:
    """Hashes the shards and writes corpus.json, which makes the folder a corpus."""
    for split in SPLITS:
        if position.tokens[split] == 0:
            # These options lead nowhere, so the folder is free for others.
            _save_position(out, plan, _Position())
            raise _nothing_for(split, position)
    described, stream_digests = {}, {}
    for split in SPLITS:
        num_tokens = position.tokens[split]
        shards, stream_digests[split] = describe_shards(
            out, split, num_tokens=num_tokens, shard_tokens=plan.options.shard_tokens
        )
        described[split] = {"tokens": num_tokens, "documents": position.documents[split], "shards": shards}
    manifest = {
        "tokenizer": encoder.name,
        "dtype": encoder.dtype.str,
        "vocabulary_size": encoder.vocabulary_size,
        "fingerprint": fingerprint(encoder.name, stream_digests["train"], stream_digests["validation"]),
        **described,
        "sources": [{"name": source.name, "bytes": source.num_bytes} for source in plan.sources],
        "options_digest": plan.digest,
    }
    write_json(out / MANIFEST, manifest)
    _remove_progress(out)
    return _result(out, manifest)


def _nothing_for(split: str, position: _Position) -> InputError:
    if split == "train":
        return InputError(
            f"nothing is left to train on, because validation takes all {position.unit_number} units of the inputs: "
            "add text, lower validation_share, or name validation files"
        )
    return InputError("nothing is held out for validation: raise validation_share, or name validation files")


def _remove_progress(out: Path) -> None:
    for path in (out / PROGRESS, temporary_path(out / PROGRESS)):
        path.unlink(missing_ok=True)


def _result(out: Path, manifest: dict) -> Prepared:
    return Prepared(
        folder=out,
        fingerprint=manifest["fingerprint"],
        tokenizer=manifest["tokenizer"],
        train_tokens=manifest["train"]["tokens"],
        validation_tokens=manifest["validation"]["tokens"],
        train_documents=manifest["train"]["documents"],
        validation_documents=manifest["validation"]["documents"],
    )
