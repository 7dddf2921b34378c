"""The meter against theory, brute force and itself."""

import numpy as np
import pytest
import torch
from torch import nn

from isotune.errors import InputError
from isotune.measure import NoiseMeter, free_noise, hidden_matrices
from isotune.measure.meter import weighted_square_sums

P_COLUMNS = {
    0.0: ("noise_trace", "gradient_sq_norm"),
    0.5: ("precond_noise_trace", "precond_gradient_sq_norm"),
    1.0: ("precond_noise_trace_p1", "precond_gradient_sq_norm_p1"),
}


class Quadratic(nn.Module):
    """The loss of a "sequence" x is |w - x|^2 / 2, so its gradient is w - x: the covariance of x is the noise."""

    def __init__(self, dimension):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dimension))

    def forward(self, x):
        return 0.5 * (self.w - x).square().sum(dim=1).mean()


def adam_with_moments(model, moments, beta2=0.95):
    """An optimizer whose second moments, bias-corrected, are these."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, beta2), eps=1e-8, weight_decay=0.0)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(3.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": moments.clone().view_as(parameter) * (1 - beta2**3),
        }
    return optimizer


def readings(sizes, num_draws, dimension=6, seed=0):
    """Readings of a quadratic with known mean and covariance through the real hooks, and that mean and covariance."""
    rng = np.random.default_rng(seed)
    sigma = torch.tensor(rng.uniform(0.5, 2.0, dimension), dtype=torch.float32)
    mean = torch.tensor(rng.normal(size=dimension), dtype=torch.float32) * 0.5
    moments = torch.tensor(rng.uniform(0.1, 3.0, dimension), dtype=torch.float32)
    model = Quadratic(dimension)
    optimizer = adam_with_moments(model, moments)
    meter = NoiseMeter(model, optimizer)
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(num_draws):
        for size in sizes:
            x = mean + sigma * torch.randn(size, dimension, generator=generator)
            meter.microbatch(size)
            (model(x) * (size / sum(sizes))).backward()
        values.append(meter.measure().columns)
        optimizer.zero_grad(set_to_none=True)
    weights = {p: (moments.double().sqrt() + 1e-8) ** (-2 * p) for p in P_COLUMNS}
    return values, weights, mean.double(), sigma.double() ** 2


@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2, 2), (1, 3), (5, 1, 2)], ids=str)
def test_means_and_variances_match_theory_for_every_p(sizes):
    num_draws, total, num_samples = 2000, sum(sizes), len(sizes)
    values, weights, g, covariance = readings(sizes, num_draws)
    for p, (noise, gradient) in P_COLUMNS.items():
        a = weights[p]
        trace = float((a * covariance).sum())
        square = float((a * g**2).sum())
        # Gaussian: T is a sum of scaled chi-squares with K - 1 degrees of freedom, independent of the mean.
        var_noise = 2 * float(((a * covariance) ** 2).sum()) / (num_samples - 1)
        var_mean = (
            2 * float(((a * covariance) ** 2).sum()) / total**2 + 4 * float((a**2 * covariance * g**2).sum()) / total
        )
        for name, expected, variance in (
            (noise, trace, var_noise),
            (gradient, square, var_mean + var_noise / total**2),
        ):
            drawn = np.array([columns[name] for columns in values])
            assert abs(drawn.mean() - expected) < 4 * np.sqrt(variance / num_draws), (p, name)
            # The relative standard error of a variance is sqrt((kurtosis - 1) / draws); the kurtosis is below 12 here.
            assert abs(drawn.var() / variance - 1) < 4 * np.sqrt(11 / num_draws), (p, name)


class Network(nn.Module):
    """A small language model with tied embedding and head, so that one matrix takes gradients from two places."""

    def __init__(self, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)
        self.head = nn.Linear(8, 20, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.second(torch.tanh(self.first(self.embedding(tokens[:, :-1]))))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def make_network(tied=False, num_steps=3):
    torch.manual_seed(0)
    model = Network(tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for _ in range(num_steps):
        model(torch.randint(0, 20, (8, 6))).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, optimizer


def by_copies(model, optimizer, micro_batches, scope):
    """The definition, from explicit copies of every microbatch's gradient in float64."""
    named = dict(model.named_parameters())
    gradients = []
    for micro_batch in micro_batches:
        grads = torch.autograd.grad(model(micro_batch), list(named.values()))
        gradients.append({name: grad.double() for name, grad in zip(named, grads, strict=True)})
    sizes = [len(micro_batch) for micro_batch in micro_batches]
    total = sum(sizes)
    columns = {}
    for p, (noise_column, gradient_column) in P_COLUMNS.items():
        noise = square = 0.0
        for name in scope:
            state = optimizer.state[named[name]]
            v_hat = state["exp_avg_sq"].double() / (1 - 0.95 ** float(state["step"]))
            a = (v_hat.sqrt() + 1e-8) ** (-2 * p)
            mean = sum(size * grads[name] for size, grads in zip(sizes, gradients, strict=True)) / total
            spread = sum(
                size * float((a * (grads[name] - mean) ** 2).sum())
                for size, grads in zip(sizes, gradients, strict=True)
            )
            t = spread / (len(sizes) - 1)  # elementwise: the weighted sample variance
            noise += t
            square += float((a * mean**2).sum()) - t / total
        columns[noise_column], columns[gradient_column] = noise, square
    return columns


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sizes", [(3, 3), (2, 5, 1)], ids=str)
def test_hooks_equal_explicit_copies(tied, sizes):
    model, optimizer = make_network(tied)
    micro_batches = [torch.randint(0, 20, (size, 6)) for size in sizes]
    meter = NoiseMeter(model, optimizer)
    for micro_batch in micro_batches:
        meter.microbatch(len(micro_batch))
        (model(micro_batch) * (len(micro_batch) / sum(sizes))).backward()
    reading = meter.measure()
    meter.close()
    optimizer.zero_grad(set_to_none=True)
    for scope, suffix in (({"first.weight", "second.weight"}, ""), (dict(model.named_parameters()), "_all")):
        for name, expected in by_copies(model, optimizer, micro_batches, scope).items():
            assert reading.columns[name + suffix] == pytest.approx(expected, rel=1e-5, abs=1e-12), name
    assert (reading.num_samples, reading.batch_size) == (len(sizes), sum(sizes))


