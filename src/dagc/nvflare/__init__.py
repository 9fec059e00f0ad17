"""NVIDIA FLARE: a pair of filters, so that a job sends a few entries of its models instead of all.

On the server, `DataAware` is a filter of the data and of the results of the training task; on the clients, `Compress`
is. Whatever trains and whatever aggregates sees whole arrays and knows nothing of this:

    recipe.add_server_output_filter(DataAware({"ratio": 0.01}), tasks=["train"])
    recipe.add_server_input_filter(DataAware({"ratio": 0.01}), tasks=["train"])
    recipe.add_client_input_filter(Compress(), tasks=["train"])
    recipe.add_client_output_filter(Compress(), tasks=["train"])

Results are weight differences, whatever the clients return, so that entries which nobody sent stay as they are. The
state is in the processes of the job: a client that is started again has lost what it had not sent, and gets the whole
model. In the first round all clients count alike, from then on by the steps or examples that they report.
"""

import time
from collections.abc import Mapping
from copy import copy
from fnmatch import fnmatch
from logging import getLogger
from math import prod
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload
from dagc.protocol import Client, Download, Order, Plan, Server, Upload
from dagc.protocol.messages import BUFFERS
from dagc.sparse import MAX_SIZE

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.filter import Filter
    from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise ImportError(
        "dagc.nvflare needs NVIDIA FLARE: pip install 'dagc-fl[nvflare]', or '.[nvflare]' in a copy of it"
    ) from error

__all__ = ["Compress", "DataAware"]

OURS = "dagc"
"""The name of the frame among the arrays, of our fields in their meta, and of what a process keeps."""
Arrays = dict[str, NDArray[Any]]
Layout = list[tuple[str, tuple[int, ...]]]
"""The arrays that are compressed."""
log = getLogger("dagc.nvflare")
_creating = RLock()


