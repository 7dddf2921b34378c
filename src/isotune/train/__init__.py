"""Segment -> trajectory: a trainer whose clock is tokens and whose runs are exact functions of their recipe."""

from isotune.train.attempt import Observer
from isotune.train.execution import Execution, World
from isotune.train.loop import Stopped, train
from isotune.train.trainer import Trainer

__all__ = ["Execution", "Observer", "Stopped", "Trainer", "World", "train"]
