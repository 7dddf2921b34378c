"""What answers tell of the cells of a space."""

from dataclasses import replace

import numpy as np
from surfaces import GOAL, TOKENS

from isotune.tune import Question
from isotune.tune.told import Asked, Register


def test_a_register_has_runs_of_the_space_at_its_rungs_alone():
    goal = replace(GOAL, rungs=(TOKENS // 4, TOKENS), seeds=(0, 1))
    lr, wd = goal.space.settings[-1].tolist()
    shorter, longer, outside = Question(lr, wd, TOKENS // 5), Question(lr, wd, 2 * TOKENS), Question(2 * lr, wd, TOKENS)
    register = Register.of(goal, Asked.of([shorter, longer, outside, Question(lr, wd, TOKENS, 7)]))
    assert np.argwhere(register.were_asked).tolist() == [[len(goal.space.cells) - 1, 1, 2]]
    assert register.seeds.tolist() == [0, 1, 7]
