"""Findings -> the next run: ask and tell, for a fraction of a grid's tokens. Imports no torch."""

from isotune.tune.loop import Limits, Objective, Round, Tuned, tune
from isotune.tune.questions import Answer, Goal, Question, Space, make_rungs
from isotune.tune.told import mark_exploded
from isotune.tune.tuner import Recommendation, Suggestion, recommend_now, suggest

__all__ = [
    "Answer",
    "Goal",
    "Limits",
    "Objective",
    "Question",
    "Recommendation",
    "Round",
    "Space",
    "Suggestion",
    "Tuned",
    "make_rungs",
    "mark_exploded",
    "recommend_now",
    "suggest",
    "tune",
]
