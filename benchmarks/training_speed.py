"""How fast the trainer is: against transformers' Llama, against plain matrix products, against its own bare step.

    python benchmarks/training_speed.py [--quick]

One process, one thread, everything interleaved; all ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from harness import circumstances, interleaved, ratio, round_to, summary, table, write_results
from torch import Tensor, nn

from isotune.corpus import open_corpus
from isotune.model import Transformer, export_llama
from isotune.recipe import PRESETS, Init, ModelShape, Setup, Step, constant
from isotune.train import Execution, Trainer, World, train
from isotune.train.measurements import make_plan
from isotune.train.trainer import make_optimizer

LEARNING_RATE, WEIGHT_DECAY = 2.0**-10, 0.125
MATRIX_SIZES = (256, 512, 1024)  # the GEMM rate is the best of these

GOALS = {
    "nano": {"ours compiled / transformers compiled": 1.1, "ours compiled / transformers eager": 1.4},
    "micro": {"ours compiled / transformers compiled": 1.0},
}
LOOP_GOAL = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that it runs, measures little, writes nothing"
    )
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    beginning = circumstances()
    results: dict[str, Any] = {
        "nano": compare_models(
            "nano", batch_size=4, length=64, eager=True, num_rounds=10 if quick else 150, num_steps=8
        ),
        "micro": compare_models(
            "micro", batch_size=8, length=256, eager=False, num_rounds=2 if quick else 24, num_steps=1
        ),
        "whole_loop": compare_loop(num_rounds=3 if quick else 20),
    }
    show(results)
    if not quick:
        print(f"\nwritten to {write_results('training_speed', beginning, results)}")


# Ours against transformers


def compare_models(
    name: str, *, batch_size: int, length: int, eager: bool, num_rounds: int, num_steps: int
) -> dict[str, Any]:
    """Steps per second of both models, with the same weights, clipping and optimizer."""
    shape = PRESETS[name]
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(shape.vocabulary_size, (num_steps, batch_size, length + 1), generator=generator)
    modes = ("compiled", "eager") if eager else ("compiled",)
    steps = {
        f"{who} {mode}": training_step(make(shape, length), compiled=mode == "compiled")
        for mode in modes
        for who, make in (("ours", our_loss), ("transformers", transformers_loss))
    }
    # Tells how much of the difference is the loss and how much the rest of the model.
    steps["transformers, logsumexp loss, compiled"] = training_step(logsumexp_loss(shape, length), compiled=True)
    require_same_training(steps, windows[0])

    def stretch(step: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: [step(batch) for batch in windows]

    products = {f"product of {n} x {n}": matrix_product(n) for n in MATRIX_SIZES}
    seconds = interleaved({who: stretch(step) for who, step in steps.items()} | products, num_rounds)

    flops = shape.flops_per_token(length) * batch_size * length
    rates = {who: num_steps / seconds[who] for who in steps}
    gemm_flops = np.max([2 * n**3 / seconds[f"product of {n} x {n}"] for n in MATRIX_SIZES], axis=0)
    ratios = {}
    for other in steps:
        if other != "ours compiled":
            pair = f"ours compiled / {other}"
            ratios[pair] = ratio(rates["ours compiled"], rates[other], GOALS[name].get(pair))
    return {
        "batch": [batch_size, length],
        "steps_per_round": num_steps,
        "steps_per_second": {who: summary(rate) for who, rate in rates.items()},
        "ratios": ratios,
        "gflops_per_step": round_to(flops / 1e9),
        "gemm_gflops_per_second": summary(gemm_flops / 1e9),
        "share_of_gemm_rate": {who: ratio(flops * rate, gemm_flops) for who, rate in rates.items()},
    }


def our_loss(shape: ModelShape, length: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Transformer(shape, length)
    model.initialize(Init(), seed=0)
    return model, lambda windows: model.sequence_losses(windows).mean()


def transformers_loss(shape: ModelShape, length: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The same weights in transformers' model, with the loss that it computes itself."""
    model = transformers_model(shape, length)

    def loss(windows: Tensor) -> Tensor:
        targets = windows[:, 1:].contiguous()
        return model(input_ids=windows[:, :-1], labels=targets, shift_labels=targets, use_cache=False).loss

    return model, loss


