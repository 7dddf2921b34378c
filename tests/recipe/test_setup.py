"""Sizes and costs of the presets."""

import pytest

from isotune.recipe import PRESETS, Setup


@pytest.mark.parametrize(("name", "millions"), [("nano", 0.133), ("micro", 6.6), ("paper-164m", 163.6)])
def test_presets_have_the_sizes_that_they_are_known_by(name, millions):
    assert PRESETS[name].num_parameters / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_the_parameter_count_matches_a_list_of_the_matrices(name):
    m = PRESETS[name]
    matrices = [(m.vocabulary_size, m.width)] * 2 + [(m.width,)]
    for _ in range(m.num_layers):
        matrices += [(m.width, m.width)] * 4 + [(m.width, m.ffn_width)] * 3 + [(m.width,)] * 2
    assert m.num_parameters == sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in matrices)


def test_a_token_costs_six_flops_per_multiplied_weight_and_attention():
    m = PRESETS["paper-164m"]
    assert m.flops_per_token(1024) == 6 * (m.num_parameters - 51_200 * 768) + 12 * 12 * 768 * 1024


def test_max_epochs_and_the_corpus_path_are_no_part_of_the_root():
    one = Setup(model=PRESETS["nano"], max_epochs=3, corpus="here")
    assert one.root("fingerprint") == Setup(model=PRESETS["nano"], corpus="there").root("fingerprint")
