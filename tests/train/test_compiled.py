"""Compiled models and bfloat16: other numbers, the same promises."""

import os
import shutil

import numpy as np
import pytest
from small import EVALUATION, NO_EVALUATION, contents, small_constant, small_wsd

from isotune.errors import InputError
from isotune.train import Execution, Stopped, train


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++, which is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_run_repeats_and_continues_with_the_same_bytes(corpus, tmp_path):
    # Without evaluation there is one graph to compile; stopping and continuing needs no second one.
    recipe, execution = small_constant(corpus, 100), Execution(compiled=True)
    trajectory = train(recipe, tmp_path / "a", execution=execution, evaluation=NO_EVALUATION)
    asked = []
    with pytest.raises(Stopped):
        train(
            recipe,
            tmp_path / "b",
            execution=execution,
            evaluation=NO_EVALUATION,
            should_stop=lambda: asked.append(None) or len(asked) == 2,
        )
    train(recipe, tmp_path / "b", execution=execution)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    eager = train(recipe, tmp_path / "eager", evaluation=NO_EVALUATION)
    np.testing.assert_allclose(trajectory.columns["train_loss"][:50], eager.columns["train_loss"][:50], rtol=1e-3)


def test_compiling_without_a_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(os, "environ", {"PATH": "/nowhere"})
    with pytest.raises(InputError, match=r"needs a C\+\+ compiler"):
        Execution(compiled=True)


def test_bfloat16_trains_and_repeats(corpus, tmp_path):
    recipe = small_wsd(corpus, 80, precision="bfloat16")
    trajectory = train(recipe, tmp_path / "a", evaluation=EVALUATION)
    train(recipe, tmp_path / "b", evaluation=EVALUATION)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    exact = train(small_wsd(corpus, 80), tmp_path / "float32", evaluation=EVALUATION)
    assert trajectory.last("val_loss") == pytest.approx(exact.last("val_loss"), rel=0.02)
    assert trajectory.last("val_loss") != exact.last("val_loss")
