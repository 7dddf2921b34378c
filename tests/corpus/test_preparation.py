import gzip
import hashlib
import json
import math
import random
import shutil
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import tiktoken
import zstandard

from isotune.corpus import load_tokenizer, open_corpus, preparation, prepare, tokenizers
from isotune.corpus.documents import cut
from isotune.errors import InputError

END = 50256


def words(num_words, seed=0):
    rng = random.Random(seed)
    vocabulary = ["the", "fish", "Ωmega", "日本", "it's", "x1", "\n", "  indented", "!!", "🙂", "<|endoftext|>", "\t"]
    return " ".join(rng.choice(vocabulary) for _ in range(num_words))


def gpt2(text):
    """The oracle: tiktoken on the whole text at once."""
    encoding: tiktoken.Encoding = tokenizers._gpt2_encoding()
    return encoding.encode_ordinary(text)


def is_turn(unit, share):
    share = Fraction(str(share))
    return math.ceil((unit + 1) * share) > math.ceil(unit * share)


def streams(folder):
    corpus = open_corpus(str(folder))
    return np.asarray(corpus.train).tolist(), np.asarray(corpus.validation).tolist()


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def data(tmp_path):
    """Text and records in every packing, with the documents they hold."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_text(words(300, 1))
    (folder / "b.md.gz").write_bytes(gzip.compress(words(300, 2).encode()))
    (folder / "c.txt.zst").write_bytes(zstandard.compress(words(300, 3).encode()))
    for name, pack in (("d.jsonl", bytes), ("e.jsonl.gz", gzip.compress), ("f.json.zst", zstandard.compress)):
        lines = [json.dumps({"text": words(40, seed)}) + "\n" for seed in range(20)]
        (folder / name).write_bytes(pack("".join(lines).encode()))
    documents = [words(300, seed) for seed in (1, 2, 3)] + [words(40, seed) for seed in range(20)] * 3
    return folder, documents


@pytest.mark.parametrize("share", [0.01, 0.1, 0.34, 0.5])
def test_tokens_equal_those_of_whole_documents(data, tmp_path, share):
    folder, documents = data
    result = prepare([folder], tmp_path / "out", validation_share=share)
    expected = [[], []]
    for unit, text in enumerate(documents):
        expected[is_turn(unit, share)] += [*gpt2(text), END]
    assert list(streams(tmp_path / "out")) == expected
    held_out = sum(is_turn(unit, share) for unit in range(len(documents)))
    assert held_out == math.ceil(len(documents) * Fraction(str(share)))
    assert (result.train_documents, result.validation_documents) == (len(documents) - held_out, held_out)
    assert (result.train_tokens, result.validation_tokens) == tuple(map(len, expected))


def test_a_long_text_is_split_by_stretches_and_each_run_of_them_is_a_document(tmp_path):
    text = words(120_000)
    (tmp_path / "long.txt").write_text(text)
    prepare([tmp_path / "long.txt"], tmp_path / "out", validation_share=0.25)
    stretches = list(cut([text]))
    assert len(stretches) > 8
    runs = []  # [held out, text], neighbours of one split joined
    for unit, stretch in enumerate(stretches):
        if runs and runs[-1][0] == is_turn(unit, 0.25):
            runs[-1][1] += stretch
        else:
            runs.append([is_turn(unit, 0.25), stretch])
    expected = [[], []]
    for held_out, run in runs:
        expected[held_out] += [*gpt2(run), END]
    assert list(streams(tmp_path / "out")) == expected


def test_a_long_text_with_validation_of_its_own_equals_the_whole_text(tmp_path):
    text, held_out = words(60_000), words(30_000, 9)
    (tmp_path / "long.txt").write_text(text)
    (tmp_path / "held.jsonl").write_text(json.dumps({"text": held_out}))
    prepare([tmp_path / "long.txt"], tmp_path / "out", validation=[tmp_path / "held.jsonl"])
    assert streams(tmp_path / "out") == ([*gpt2(text), END], [*gpt2(held_out), END])


def test_bytes_are_utf8_with_a_nul_after_each_document(tmp_path):
    (tmp_path / "a.txt").write_text("first é")
    (tmp_path / "b.txt").write_text("with\0nul")
    (tmp_path / "c.txt").write_text("")
    prepare([tmp_path / n for n in ("a.txt", "b.txt", "c.txt")], tmp_path / "out", tokenizer="bytes")
    corpus = open_corpus(str(tmp_path / "out"))
    assert corpus.validation.tobytes() == "first é\0".encode()
    assert corpus.train.tobytes() == b"with\0nul\0\0"
    assert (corpus.tokenizer, corpus.vocabulary_size, corpus.train.dtype) == ("bytes", 256, np.uint8)


def test_the_built_in_corpus_prepared_as_bytes_is_itself(tmp_path):
    prepare(["python-sources"], tmp_path / "out", tokenizer="bytes", shard_tokens=10_000_000)
    built_in, prepared = open_corpus("python-sources"), open_corpus(str(tmp_path / "out"))
    assert prepared.fingerprint == built_in.fingerprint
    assert np.array_equal(np.asarray(prepared.train), built_in.train)
    assert np.array_equal(np.asarray(prepared.validation), built_in.validation)


@pytest.mark.parametrize("shard_tokens", [1, 7, 1000, 10**8])
def test_shards_change_neither_the_tokens_nor_the_fingerprint(tmp_path, shard_tokens):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"a record {i}"}) + "\n" for i in range(30)))
    whole = prepare([tmp_path / "a.jsonl"], tmp_path / "whole", validation_share=0.2)
    result = prepare([tmp_path / "a.jsonl"], tmp_path / "out", validation_share=0.2, shard_tokens=shard_tokens)
    assert streams(tmp_path / "out") == streams(tmp_path / "whole")
    assert result.fingerprint == whole.fingerprint
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("train_*.bin"))]
    assert sum(sizes) == 2 * result.train_tokens and all(size == 2 * shard_tokens for size in sizes[:-1])


def test_the_fingerprint_tells_tokenizers_and_splits_apart(data, tmp_path):
    folder, _ = data
    fingerprints = {
        prepare([folder], tmp_path / "a").fingerprint,
        prepare([folder], tmp_path / "b", tokenizer="bytes").fingerprint,
        prepare([folder], tmp_path / "c", validation_share=0.5).fingerprint,
    }
    assert len(fingerprints) == 3


def test_the_output_depends_on_inputs_and_options_only(data, tmp_path, monkeypatch):
    folder, _ = data
    prepare([folder], tmp_path / "one")
    shutil.copytree(folder, tmp_path / "elsewhere" / "data")
    monkeypatch.chdir(tmp_path / "elsewhere")
    prepare(["data"], "other")
    assert contents(tmp_path / "one") == contents(tmp_path / "elsewhere" / "other")
    assert str(tmp_path) not in (tmp_path / "one" / "corpus.json").read_text()


def test_the_manifest_describes_the_folder(data, tmp_path):
    folder, documents = data
    result = prepare([folder], tmp_path / "out", shard_tokens=500)
    manifest = json.loads((tmp_path / "out" / "corpus.json").read_text())
    assert manifest["format_version"] == 1
    assert (manifest["tokenizer"], manifest["dtype"], manifest["vocabulary_size"]) == ("gpt2", "<u2", 50257)
    assert manifest["fingerprint"] == result.fingerprint == open_corpus(str(tmp_path / "out")).fingerprint
    assert [source["name"] for source in manifest["sources"]][:2] == ["data/a.txt", "data/b.md.gz"]
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == len(documents)
    files = {"corpus.json"}
    for split in ("train", "validation"):
        for shard in manifest[split]["shards"]:
            content = (tmp_path / "out" / shard["file"]).read_bytes()
            assert (2 * shard["tokens"], shard["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
            files.add(shard["file"])
    assert set(contents(tmp_path / "out")) == files


def test_progress_is_told_now_and_then_and_at_the_end(data, tmp_path):
    folder, _ = data
    told = []
    result = prepare([folder], tmp_path / "out", progress=told.append)
    assert told[-1].bytes_done == told[-1].bytes_total == sum(path.stat().st_size for path in folder.iterdir())
    assert told[-1].tokens == result.train_tokens + result.validation_tokens
    assert all(a.bytes_done <= b.bytes_done for a, b in pairwise(told))
    assert len(told) < 20


# Repeating, and what is refused


def test_repeating_a_finished_preparation_does_nothing(data, tmp_path, monkeypatch):
    folder, _ = data
    first = prepare([folder], tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    monkeypatch.setattr(preparation, "_write_tokens", None)
    assert prepare([folder], tmp_path / "out") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_a_finished_folder_is_not_overwritten_by_other_options_or_inputs(data, tmp_path):
    folder, _ = data
    prepare([folder], tmp_path / "out")
    before = contents(tmp_path / "out")
    message = "holds a corpus of other inputs or options: choose another folder, or remove this one"
    for options in ({"tokenizer": "bytes"}, {"validation_share": 0.02}, {"shard_tokens": 5}, {"text_key": "t"}):
        with pytest.raises(InputError, match=message):
            prepare([folder], tmp_path / "out", **options)
    (folder / "a.txt").write_text("changed")
    with pytest.raises(InputError, match=message):
        prepare([folder], tmp_path / "out")
    assert contents(tmp_path / "out") == before


class Interrupted(Exception):
    pass


def interrupt(folder, out, monkeypatch, **options):
    """A preparation that is broken off after some checkpoints."""

    def stop(progress):
        if progress.bytes_done > 0.6 * progress.bytes_total:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "CHECKPOINT_CHARACTERS", 2000)
        patch.setattr(preparation, "_SECONDS_BETWEEN_REPORTS", 0)
        with pytest.raises(Interrupted):
            prepare([folder], out, progress=stop, **options)


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bytes"}, {"shard_tokens": 100, "validation_share": 0.3}])
def test_an_interrupted_preparation_continues_to_the_same_bytes(data, tmp_path, monkeypatch, options):
    folder, _ = data
    prepare([folder], tmp_path / "straight", **options)
    interrupt(folder, tmp_path / "out", monkeypatch, **options)
    with pytest.raises(InputError, match="not finished: repeat the isotune prepare command"):
        open_corpus(str(tmp_path / "out"))
    encoded = []
    original = preparation._write_unit
    monkeypatch.setattr(preparation, "_write_unit", lambda *args: (encoded.append(1), original(*args)))
    prepare([folder], tmp_path / "out", **options)
    assert 0 < len(encoded) < 55  # of 63 units
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")


def test_an_unfinished_folder_is_not_continued_with_other_options_or_inputs(data, tmp_path, monkeypatch):
    folder, _ = data
    interrupt(folder, tmp_path / "out", monkeypatch)
    before = contents(tmp_path / "out")
    message = "holds an unfinished preparation of other inputs or options: choose another folder, or remove"
    with pytest.raises(InputError, match=message):
        prepare([folder], tmp_path / "out", validation_share=0.5)
    (folder / "g.txt").write_text("new")
    with pytest.raises(InputError, match=message):
        prepare([folder], tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_an_unfinished_folder_whose_shard_was_cut_is_refused(data, tmp_path, monkeypatch):
    folder, _ = data
    interrupt(folder, tmp_path / "out", monkeypatch)
    (tmp_path / "out" / "train_00000.bin").write_bytes(b"")
    with pytest.raises(InputError, match="train_00000.bin is shorter than it was.*remove the folder and repeat"):
        prepare([folder], tmp_path / "out")


def test_a_folder_that_got_nowhere_is_free_for_other_options(tmp_path):
    (tmp_path / "a.txt").write_text("only one unit")
    with pytest.raises(InputError, match="nothing is left to train on.*all 1 units.*name validation files"):
        prepare([tmp_path / "a.txt"], tmp_path / "out")
    with pytest.raises(InputError, match="nothing is held out for validation: raise validation_share"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", validation_share=0)
    (tmp_path / "b.txt").write_text("held out")
    prepare([tmp_path / "a.txt"], tmp_path / "out", validation=[tmp_path / "b.txt"])
    assert streams(tmp_path / "out") == ([*gpt2("only one unit"), END], [*gpt2("held out"), END])


def test_a_foreign_folder_is_left_alone(data, tmp_path):
    folder, _ = data
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train_00000.bin").write_bytes(b"precious")
    with pytest.raises(InputError, match=r"out is not empty \(it holds train_00000.bin\): choose another"):
        prepare([folder], tmp_path / "out")
    assert contents(tmp_path / "out") == {"train_00000.bin": b"precious"}


def test_a_folder_in_use_is_refused(data, tmp_path):
    folder, _ = data
    refused = pytest.raises(InputError, match="is being prepared by another process")
    with preparation._folder_to_ourselves(tmp_path / "out"), refused:
        prepare([folder], tmp_path / "out")
    prepare([folder], tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_share": -0.1}, "validation_share=-0.1 must lie between 0 and 1"),
        ({"validation_share": math.nan}, "validation_share=nan must lie between 0 and 1"),
        ({"validation_share": 1}, "nothing is left to train on"),
        ({"shard_tokens": 0}, "shard_tokens=0 must be a whole number of at least 1"),
        ({"tokenizer": "words"}, "tokenizer='words' is not known"),
        ({"validation": ["nowhere.txt"]}, "there is no file or folder 'nowhere.txt'"),
    ],
)
def test_bad_options_are_refused(data, tmp_path, options, message):
    folder, _ = data
    with pytest.raises(InputError, match=message):
        prepare([folder], tmp_path / "out", **options)


def test_no_inputs_are_refused(tmp_path):
    with pytest.raises(InputError, match="there are no inputs: give at least one file or folder"):
        prepare([], tmp_path / "out")


def test_an_output_that_is_a_file_is_refused(data, tmp_path):
    folder, _ = data
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="cannot be made .*: choose another"):
        prepare([folder], tmp_path / "out")


def test_a_full_disk_is_the_users_to_mend_and_nothing_is_lost(data, tmp_path, monkeypatch):
    folder, _ = data
    prepare([folder], tmp_path / "straight")
    with monkeypatch.context() as patch:

        def full(*args):
            raise OSError(28, "No space left on device")

        patch.setattr("isotune.corpus.prepared_folder.ShardWriter.append", full)
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\).*it continues"):
            prepare([folder], tmp_path / "out")
    prepare([folder], tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")


# Damaged folders


def manifest_without(key):
    def damage(folder):
        manifest = json.loads((folder / "corpus.json").read_text())
        del manifest[key]
        (folder / "corpus.json").write_text(json.dumps(manifest))

    return damage


def newer(folder):
    text = (folder / "corpus.json").read_text()
    (folder / "corpus.json").write_text(text.replace('"format_version": 1', '"format_version": 2'))


def shorten(folder):
    with open(folder / "train_00000.bin", "r+b") as file:
        file.truncate(100)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shorten, "train_00000.bin has 100 bytes, not"),
        (lambda folder: (folder / "validation_00000.bin").unlink(), "validation_00000.bin is missing"),
        (lambda folder: (folder / "corpus.json").unlink(), "corpus.json is missing"),
        (lambda folder: (folder / "corpus.json").write_text('{"format'), "corpus.json is not readable as JSON"),
        (lambda folder: (folder / "corpus.json").write_text("[]"), "corpus.json has format version None, not 1"),
        (newer, "corpus.json has format version 2, not 1"),
        (manifest_without("dtype"), "corpus.json is incomplete"),
        (manifest_without("validation"), "corpus.json is incomplete"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_remedy(data, tmp_path, damage, message):
    folder, _ = data
    prepare([folder], tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises(InputError, match=f"{message}.*remove the folder and repeat the isotune prepare command"):
        open_corpus(str(tmp_path / "out"))


def test_a_shard_by_itself_is_no_corpus(data, tmp_path):
    folder, _ = data
    prepare([folder], tmp_path / "out")
    with pytest.raises(InputError, match="is a part of the corpus in its folder: give .*out instead"):
        open_corpus(str(tmp_path / "out" / "train_00000.bin"))


def test_tokenizers_by_name_match_what_is_prepared(data, tmp_path):
    folder, documents = data
    for name in ("bytes", "gpt2"):
        prepare([folder], tmp_path / name, tokenizer=name)
        encoder = load_tokenizer(name)
        first = [*encoder.encode_pieces([documents[0]])[0].tolist(), encoder.end_of_document]
        assert streams(tmp_path / name)[1] == first
