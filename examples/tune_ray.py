"""A Ray Tune experiment whose LR and WD come from isotune: `python tune_ray.py FOLDER`.

Kill it and start it again: it is restored, and asks no configuration twice.
"""

import sys
import tempfile
from pathlib import Path

import ray
from ray import tune
from tiny_training import TOKENS, TOKENS_PER_STEP, train

from isotune.integrations.ray_searcher import IsotuneSearch

NUM_TRIALS = 4
SPACE = {"learning_rate": tune.loguniform(2**-11, 2**-2), "weight_decay": tune.loguniform(2**-7, 1.0)}


def trainable(config: dict[str, float]) -> None:
    tune.report({"loss": train(config["learning_rate"], config["weight_decay"])})


def make_tuner(folder: Path) -> tune.Tuner:
    """The experiment that lies there, or a new one."""
    if tune.Tuner.can_restore(str(folder / "tiny")):
        return tune.Tuner.restore(
            str(folder / "tiny"), trainable=trainable, param_space=SPACE, resume_unfinished=True, resume_errored=True
        )
    searcher = IsotuneSearch(weight_decay_convention="coupled", tokens=TOKENS, tokens_per_step=TOKENS_PER_STEP)
    return tune.Tuner(
        trainable,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            search_alg=tune.search.ConcurrencyLimiter(searcher, max_concurrent=1),
            metric="loss",
            mode="min",
            num_samples=NUM_TRIALS,
        ),
        run_config=tune.RunConfig(name="tiny", storage_path=str(folder), verbose=0),
    )


def main(folder: Path | None = None) -> dict[str, object]:
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    with tempfile.TemporaryDirectory() as temporary:
        results = make_tuner(Path(folder or temporary).absolute()).fit()
    best = results.get_best_result()
    print(f"loss {best.metrics['loss']:.4f} with {best.config}")
    tried = sorted((one.config["learning_rate"], one.config["weight_decay"]) for one in results)
    return {"best": best.metrics["loss"], "tried": tried}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
