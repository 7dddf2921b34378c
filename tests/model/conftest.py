"""Fixtures that the tests share; Hugging Face's progress bars and network are off."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import pytest
import torch
from hypothesis import settings
from model_examples import SHAPES, make_model

from isotune.model import Transformer
from isotune.recipe import ModelShape

settings.register_profile("model", deadline=None, database=None)
settings.load_profile("model")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def shape(request) -> ModelShape:
    return request.param


@pytest.fixture
def model(shape) -> Transformer:
    return make_model(shape)
