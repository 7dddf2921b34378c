"""Hugging Face's `Trainer.hyperparameter_search` with isotune's sampler, on a Llama of a few thousand parameters."""

import tempfile

import optuna
from tiny_model import sequences
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from isotune.integrations.optuna_sampler import IsotuneSampler

NUM_TRIALS = 4
NUM_STEPS = 16
BATCH_SIZE = 4
TOKENS_PER_STEP = BATCH_SIZE * 12


def make_model(trial: optuna.Trial | None = None) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
        )
    )


def space(trial: optuna.Trial) -> dict[str, float]:
    """Names of TrainingArguments, which `Trainer` sets for every trial."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 2**-10, 2**-3, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 2**-6, 1.0, log=True),
    }


def main() -> dict[str, object]:
    rows = [{"input_ids": row, "labels": row} for row in sequences()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH_SIZE,
            max_steps=NUM_STEPS,
            lr_scheduler_type="linear",  # decays to zero, so that losses can be compared
            eval_strategy="steps",
            eval_steps=NUM_STEPS,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model_init=make_model, args=arguments, train_dataset=rows[32:], eval_dataset=rows[:32])
        sampler = IsotuneSampler(
            weight_decay_convention="coupled",
            tokens=NUM_STEPS * TOKENS_PER_STEP,
            tokens_per_step=TOKENS_PER_STEP,
            seed=0,
        )
        best = trainer.hyperparameter_search(
            backend="optuna",
            direction="minimize",
            hp_space=space,
            n_trials=NUM_TRIALS,
            compute_objective=lambda metrics: metrics["eval_loss"],
            sampler=sampler,
        )
    print(f"loss {best.objective:.4f} with {best.hyperparameters}")
    return {"loss": best.objective, "settings": best.hyperparameters}


if __name__ == "__main__":
    main()
