"""A loop of Hugging Face accelerate, with dagc in every step or after many.

    torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py                      # every step: DDP's hook
    torchrun --nproc-per-node 2 examples/frameworks/accelerate_loop.py --local-steps 10     # in LocalSGD's place

Losses, bytes and checksums of the ranks' models are printed at the end.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tiny import build, report, sequences
from torch.utils.data import DataLoader

import dagc.ddp


def main() -> None:
    options = parse()
    accelerator = Accelerator(cpu=True)
    set_seed(accelerator.process_index)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(sequences(), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    train = in_local_steps if options.local_steps else in_every_step
    losses, sent = train(accelerator, model, optimizer, loader, options)
    report(train.__name__.replace("_", " "), model, losses, sent, len(losses))
    accelerator.end_training()


def in_every_step(accelerator, model, optimizer, loader, options):
    hook = dagc.ddp.register(model, examples=1, scaler=accelerator.scaler)
    losses, sent = [], 0
    for _ in range(options.epochs):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            sent += hook.last.sent
    return losses, sent


def in_local_steps(accelerator, model, optimizer, loader, options):
    losses, sent = [], 0
    local = dagc.ddp.LocalSteps(accelerator.unwrap_model(model), examples=1, steps=options.local_steps)
    with accelerator.no_sync(model), local:
        for _ in range(options.epochs):
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                exchanged = local.step()
                sent += exchanged.sent if exchanged else 0
    return losses, sent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local-steps", type=int, help="steps between two exchanges; every step if not given")
    parser.add_argument("--epochs", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
