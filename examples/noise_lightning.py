"""The same in Lightning."""

import lightning.pytorch as lightning
import torch
from tiny_model import MICRO_BATCH_SIZE, TinyModel, make_optimizer, sequences

from isotune.integrations.lightning import NoiseCallback


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = TinyModel()

    def training_step(self, batch, index):
        return self.model(batch)["loss"]

    def configure_optimizers(self):
        return make_optimizer(self)


def main():
    callback = NoiseCallback(every_steps=5)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(sequences(), batch_size=MICRO_BATCH_SIZE))
    for step, reading in callback.readings:
        print(f"step {step}: noise_trace {reading.columns['noise_trace']:.4f}")
    return [reading.columns for _, reading in callback.readings]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
