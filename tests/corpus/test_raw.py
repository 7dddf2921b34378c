import numpy as np
import pytest

from isotune.corpus import open_corpus
from isotune.errors import InputError

TRAIN = np.random.default_rng(0).integers(0, 50257, 5000).astype("<u2")
VALIDATION = np.random.default_rng(1).integers(0, 50257, 700).astype("<u2")


def write_nanogpt(path, tokens):
    path.write_bytes(tokens.tobytes())


def write_llmc(path, tokens, *, magic=20240520, version=1, count=None):
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + tokens.tobytes())


def test_nanogpt_files_are_read_as_written(tmp_path):
    write_nanogpt(tmp_path / "train.bin", TRAIN)
    write_nanogpt(tmp_path / "val.bin", VALIDATION)
    for name in (tmp_path, tmp_path / "train.bin"):
        corpus = open_corpus(str(name))
        assert np.array_equal(corpus.train, TRAIN) and np.array_equal(corpus.validation, VALIDATION)
        assert (corpus.tokenizer, corpus.vocabulary_size) == ("unknown", 0)


def test_llmc_shards_are_read_as_one_stream(tmp_path):
    write_llmc(tmp_path / "fineweb_train_000001.bin", TRAIN[:3000])
    write_llmc(tmp_path / "fineweb_train_000002.bin", TRAIN[3000:])
    write_llmc(tmp_path / "fineweb_val_000000.bin", VALIDATION)
    corpus = open_corpus(str(tmp_path))
    assert np.array_equal(np.asarray(corpus.train), TRAIN)
    assert np.array_equal(np.asarray(corpus.validation), VALIDATION)
    one = open_corpus(str(tmp_path / "fineweb_train_000002.bin"))
    assert np.array_equal(one.train, TRAIN[3000:]) and np.array_equal(one.validation, VALIDATION)


def test_the_fingerprint_is_that_of_the_tokens_and_their_split(tmp_path):
    def fingerprint_of(name, train, validation, write=write_nanogpt):
        folder = tmp_path / name
        folder.mkdir()
        write(folder / "train.bin", train)
        write(folder / "val.bin", validation)
        return open_corpus(str(folder)).fingerprint

    first = fingerprint_of("a", TRAIN, VALIDATION)
    assert fingerprint_of("b", TRAIN, VALIDATION) == first
    assert fingerprint_of("c", TRAIN, VALIDATION, write_llmc) == first
    assert fingerprint_of("d", VALIDATION, TRAIN) != first
    assert fingerprint_of("e", TRAIN[:-1], VALIDATION) != first
    moved = fingerprint_of("f", TRAIN[:-1], np.concatenate([TRAIN[-1:], VALIDATION]))
    assert moved != first


def test_large_files_are_sampled(tmp_path, monkeypatch):
    write_nanogpt(tmp_path / "train.bin", TRAIN)
    write_nanogpt(tmp_path / "val.bin", VALIDATION)
    full = open_corpus(str(tmp_path)).fingerprint
    monkeypatch.setattr("isotune.corpus.raw.FULLY_HASHED_BYTES", 1000)
    sampled = open_corpus(str(tmp_path)).fingerprint
    assert sampled != full and open_corpus(str(tmp_path)).fingerprint == sampled


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no tokens"),
        (b"123", "3 bytes, which is no whole number"),
    ],
)
def test_broken_nanogpt_files_are_refused(tmp_path, content, message):
    write_nanogpt(tmp_path / "val.bin", VALIDATION)
    (tmp_path / "train.bin").write_bytes(content)
    with pytest.raises(InputError, match=message):
        open_corpus(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 5001}, "should hold 5001 tokens but has 5000: it is truncated"),
        ({"count": 4999}, "should hold 4999 tokens but has 5000"),
        ({"version": 2}, "version 2 of llm.c"),
        ({"magic": 20240801}, "32-bit tokens"),
    ],
)
def test_broken_llmc_files_are_refused(tmp_path, options, message):
    write_llmc(tmp_path / "x_val.bin", VALIDATION)
    write_llmc(tmp_path / "x_train.bin", TRAIN, **options)
    with pytest.raises(InputError, match=message):
        open_corpus(str(tmp_path))


@pytest.mark.parametrize("size", [1024 + 9999, 1024, 1000, 12])
def test_truncated_llmc_files_are_refused(tmp_path, size):
    write_llmc(tmp_path / "x_val.bin", VALIDATION)
    write_llmc(tmp_path / "x_train.bin", TRAIN)
    content = (tmp_path / "x_train.bin").read_bytes()
    (tmp_path / "x_train.bin").write_bytes(content[:size])
    with pytest.raises(InputError, match="truncated"):
        open_corpus(str(tmp_path))


def test_a_training_file_without_its_validation_file_is_refused(tmp_path):
    write_nanogpt(tmp_path / "train.bin", TRAIN)
    write_nanogpt(tmp_path / "tokens.bin", TRAIN)
    write_nanogpt(tmp_path / "b_train.bin", TRAIN)
    write_nanogpt(tmp_path / "c_val.bin", TRAIN)
    for name in ("train.bin", "tokens.bin", "b_train.bin"):
        with pytest.raises(InputError, match=f"{name} has no validation tokens beside it: name the files"):
            open_corpus(str(tmp_path / name))


def test_names_that_lead_nowhere_say_what_is_allowed(tmp_path):
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, message in [
        ("nowhere", "there is no corpus .*nowhere"),
        ("nowhere.bin", "there is no corpus"),
        ("text.txt", "not a token file.*isotune prepare"),
        ("empty", "holds no corpus.*isotune prepare"),
    ]:
        with pytest.raises(InputError, match=message):
            open_corpus(str(tmp_path / name))
