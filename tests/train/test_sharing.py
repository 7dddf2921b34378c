"""What recipes share is trained once, and sharing changes no byte."""

import itertools

import pytest
from small import EVALUATION, NO_EVALUATION, STEP, TokenCounter, contents, rows, small_constant, small_wsd

from isotune.recipe import batch_switch, new_settings, square_root_rule
from isotune.runs import Evaluation, Study, octaves
from isotune.train import train

BUDGETS = (80, 160, 320)  # steps, 40 of them decay


def final_state(study_folder, recipe):
    study = Study.open(study_folder)
    return study.state_path(recipe.state_id(study.corpus_fingerprint, recipe.tokens)).read_bytes()


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """Each budget trained in a study of its own: its final state and its rows."""
    results = {}
    for budget in BUDGETS:
        folder = tmp_path_factory.mktemp("alone") / "study"
        trajectory = train(small_wsd(corpus, budget), folder, evaluation=EVALUATION)
        results[budget] = final_state(folder, small_wsd(corpus, budget)), rows(trajectory)
    return results


def test_rising_budgets_train_only_what_is_missing(corpus, alone, tmp_path):
    for budget, missing in zip(BUDGETS, (80, 80 + 40, 160 + 40), strict=True):
        counter, recipe = TokenCounter(), small_wsd(corpus, budget)
        trajectory = train(recipe, tmp_path / "study", evaluation=EVALUATION, observers=[counter])
        assert counter.tokens == missing * STEP
        assert final_state(tmp_path / "study", recipe) == alone[budget][0]
        assert rows(trajectory) == alone[budget][1]


@pytest.mark.parametrize("order", [order for order in itertools.permutations(BUDGETS) if order != BUDGETS])
def test_budgets_in_any_order_end_alike(corpus, alone, tmp_path, order):
    counter = TokenCounter()
    for budget in order:
        train(small_wsd(corpus, budget), tmp_path / "study", evaluation=EVALUATION, observers=[counter])
    for budget in BUDGETS:  # read again, when all segments are there
        recipe = small_wsd(corpus, budget)
        assert final_state(tmp_path / "study", recipe) == alone[budget][0]
        assert rows(Study.open(tmp_path / "study").trajectory(recipe)) == alone[budget][1]
    assert counter.tokens < sum(BUDGETS) * STEP  # the warm-up at least is never trained twice


def test_an_unplanned_budget_starts_from_the_octave_before_it(corpus, tmp_path):
    longest, shorter, counter = small_wsd(corpus, 400), small_wsd(corpus, 300), TokenCounter()
    assert octaves(longest) == [4096, 8192, 16_384]
    train(longest, tmp_path / "study", evaluation=EVALUATION)
    trajectory = train(shorter, tmp_path / "study", evaluation=EVALUATION, observers=[counter])
    assert counter.tokens == shorter.tokens - 16_384
    alone = train(shorter, tmp_path / "alone", evaluation=EVALUATION)
    assert rows(trajectory) == rows(alone)
    assert final_state(tmp_path / "study", shorter) == final_state(tmp_path / "alone", shorter)


def test_a_finished_recipe_is_not_trained_again(corpus, tmp_path):
    recipe, counter = small_wsd(corpus, 80), TokenCounter()
    first = train(recipe, tmp_path / "study", evaluation=EVALUATION)
    before = contents(tmp_path / "study")
    second = train(recipe, tmp_path / "study", evaluation=EVALUATION, observers=[counter])
    assert counter.tokens == 0
    assert rows(first) == rows(second)
    assert contents(tmp_path / "study") == before


def test_the_batch_schedulers_of_the_paper_branch_off_the_constant_run(corpus, tmp_path):
    source, study = small_constant(corpus, 160), tmp_path / "study"
    constant_run = train(source, study, evaluation=EVALUATION)
    switch = {"switch_tokens": 96 * STEP, "tokens": 160 * STEP, "batch_size": 16, "decay_tokens": 16 * STEP}
    type_1 = new_settings(source, learning_rate=2**-5, weight_decay=1.0, **switch)
    for number, recipe in enumerate([batch_switch(source, **switch), type_1, square_root_rule(source, **switch)]):
        counter = TokenCounter()
        trajectory = train(recipe, study, evaluation=EVALUATION, observers=[counter])
        # The first of them finds no state where it leaves the trunk, and goes back to the octave before: 4,096 tokens.
        assert counter.tokens == (160 - 64 if number == 0 else 160 - 96) * STEP
        assert trajectory.info.status == "finished"
        assert trajectory.info.batch_size == 16
        shared = trajectory.tokens <= 96 * STEP
        assert (trajectory.columns["train_loss"][shared][1:] == constant_run.columns["train_loss"][1:97]).all()
        assert trajectory.columns["batch_size"][~shared].tolist() == [16] * 16
        train(recipe, tmp_path / f"alone{number}", evaluation=EVALUATION)
        assert final_state(study, recipe) == final_state(tmp_path / f"alone{number}", recipe)
        assert rows(trajectory) == rows(Study.open(tmp_path / f"alone{number}").trajectory(recipe))


def test_evaluation_never_changes_a_state(corpus, tmp_path):
    recipe = small_wsd(corpus, 80)
    plans = [NO_EVALUATION, EVALUATION, Evaluation(every_tokens=STEP, windows=3, final_windows=5)]
    plans += [Evaluation(every_tokens=7 * STEP + 1, windows=1, final_windows=40)]
    states = []
    for number, plan in enumerate(plans):
        train(recipe, tmp_path / str(number), evaluation=plan, save_seconds=0.0 if number % 2 else 60.0)
        states.append({path.name: path.read_bytes() for path in (tmp_path / str(number) / "states").iterdir()})
    assert len(states[0]) == 4  # the ends of three phases, and one octave
    assert all(other == states[0] for other in states)


def test_evaluations_lie_on_their_grid_and_at_the_end_of_the_decay(corpus, tmp_path):
    trajectory = train(small_wsd(corpus, 85), tmp_path / "study", evaluation=EVALUATION)
    assert trajectory.measured("val_loss")[0].tolist() == [10 * STEP * k for k in range(9)] + [85 * STEP]
    assert trajectory.measured("final_val_loss")[0].tolist() == [85 * STEP]
    assert trajectory.columns["step"].tolist() == list(range(86))


def test_seeds_share_a_study_and_nothing_else(corpus, tmp_path):
    both = tmp_path / "study"
    for seed in (0, 1):
        trajectory = train(small_wsd(corpus, 80, seed=seed), both, evaluation=EVALUATION)
        apart = train(small_wsd(corpus, 80, seed=seed), tmp_path / str(seed), evaluation=EVALUATION)
        assert rows(trajectory) == rows(apart)
    first, second = (Study.open(both).trajectory(small_wsd(corpus, 80, seed=seed)) for seed in (0, 1))
    assert first.last("val_loss") != second.last("val_loss")
