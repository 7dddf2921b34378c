import numpy as np
import pytest

from isotune.corpus import Corpus, Tokens
from isotune.corpus.corpus import sampled_digest
from isotune.errors import InputError


def corpus_of(train, validation=range(1000)):
    return Corpus(
        name="toy",
        fingerprint="0",
        tokenizer="unknown",
        vocabulary_size=0,
        train=np.asarray(train, dtype=np.uint16),
        validation=np.asarray(validation, dtype=np.uint16),
    )


@pytest.mark.parametrize("batches", [[8], [4, 4], [1, 2, 5], [3, 3, 2]])
def test_the_stream_does_not_depend_on_the_batch_size(batches):
    corpus = corpus_of(range(60))
    whole = corpus.sequences(0, 8, sequence_length=10, seed=5)
    first, rows = 0, []
    for batch in batches:
        rows.append(corpus.sequences(first, batch, sequence_length=10, seed=5))
        first += batch
    assert np.array_equal(np.concatenate(rows), whole)


def test_a_pass_reads_every_window_and_the_token_after_it_once():
    corpus = corpus_of(range(65))
    assert corpus.num_sequences(8) == 8
    rows = corpus.sequences(0, 8, sequence_length=8, seed=1)
    expected = np.array([np.arange(8 * k, 8 * k + 9) for k in range(8)])
    assert np.array_equal(rows[np.argsort(rows[:, 0])], expected)
    assert rows.dtype == np.int64 and rows.shape == (8, 9)


@pytest.mark.parametrize(("num_tokens", "windows"), [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2)])
def test_a_window_needs_the_token_after_it(num_tokens, windows):
    assert corpus_of(range(num_tokens)).num_sequences(8) == windows


def test_seeds_and_passes_differ():
    corpus = corpus_of(range(1001))
    one, other = (corpus.sequences(0, 100, sequence_length=10, seed=seed) for seed in (0, 1))
    second_pass = corpus.sequences(100, 100, sequence_length=10, seed=0)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, second_pass)
    assert np.array_equal(np.sort(one[:, 0]), np.sort(second_pass[:, 0]))


def test_no_training_sequence_from_too_short_a_corpus():
    with pytest.raises(InputError, match=r"toy has 8 training tokens.*sequence_length=8.*add text"):
        corpus_of(range(8)).sequences(0, 1, sequence_length=8, seed=0)


def test_validation_windows_are_fixed_distinct_and_spread_over_the_whole_stream():
    corpus = corpus_of(range(9), validation=range(10_001))
    windows = corpus.validation_windows(50, sequence_length=10)
    assert np.array_equal(windows, corpus.validation_windows(50, sequence_length=10))
    starts = windows[:, 0]
    assert np.array_equal(windows, starts[:, None] + np.arange(11))
    assert np.all(np.diff(starts) == 200) and starts[0] == 100
    every = corpus.validation_windows(1000, sequence_length=10)
    assert np.array_equal(every[:, 0], np.arange(1000) * 10)


def test_too_many_validation_windows_say_how_many_there_are():
    with pytest.raises(InputError, match="13 validation windows of 10 tokens are more than the 9 .* at most 9"):
        corpus_of(range(9), validation=range(100)).validation_windows(13, sequence_length=10)


def test_enough_tokens_are_not_complained_about():
    corpus = corpus_of(range(101))
    corpus.require(100, sequence_length=10, max_epochs=1)
    corpus.require(300, sequence_length=10, max_epochs=3)


def test_missing_tokens_are_counted_and_the_remedies_work():
    corpus = corpus_of(range(101))
    with pytest.raises(InputError, match=r"251 training tokens are 151 more.*at most 100 tokens.*max_epochs = 3"):
        corpus.require(251, sequence_length=10, max_epochs=1)
    corpus.require(251, sequence_length=10, max_epochs=3)
    corpus.require(100, sequence_length=10, max_epochs=1)


def test_a_corpus_without_a_single_window_names_no_number_of_epochs():
    with pytest.raises(InputError) as error:
        corpus_of(range(5)).require(10, sequence_length=10, max_epochs=1)
    assert "max_epochs = " not in str(error.value)


def test_several_shards_behave_as_one_long_array():
    parts = [np.arange(0, 5), np.arange(5, 6), np.arange(6, 20)]
    tokens, whole = Tokens(parts), np.arange(20)
    assert len(tokens) == 20 and np.array_equal(np.asarray(tokens), whole)
    for start in range(-21, 22):
        for stop in range(-21, 22):
            assert np.array_equal(tokens[start:stop], whole[start:stop])
    assert [tokens[i] for i in range(-20, 20)] == [whole[i] for i in range(-20, 20)]
    assert np.array_equal(tokens[::3], whole[::3])
    with pytest.raises(IndexError):
        tokens[20]


def test_windows_across_shards_equal_those_of_one_array():
    whole = np.arange(500, dtype=np.uint16)
    sharded = Corpus(
        name="toy",
        fingerprint="0",
        tokenizer="unknown",
        vocabulary_size=0,
        train=Tokens([whole[:37], whole[37:301], whole[301:]]),
        validation=Tokens([whole[:250], whole[250:]]),
    )
    joined = corpus_of(whole, whole)
    for sequence_length in (1, 7, 64):
        assert np.array_equal(
            sharded.sequences(0, 20, sequence_length=sequence_length, seed=1),
            joined.sequences(0, 20, sequence_length=sequence_length, seed=1),
        )
        assert np.array_equal(
            sharded.validation_windows(5, sequence_length=sequence_length),
            joined.validation_windows(5, sequence_length=sequence_length),
        )


def test_a_sampled_digest_sees_size_and_both_ends_and_not_the_sharding(monkeypatch):
    tokens = np.arange(5000, dtype=np.uint16)
    monkeypatch.setattr("isotune.corpus.corpus.SAMPLED_BLOCK_BYTES", 64)
    monkeypatch.setattr("isotune.corpus.corpus.NUM_SAMPLED_BLOCKS", 8)
    same = sampled_digest(tokens)
    assert sampled_digest(Tokens([tokens[:777], tokens[777:]])) == same
    for place in (0, 4999):
        changed = tokens.copy()
        changed[place] += 1
        assert sampled_digest(changed) != same
    assert sampled_digest(tokens[:-1]) != same
