"""Decayed losses read off trunks whose gains follow a planted line."""

import math

import numpy as np
import pytest
from made import made_info

from isotune.runs import Trajectory
from isotune.tune import Answer, Goal, Question, Space, suggest
from isotune.tune.readings import SCATTER, Trunk, read_off

DECAY, RUNGS = 100_000, (500_000, 1_000_000, 2_000_000)
COEFFICIENT, SLOPE, OFFSET = 0.16, 0.15, 0.003


def trunk_loss(elr, tokens):
    return 1.5 + 0.2 * (tokens / 1e6) ** -0.3 + 20 * elr


def free_noise(elr):
    return 3.0 * (elr / 1e-4) ** 0.3 * 0.1


def decayed(elr, tokens):
    branch = tokens - DECAY
    loss = trunk_loss(elr, branch)
    gain = OFFSET + COEFFICIENT * free_noise(elr) / loss + SLOPE * math.log1p(DECAY / 2 / branch)
    return loss * (1 - gain)


def make_trunk(lr, wd, end=2_000_000, with_noise=True):
    tokens = np.arange(50_000, end + 1, 25_000)
    columns = {
        "tokens": tokens,
        "val_loss": trunk_loss(lr * wd, tokens),
        "learning_rate": np.full(len(tokens), lr),
        "clip_factor": np.ones(len(tokens)),
    }
    if with_noise:
        columns["root_moment_sum"] = np.full(len(tokens), free_noise(lr * wd) / lr)
    return Trunk(lr, wd, Trajectory(columns, made_info(learning_rate=lr, weight_decay=wd, decay_tokens=0)))


CELLS = [(2.0**-10, 2.0**-4), (2.0**-9, 2.0**-3), (2.0**-8, 2.0**-2), (2.0**-10, 2.0**-6)]


def answered(cells, rung=RUNGS[-1]):
    return [Answer(Question(*cell, rung), decayed(cell[0] * cell[1], rung)) for cell in cells]


def test_other_rungs_and_cells_are_read_within_their_noise():
    trunks = [make_trunk(*cell) for cell in CELLS]
    read = read_off(trunks, answered(CELLS[:2]), RUNGS, DECAY)
    assert {answer.question for answer in read} == {Question(*cell, rung) for cell in CELLS for rung in RUNGS} - {
        answer.question for answer in answered(CELLS[:2])
    }
    for answer in read:
        truth = decayed(answer.question.learning_rate * answer.question.weight_decay, answer.question.tokens)
        assert abs(math.log(answer.loss / truth)) < answer.noise
        assert answer.status == "read" and answer.noise > SCATTER


def test_more_decays_make_readings_surer_and_better():
    trunks = [make_trunk(*cell) for cell in CELLS]
    asked = Question(*CELLS[3], RUNGS[0])
    noises, errors = [], []
    for known in (answered(CELLS[:1]), answered(CELLS[:3]) + answered(CELLS[:3], RUNGS[0])):
        answer = next(one for one in read_off(trunks, known, RUNGS, DECAY) if one.question == asked)
        noises.append(answer.noise)
        errors.append(abs(answer.loss / decayed(CELLS[3][0] * CELLS[3][1], RUNGS[0]) - 1))
    assert noises[1] < noises[0] and errors[1] < errors[0] and errors[1] < 0.005


def test_nothing_is_read_without_a_decay_without_noise_or_beyond_the_trunk():
    assert read_off([make_trunk(*CELLS[0])], [], RUNGS, DECAY) == []
    silent = [make_trunk(*cell, with_noise=False) for cell in CELLS]
    assert read_off(silent, answered(CELLS[:1]), RUNGS, DECAY) == []
    short = make_trunk(*CELLS[1], end=950_000)
    read = read_off([make_trunk(*CELLS[0]), short], answered(CELLS[:1]), RUNGS, DECAY)
    assert {one.question.tokens for one in read if one.question.learning_rate == 2.0**-9} == set(RUNGS[:2])


def test_what_was_read_may_still_be_asked():
    goal = Goal(tokens=RUNGS[-1], space=Space(only=tuple(CELLS)), rungs=RUNGS, tokens_per_step=256)
    known = answered(CELLS)
    read = read_off([make_trunk(*cell) for cell in CELLS], known, RUNGS, DECAY)
    asked = set(suggest(goal, known + read, count=8).questions)
    assert asked == {answer.question for answer in read}
    assert suggest(goal, known + read).recommendation.loss == pytest.approx(
        suggest(goal, known).recommendation.loss, rel=0.01
    )
