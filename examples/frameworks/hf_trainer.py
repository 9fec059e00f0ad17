"""Hugging Face Trainer, with dagc as a callback: in every step, or after many.

    torchrun --nproc-per-node 2 examples/frameworks/hf_trainer.py                        # every step: DDP's hook
    torchrun --nproc-per-node 2 examples/frameworks/hf_trainer.py --local-steps 10       # train alone, then exchange
    torchrun --nproc-per-node 2 examples/frameworks/hf_trainer.py --resume               # from the last checkpoint

The two callbacks are all that is needed: copy the one that you want.
"""

import argparse
from pathlib import Path

import torch
from tiny import build, report, sequences
from transformers import Trainer, TrainerCallback, TrainingArguments

import dagc.ddp


class EveryStep(TrainerCallback):
    """DDP sends compressed gradients. Trainer shares one dataset equally, so all ranks weigh the same."""

    def __init__(self, trainer, examples=1, **settings):
        self.trainer, self.examples, self.settings = trainer, examples, settings
        self.sent = 0

    def on_train_begin(self, args, state, control, **kwargs):
        model, scaler = self.trainer.model_wrapped, self.trainer.accelerator.scaler
        self.hook = dagc.ddp.register(model, examples=self.examples, scaler=scaler, **self.settings)
        saved = place(args, state)
        if saved.exists():
            self.hook.load_state_dict(torch.load(saved, weights_only=True))

    def on_step_end(self, args, state, control, **kwargs):
        self.sent += self.hook.last.sent

    def on_save(self, args, state, control, **kwargs):
        torch.save(self.hook.state_dict(), place(args, state))


class AfterManySteps(TrainerCallback):
    """Every rank trains on its own. All exchange after some steps, and before an evaluation or a checkpoint."""

    def __init__(self, trainer, examples=1, **settings):
        self.trainer, self.examples, self.settings = trainer, examples, settings
        self.sent = 0

    def on_train_begin(self, args, state, control, model, optimizer, **kwargs):
        self.alone = self.trainer.model_wrapped.no_sync()
        self.alone.__enter__()  # DDP exchanges nothing any more
        mine = place(args, state)
        states = {path: torch.load(path, weights_only=True) for path in mine.parent.glob("dagc_*.pt")}
        if mine in states:
            optimizer.load_state_dict(states[mine]["optimizer"])  # Trainer itself has kept that of rank 0
        resume = [each["dagc"] for each in states.values()]
        self.local = dagc.ddp.LocalSteps(model, examples=self.examples, resume=resume, **self.settings)

    def on_step_end(self, args, state, control, **kwargs):
        self.count(self.local.step())
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        if control.should_evaluate or control.should_save or control.should_training_stop:
            before = self.local.round
            after = self.local.finish()
            self.count(after if self.local.round > before else None)

    def on_save(self, args, state, control, optimizer, **kwargs):
        torch.save({"optimizer": optimizer.state_dict(), "dagc": self.local.state_dict()}, place(args, state))

    def on_train_end(self, args, state, control, **kwargs):
        self.local.close()
        self.alone.__exit__(None, None, None)

    def count(self, exchanged):
        self.sent += exchanged.sent if exchanged else 0


def place(args, state):
    """This rank's file in Trainer's checkpoint, beside its rng_state."""
    return Path(args.output_dir, f"checkpoint-{state.global_step}", f"dagc_{args.process_index}.pt")


def main() -> None:
    options = parse()
    arguments = TrainingArguments(
        output_dir=options.output,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        save_steps=options.save_steps,
        eval_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    held_out = sequences(64, seed=1)
    trainer = Trainer(model=build(), args=arguments, train_dataset=sequences(), eval_dataset=held_out)
    callback = AfterManySteps(trainer, steps=options.local_steps) if options.local_steps else EveryStep(trainer)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=options.resume)
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    report(type(callback).__name__, trainer.model, losses, callback.sent, trainer.state.global_step)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local-steps", type=int, help="steps between two exchanges; every step if not given")
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--save-steps", type=int, default=80)
    parser.add_argument("--output", default="runs/hf_trainer")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