def test_a_probe_measures_the_same_and_changes_nothing():
    model, optimizer = make_network()
    micro_batches = [torch.randint(0, 20, (2, 6)) for _ in range(4)]
    meter = NoiseMeter(model, optimizer, every_steps=1000)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    random_state = torch.get_rng_state()
    reading = meter.probe(model, micro_batches)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert torch.equal(random_state, torch.get_rng_state())
    meter.close()
    for name, expected in by_copies(model, optimizer, micro_batches, {"first.weight", "second.weight"}).items():
        assert reading.columns[name] == pytest.approx(expected, rel=1e-5)


def test_a_loss_scale_cancels():
    columns = []
    for scale in (1.0, 1024.0):
        model, optimizer = make_network()
        meter = NoiseMeter(model, optimizer, micro_batch_size=2, grad_scale=lambda scale=scale: scale)
        torch.manual_seed(1)
        for _ in range(2):
            (model(torch.randint(0, 20, (2, 6))) / 2 * scale).backward()
        columns.append(meter.measure().columns)
    assert columns[0] == pytest.approx(columns[1], rel=1e-5)


def test_only_every_nth_step_is_measured_and_others_carry_no_hooks():
    model, optimizer = make_network()
    meter = NoiseMeter(model, optimizer, micro_batch_size=2, every_steps=3)
    measured = []
    for _ in range(7):
        measured.append(len(model.first.weight._backward_hooks or ()) > 0)
        for _ in range(2):
            (model(torch.randint(0, 20, (2, 6))) / 2).backward()
        assert (meter.measure() is not None) == measured[-1]
        optimizer.zero_grad(set_to_none=True)
    assert measured == [True, False, False, True, False, False, True]


def test_measuring_leaves_the_training_as_it_was():
    ends = []
    for measuring in (False, True):
        model, optimizer = make_network()
        meter = NoiseMeter(model, optimizer, micro_batch_size=2) if measuring else None
        torch.manual_seed(5)
        for _ in range(10):
            for _ in range(2):
                (model(torch.randint(0, 20, (2, 6))) / 2).backward()
            if meter:
                meter.measure()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_one_microbatch_is_refused():
    model, optimizer = make_network()
    meter = NoiseMeter(model, optimizer, micro_batch_size=4)
    model(torch.randint(0, 20, (4, 6))).backward()
    with pytest.raises(InputError, match="one microbatch"):
        meter.measure()


