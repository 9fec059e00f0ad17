"""The start of local steps: the ranks agree, and continue from states or begin with rank 0's model."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from struct import Struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dagc.ddp.rank import Rank, log, make_plan
from dagc.ddp.rank_model import RankModel, tensor_checksum
from dagc.ddp.resume import Choice, State, candidates, check_content, reading, send_model_to_newcomers
from dagc.errors import DagcError, InvalidInput
from dagc.policies import Plan
from dagc.policies.plan import level_bytes, local_steps_bytes
from dagc.protocol.outlook import check_rounds
from dagc.settings import Setting
from dagc.state import plain

HEAD = Struct("<Idd")  # before every frame: the shared model's checksum, seconds since the start and per local step
NUMBERS = {
    "steps": Setting("integer", "", least=1),
    "seconds": Setting("number", "", above=0),
    "outer_rate": Setting("number", "", above=0),
    "momentum": Setting("number", "", least=0, below=1),
    "timeout": Setting("number", "", above=0, below=1e9, note="a number of seconds above 0"),
}
MOMENTUM = 0.5  # gradients of a rank are noisier than their mean, and AdamW goes less far with them


class Start(Rank):
    """A rank that has agreed with the others, and has the model and the state that it begins with.

    `same` holds those arguments of `LocalSteps` that must be the same on all ranks, the others are by name.
    """

    what, head = "exchange", HEAD.size

    def __init__(
        self,
        model: nn.Module,
        local: Sequence[str],
        examples: int,
        plan: Plan | None,
        settings: Mapping[str, Any],
        rounds: int | None,
        same: Mapping[str, Any],
        timeout: float | None,
        resume: Sequence[State],
    ) -> None:
        if not dist.is_initialized():
            raise InvalidInput("there are no ranks yet: call torch.distributed.init_process_group first")
        super().__init__(_group(timeout), torch.device("cpu"))
        self.resumed = self.downloaded = False
        self.missing: Sequence[int] = ()
        self._next, self._seconds = same["steps"], 0.0  # the latter is rank 0's time at the last exchange
        self._begun: Tensor | None = None  # where the state's local steps began

        def prepare() -> dict[str, Any]:
            for name, value in {**same, "timeout": timeout}.items():
                if name in NUMBERS and (value is not None or name in ("steps", "outer_rate")):
                    NUMBERS[name].number(name, value)
            checked = make_plan(plan, settings, self._exchange.world, local_steps=True)
            rank_model = self._model = RankModel(model, local)
            size = len(rank_model.shared)
            if checked.method_spec.encodes and not checked.budgets_set:
                checked = checked.replaced(bytes=local_steps_bytes(size))
            self._prepare(checked, rank_model.shapes, rounds, rank_model.device)
            momentum: float | None = same["momentum"]
            self.momentum = usual_momentum(self.server.plan, size) if momentum is None else momentum
            dtypes = [str(parameter.dtype) for parameter in rank_model.parameters]
            return {**self._about, **same, "momentum": self.momentum, "dtypes": dtypes}

        try:
            self._agree(examples, prepare)
            self._starts = [self._number, 0, self._number]  # of the training, its restarts, and this start
            if self.momentum:
                self._model.velocity = torch.zeros_like(self.shared)
            choices = candidates(self._talk, resume, self.examples, self._about, same["allow_missing"])
            if choices:
                self._continue(choices)
            else:
                if rounds is not None:
                    held = {str(rank): float(count) for rank, count in enumerate(self.examples)}
                    check_rounds(self.server.plan, len(self.shared), held, rounds, len(held))
                # Whoever has another model than rank 0 downloads it.
                sums = self._talk.share(lambda: tensor_checksum(self.shared))
                holders = [rank for rank, each in enumerate(sums) if each == sums[0]]
                send_model_to_newcomers(self._talk, self._model.vectors, holders)
                self.downloaded = self._talk.rank not in holders
            self._checksum = self._same(self._talk.share(lambda: tensor_checksum(self.shared)))
        except DagcError:
            dist.destroy_process_group(self._exchange.group)
            raise
        for rank, count in enumerate(self.examples):
            if count or str(rank) in self.server.members:
                self.server.join(str(rank), count)

    @property
    def shared(self) -> Tensor:
        """The shared model as a float32 vector, the same bits on all ranks."""
        return self._model.shared

    def _continue(self, choices: Sequence[Choice]) -> None:
        failures = []
        for choice in choices:
            before = self.snapshot()
            try:
                self._load(choice)
            except InvalidInput as error:  # on all ranks
                self.rollback(before)
                log.warning("round %d cannot be continued: %s", choice.key.round, error)
                failures.append(error)
            else:
                self.resumed = True
                return
        raise failures[0]

    def _load(self, choice: Choice) -> None:
        """Load both halves, the shared model, and the residuals that this rank carries."""
        rank, world, (key, states, holders, carriers) = self._talk.rank, self._talk.world, choice
        able = sorted({each for ranks in holders.values() for each in ranks})
        state = next(iter(states.values()), None)
        same_world = key.world == world
        own_state = states.get(rank) if same_world else None
        carried = [states[old] for old, carrier in sorted(carriers.items()) if carrier == rank]

        def offer() -> list[Any] | None:
            with reading():
                for each in carried if state is None else (state, *carried):
                    check_content(each, len(self.shared))
                if rank != able[0] or state is None:
                    return None
                # If ranks have come or gone, what coders remember is forgotten: that costs some bytes once.
                server = state["server"]
                memories: Any = None if server["receiver"]["memories"] is None else {}
                server = {**server, "receiver": {**server["receiver"], "memories": memories}}
                return [server, *(state[name] for name in ("due", "seconds", "examples"))]

        server, due, seconds, examples = self._talk.share(offer)[able[0]]

        def load() -> None:
            with reading():
                if own_state is not None:
                    if all(each in holders.get(each, ()) for each in range(world)):
                        server["receiver"]["memories"] = plain(own_state["server"]["receiver"]["memories"])
                    self.uplink.load_state_dict(plain(own_state["uplink"]))
                self.server.load_state_dict(server)

        self._talk.share(load)
        self._next, self._seconds = due, seconds
        self._starts[:2] = [key.training, key.generation + 1]
        self.missing, self.downloaded = choice.missing, state is None
        rank_model = self._model
        if state is not None:
            rank_model.shared.copy_(state["shared"])
            if rank_model.velocity is not None and state["velocity"] is not None:
                rank_model.velocity.copy_(state["velocity"])
        send_model_to_newcomers(self._talk, rank_model.vectors, able)
        if own_state is not None and own_state["begun"] is not None:
            self._begun = own_state["begun"].to(rank_model.device, copy=True)
        alone = len(carried) == 1 and carried[0] is own_state
        if not alone or examples != self.examples:
            self.uplink.feedback.residual = self._carried(carried)

    def _carried(self, states: Sequence[State]) -> Tensor:
        """What these ranks had not sent, in the units of this one: its part of all data makes it weigh as much."""
        total = torch.zeros_like(self.shared)
        for state in states:
            then = state["examples"][state["rank"]] / sum(state["examples"])
            now = self.examples[self._talk.rank] / sum(self.examples)
            total.add_(state["uplink"]["residual"].to(total.device), alpha=then / now)
        return total

    def _same(self, sums: Sequence[int]) -> int:
        other = next((rank for rank, each in enumerate(sums) if each != sums[0]), None)
        if other is not None:
            raise DagcError(
                f"ranks 0 and {other} have different shared models after {self.server.round} exchanges: start all "
                "ranks again from their checkpoints of one exchange; if it happens again, their processors or versions "
                "of torch differ"
            )
        return sums[0]


def usual_momentum(plan: Plan, size: int) -> float:
    """The momentum of the shared model, if none is given: only where messages carry most of what ranks have moved."""
    carried = plan.for_size(size).bytes if plan.method_spec.encodes else None
    return MOMENTUM if plan.method == "none" or (carried is not None and carried >= level_bytes(size)) else 0.0


def _group(timeout: Any) -> dist.ProcessGroup:
    """A group of all ranks for payloads alone: it cannot interleave with the script's collectives."""
    is_valid = isinstance(timeout, int | float) and 0 < timeout < 1e9  # if not, all ranks report it in a moment
    try:
        group = dist.new_group(timeout=timedelta(seconds=timeout) if is_valid else None, backend="gloo")
    except RuntimeError as error:
        raise DagcError(f"the ranks cannot reach each other: {str(error).splitlines()[0]}") from error
    assert isinstance(group, dist.ProcessGroup), "this rank is in no group"
    return group