class _Both(Filter):  # type: ignore[misc]
    """What both sides share: data and results go through one filter each, and find each other by the job."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """NVFlare's entry, for both directions."""
        if shareable.get_return_code() != ReturnCode.OK:
            return self._failed(shareable, fl_ctx)
        out = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT
        changed = copy(shareable)  # all clients may be given one and the same
        dxo = (self._out if out else self._in)(from_shareable(shareable), shareable, fl_ctx)
        return dxo.update_shareable(changed)

    def _failed(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        return shareable

    def _in(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        raise NotImplementedError

    def _out(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        raise NotImplementedError


class _Rounds:
    """The server's half, and where it is in NVFlare's rounds."""

    def __init__(self, plan: Plan, arrays: Arrays, layout: Layout, rounds: int | None) -> None:
        self.layout, self.lock = layout, RLock()
        self.server = Server(plan, _vector(arrays, layout), rounds, [shape for _, shape in layout])
        self.number: Any = None
        self.began = time.monotonic()
        self.uploads: dict[str, Upload] = {}
        self.orders: dict[str, Order] = {}


class DataAware(_Both):
    """The server's filter, for task data and task results.

    Args:
        plan: What `dagc.Plan` takes, by the same names.
        whole: Patterns of names of arrays that are never compressed, beside batch norm's buffers and what is not
            float32.
    """

    def __init__(self, plan: Mapping[str, Any] | None = None, whole: list[str] | None = None) -> None:
        """Check the plan; the job's own file holds both arguments."""
        super().__init__()
        self.plan, self.whole = dict(plan or {}), list(whole or [])
        self._plan = Plan(**self.plan)
        if self._plan.first_model == "drawn":
            raise InvalidInput("first_model is 'drawn': clients of NVFlare get the first model from the server")

    def _out(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """The model, as this client needs it, and what it may send."""
        arrays = {name: np.asarray(value) for name, value in dxo.data.items()}
        if dxo.data_kind != DataKind.WEIGHTS:
            raise InvalidInput(f"the task's data are {dxo.data_kind}: dagc needs whole models, {DataKind.WEIGHTS}")
        with _creating:
            run = fl_ctx.get_prop(OURS)
            if run is None:
                layout = _layout(arrays, (*BUFFERS, *self.whole))
                run = _Rounds(self._plan, arrays, layout, shareable.get_header(AppConstants.NUM_ROUNDS))
                fl_ctx.set_prop(OURS, run, private=True, sticky=True)
        with run.lock:
            self._begin(run, shareable.get_header(AppConstants.CURRENT_ROUND), arrays, fl_ctx)
            name = _peer(fl_ctx)
            if name not in run.orders:
                raise InvalidInput(f"{name} has come after round {run.number} began: it takes part in the next one")
            download = run.server.download(name)
            log.info("round %s: %d bytes to %s", run.number, len(download.frame), name)
            fields = {"order": list(run.orders[name]), "download": list(download[:-1])}
            if download.since < 0:
                fields["layout"] = [[name, list(shape)] for name, shape in run.layout]
        rest = {name: array for name, array in arrays.items() if name not in dict(run.layout)}
        return DXO(DataKind.WEIGHTS, {**rest, OURS: download.frame}, {**dxo.meta, OURS: fields})

    def _begin(self, run: _Rounds, number: Any, arrays: Arrays, fl_ctx: FLContext) -> None:
        """With the first task of a round, the one before is over: this is the model that came of it."""
        if run.number == number:
            return
        if run.number is not None:
            run.server.close(list(run.uploads.values()), _vector(arrays, run.layout))
        names = [client.name for client in fl_ctx.get_engine().get_clients()]
        for name in names:
            if name not in run.server.members:
                run.server.join(name, 1)
        run.orders = run.server.orders(names, time.monotonic() - run.began)
        run.uploads, run.number = {}, number

    def _in(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """A client's upload, as the difference that an aggregator expects."""
        run, name = fl_ctx.get_prop(OURS), _peer(fl_ctx)
        fields = dxo.meta.get(OURS)
        if run is None or not isinstance(fields, dict) or not isinstance(dxo.data.get(OURS), bytes):
            raise MalformedPayload(f"{name} did not send a frame: it needs the filter dagc.nvflare.Compress")
        with run.lock:
            upload = run.server.read(name, dxo.data[OURS], fields.get("norm"))
            run.uploads[name] = upload
            log.info("round %s: %d bytes, %d entries of %s", run.number, len(upload.frame), len(upload.sparse), name)
            steps = dxo.meta.get(MetaKey.NUM_STEPS_CURRENT_ROUND)
            if steps is not None:
                run.server.join(name, steps)
        data = {name: value for name, value in dxo.data.items() if name != OURS}
        data |= _arrays(-upload.sparse.dense(), run.layout)
        return DXO(DataKind.WEIGHT_DIFF, data, {key: value for key, value in dxo.meta.items() if key != OURS})

    def _failed(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """A client that failed may have another model than we think: it gets the whole one."""
        run, name = fl_ctx.get_prop(OURS), _peer(fl_ctx)
        if run is not None and name in run.server.members:
            run.server.out_of_sync(name)
        return shareable


class _Kept:
    """The client's half, and what the app was given."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.client = Client([shape for _, shape in layout])
        self.start = torch.empty(0)
        self.rest: Arrays = {}
        self.order = Order(0, 0, "top-k")


class Compress(_Both):
    """The clients' filter, for task data and task results."""

    def _in(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """The whole model, for the app."""
        fields, frame, kept = dxo.meta.get(OURS), dxo.data.get(OURS), fl_ctx.get_prop(OURS)
        if not isinstance(fields, dict) or not isinstance(frame, bytes):
            raise MalformedPayload("the server did not send a frame: it needs the filter dagc.nvflare.DataAware")
        try:
            order = Order(*fields["order"]).checked()
            since, version, checksum, steps = map(int, fields["download"])
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedPayload(f"the server's order cannot be read: {error!r:.200}") from error
        if "layout" in fields:
            layout = _read_layout(fields["layout"], len(frame))
            kept = kept if kept is not None and kept.layout == layout else _Kept(layout)
            fl_ctx.set_prop(OURS, kept, private=True, sticky=True)
        if kept is None:
            raise MalformedPayload("this client has nothing of this job, and gets the whole model with the next task")
        kept.client.settle(order.taken)
        model = kept.client.receive(Download(since, version, checksum, steps, frame))
        kept.order, kept.start = order, kept.client.start(model, order)
        kept.rest = {name: np.asarray(value) for name, value in dxo.data.items() if name != OURS}
        meta = {key: value for key, value in dxo.meta.items() if key != OURS}
        return DXO(DataKind.WEIGHTS, {**kept.rest, **_arrays(kept.start, kept.layout)}, meta)

    def _out(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """What to send of what the app has learnt."""
        kept = fl_ctx.get_prop(OURS)
        if kept is None or dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
            raise InvalidInput(f"the app returned {dxo.data_kind}: dagc needs {DataKind.WEIGHTS} or a difference")
        given = {name: np.asarray(value) for name, value in dxo.data.items()}
        vector, rest = _vector(given, kept.layout), {name: given[name] for name in kept.rest if name in given}
        if dxo.data_kind == DataKind.WEIGHTS:
            vector, rest = vector - kept.start, {name: array - kept.rest[name] for name, array in rest.items()}
        upload = kept.client.upload(-vector, kept.order)
        return DXO(dxo.data_kind, {**rest, OURS: upload.frame}, {**dxo.meta, OURS: {"norm": upload.norm}})


def _peer(fl_ctx: FLContext) -> str:
    return str(fl_ctx.get_peer_context().get_identity_name())


def _layout(arrays: Arrays, whole: tuple[str, ...]) -> Layout:
    """The arrays that are compressed."""
    found = [
        (name, array.shape)
        for name, array in arrays.items()
        if array.dtype == np.float32 and not any(fnmatch(name, pattern) for pattern in whole)
    ]
    if not sum(prod(shape) for _, shape in found):
        raise InvalidInput(f"there is nothing to compress: no array of {', '.join(arrays):.300} is float32")
    return found


def _read_layout(listed: Any, received: int) -> Layout:
    """A layout that a server may have made up; it comes with a whole model, so it is no larger than that."""
    try:
        layout = [(str(name), tuple(int(n) for n in shape)) for name, shape in listed]
    except (TypeError, ValueError) as error:
        raise MalformedPayload(f"this is no layout of a model: {listed!r:.100}") from error
    entries = [n for _, shape in layout for n in shape]
    size = sum(prod(shape) for _, shape in layout)
    if min(entries, default=0) < 0 or not 0 < size <= min(MAX_SIZE, received):
        raise MalformedPayload(f"the layout is of {size} entries, but {received} bytes came with it")
    return layout


def _vector(arrays: Arrays, layout: Layout) -> torch.Tensor:
    """The arrays that are compressed, as one vector."""
    for name, shape in layout:
        if name not in arrays or arrays[name].shape != shape:
            raise InvalidInput(f"array {name!r:.100} is missing, or has another shape than {shape}")
    return torch.from_numpy(np.concatenate([np.asarray(arrays[name], np.float32).ravel() for name, _ in layout]))


def _arrays(vector: torch.Tensor, layout: Layout) -> Arrays:
    """The other way round; copies, since the app may change them."""
    parts = torch.split(vector, [prod(shape) for _, shape in layout])
    return {name: part.numpy().reshape(shape).copy() for (name, shape), part in zip(layout, parts, strict=True)}
