"""Runs in every kind of source that a page can make by itself."""

import json
from pathlib import Path

import optuna
from docs_data import (
    STEPS,
    cells,
    loss_at,
    write_curves,
    write_runs_csv,
    write_runs_parquet,
    write_settings_csv,
    write_tensorboard,
)

write_runs_csv("runs.csv")
write_runs_parquet("runs.parquet")
write_curves("curves")
write_settings_csv("settings.csv")
write_tensorboard("logs")

history = [{"step": step, "loss": 3.0, "eval_loss": loss_at(2**-10, 0.1, step)} for step in STEPS]
Path("output").mkdir()
Path("output/trainer_state.json").write_text(json.dumps({"log_history": history, "global_step": STEPS[-1]}))

optuna.logging.set_verbosity(optuna.logging.ERROR)
trials = optuna.create_study(storage="sqlite:///optuna.db", study_name="my study")
for _, lr, wd in cells()[:2]:
    trials.add_trial(
        optuna.trial.create_trial(
            params={"lr": lr, "weight_decay": wd},
            distributions={name: optuna.distributions.FloatDistribution(1e-5, 1) for name in ("lr", "weight_decay")},
            value=loss_at(lr, wd, STEPS[-1]),
            intermediate_values={step: loss_at(lr, wd, step) for step in STEPS},
        )
    )
