"""Files -> Arrow tables, whatever state they are in: what cannot be read is refused or noted."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, flatten

CSV_SUFFIXES = (".csv", ".tsv")
COMPRESSED = ".gz"
NOTHING = ("", "null", "None", "NA", "N/A")  # cells of a CSV without a value


def read_table_file(path: Path, notes: Notes, text_columns: Collection[str] = ()) -> Any:
    """The file's rows as a `pyarrow.Table` whose column names are unique and without blanks around them.

    A CSV does not say what its values are: those of `text_columns` stay as they are written, "001" too.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give a file that can") from None
    if not is_data_file(path):
        raise InputError(f"{path} is no data file: give one that ends in {ENDINGS}")
    if path.suffix.lower() == COMPRESSED:
        content = _unpacked(path, content)
    if not content.strip():
        raise InputError(f"{path} is empty: give a file with rows")
    suffix = _suffix(path)
    if suffix in CSV_SUFFIXES:
        table = _read_csv(path, content, notes, text_columns)
    else:
        table = _READERS[suffix](path, content, notes)
    return _distinct(table.rename_columns([name.strip() for name in table.column_names]), path, notes)


def is_data_file(path: Path) -> bool:
    """Whether the name is one of a file that `read_table_file` reads."""
    return _suffix(path) in SUFFIXES


def without_suffix(path: Path) -> Path:
    """The path without what says how it is written: runs/a for runs/a.csv.gz."""
    return (path.with_suffix("") if path.suffix.lower() == COMPRESSED else path).with_suffix("")


def parse_json(text: str | bytes, path: Path, notes: Notes) -> Any:
    """The value; of a name that an object has twice the last counts, which JSON's readers do without a word."""

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = len(pairs) - len(dict(pairs))
        notes.count("names that are twice in one JSON object, of which the last counts", twice, str(path))
        return dict(pairs)

    return json.loads(text, object_pairs_hook=as_dict)


def _suffix(path: Path) -> str:
    """The ending that says how a file is written, that of a compression left out."""
    return (path.with_suffix("") if path.suffix.lower() == COMPRESSED else path).suffix.lower()


def _unpacked(path: Path, content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None


def _read_csv(path: Path, content: bytes, notes: Notes, text_columns: Collection[str]) -> Any:
    """Typed as Arrow sees fit; as text if a later row does not fit the first ones."""
    import pyarrow as pa

    content = _decodable(path, content, notes)
    delimiter = _delimiter(path, content, notes)
    if not content.endswith((b"\n", b"\r")):
        notes.add("the last line has no end: if it was being written, its last number may be cut short", str(path))
    try:
        try:
            table, num_ragged = _parse_csv(content, delimiter)
            texts = [field for field in table.schema if field.name.strip() in text_columns]
            if any(not pa.types.is_string(field.type) for field in texts):
                table, num_ragged = _parse_csv(content, delimiter, [field.name for field in texts])
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            names = _parse_csv(content.split(b"\n", 1)[0] + b"\n", delimiter)[0].column_names
            table, num_ragged = _parse_csv(content, delimiter, names)
    except (pa.ArrowException, UnicodeError, MemoryError) as error:
        raise _damaged(path, error) from None
    notes.count("lines that have not as many fields as the first, left out", num_ragged, str(path))
    return _stripped(table)


def _parse_csv(content: bytes, delimiter: str, as_text: Collection[str] = ()) -> tuple[Any, int]:
    import pyarrow as pa
    from pyarrow import csv

    ragged = []

    def leave_out(row: Any) -> str:
        ragged.append(row.number)
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(content),
        read_options=csv.ReadOptions(use_threads=False, block_size=max(1 << 20, min(len(content), 1 << 26))),
        parse_options=csv.ParseOptions(delimiter=delimiter, invalid_row_handler=leave_out),
        convert_options=csv.ConvertOptions(
            null_values=NOTHING,
            strings_can_be_null=True,
            column_types=dict.fromkeys(as_text, pa.string()),
            true_values=[],
            false_values=[],
            timestamp_parsers=[],
        ),
    )
    return table, len(ragged)


