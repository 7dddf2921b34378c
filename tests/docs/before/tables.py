"""A recipe that a table may have."""

from isotune.recipe import read_recipe

recipe = read_recipe("recipes/nano-wsd.toml")
