"""PyTorch Lightning, with dagc as a callback: in every step, or after many.

    torchrun --nproc-per-node 2 examples/frameworks/lightning_trainer.py                     # every step: DDP's hook
    torchrun --nproc-per-node 2 examples/frameworks/lightning_trainer.py --local-steps 10    # train alone, exchange
    torchrun --nproc-per-node 2 examples/frameworks/lightning_trainer.py --resume            # from the last checkpoint

The two callbacks are all that is needed: copy the one that you want.
"""

import argparse
import os
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny import build, report, sequences
from torch.utils.data import DataLoader

import dagc.ddp


class EveryStep(L.Callback):
    """DDP sends compressed gradients. Lightning shares one dataset equally, so all ranks weigh the same."""

    def __init__(self, examples=1, **settings):
        self.examples, self.settings = examples, settings
        self.sent = 0

    def on_train_start(self, trainer, module):
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.hook = dagc.ddp.register(trainer.model, examples=self.examples, scaler=scaler, **self.settings)
        saved = place(trainer)
        if saved.exists():
            self.hook.load_state_dict(torch.load(saved, weights_only=True))

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.sent += self.hook.last.sent

    def on_save_checkpoint(self, trainer, module, checkpoint):
        save(self.hook.state_dict(), trainer)


class AfterManySteps(L.Callback):
    """Every rank trains on its own. All exchange after some steps, and before a validation or a checkpoint."""

    def __init__(self, examples=1, **settings):
        self.examples, self.settings = examples, settings
        self.sent = 0

    def on_train_start(self, trainer, module):
        self.alone = trainer.model.no_sync()
        self.alone.__enter__()  # DDP exchanges nothing any more
        mine = place(trainer)
        states = {path: torch.load(path, weights_only=True) for path in mine.parent.glob("*.pt")}
        if mine in states:  # Lightning itself has kept those of rank 0
            for optimizer, kept in zip(trainer.optimizers, states[mine]["optimizers"], strict=True):
                optimizer.load_state_dict(kept)
        resume = [each["dagc"] for each in states.values()]
        self.local = dagc.ddp.LocalSteps(module, examples=self.examples, resume=resume, **self.settings)
        self.steps = trainer.global_step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step > self.steps:  # not between two steps of an accumulated gradient
            self.steps = trainer.global_step
            self.count(self.local.step())

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.meet()

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.meet()  # moves the parameters in place: the checkpoint has the shared model
        optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
        save({"optimizers": optimizers, "dagc": self.local.state_dict()}, trainer)

    def on_train_end(self, trainer, module):
        self.meet()
        self.local.close()
        self.alone.__exit__(None, None, None)

    def meet(self):
        before = self.local.round
        last = self.local.finish()
        self.count(last if self.local.round > before else None)

    def count(self, exchanged):
        self.sent += exchanged.sent if exchanged else 0


def place(trainer):
    """This rank's file: Lightning's own checkpoint is written by rank 0 alone."""
    return Path(trainer.default_root_dir, f"dagc-{trainer.global_step}", f"{trainer.global_rank}.pt")


def save(state, trainer):
    place(trainer).parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, place(trainer))


class Language(L.LightningModule):
    """A language model."""

    def __init__(self):
        super().__init__()
        self.network, self.losses = build(), []

    def training_step(self, batch, number):
        return self.network(**batch).loss

    def validation_step(self, batch, number):
        self.log("loss", self.network(**batch).loss, sync_dist=True)

    def on_validation_epoch_end(self):
        self.losses.append(float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    options = parse()
    module = Language()
    callback = AfterManySteps(steps=options.local_steps) if options.local_steps else EveryStep()
    keeper = ModelCheckpoint(dirpath=options.output, save_last=True, every_n_train_steps=options.save_steps)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=options.epochs,
        default_root_dir=options.output,
        callbacks=[callback, keeper],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    train = DataLoader(sequences(), batch_size=16, shuffle=True)
    held_out = DataLoader(sequences(64, seed=1), batch_size=16)
    trainer.fit(module, train, held_out, ckpt_path="last" if options.resume else None)
    report(type(callback).__name__, module, module.losses, callback.sent, trainer.global_step)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local-steps", type=int, help="steps between two exchanges; every step if not given")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-steps", type=int, default=80)
    parser.add_argument("--output", default="runs/lightning_trainer")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
