"""The prefix tree against brute force: a token is trained once for each distinct history that leads to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import STEP, made_constant, made_wsd

from isotune.errors import InputError
from isotune.recipe import AdamW, batch_switch, new_settings
from isotune.sweep.tree import prefix_tree

FINGERPRINT = "f" * 32


def nodes_of(recipes):
    return [node for root in prefix_tree(recipes) for node in root.walk()]


def distinct_tokens(recipes):
    """Brute force: every step whose end has another history counts once."""
    ends = {}
    for recipe in recipes:
        for step in recipe.steps():
            ends[recipe.state_id(FINGERPRINT, step.tokens)] = step.tokens - step.tokens_before
    return sum(ends.values())


recipes = st.builds(
    made_wsd,
    st.integers(5, 14),
    learning_rate=st.sampled_from([2**-6, 2**-7]),
    decay_steps=st.integers(0, 4),
    seed=st.integers(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(recipes, min_size=1, max_size=8))
def test_the_tree_has_every_distinct_token_once(chosen):
    nodes = nodes_of(chosen)
    assert sum(node.tokens for node in nodes) == distinct_tokens(chosen)


@settings(max_examples=40, deadline=None)
@given(st.lists(recipes, min_size=1, max_size=8))
def test_every_recipe_is_a_path_from_a_root_to_an_end(chosen):
    ends = {node.recipe: node for node in nodes_of(chosen) if node.is_end}
    assert set(ends) == set(chosen)
    for recipe, node in ends.items():
        position = recipe.tokens
        while node is not None:
            assert node.end_tokens == position and node.recipe.prefix(position) == recipe.prefix(position)
            position, node = node.start_tokens, node.parent
        assert position == 0


def test_ten_budgets_share_one_trunk_that_is_cut_at_every_branch():
    nodes = nodes_of([made_wsd(10 * k, decay_steps=5) for k in range(1, 11)])
    trunk = [node.end_tokens // STEP for node in nodes if node.recipe.phases[-1].is_constant]
    assert trunk == [10 * k - 5 for k in range(1, 11)]
    assert len(nodes) == 20


def test_a_trunk_goes_before_the_decays_that_branch_off_it():
    """Others wait for the trunk; nobody waits for a decay."""
    root = prefix_tree([made_wsd(20), made_wsd(40)])[0]
    assert [child.recipe.phases[-1].is_constant for child in root.children] == [True, False]


def test_a_batch_switch_and_new_settings_branch_where_they_begin():
    source = made_constant(40)
    switched = batch_switch(source, switch_tokens=16 * STEP, tokens=48 * STEP, batch_size=16)
    changed = new_settings(
        source, switch_tokens=16 * STEP, tokens=48 * STEP, learning_rate=2**-8, weight_decay=1.0, batch_size=16
    )
    nodes = nodes_of([source, switched, changed])
    assert sorted((node.start_tokens // STEP, node.end_tokens // STEP) for node in nodes) == [
        (0, 16),
        (16, 40),
        (16, 48),
        (16, 48),
    ]


def test_equal_recipes_are_one():
    assert len(nodes_of([made_constant(20), made_constant(20)])) == 1


def test_recipes_of_two_setups_are_refused():
    with pytest.raises(InputError, match="differ in optimizer.*--study"):
        prefix_tree([made_constant(20), made_constant(20, optimizer=AdamW(beta2=0.99))])
    with pytest.raises(InputError, match="differ in corpus"):
        prefix_tree([made_constant(20), made_constant(20, corpus="elsewhere")])


def test_an_empty_sweep_is_refused():
    with pytest.raises(InputError, match="at least one recipe"):
        prefix_tree([])


def test_a_node_says_what_it_trains():
    node = nodes_of([made_wsd(20, decay_steps=5)])[-1]
    assert node.words() == "LR 2^-6 WD 0.5 batch 4 seed 0, 960 to 1.28K (decay)"
