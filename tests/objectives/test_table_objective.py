"""A replay table as an objective: answers, prices of missing tokens, and what it refuses."""

import math
from pathlib import Path

import pytest
from made import STEP, made_study, setup
from made_tables import train_by_hand

from isotune.errors import InputError
from isotune.objectives.table import TableObjective
from isotune.recipe import wsd
from isotune.runs import Study, export_table, read_table
from isotune.tune import Question, tune

NANO = Path(__file__).parents[2] / "tables" / "nano"
RATES, DECAYS, BUDGETS = (2.0**-8, 2.0**-7, 2.0**-6), (0.25, 0.5), (24, 44, 64)
DECAY_TOKENS = 4 * STEP
DIVERGING = (2.0**-6, 0.5)
DIVERGES_AT = 30 * STEP


def recipe_of(lr, wd, num_steps, batch_size=4, seed=0):
    return wsd(
        setup(seed=seed),
        tokens=num_steps * STEP,
        learning_rate=lr,
        weight_decay=wd,
        batch_size=batch_size,
        decay_tokens=DECAY_TOKENS,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three LRs by two WDs with three budgets; one cell diverges in its trunk; one cell has another seed."""
    place = tmp_path_factory.mktemp("tables")
    study = made_study(place / "study")
    for lr in RATES:
        for wd in DECAYS:
            for budget in BUDGETS:
                diverged = DIVERGES_AT if (lr, wd) == DIVERGING else None
                if diverged is None or budget <= 44:
                    train_by_hand(study, recipe_of(lr, wd, budget), diverged_at_tokens=diverged)
    train_by_hand(study, recipe_of(RATES[0], DECAYS[0], 64, seed=1))
    export_table([Study.open(place / "study")], place / "table", name="made")
    return place / "table"


def question(lr, wd, num_steps, seed=0):
    return Question(lr, wd, num_steps * STEP, seed)


def test_answers_are_the_tables_decays(folder):
    objective = TableObjective(folder)
    asked = [question(lr, wd, 44) for lr in RATES for wd in DECAYS]
    objective.ask(asked)
    rows = {(row.learning_rate, row.weight_decay, row.tokens): row for row in read_table(folder).decays()}
    for answer in objective.answers():
        cell = (answer.question.learning_rate, answer.question.weight_decay)
        if cell == DIVERGING:
            assert answer.has_diverged
        else:
            assert answer.loss == rows[*cell, 44 * STEP].final_val_loss
    assert [answer.question for answer in objective.answers()] == asked


def test_a_trunk_is_paid_once_and_asking_twice_is_free(folder):
    objective = TableObjective(folder)
    cell = RATES[1], DECAYS[0]
    short, middle, long = (question(*cell, budget) for budget in BUDGETS)
    assert objective.prices([short, middle, long]) == [24 * STEP, 44 * STEP, 64 * STEP]
    objective.ask([middle])
    assert objective.spent_tokens() == 44 * STEP
    # The trunk is there up to the branch of the middle one, 40 steps: decays of 4 steps are missing.
    assert objective.prices([short, middle, long]) == [4 * STEP, 0, (60 - 40 + 4) * STEP]
    objective.ask([middle, long, short])
    assert objective.spent_tokens() == (44 + 24 + 4) * STEP
    assert TableObjective(folder).spent_tokens() == 0, "a replay begins anew"


def test_a_run_that_diverges_costs_what_it_took_and_then_nothing(folder):
    objective = TableObjective(folder)
    before, behind, far = (question(*DIVERGING, budget) for budget in BUDGETS)
    assert objective.prices([behind]) == [44 * STEP], "nobody knows before it is tried"
    objective.ask([behind])
    assert objective.spent_tokens() == DIVERGES_AT and objective.answers()[0].has_diverged
    assert objective.prices([behind, far, before]) == [0, 0, 4 * STEP]
    objective.ask([before])
    assert math.isfinite(objective.answers()[1].loss)


def test_what_is_not_in_the_table_is_refused_and_snapped_only_by_hand(folder):
    objective = TableObjective(folder)
    off = Question(2.0**-7.3, 0.3, 50 * STEP)
    for asked in (
        off,
        question(RATES[0], DECAYS[0], 30),
        question(2.0**-7.3, 0.25, 24),
        question(RATES[0], 0.25, 64, 1),
    ):
        with pytest.raises(InputError, match="nearest"):
            objective.ask([asked])
        with pytest.raises(InputError, match="nearest"):
            objective.prices([asked])
    assert objective.nearest(off) == question(2.0**-7, 0.25, 44)
    objective.ask([objective.nearest(off)])
    assert len(objective.answers()) == 1


def test_trunks_are_told_as_far_as_they_were_trained(folder):
    objective = TableObjective(folder)
    assert objective.trunks() == []
    objective.ask([question(RATES[1], DECAYS[0], 44)])
    (trunk,) = objective.trunks()
    assert (trunk.learning_rate, trunk.weight_decay) == (RATES[1], DECAYS[0])
    assert 30 * STEP <= trunk.curve.tokens[-1] <= 40 * STEP, "not beyond the branch"
    objective.ask([question(RATES[1], DECAYS[0], 24)])
    assert objective.trunks()[0].curve.tokens[-1] == trunk.curve.tokens[-1]


def test_the_goal_has_the_tables_cells_and_budgets(folder):
    objective = TableObjective(folder)
    goal = objective.goal(64 * STEP, tolerance=0.01)
    assert goal.rungs == tuple(budget * STEP for budget in BUDGETS)
    assert set(goal.space.only) == {(lr, wd) for lr in RATES for wd in DECAYS}
    assert goal.tokens_per_step == STEP and goal.decay_tokens == DECAY_TOKENS
    with pytest.raises(InputError, match=r"take --tokens 1536"):
        objective.goal(1000, tolerance=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"batch_size": 8}, "take one of 4"), ({"seed": 7}, "seed 7"), ({"root": "x"}, "no root 'x'")],
)
def test_families_that_are_not_there_are_refused(folder, options, words):
    with pytest.raises(InputError, match=words):
        TableObjective(folder, **options)


def test_scatter_of_seeds_leaves_out_what_a_seed_does_to_all(folder):
    assert TableObjective(folder).seed_scatter(64 * STEP) is None, "one cell with two seeds tells nothing"
    scatter = TableObjective(NANO, batch_size=4).seed_scatter(2_752_512)
    assert 0.0005 < scatter < 0.008  # with high LRs, which are not good, it would be .01


@pytest.mark.parametrize("tokens", [1_376_256, 2_752_512])
def test_a_tuning_of_the_nano_table_costs_a_few_percent_of_it(tokens):
    objective = TableObjective(NANO, batch_size=4)
    tuned = tune(objective, objective.goal(tokens, tolerance=0.0025))
    losses = objective.losses(tokens)
    chosen = losses[tuned.recommendation.learning_rate, tuned.recommendation.weight_decay]
    assert tuned.stopped == "good enough"
    assert tuned.spent_tokens == objective.spent_tokens() < 0.15 * tuned.grid_tokens
    assert chosen < 1.015 * min(losses.values())


def test_several_batch_sizes_must_be_told_apart():
    with pytest.raises(InputError, match="--batch-size, one of 4, 64"):
        TableObjective(NANO)
