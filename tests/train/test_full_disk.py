"""A disk that fills up ends a run with an error; the same command with room again completes it, byte by byte."""

import errno
import os
import random

import pytest
from small import EVALUATION, contents, small_wsd

from isotune.train import train


@pytest.fixture(scope="module")
def expected(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight") / "study"
    train(small_wsd(corpus, 90), folder, evaluation=EVALUATION)
    return contents(folder)


@pytest.mark.parametrize("largest_file_bytes", [100, 2_000, 10_000, 30_000])
def test_files_that_cannot_grow(forks, corpus, expected, tmp_path, largest_file_bytes):
    recipe = small_wsd(corpus, 90)
    answer = forks.train(recipe, tmp_path / "study", EVALUATION, largest_file_bytes=largest_file_bytes)
    assert answer["status"] != 0
    assert forks.train(recipe, tmp_path / "study", EVALUATION)["status"] == 0
    assert contents(tmp_path / "study") == expected


@pytest.mark.parametrize("seed", range(4))
def test_no_space_at_a_random_write(corpus, expected, tmp_path, monkeypatch, seed):
    recipe, rng = small_wsd(corpus, 90), random.Random(seed)
    original, left = os.fsync, [rng.randrange(1, 30)]

    def full(descriptor):
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            train(recipe, tmp_path / "study", evaluation=EVALUATION, save_seconds=0.0)
    # In the same process: the failed attempt has let go of its folder, and is continued.
    train(recipe, tmp_path / "study", evaluation=EVALUATION)
    assert contents(tmp_path / "study") == expected
    assert list((tmp_path / "study" / "attempts").glob("?*.*")) == []