def test_a_meter_that_saw_no_gradient_refuses():
    model, optimizer = make_network()
    meter = NoiseMeter(model, optimizer, micro_batch_size=4)
    with pytest.raises(InputError, match="no gradient has passed"):
        meter.measure()


def test_sizes_must_be_known():
    model, optimizer = make_network()
    NoiseMeter(model, optimizer)
    with pytest.raises(InputError, match="micro_batch_size"):
        model(torch.randint(0, 20, (4, 6))).backward()


def test_a_probe_over_held_gradients_is_refused():
    model, optimizer = make_network()
    meter = NoiseMeter(model, optimizer, every_steps=10)
    for _ in range(2):
        meter.microbatch(4)
        model(torch.randint(0, 20, (4, 6))).backward()
    with pytest.raises(InputError, match="zero_grad"):
        meter.probe(model, [torch.randint(0, 20, (4, 6))] * 2)


def test_without_moments_only_raw_values_are_there():
    model, _ = make_network()
    meter = NoiseMeter(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batch_size=2)
    for _ in range(2):
        (model(torch.randint(0, 20, (2, 6))) / 2).backward()
    assert set(meter.measure().columns) == {
        "noise_trace",
        "gradient_sq_norm",
        "noise_trace_all",
        "gradient_sq_norm_all",
    }


def test_a_scope_of_ones_own_gets_its_own_columns():
    model, optimizer = make_network()
    scopes = {"bias": lambda name, parameter: name.endswith("bias")}
    meter = NoiseMeter(model, optimizer, micro_batch_size=2, scopes=scopes)
    micro_batches = [torch.randint(0, 20, (2, 6)) for _ in range(2)]
    for micro_batch in micro_batches:
        (model(micro_batch) / 2).backward()
    columns = meter.measure().columns
    meter.close()
    expected = by_copies(model, optimizer, micro_batches, {"first.bias", "second.bias"})
    assert columns["precond_noise_trace_bias"] == pytest.approx(expected["precond_noise_trace"], rel=1e-5)


def test_hidden_matrices_leave_out_embedding_and_head():
    assert hidden_matrices(Network()) == {"first.weight", "second.weight"}
    assert hidden_matrices(Network(tied=True)) == {"first.weight", "second.weight"}


def test_the_free_estimator_is_the_sum_of_roots_of_moments():
    model, optimizer = make_network()
    expected = sum(
        float((optimizer.state[p]["exp_avg_sq"].double() / (1 - 0.95**3)).sqrt().sum()) for p in model.parameters()
    )
    assert free_noise(optimizer) == pytest.approx(expected, rel=1e-6)
    assert free_noise(optimizer, [model.first.weight]) < expected
    with pytest.raises(InputError, match="second moments"):
        free_noise(torch.optim.SGD(model.parameters(), lr=0.1))


def signal_bias(use_moment_after_step, num_steps=1500, dimension=2000, beta2=0.95):
    """The mean of g2 in units of T / B where the expected gradient is zero, so that every deviation is a bias."""
    generator = torch.Generator().manual_seed(3)
    v = torch.ones(dimension)
    biases = {p: [] for p in P_COLUMNS}
    for step in range(num_steps):
        first, second = torch.randn(2, dimension, generator=generator) * 2**0.5  # microbatches of one; B = 2
        mean = (first + second) / 2
        after = beta2 * v + (1 - beta2) * mean.square()
        root = (after if use_moment_after_step else v).sqrt() + 1e-8
        v = after
        if step < 100:  # until v has forgotten its start
            continue
        sums = [weighted_square_sums(gradient, root) for gradient in (first, second, mean)]
        for index, p in enumerate(P_COLUMNS):
            noise = float(sums[0][index] + sums[1][index] - 2 * sums[2][index])
            biases[p].append((float(sums[2][index]) - noise / 2, noise / 2))
    return {p: np.mean([g2 for g2, _ in pairs]) / np.mean([t for _, t in pairs]) for p, pairs in biases.items()}


def test_the_moment_before_the_step_gives_no_bias():
    for p, bias in signal_bias(use_moment_after_step=False).items():
        assert abs(bias) < 0.005, p


def test_the_moment_after_the_step_would_bias_the_signal():
    bias = signal_bias(use_moment_after_step=True)
    assert abs(bias[0.0]) < 0.005
    assert bias[0.5] == pytest.approx(-0.046, abs=0.006)
    assert bias[1.0] == pytest.approx(-0.092, abs=0.010)