def _stripped(table: Any) -> Any:
    """The table with no blanks around its texts, which stand there where fields are separated by ", "."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            text = pc.utf8_trim_whitespace(table.column(index))
            is_nothing = pc.is_in(text, value_set=pa.array(NOTHING))
            table = table.set_column(index, field, pc.if_else(is_nothing, pa.scalar(None, pa.string()), text))
    return table


def _read_jsonl(path: Path, content: bytes, notes: Notes) -> Any:
    """By Arrow if all is well; line by line if a line is torn, a type changes or a value is nested."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    content = _decodable(path, content, notes)
    try:
        table = arrow_json.read_json(
            pa.BufferReader(content),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(1 << 20, min(len(content), 1 << 26))),
        )
        plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_null, pa.types.is_boolean)
        if all(any(is_plain(field.type) for is_plain in plain) for field in table.schema):
            return table
    except (pa.ArrowException, UnicodeError, MemoryError):
        pass
    return _parse_lines(path, content, notes)


def _parse_lines(path: Path, content: bytes, notes: Notes) -> Any:
    rows: list[dict[str, Any]] = []
    lines = content.split(b"\n")
    num_refused = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            row = parse_json(line, path, notes)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(dict(flatten(row)))
        elif line is lines[-1]:
            notes.add("the last line is half-written, left out", str(path))
        else:
            num_refused += 1
    notes.count("lines that are not JSON objects, left out", num_refused, str(path))
    if not rows:
        raise InputError(f"{path} has no line that is a JSON object: give one object per line")
    return _arrow_table(rows)


def _arrow_table(rows: list[dict[str, Any]]) -> Any:
    """Columns of numbers where all values are; of text where some are not."""
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
            numbers = [None if value is None else _as_float(value) for value in values]
            columns[name] = pa.array(numbers, pa.float64(), from_pandas=False)
        else:
            columns[name] = pa.array([None if value is None else _as_text(value) for value in values], pa.string())
    return pa.table(columns)


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _as_text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", errors="replace").decode()  # JSON may have halves of surrogate pairs


def _read_parquet(path: Path, content: bytes, notes: Notes) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
        table.validate(full=True)
        table.column_names  # noqa: B018 (refuses names that are no UTF-8)
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, KeyError) as error:
        raise _damaged(path, error) from None
    return table


def _decodable(path: Path, content: bytes, notes: Notes) -> bytes:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        notes.add("converted from UTF-16", str(path))
        return content.decode("utf-16", errors="replace").encode()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        notes.add("bytes that are no UTF-8, replaced by question marks", str(path))
        return content.decode("utf-8", errors="replace").encode()
    return content


def _delimiter(path: Path, content: bytes, notes: Notes) -> str:
    header = content.split(b"\n", 1)[0]
    if _suffix(path) == ".tsv" or (b"," not in header and b"\t" in header):
        return "\t"
    if b"," not in header and b";" in header:
        notes.add("fields are separated by semicolons", str(path))
        return ";"
    return ","


def _distinct(table: Any, path: Path, notes: Notes) -> Any:
    """The table with the first of the columns that share a name."""
    if len(set(table.column_names)) == len(table.column_names):
        return table
    first: dict[str, int] = {}
    for index, name in enumerate(table.column_names):
        first.setdefault(name, index)
    names = [name for name in first if table.column_names.count(name) > 1]
    notes.add(f"columns that are there twice, of which the first is taken ({', '.join(map(repr, names))})", str(path))
    return table.select(list(first.values()))


def _damaged(path: Path, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return InputError(f"{path} is cut or damaged ({reason}): write it again, or leave it out")


_READERS: Mapping[str, Callable[[Path, bytes, Notes], Any]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
SUFFIXES = (*CSV_SUFFIXES, *_READERS)
ENDINGS = f"{', '.join(SUFFIXES)} (or these with {COMPRESSED})"
