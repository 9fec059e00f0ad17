"""What is known about Flower's strategies: which ones average, which compare nodes, what each keeps between rounds."""

from collections.abc import Collection, Iterator, Mapping
from inspect import Parameter, signature
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from dagc.errors import InvalidInput, shown, unknown
from dagc.policies import Plan
from dagc.state import plain

# Strategies that look at nothing but the weighted mean of the replies.
AVERAGING = {
    kind.aggregate_train for kind in (flower.FedAvg, flower.FedAvgM, flower.FedAdagrad, flower.FedAdam, flower.FedYogi)
}
# Strategies that compare what nodes send, entry by entry or as a whole; who sends nothing votes for no change.
BY_ENTRY, BY_NODE = (flower.FedMedian, flower.FedTrimmedAvg, flower.Bulyan), (flower.MultiKrum,)
COMPARING = BY_ENTRY + BY_NODE
# Strategies that divide by the length of what each node sends.
CLIPPING = (flower.DifferentialPrivacyServerSideFixedClipping, flower.DifferentialPrivacyServerSideAdaptiveClipping)
NAMEABLE = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
LEAST_RATIO = 0.1  # with 2 % of the entries from each of seven nodes a median learned nothing, with 20 % it did
ADAPTIVE = (flower.FedAdam, flower.FedYogi, flower.FedAdagrad)
STATE: dict[type[Strategy], tuple[str, ...]] = {
    **dict.fromkeys(ADAPTIVE, ("m_t", "v_t")),
    flower.FedAvgM: ("momentum_vector",),
    flower.DifferentialPrivacyServerSideAdaptiveClipping: ("clipping_norm",),
    flower.DifferentialPrivacyClientSideAdaptiveClipping: ("clipping_norm",),
    **dict.fromkeys((flower.FedAvg, flower.FedProx, flower.QFedAvg, flower.Krum, *BY_ENTRY, *BY_NODE), ()),
    flower.DifferentialPrivacyServerSideFixedClipping: (),
    flower.DifferentialPrivacyClientSideFixedClipping: (),
}  # the attributes in which Flower's strategies keep something from round to round, besides the model


