"""Columns <-> Parquet: the only file that knows pyarrow, which is imported when first needed (it takes a while)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COMPRESSION_LEVEL = 12  # of zstd; higher ones take long and save a percent

# Type of a field or column -> its type in the file. Curves are float32, everything else keeps its precision.
_ARROW_TYPES = {
    "str": "string",
    "str | None": "string",
    "Kind": "string",
    "Status": "string",
    "WeightDecayConvention": "string",
    "int": "int64",
    "int | None": "int64",
    "float": "float64",
    "float | None": "float64",
    "float32": "float32",
    "bool": "bool_",
    "tuple[str, ...]": "strings",
    "np.ndarray | None": "floats",
}


def write_columns(path: Path, columns: Mapping[str, Sequence[Any] | np.ndarray], types: Mapping[str, str]) -> None:
    """Writes equally long columns; None and NaN become null. Equal columns give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in types.items()])
    arrays = [pa.array(columns[field.name], type=field.type, from_pandas=True) for field in schema]
    kinds = {name: _ARROW_TYPES[kind] for name, kind in types.items()}
    # Bytes of equal significance lie together and compress; tokens go up, so their differences do.
    encodings = {"float32": "BYTE_STREAM_SPLIT", "int64": "DELTA_BINARY_PACKED"}
    encoding = {name: encodings[kind] for name, kind in kinds.items() if kind in encodings}
    encoding |= {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name, kind in kinds.items() if kind == "floats"}
    words = [name for name, kind in kinds.items() if kind == "string"]
    words += [f"{name}.list.element" for name, kind in kinds.items() if kind == "strings"]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        path,
        compression="zstd",
        compression_level=COMPRESSION_LEVEL,
        use_dictionary=words,
        column_encoding=encoding,
        row_group_size=2**20,
    )


def read_columns(content: bytes) -> dict[str, list[Any] | np.ndarray]:
    """The columns of a Parquet file: floats as arrays with NaN for null, all else as lists; ValueError if damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # On this thread: a pool of pyarrow's that is still at work when the process ends would abort it.
        table = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
        return {name: _from_arrow(table.column(name).combine_chunks()) for name in table.column_names}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None


def _arrow_type(kind: str) -> Any:
    import pyarrow as pa

    name = _ARROW_TYPES[kind]
    if name == "strings":
        return pa.list_(pa.string())
    return pa.list_(pa.float32()) if name == "floats" else getattr(pa, name)()


def _from_arrow(array: Any) -> list[Any] | np.ndarray:
    import pyarrow as pa

    kind = array.type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and not array.null_count):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        return [None if cell is None else cell.to_numpy(zero_copy_only=False) for cell in _cells(array)]
    return list(array.to_pylist())


def _cells(array: Any) -> list[Any]:
    return [None if not cell.is_valid else cell.values for cell in array]
