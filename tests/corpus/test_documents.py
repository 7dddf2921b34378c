import gzip
import json

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from isotune.corpus import documents, load_tokenizer
from isotune.corpus.documents import cut, find_sources, read_units
from isotune.errors import InputError

GPT2 = load_tokenizer("gpt2")

# White space of all kinds, U+001C (which only Python takes for white space), contractions, scripts, an emoji.
ATOMS = [" ", "  ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x85", "\xa0", "\u2009", "\u2028", "\u3000", "\u200b"]
ATOMS += ["a", "Zeta", "'s", "'ll", "'", "12", "½", "!?", "_", "é", "e\u0301", "日本", "🙂", "<|endoftext|>", "\0"]
texts = st.lists(st.sampled_from(ATOMS), max_size=80).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=texts, stretch=st.integers(1, 12))
def test_pieces_tokenise_as_the_whole(text, stretch):
    with limits(stretch, 10_000):
        pieces = list(cut([text]))
    assert "".join(pieces) == text
    whole = GPT2.encode_pieces([text])[0].tolist()
    assert [token for piece in GPT2.encode_pieces(pieces) for token in piece.tolist()] == whole


@settings(max_examples=200, deadline=None)
@given(text=texts, stretch=st.integers(1, 12), longest=st.integers(12, 30), block=st.integers(1, 40))
def test_pieces_do_not_depend_on_the_blocks_that_the_text_comes_in(text, stretch, longest, block):
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    with limits(stretch, longest):
        pieces = list(cut([text]))
        assert list(cut(blocks)) == pieces
        assert [again for piece in pieces for again in cut([piece])] == pieces
    assert "".join(pieces) == text
    assert all(pieces) or text == ""
    assert all(len(piece) <= longest for piece in pieces)


def test_a_text_without_white_space_is_cut_hard():
    with limits(10, 100):
        assert [len(piece) for piece in cut(["x" * 250])] == [100, 100, 50]
        assert [len(piece) for piece in cut([" " * 250])] == [100, 100, 50]


class limits:
    """Small limits, so that short texts are cut."""

    def __init__(self, stretch, longest):
        self.values = {"STRETCH_CHARACTERS": stretch, "LONGEST_PIECE_CHARACTERS": longest}

    def __enter__(self):
        self.saved = {name: getattr(documents, name) for name in self.values}
        vars(documents).update(self.values)

    def __exit__(self, *_):
        vars(documents).update(self.saved)


def units_of(path, text_key="text"):
    (source,) = find_sources([path], leave_out=path.parent / "out")
    return list(read_units(source, text_key=text_key))


WORDS = "".join(f"word{i} é日🙂\r\n" for i in range(40_000))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.zst", "a.rst", "A.TXT", "noext"])
def test_a_text_file_is_read_exactly(tmp_path, name):
    path = tmp_path / name
    write(path, WORDS.encode())
    units = units_of(path)
    assert "".join(unit.text for unit in units) == WORDS
    assert len(units) == 9 and [unit.ends_document for unit in units] == [False] * 8 + [True]
    assert all(2**16 <= len(unit.text) < 2**16 + 20 for unit in units[:-1])
    assert units[-1].bytes_read == path.stat().st_size


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.json.zst"])
def test_a_record_is_a_document(tmp_path, name):
    records = ["one", "two\nlines", "", WORDS, "é日🙂", "lone \ud800 surrogate"]
    lines = [json.dumps({"id": 1, "body": text}) for text in records]
    write(tmp_path / name, "\ufeff".encode() + "\n\n".join(lines).encode())
    units = units_of(tmp_path / name, text_key="body")
    assert [unit.text for unit in units] == [*records[:-1], "lone \ufffd surrogate"]
    assert all(unit.ends_document for unit in units)


def test_several_compressed_frames_are_one_text(tmp_path):
    halves = WORDS[:1000].encode(), WORDS[1000:5000].encode()
    (tmp_path / "a.zst").write_bytes(b"".join(zstandard.compress(half) for half in halves))
    (tmp_path / "b.gz").write_bytes(b"".join(gzip.compress(half) for half in halves))
    for name in ("a.zst", "b.gz"):
        assert [unit.text for unit in units_of(tmp_path / name)] == [WORDS[:5000]]