def chain_of(strategy: object) -> Iterator[Any]:
    """A strategy, the one it wraps, and so on."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def check_kind(strategy: object) -> None:
    name = getattr(strategy, "__name__", type(strategy).__name__)
    kinds = strategy.__mro__ if isinstance(strategy, type) else type(strategy).__mro__
    if any(kind.__module__.startswith("flwr.server.") for kind in kinds):
        raise InvalidInput(
            f"{name} is a strategy of Flower's older API: import it from flwr.serverapp.strategy instead of "
            "flwr.server.strategy, and call its start() in a function below @app.main() of a ServerApp; clients need "
            "functions below @app.train() of a ClientApp instead of a NumPyClient"
        )
    if not isinstance(strategy, Strategy):
        raise InvalidInput(
            f"DataAware goes around a strategy of flwr.serverapp.strategy, not {shown(strategy)}: write "
            "DataAware(FedAvg())"
        )
    if includes(strategy, (flower.FedXgbBagging, flower.FedXgbCyclic)):
        raise InvalidInput(f"{name} trains trees, which have no entries to compress: use it without DataAware")


def check_names(outer: type[Strategy], strategy: object, settings: Mapping[str, Any]) -> None:
    """Refuse what is no setting of a plan: it may be a keyword of the inner strategy, or misspelled."""
    strange = [name for name in settings if name not in Plan.schema()]
    for each in chain_of(strategy):
        names = [name for name in strange if name in _keywords(type(each))]
        if names:
            name = type(each).__name__
            inside = ", ".join(f"{one}={shown(settings[one])}" for one in names)
            raise InvalidInput(
                f"{', '.join(names)} {'is a keyword' if len(names) == 1 else 'are keywords'} of {name}, not of "
                f"{outer.__name__}: write {outer.__name__}({name}({inside}, …), …)"
            )
    for one in strange:
        raise unknown("setting", one, [*Plan.schema(), *_keywords(outer)])


def _keywords(strategy: type[Strategy]) -> list[str]:
    """What it can be made with besides a strategy, in order; classes that hand on `**options` take those of others."""
    names: list[str] = []
    for each in strategy.__mro__:
        kinds = {name: one.kind for name, one in signature(each.__init__).parameters.items()}  # type: ignore[misc]
        names += [name for name, kind in kinds.items() if kind in NAMEABLE]
        if Parameter.VAR_KEYWORD not in kinds.values():
            break
    return [name for name in dict.fromkeys(names) if name not in ("self", "strategy")]


def includes(strategy: object, kinds: tuple[type[Strategy], ...]) -> bool:
    """Whether it is of one of these kinds, or wraps one that is."""
    return any(isinstance(each, kinds) for each in chain_of(strategy))


def averages(strategy: object) -> bool:
    return isinstance(strategy, flower.FedAvg) and type(strategy).aggregate_train in AVERAGING


def has_momentum(strategy: object) -> bool:
    """Whether a step of it goes on from those before: FedAvgM, FedAdam and FedYogi, unless their momentum is 0."""
    names = {flower.FedAvgM: "server_momentum", **dict.fromkeys(ADAPTIVE, "beta_1")}
    pairs = [(each, name) for each in chain_of(strategy) for kind, name in names.items() if isinstance(each, kind)]
    return any(getattr(each, name) > 0 for each, name in pairs)


def check_votes(outer: object, plan: Plan) -> None:
    """Refuse strategies that compare nodes with plans in which most have nothing to compare."""
    for strategy in chain_of(outer):
        name = type(strategy).__name__
        if plan.method != "none" and isinstance(strategy, BY_ENTRY) and not (plan.ratio or 0) >= LEAST_RATIO:
            raise InvalidInput(
                f"{name} compares what nodes say about each entry, and with this plan most say nothing, so that "
                f"the model would not move: give a ratio of {LEAST_RATIO} or more, or use FedAvg with norm_bound"
            )
        if isinstance(strategy, COMPARING) and (plan.overhead or plan.in_bytes):
            raise InvalidInput(
                f"{name} compares nodes, and with this plan some of them send nothing in most rounds: give a ratio "
                "instead of bytes, with overhead=0, or use FedAvg with norm_bound"
            )


def check_state(outer: object, attributes: Collection[str] | None) -> None:
    """Refuse a strategy whose state cannot be saved, since a run with a name may be resumed."""
    for strategy in chain_of(outer):
        if type(strategy) not in STATE and attributes is None and not _has_hooks(strategy):
            name = type(strategy).__name__
            raise InvalidInput(
                f"a run with a name is saved after every round, and dagc does not know what {name} keeps from round "
                "to round: write strategy_state=[…] with the names of those attributes, [] if it keeps nothing; or "
                f"give {name} state_dict() and load_state_dict(state); or leave run out"
            )


def strategy_state(outer: object, attributes: Collection[str] | None) -> list[dict[str, Any]]:
    return [
        {"hook": strategy.state_dict()}
        if _has_hooks(strategy)
        else {name: plain(getattr(strategy, name, None)) for name in _names(strategy, attributes)}
        for strategy in chain_of(outer)
    ]


def load_strategy(outer: object, attributes: Collection[str] | None, state: list[Mapping[str, Any]]) -> None:
    for strategy, kept in zip(chain_of(outer), state, strict=True):
        if _has_hooks(strategy):
            strategy.load_state_dict(kept["hook"])
            continue
        for name in _names(strategy, attributes):
            setattr(strategy, name, kept[name])


def _has_hooks(strategy: object) -> bool:
    return hasattr(type(strategy), "state_dict") and hasattr(type(strategy), "load_state_dict")


def _names(strategy: object, attributes: Collection[str] | None) -> list[str]:
    """The attributes of a strategy to save: those of the Flower strategy that it is, and the app's."""
    known = next((STATE[kind] for kind in type(strategy).__mro__ if kind in STATE), ())
    return [*known, *(name for name in attributes or () if type(strategy) not in STATE)]
