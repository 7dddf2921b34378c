"""The same in Hugging Face's Trainer."""

import tempfile

import torch
from tiny_model import MICRO_BATCH_SIZE, TinyModel, make_optimizer, sequences
from transformers import Trainer, TrainingArguments

from isotune.integrations.transformers import NoiseCallback


class InOrder(Trainer):
    """Reads the data in order, so that the numbers can be compared with the other examples'."""

    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def main():
    callback = NoiseCallback(every_steps=5, clip_norm=1.0)
    data = [{"input_ids": row, "labels": row} for row in sequences()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=MICRO_BATCH_SIZE,
            gradient_accumulation_steps=2,
            max_grad_norm=0,  # the callback clips, after measuring
            num_train_epochs=1,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            logging_steps=5,
            use_cpu=True,
            disable_tqdm=True,
        )
        model = TinyModel()
        trainer = InOrder(
            model=model,
            args=arguments,
            train_dataset=data,
            optimizers=(make_optimizer(model), None),
            callbacks=[callback],
        )
        trainer.train()
    for step, reading, clip_factor in callback.readings:
        print(f"step {step}: noise_trace {reading.columns['noise_trace']:.4f}, clip factor {clip_factor:.3f}")
    return [reading.columns for _, reading, _ in callback.readings]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
