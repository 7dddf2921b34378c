"""Our trainer as an objective: which recipe answers a question, and what another seed costs."""

from made import STEP, made_study, made_wsd
from made_tables import train_by_hand

from isotune.objectives.trainer import TrainerObjective
from isotune.recipe import Recipe
from isotune.tune import Question, Space

SPACE = Space(learning_rate=(2.0**-8, 2.0**-6), weight_decay=(0.25, 0.5))


def test_seeds_count_from_the_recipes_and_each_is_a_run_of_its_own(tmp_path):
    recipe = made_wsd(64, seed=5)
    study = made_study(tmp_path / "study")
    train_by_hand(study, made_wsd(44, seed=5))
    objective = TrainerObjective(recipe, tmp_path / "study", num_parallel=1)
    assert objective.goal(SPACE, tolerance=0.01, num_seeds=3).seeds == (5, 6, 7)
    first, second = (Question(recipe.learning_rate, recipe.weight_decay, recipe.tokens, seed) for seed in (5, 6))
    assert objective.recipe_of(first) == recipe and objective.recipe_of(second).setup.seed == 6
    assert objective.prices([first, second]) == [(64 - 44 + 4) * STEP, 64 * STEP], "a trunk belongs to its seed"
    assert [answer.question.seed for answer in objective.answers()] == [5]


def test_what_a_kill_left_of_a_warm_up_is_no_answer(tmp_path):
    recipe = made_wsd(64)
    study = made_study(tmp_path / "study")
    train_by_hand(study, Recipe(recipe.setup, recipe.phases[:1]))
    objective = TrainerObjective(recipe, tmp_path / "study", num_parallel=1)
    assert len(study.recipes()) == 1 and objective.answers() == []
    train_by_hand(study, recipe)
    assert [answer.question.tokens for answer in objective.answers()] == [recipe.tokens]
