"""An Optuna study whose LR and WD come from isotune, and whose other parameters from Optuna's own sampler."""

import optuna
from tiny_training import TOKENS, TOKENS_PER_STEP, train

from isotune.integrations.optuna_sampler import IsotuneSampler

NUM_TRIALS = 10


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("learning_rate", 2**-11, 2**-2, log=True)
    wd = trial.suggest_float("weight_decay", 2**-7, 1.0, log=True)
    # Anything else goes to the inner sampler, TPE unless told otherwise.
    length = trial.suggest_categorical("length", ["short", "long"])
    return train(lr, wd) + (0.05 if length == "short" else 0.0)


def main() -> dict[str, float]:
    sampler = IsotuneSampler(
        weight_decay_convention="coupled", tokens=TOKENS, tokens_per_step=TOKENS_PER_STEP, octaves=1.0, seed=0
    )
    study = optuna.create_study(sampler=sampler)  # a storage makes it resumable, as ever
    study.optimize(objective, n_trials=NUM_TRIALS)
    print(f"loss {study.best_value:.4f} with {study.best_params}")
    return {"num_trials": len(study.trials), "first": study.trials[0].value, "best": study.best_value}


if __name__ == "__main__":
    main()
