"""Curves on disk: exact numbers, torn lines, and files that appear whole or not at all."""

import json

import numpy as np
import pytest

from isotune.errors import InputError
from isotune.runs import CurveWriter, columns, read_rows, write_json, write_whole
from isotune.runs.files import read_json, remove_parts


def write(path, rows, keep_through_tokens=-1):
    writer = CurveWriter(path, keep_through_tokens)
    writer.write(rows)
    writer.sync()
    writer.close()


def test_float32_values_read_back_exactly(tmp_path):
    values = np.random.default_rng(0).lognormal(0, 20, 1000).astype(np.float32)
    write(tmp_path / "curve.jsonl", [{"tokens": k, "train_loss": value} for k, value in enumerate(values)])
    read = columns(read_rows(tmp_path / "curve.jsonl"))["train_loss"]
    assert (read.astype(np.float32) == values).all()


def test_continuing_cuts_what_lies_beyond_the_state(tmp_path):
    path, rows = tmp_path / "curve.jsonl", [{"tokens": 64 * k, "train_loss": 1 / k} for k in range(1, 9)]
    write(path, rows)
    straight = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b'{"tokens":576,"train_lo')
    write(path, rows[5:], keep_through_tokens=5 * 64)
    assert path.read_bytes() == straight
    write(path, [], keep_through_tokens=-1)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_a_file_torn_anywhere_loses_its_last_row_only(tmp_path, length):
    path, rows = tmp_path / "curve.jsonl", [{"tokens": 64 * k, "train_loss": 1 / k} for k in range(1, 5)]
    write(path, rows)
    path.write_bytes(path.read_bytes()[:-length])
    kept = path.read_bytes().count(b"\n")
    assert read_rows(path) == rows[:kept]


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"train_loss":1}', b'{"tokens":"x"}', b"\xff\xfe", b""])
def test_a_damaged_line_is_named_with_a_remedy(tmp_path, line):
    path = tmp_path / "curve.jsonl"
    path.write_bytes(b'{"tokens":64}\n' + line + b'\n{"tokens":192}\n')
    with pytest.raises(InputError, match=r"damaged in line 2: delete the folder .* and repeat"):
        read_rows(path)


def test_columns_are_nan_where_nothing_was_measured():
    table = columns([{"tokens": 1, "a": 1.0}, {"tokens": 2, "b": 2.0}])
    assert table["tokens"].dtype == np.int64
    np.testing.assert_array_equal(table["a"], [1.0, np.nan])
    np.testing.assert_array_equal(table["b"], [np.nan, 2.0])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    write_json(tmp_path / "a.json", {"value": 1})

    def fail(path):
        path.write_text("half")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a.json", fail)
    assert read_json(tmp_path / "a.json", "")["value"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_kills_left_is_removed(tmp_path):
    for name in (".state.safetensors.0a1b2c3d.part", ".tmp2fB7a4", "curve.jsonl", "state.safetensors"):
        (tmp_path / name).touch()
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.jsonl", "state.safetensors"]


def test_json_files_carry_their_format(tmp_path):
    write_json(tmp_path / "a.json", {"value": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"format": 1, "value": 1}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "b.json", {"value": float("nan")})
    assert not (tmp_path / "b.json").exists()
