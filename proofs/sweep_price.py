"""What a sweep of shared trunks costs: at most 30 % of separate runs, and exactly what its plan says.

25 trunks with ten equally spaced budgets and decays of 5 %, of each budget or of the largest one. A sweep of that
shape, with a tiny model and few steps, is trained, and its tokens are counted. A plan of 1,000 recipes takes under a
second of a core, for an empty study and for one that has all of it.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proof import Proof
from sweep_kills import read_journals

from isotune.recipe import PRESETS, ModelShape, Recipe, Setup
from isotune.runs import Evaluation, Numerics, Study
from isotune.sweep.grids import Grid, recipes_of
from isotune.sweep.plan import Plan, make_plan
from isotune.sweep.run import local_workers, open_for_sweep, run_sweep
from isotune.train import Execution

NANO = Setup(model=PRESETS["nano"])
TINY = Setup(
    model=ModelShape(width=16, num_layers=1, num_heads=2, ffn_width=32, vocabulary_size=256), sequence_length=16
)
STEP = 4 * 16  # tokens of a tiny step
NO_MEASUREMENTS = Evaluation(every_tokens=0, noise_every_tokens=0)
HIGHEST_SHARE = 0.3
HIGHEST_SECONDS = 1.0
NUM_TIMES = 5


def main() -> None:
    proof = Proof("sweep_price")
    proof.case("price", price)
    proof.case("trained as planned", trained_as_planned)
    proof.case("plans of 1,000 recipes", planning)
    proof.finish()


def price() -> dict[str, Any]:
    """The shares that sharing leaves, by `make_plan`."""
    shares = {
        "decays of 5 % of each budget": make_plan(shape(NANO, 256_000, decay_fraction=0.05)).price.share,
        "decays of 5 % of the largest budget": make_plan(shape(NANO, 256_000, decay_tokens=128_000)).price.share,
    }
    return {
        "passed": max(shares.values()) <= HIGHEST_SHARE,
        "share_of_separate_tokens": {name: round(share, 4) for name, share in shares.items()},
    }


def trained_as_planned() -> dict[str, Any]:
    """Trains the shape with budgets of 20 to 200 steps and decays of 10; counts rows and what the driver counted."""
    recipes = shape(TINY, 20 * STEP, decay_tokens=10 * STEP)
    plans: list[Plan] = []
    with tempfile.TemporaryDirectory() as name:
        study = Path(name) / "study"
        result = run_sweep(
            recipes,
            study,
            evaluation=NO_MEASUREMENTS,
            make_executor=local_workers(2),
            on_plan=lambda _, plan: plans.append(plan),
        )
        rows = sum(path.read_bytes().count(b"\n") for path in study.glob("segments/*/curve.jsonl"))
        noted = sum(note["trained_tokens"] for note in read_journals(study))
        left = make_plan(recipes, Study.open(study)).price.to_train
    planned = plans[0].price.to_train
    counts = {"rows": rows * STEP, "driver": result.trained_tokens, "journal": noted}
    return {
        "passed": result.is_complete and left == 0 and set(counts.values()) == {planned},
        "recipes": len(recipes),
        "segments": len(plans[0].tasks),
        "planned_tokens": planned,
        "separate_tokens": plans[0].price.separately,
        "trained_tokens": counts,
        "tokens_left_to_train": left,
        "share_of_separate_tokens": round(plans[0].price.share, 4),
    }


def planning() -> dict[str, Any]:
    """Seconds of a plan, of the processor: others' work on the machine is none of the plan's."""
    recipes = shape(TINY, 20 * STEP, decay_tokens=10 * STEP, side=10)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "study"
        study = open_for_sweep(recipes, folder, Execution(), NO_MEASUREMENTS)
        seconds = {
            "without a study": fastest(lambda: make_plan(recipes)),
            "empty study": fastest(lambda: make_plan(recipes, Study.open(folder))),
        }
        fill(study, make_plan(recipes, study))
        seconds["full study"] = fastest(lambda: make_plan(recipes, Study.open(folder)))
        left = make_plan(recipes, Study.open(folder)).price.to_train
        num_segments = len(list(folder.glob("segments/*")))
    return {
        "passed": left == 0 and max(seconds.values()) < HIGHEST_SECONDS,
        "recipes": len(recipes),
        "segments": num_segments,
        "planning_seconds": seconds,
    }


def shape(setup: Setup, first_budget: int, side: int = 5, **decay: Any) -> list[Recipe]:
    """Trunks for `side` learning rates and as many weight decays, with ten equally spaced budgets each."""
    return recipes_of(
        setup,
        Grid(
            learning_rate=tuple(2.0 ** -(8 + n / 2) for n in range(side)),
            weight_decay=tuple(2.0 ** -(2 + n / 2) for n in range(side)),
            batch_size=(4,),
            budgets=tuple(first_budget * n for n in range(1, 11)),
            **decay,
        ),
    )


def fill(study: Study, plan: Plan) -> None:
    """Publishes every segment of a plan, with empty curves and states: planning reads neither."""
    numerics: Numerics = study.numerics
    (study.folder / "states").mkdir(exist_ok=True)
    for task in plan.missing:
        assert task.segment is not None
        attempt = study.new_attempt(task.segment, numerics)
        (attempt / "curve.jsonl").touch()
        study.describe(attempt, task.segment, numerics, "finished")
        study.publish(attempt, task.segment.id)
        study.state_path(task.segment.end_state).touch()


def fastest(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(NUM_TIMES):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return round(min(seconds), 3)


if __name__ == "__main__":
    main()
