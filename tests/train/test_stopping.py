"""Stopping on request, pinned numerics, and setups that do not belong into a study."""

import json

import pytest
from small import EVALUATION, contents, rows, small_constant, small_wsd

from isotune.errors import InputError
from isotune.recipe import Init
from isotune.runs import Evaluation, Study
from isotune.train import Execution, Stopped, train


def test_a_stopped_run_continues_as_if_it_had_not_stopped(corpus, tmp_path):
    recipe = small_wsd(corpus)
    straight = train(recipe, tmp_path / "straight", evaluation=EVALUATION)
    observed, stops = [], 0
    for ask_again in (3, 5, 4, 100):
        asked = []

        def should_stop(asked=asked, ask_again=ask_again):
            asked.append(None)
            return len(asked) == ask_again

        try:
            trajectory = train(
                recipe,
                tmp_path / "study",
                evaluation=EVALUATION,
                should_stop=should_stop,
                observers=[lambda step, row: observed.append(step.tokens)],
            )
        except Stopped:
            stops += 1
    assert stops == 3
    assert observed == [step.tokens for step in recipe.steps()]  # not a step twice
    assert rows(trajectory) == rows(straight)
    assert contents(tmp_path / "study") == contents(tmp_path / "straight")


def test_a_stopped_run_can_be_read(corpus, tmp_path):
    recipe = small_wsd(corpus)
    straight = train(recipe, tmp_path / "straight", evaluation=EVALUATION)
    asked = []
    with pytest.raises(Stopped, match=r"stopped at .* of .* tokens"):
        train(
            recipe,
            tmp_path / "study",
            evaluation=EVALUATION,
            should_stop=lambda: asked.append(None) or len(asked) == 7,
        )
    study = Study.open(tmp_path / "study")
    trajectory = study.trajectory(recipe)
    count = len(trajectory.tokens)
    assert trajectory.info.status == "running"
    assert 40 < count < 161
    assert (trajectory.columns["train_loss"][1:] == straight.columns["train_loss"][1:count]).all()
    assert [other.tokens for other in study.recipes()] == [120 * 64]  # the trunk that is being trained


def test_other_numerics_are_refused(corpus, tmp_path):
    train(small_constant(corpus, 40), tmp_path / "study", evaluation=EVALUATION)
    with pytest.raises(InputError, match=r"=None, this run has micro_batch_size=2.*allow-mixed-numerics"):
        train(small_constant(corpus, 80), tmp_path / "study", execution=Execution(micro_batch_size=2))


def test_other_numerics_are_recorded_where_they_are_allowed(corpus, tmp_path):
    study = tmp_path / "study"
    train(small_constant(corpus, 40), study, evaluation=EVALUATION)
    mixed = train(small_constant(corpus, 80), study, execution=Execution(micro_batch_size=2), allow_mixed_numerics=True)
    assert mixed.info.status == "finished"
    found = [json.loads(path.read_text()) for path in study.glob("segments/*/segment.json")]
    assert {s["end"]["tokens"] // 64: s["numerics"]["micro_batch_size"] for s in found} == {16: None, 40: None, 80: 2}
    assert json.loads((study / "study.json").read_text())["numerics"]["micro_batch_size"] is None


def test_an_attempt_with_other_numerics_is_not_continued(corpus, tmp_path):
    """A segment has one kind of numerics, so that what it records is true."""
    study, recipe = tmp_path / "study", small_constant(corpus, 80)
    train(small_constant(corpus, 16), study, evaluation=EVALUATION)
    asked = []
    with pytest.raises(Stopped):
        train(recipe, study, should_stop=lambda: asked.append(None) or len(asked) == 4)
    observed = []
    train(
        recipe,
        study,
        execution=Execution(micro_batch_size=2),
        allow_mixed_numerics=True,
        observers=[lambda step, row: observed.append(step)],
    )
    assert len(observed) == 80 - 16


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"init": Init(std=0.03)}, "init"), ({"precision": "bfloat16"}, "precision")],
)
def test_another_root_is_refused(corpus, tmp_path, changes, name):
    train(small_constant(corpus, 20), tmp_path / "study", evaluation=EVALUATION)
    with pytest.raises(InputError, match=f"another {name}: use another --study"):
        train(small_constant(corpus, 20, **changes), tmp_path / "study")


def test_another_evaluation_is_refused(corpus, tmp_path):
    train(small_constant(corpus, 20), tmp_path / "study", evaluation=EVALUATION)
    with pytest.raises(InputError, match=r"640.*use another --study"):
        train(
            small_constant(corpus, 20),
            tmp_path / "study",
            evaluation=Evaluation(every_tokens=64, windows=8, final_windows=32),
        )


def test_a_folder_with_something_else_in_it_is_refused(corpus, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a study"):
        train(small_constant(corpus, 20), tmp_path / "notes")
    with pytest.raises(InputError, match="is not a study"):
        train(small_constant(corpus, 20), tmp_path / "notes" / "todo.txt")
    with pytest.raises(InputError, match=r"cannot be written .*: choose another --study"):
        train(small_constant(corpus, 20), tmp_path / "notes" / "todo.txt" / "deeper")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["todo.txt"]


def test_impossible_executions_are_refused(corpus, tmp_path):
    with pytest.raises(InputError, match="threads=0 must be at least 1"):
        Execution(threads=0)
    with pytest.raises(InputError, match="device='tpu'"):
        Execution(device="tpu")
    with pytest.raises(InputError, match="batch_size=4 is not a multiple of micro_batch_size=3: try 3 or 6"):
        train(small_constant(corpus, 20), tmp_path / "study", execution=Execution(micro_batch_size=3))
    assert not (tmp_path / "study").exists()
