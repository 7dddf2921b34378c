import math
import shutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from model_examples import make_model, make_windows

from isotune.model import Transformer
from isotune.recipe import PRESETS, Init, ModelShape

NANO = PRESETS["nano"]


def initialized(shape=NANO, init=None, seed=0):
    model = Transformer(shape, 8)
    model.initialize(init or Init(), seed)
    return model


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


# Sizes


def test_paper_model_has_163_6_million_parameters():
    with torch.device("meta"):
        model = Transformer(PRESETS["paper-164m"], 16)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == PRESETS["paper-164m"].num_parameters == 163_597_056


@given(
    head_width=st.integers(1, 8).map(lambda half: 2 * half),
    num_heads=st.integers(1, 5),
    num_layers=st.integers(1, 4),
    ffn_width=st.integers(1, 50),
    vocabulary_size=st.integers(1, 200),
)
def test_parameter_formula_matches_the_real_count(head_width, num_heads, num_layers, ffn_width, vocabulary_size):
    shape = ModelShape(
        width=head_width * num_heads,
        num_layers=num_layers,
        num_heads=num_heads,
        ffn_width=ffn_width,
        vocabulary_size=vocabulary_size,
    )
    with torch.device("meta"):
        model = Transformer(shape, 4)
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())


# Initialisation


def test_matrices_start_with_the_std_and_output_projections_divided_by_sqrt_of_twice_the_layers():
    shape = ModelShape(width=128, num_layers=8, num_heads=2, ffn_width=256, vocabulary_size=512)
    for name, parameter in initialized(shape).named_parameters():
        if parameter.ndim < 2:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        is_output = "attention_out" in name or "down" in name
        expected = 0.02 / math.sqrt(16) if is_output else 0.02
        # The relative error of a standard deviation from n draws is 1 / sqrt(2n); five of them.
        tolerance = 5 / math.sqrt(2 * parameter.numel())
        assert parameter.std().item() == pytest.approx(expected, rel=tolerance), name
        assert abs(parameter.mean().item()) < 5 * expected / math.sqrt(parameter.numel()), name


