"""The examples in the docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["recipe", "recipe.quantities", "recipe.toml"])
def test_the_examples_of_a_module_give_what_they_show(name):
    results = doctest.testmod(importlib.import_module(f"isotune.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
