"""What a plan says is missing, against what training by hand then adds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import STEP, made_constant, made_study, made_wsd, train_by_hand
from test_tree import distinct_tokens

from isotune.runs import Study
from isotune.sweep.plan import make_plan

BUDGETS = [made_wsd(steps, decay_steps=5) for steps in (20, 30, 40)]


@pytest.fixture
def study(tmp_path):
    return made_study(tmp_path / "study")


def reopened(study):
    return Study.open(study.folder)


def test_without_a_study_everything_is_missing():
    plan = make_plan(BUDGETS)
    assert plan.price.separately == 90 * STEP
    assert plan.price.shared == plan.price.to_train == distinct_tokens(BUDGETS)
    assert plan.price.there == 0


def test_a_task_follows_the_one_that_it_waits_for():
    plan = make_plan(BUDGETS)
    seen = set()
    for task in plan.tasks:
        assert task.parent is None or id(task.parent) in seen
        seen.add(id(task))
    assert sum(task.parent is None for task in plan.tasks) == 1


def test_what_a_study_has_is_not_planned_again(study):
    train_by_hand(study, BUDGETS[1])
    plan = make_plan(BUDGETS, reopened(study))
    assert plan.price.there == 30 * STEP
    # The first decay needs a state at 15 steps that nobody kept, since nobody knew of it.
    assert plan.price.to_train == plan.price.shared - 30 * STEP + 15 * STEP
    for recipe in BUDGETS:
        train_by_hand(study, recipe)
    plan = make_plan(BUDGETS, reopened(study))
    assert plan.price.to_train == 0 and not plan.missing
    assert {task.status for task in plan.tasks} == {"there"}


def test_a_state_that_was_deleted_is_trained_again_only_if_somebody_needs_it(study):
    for recipe in BUDGETS[:2]:
        train_by_hand(study, recipe)
    for path in (study.folder / "states").glob("*"):
        path.unlink()
    assert not make_plan(BUDGETS[:2], reopened(study)).missing
    plan = make_plan(BUDGETS, reopened(study))
    assert plan.price.there == distinct_tokens(BUDGETS[:2])
    repeated = [task for task in plan.missing if task.is_repeated]
    assert sum(task.tokens for task in repeated) == 25 * STEP  # the trunk up to the last branch
    assert plan.price.to_train == plan.price.shared - plan.price.there + 25 * STEP


def test_what_follows_a_divergence_is_not_planned(study):
    train_by_hand(study, made_constant(40), diverged_at_tokens=18 * STEP)
    plan = make_plan(BUDGETS, reopened(study))
    states = {task.node.end_tokens // STEP: task.status for task in plan.tasks}
    assert states[15] == "missing" and states[20] == "missing"
    assert states[25] == states[30] == states[35] == states[40] == "diverged"


def test_recipes_of_a_table_count_as_done(study):
    plan = make_plan(BUDGETS, study, is_in_table=lambda recipe: recipe != BUDGETS[2])
    assert {task.node.end_tokens // STEP for task in plan.missing} == {15, 25, 35, 40}
    assert plan.in_tables == tuple(BUDGETS[:2])
    assert not make_plan(BUDGETS, study, is_in_table=lambda recipe: True).missing


def test_a_damaged_segment_blocks_its_successors_and_nothing_else(study):
    other = made_wsd(30, learning_rate=2**-7)
    for recipe in BUDGETS[:2]:
        train_by_hand(study, recipe)
    plan = make_plan(BUDGETS[:2], reopened(study))
    damaged = next(task for task in plan.tasks if task.node.end_tokens == 25 * STEP)
    segment = study.segment(damaged.node.recipe, 15 * STEP, 25 * STEP)
    (study.folder / "segments" / segment.id / "segment.json").write_text("garbage")
    plan = make_plan([*BUDGETS[:2], other], reopened(study))
    status = {(task.node.recipe.learning_rate, task.node.end_tokens // STEP): task.status for task in plan.tasks}
    assert status[2**-6, 25] == "damaged"
    assert all(status[key] == "missing" for key in status if key[0] == 2**-7)
    assert "repeat the training command" in next(t.reason for t in plan.tasks if t.status == "damaged")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(6, 14), st.integers(0, 5)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(6, 14), st.integers(0, 5)), min_size=1, max_size=5),
)
def test_training_a_plan_makes_the_study_complete(tmp_path_factory, first, second):
    """Whatever the study had before, and wherever that was cut."""
    study = made_study(tmp_path_factory.mktemp("studies") / "study")
    for steps, decay in first:
        train_by_hand(study, made_wsd(steps, decay_steps=decay))
    wanted = [made_wsd(steps, decay_steps=decay) for steps, decay in second]
    plan = make_plan(wanted, reopened(study))
    assert plan.price.there <= plan.price.shared == distinct_tokens(wanted)
    for task in plan.missing:
        start = task.segment.start_tokens
        state = study.state_path(task.node.recipe.state_id(study.corpus_fingerprint, start))
        assert start == 0 or state.exists(), "what it starts from was not there in time"
        publish(study, task.segment)
    after = make_plan(wanted, reopened(study))
    assert not after.missing and after.price.there == after.price.shared
    for recipe in wanted:
        assert reopened(study).trajectory(recipe).info.status == "finished"


def publish(study, segment):
    from made import NUMERICS, write_rows

    folder = study.new_attempt(segment, NUMERICS)
    write_rows(folder, segment)
    study.describe(folder, segment, NUMERICS, "finished")
    place = study.state_path(segment.end_state)
    place.parent.mkdir(exist_ok=True)
    place.write_text("state")
    study.publish(folder, segment.id)
