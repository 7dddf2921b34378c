"""A Ray Tune experiment in a process that may be killed: python ray_tuning.py FOLDER [restore]."""

import json
import math
import sys
import time
from pathlib import Path

import ray
from ray import tune

from isotune.integrations.ray_searcher import IsotuneSearch

NUM_TRIALS = 10
SPACE = {
    "learning_rate": tune.loguniform(2.0**-13, 2.0**-6),
    "weight_decay": tune.loguniform(2.0**-8, 1.0),
    "width": tune.choice([1, 2]),
}


def loss_of(configuration):
    lr, wd = configuration["learning_rate"], configuration["weight_decay"]
    return 2 * math.exp(0.01 * math.log2(lr * 2**9) ** 2 + 0.01 * math.log2(lr * wd * 2**14) ** 2)


def train(configuration):
    folder = Path(configuration["folder"])
    with open(folder / "tried.jsonl", "a") as file:
        file.write(json.dumps(configuration) + "\n")
    time.sleep(0.5)
    if configuration["learning_rate"] > 2.0**-7:
        raise RuntimeError("diverged")
    tune.report({"loss": loss_of(configuration)})


def main(folder, restore):
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    space = SPACE | {"folder": str(folder)}
    if restore:
        tuner = tune.Tuner.restore(
            str(folder / "experiment"), trainable=train, param_space=space, resume_unfinished=True
        )
    else:
        searcher = tune.search.ConcurrencyLimiter(IsotuneSearch(weight_decay_convention="coupled"), max_concurrent=1)
        tuner = tune.Tuner(
            train,
            param_space=space,
            tune_config=tune.TuneConfig(search_alg=searcher, metric="loss", mode="min", num_samples=NUM_TRIALS),
            run_config=tune.RunConfig(name="experiment", storage_path=str(folder), verbose=0),
        )
    results = tuner.fit()
    best = results.get_best_result()
    (folder / "best.json").write_text(json.dumps({"loss": best.metrics["loss"], "num_trials": len(results)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), len(sys.argv) > 2)