def test_a_very_compressible_text_is_read_exactly(tmp_path):
    write(tmp_path / "a.txt.zst", b"a " * 5_000_000)
    assert "".join(unit.text for unit in units_of(tmp_path / "a.txt.zst")) == "a " * 5_000_000


def test_an_empty_file_is_an_empty_document(tmp_path):
    for name in ("a.txt", "a.txt.gz", "a.txt.zst"):
        write(tmp_path / name, b"")
        assert [(unit.text, unit.ends_document) for unit in units_of(tmp_path / name)] == [("", True)]


def test_folders_are_walked_in_order_and_the_output_is_left_out(tmp_path):
    for name in ("b.txt", "a/z.md", "a/b/c.py", "a.jsonl.zst", "picture.png", "c.json.gz", "out/corpus.json"):
        write(tmp_path / name, b"x")
    sources = find_sources([tmp_path], leave_out=tmp_path / "out")
    names = [source.name.removeprefix(f"{tmp_path.name}/") for source in sources]
    assert names == ["a.jsonl.zst", "a/b/c.py", "a/z.md", "b.txt", "c.json.gz"]


def test_inputs_that_are_not_there_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no file or folder '.*nowhere'"):
        find_sources([tmp_path / "nowhere"], leave_out=tmp_path / "out")
    with pytest.raises(InputError, match=r"empty has no files named \*\.txt"):
        find_sources([tmp_path / "empty"], leave_out=tmp_path / "out")


@pytest.mark.parametrize("offset", [0, 5, 2**20 - 1, 2**20, 3 * 2**20 - 2])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_text_that_is_not_utf8_is_refused_with_its_place(tmp_path, offset, name):
    write(tmp_path / name, b"x" * offset + b"\xc3(" + b"y" * 10)
    with pytest.raises(InputError, match=f"{name} is not UTF-8 at byte {offset}: convert it"):
        units_of(tmp_path / name)


def test_a_character_torn_at_the_end_is_refused_with_its_place(tmp_path):
    write(tmp_path / "a.txt", "hello 日".encode()[:-1])
    with pytest.raises(InputError, match="not UTF-8 at byte 6"):
        units_of(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "torn', "line 3 is not a JSON object: JSONL has one object on each line"),
        (b'["text"]', "line 3 is not a JSON object"),
        (b"[" * 100_000, "line 3 is not a JSON object"),
        (b'{"body": "a", "n": 1}', r"line 3 has no string 'text' \(its strings are 'body'\).*--text-key"),
        (b'{"text": 5}', r"line 3 has no string 'text' \(it has no strings\)"),
        (b'{"text": "\xff"}', "line 3 is not UTF-8 at byte 42"),
    ],
)
def test_a_bad_record_is_refused_with_its_line(tmp_path, line, message):
    write(tmp_path / "a.jsonl", b'{"text": "first"}\n\n{"text": "x"}\n'.replace(b"\n\n", b"\n") + line + b"\n")
    with pytest.raises(InputError, match=message):
        units_of(tmp_path / "a.jsonl")


def test_an_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_LINE_BYTES", 2**20)
    write(tmp_path / "a.jsonl", b'{"text": "' + b"x" * 2**20 + b'"}')
    with pytest.raises(InputError, match="line 1 is longer than 1 MiB: cut the record up"):
        units_of(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_truncated_or_foreign_compressed_file_is_refused(tmp_path, name):
    line = json.dumps({"text": WORDS[:2000]}) + "\n"
    write(tmp_path / name, line.encode() * 500)
    content = (tmp_path / name).read_bytes()
    for bad in (content[: len(content) // 2], content[:-1], content[:3], b"no compressed file at all"):
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(InputError, match="cannot be read to its end .*: fetch or compress it again"):
            units_of(tmp_path / name)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zst":
        content = zstandard.compress(content)
    path.write_bytes(content)
