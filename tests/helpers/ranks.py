"""Processes of a gloo group on this computer that run functions given to them, for tests of `dagc.ddp`."""

import multiprocessing
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = 600
"""Seconds after which a rank that does not answer fails the test."""


class Ranks:
    """A process group. `run(function, *args)` calls the function on every rank and returns the answers in rank order.

    Rank and world size come from `torch.distributed`. An exception comes back as itself; a rank that died as None.
    """

    def __init__(self, world, folder):
        context = multiprocessing.get_context("forkserver")
        # The slow imports once, not in every process.
        context.set_forkserver_preload(["dagc.ddp", "dagc.training", "sklearn.datasets", "torch._dynamo"])
        self.ends, self.processes = [], []
        for rank in range(world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, f"file://{folder}/store", there), daemon=True)
            process.start()
            there.close()
            self.ends.append(here)
            self.processes.append(process)

    def run(self, function, *args):
        for end in self.ends:
            end.send((function, args))
        return [self._answer(rank) for rank in range(len(self.ends))]

    def _answer(self, rank):
        assert self.ends[rank].poll(PATIENCE), f"rank {rank} has not answered for {PATIENCE} seconds"
        try:
            return self.ends[rank].recv()
        except EOFError:
            return None

    def kill(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _serve(rank, world, store, end):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=PATIENCE))
    while True:
        function, args = end.recv()
        try:
            answer = function(*args)
        except Exception as error:
            error.add_note(traceback.format_exc())
            answer = error
        end.send(answer)