def test_scale_multiplies_every_matrix_and_leaves_norms():
    plain, scaled = initialized(), initialized(init=Init(scale=4.0))
    for (name, a), b in zip(plain.named_parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(b, a * 4 if a.ndim >= 2 else a, rtol=1e-6, atol=0, msg=name)


def test_std_multiplies_every_matrix():
    plain, wide = initialized(), initialized(init=Init(std=0.08))
    for a, b in zip(plain.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(b, a * 4 if a.ndim >= 2 else a, rtol=1e-6, atol=0)


def test_same_seed_gives_the_same_bytes_whatever_was_drawn_before():
    first = initialized(seed=7)
    torch.manual_seed(12345)
    torch.rand(10)
    second = initialized(seed=7)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_seeds_differ_in_every_matrix():
    for (name, a), b in zip(initialized(seed=0).named_parameters(), initialized(seed=1).parameters(), strict=True):
        assert a.ndim < 2 or not torch.isclose(a, b).all(), name


def test_no_two_matrices_start_alike():
    matrices = [parameter for parameter in initialized().parameters() if parameter.ndim >= 2]
    assert len({parameter.flatten()[:8].sum().item() for parameter in matrices}) == len(matrices)


def test_initialising_leaves_torchs_own_random_numbers_alone():
    model = Transformer(NANO, 8)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    model.initialize(Init(), 0)
    assert torch.equal(torch.rand(4), expected)


# What it computes


def test_sequence_losses_match_torch_cross_entropy(shape, model):
    windows = make_windows(shape)
    logits = model(windows[:, :-1])
    reference = F.cross_entropy(logits.transpose(1, 2), windows[:, 1:], reduction="none").mean(dim=1)
    losses = model.sequence_losses(windows)
    assert losses.shape == (3,)
    torch.testing.assert_close(losses, reference, rtol=1e-5, atol=1e-5)


def test_loss_gradients_match_those_of_torch_cross_entropy(shape, model):
    windows = make_windows(shape)
    model.sequence_losses(windows).mean().backward()
    ours = gradients(model)
    model.zero_grad()
    F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).backward()
    for name, reference in gradients(model).items():
        torch.testing.assert_close(ours[name], reference, rtol=1e-4, atol=1e-6, msg=name)


def test_untrained_model_guesses_evenly():
    loss = initialized().sequence_losses(make_windows(NANO, batch=16, length=9)).mean().item()
    assert loss == pytest.approx(math.log(256), abs=0.05)


def test_a_token_changes_its_own_logits_and_none_before_it(shape, model):
    tokens = make_windows(shape, length=24)
    changed = tokens.clone()
    changed[:, 15] = (changed[:, 15] + 1) % shape.vocabulary_size
    difference = (model(changed) - model(tokens)).abs().amax(dim=(0, 2))
    assert torch.equal(difference[:15], torch.zeros(15))
    assert difference[15] > 0


def test_positions_matter():
    model = make_model(NANO)
    same_tokens = torch.tensor([[5, 9, 9, 7], [9, 5, 9, 7]])
    first, second = model(same_tokens)[:, -1]
    assert not torch.allclose(first, second)


def test_windows_shorter_than_the_table_and_of_one_token_run():
    model = make_model(NANO)
    tokens = make_windows(NANO, length=24)
    torch.testing.assert_close(model(tokens[:, :1]), model(tokens)[:, :1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(tokens[:, :7]), model(tokens)[:, :7], rtol=1e-5, atol=1e-5)


def test_sequences_of_a_batch_do_not_see_each_other(shape, model):
    windows = make_windows(shape)
    together = model.sequence_losses(windows)
    alone = torch.cat([model.sequence_losses(window[None]) for window in windows])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_two_microbatches_give_the_gradient_of_the_batch(shape, model):
    windows = make_windows(shape, batch=6)
    model.sequence_losses(windows).mean().backward()
    whole = gradients(model)
    model.zero_grad()
    for half in windows.chunk(2):
        (model.sequence_losses(half).mean() / 2).backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name], rtol=1e-4, atol=1e-6, msg=name)


def test_bfloat16_autocast_stays_near_float32_and_returns_float32_losses_and_gradients():
    model, windows = initialized(), make_windows(NANO, length=9)
    reference = model.sequence_losses(windows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model.sequence_losses(windows)
    losses.mean().backward()
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, reference, rtol=0.01, atol=0)
    assert all(gradient.dtype == torch.float32 and gradient.abs().sum() > 0 for gradient in gradients(model).values())


def test_bfloat16_parameters_run_too():
    model = make_model(NANO).bfloat16()
    assert torch.isfinite(model.sequence_losses(make_windows(NANO))).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++, which is not installed")
# torch's own, at the first compilation of a process
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
def test_compiled_losses_and_gradients_equal_the_eager_ones():
    shape = ModelShape(width=32, num_layers=1, num_heads=2, ffn_width=40, vocabulary_size=50)
    model, windows = make_model(shape), make_windows(shape)
    eager = model.sequence_losses(windows)
    eager.mean().backward()
    reference = gradients(model)
    model.zero_grad()
    compiled = torch.compile(model.sequence_losses, dynamic=False)(windows)
    compiled.mean().backward()
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, reference[name], rtol=1e-5, atol=1e-5, msg=name)


def test_a_perturbation_moves_every_matrix_by_that_many_standard_deviations():
    plain, moved = initialized(), initialized(init=Init(perturbation=1e-3))
    for (name, a), b in zip(plain.named_parameters(), moved.parameters(), strict=True):
        if a.ndim < 2:
            assert torch.equal(a, b)
            continue
        weights, moves = a.detach().flatten(), (b - a).detach().flatten()
        assert float(moves.std() / weights.std()) == pytest.approx(1e-3, rel=0.2), name
        assert abs(float(torch.corrcoef(torch.stack((weights, moves)))[0, 1])) < 0.3, "a multiple of the weights"