def logsumexp_loss(shape: ModelShape, length: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The same with the loss taken from its logits, in a form that compiles better than its own."""
    model = transformers_model(shape, length)

    def loss(windows: Tensor) -> Tensor:
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits.float()
        targets = logits.gather(-1, windows[:, 1:, None]).squeeze(-1)
        return (logits.logsumexp(-1) - targets).mean(dim=1).mean()

    return model, loss


def transformers_model(shape: ModelShape, length: int) -> nn.Module:
    ours, _ = our_loss(shape, length)
    assert isinstance(ours, Transformer)
    with tempfile.TemporaryDirectory() as folder:
        export_llama(ours, Path(folder))
        return transformers.LlamaForCausalLM.from_pretrained(folder).train()


def training_step(
    model_and_loss: tuple[nn.Module, Callable[[Tensor], Tensor]], *, compiled: bool
) -> Callable[[Tensor], Tensor]:
    """Loss, gradient, clipping and AdamW, written as in the trainer."""
    model, loss_of = model_and_loss
    if compiled:
        loss_of = torch.compile(loss_of, dynamic=False)
    parameters = list(model.parameters())
    optimizer = make_optimizer(model, Setup(model=PRESETS["nano"]))  # takes AdamW's settings only
    for group in optimizer.param_groups:
        group["lr"], group["weight_decay"] = LEARNING_RATE, WEIGHT_DECAY if group["decays"] else 0.0

    def step(windows: Tensor) -> Tensor:
        loss = loss_of(windows)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def require_same_training(steps: dict[str, Callable[[Tensor], Tensor]], windows: Tensor) -> None:
    """Warms all up, and makes sure that they do the same thing."""
    losses = {who: [step(windows).item() for _ in range(4)] for who, step in steps.items()}
    reference = losses["ours compiled"]
    for who, values in losses.items():
        assert np.allclose(values, reference, rtol=1e-4), f"{who} trains differently: {values}, not {reference}"


def matrix_product(size: int) -> Callable[[], object]:
    first, second, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return lambda: torch.mm(first, second, out=out)


# The whole loop against the bare step


def compare_loop(num_rounds: int) -> dict[str, Any]:
    """What data, measurements, rows and states cost: `train` against `Trainer.step` on windows that lie ready.

    A round is one period of the default evaluation. `train` goes that far, then pauses (in its `should_stop`) while as
    many bare steps run. Its clock stands still in the pauses, so it saves as often as it would alone. Compilation and
    the first period are left out.
    """
    setup = Setup(model=PRESETS["nano"])
    rounds = LoopRounds(setup, batch_size=4)
    recipe = constant(
        setup,
        # One step more, because at the very end nobody asks whether to stop.
        tokens=rounds.period_tokens * (num_rounds + 1) + 4 * setup.sequence_length,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        batch_size=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(
            recipe,
            Path(folder) / "study",
            execution=Execution(compiled=True),
            observers=[rounds.observe],
            clock=rounds.clock,
            should_stop=rounds.pause_if_due,
        )
    loop, bare = np.array(rounds.loop_seconds), np.array(rounds.bare_seconds)
    return {
        "tokens_per_round": rounds.period_tokens,
        "loop_tokens_per_second": summary(rounds.period_tokens / loop),
        "bare_tokens_per_second": summary(rounds.period_tokens / bare),
        "loop / bare": ratio(bare, loop, LOOP_GOAL),
        "loop / bare, of total times": round_to(bare.sum() / loop.sum()),
    }


class LoopRounds:
    """Stands inside a running `train`: times its periods, and runs as many bare steps after each."""

    def __init__(self, setup: Setup, batch_size: int):
        corpus = open_corpus(setup.corpus)
        self.period_tokens = make_plan({}, corpus, setup.sequence_length).every_tokens
        self.loop_seconds: list[float] = []
        self.bare_seconds: list[float] = []
        self._tokens = self._period = 0
        self._resumed_at: float | None = None
        self._paused_seconds = 0.0
        self._trainer = Trainer(setup, Execution(compiled=True), World())
        self._trainer.start(seed=setup.seed)
        step_tokens = batch_size * setup.sequence_length
        num_sequences = self.period_tokens // setup.sequence_length
        windows = corpus.sequences(0, num_sequences, sequence_length=setup.sequence_length, seed=setup.seed)
        self._batches = windows.reshape(num_sequences // batch_size, batch_size, -1)
        self._step = Step(0, step_tokens, LEARNING_RATE, WEIGHT_DECAY, batch_size)
        for batch in self._batches[:3]:  # compiles
            self._trainer.step(batch, self._step)

    def clock(self) -> float:
        return time.perf_counter() - self._paused_seconds

    def observe(self, step: Step, row: dict[str, Any]) -> None:
        self._tokens = step.tokens

    def pause_if_due(self) -> bool:
        if self._tokens // self.period_tokens > self._period:
            self._period = self._tokens // self.period_tokens
            self._run_bare_period()
        return False

    def _run_bare_period(self) -> None:
        paused_at = time.perf_counter()
        for batch in self._batches:
            self._trainer.step(batch, self._step)
        resumed_at = time.perf_counter()
        if self._resumed_at is not None:
            self.loop_seconds.append(paused_at - self._resumed_at)
            self.bare_seconds.append(resumed_at - paused_at)
        self._resumed_at = resumed_at
        self._paused_seconds += resumed_at - paused_at


# Telling it


def show(results: dict[str, Any]) -> None:
    for name in ("nano", "micro"):
        result = results[name]
        batch, length = result["batch"]
        rates, ratios, shares = result["steps_per_second"], result["ratios"], result["share_of_gemm_rate"]
        rows: list[tuple[str, ...]] = []
        for who, rate in rates.items():
            against = ratios.get(f"ours compiled / {who}")
            rows.append(
                (
                    who,
                    f"{rate['median']:.4g}",
                    f"{rate['median'] * batch * length:.0f}",
                    f"{shares[who]['median']:.0%}",
                    told(against) if against else "",
                    wanted(against) if against else "",
                )
            )
        print(f"\n{name}, {batch} x {length}; products run at {result['gemm_gflops_per_second']['median']:.0f} GFLOP/s")
        print(table(("", "steps/s", "tokens/s", "of GEMM", "ours compiled is", "goal"), rows))
    loop = results["whole_loop"]
    print(f"\nwhole loop on nano, rounds of {loop['tokens_per_round']} tokens")
    rows = [
        ("bare steps", f"{loop['bare_tokens_per_second']['median']:.0f}", "", ""),
        (
            "whole loop",
            f"{loop['loop_tokens_per_second']['median']:.0f}",
            told(loop["loop / bare"]),
            wanted(loop["loop / bare"]),
        ),
    ]
    print(table(("", "tokens/s", "loop / bare", "goal"), rows))


def told(value: dict[str, Any]) -> str:
    low, high = value["quartiles"]
    return f"{value['median']:.3f} ({low:.3f} to {high:.3f})"


def wanted(value: dict[str, Any]) -> str:
    return f"{value['goal']} {'met' if value['met'] else 'MISSED'}" if "goal" in value else ""


if __name__ == "__main__":
    main()
