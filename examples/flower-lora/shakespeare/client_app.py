"""What a node does: train the adapters that it is given on the lines of its own role."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dagc.flower import compress_with  # dagc
from shakespeare.task import adapters_of, build, load_train, set_adapters, train


def first_adapters(context: Context) -> ArrayRecord:
    """What the training begins with: nobody has to download it."""
    return adapters_of(build(context.run_config))


app = ClientApp(mods=[compress_with(first_adapters)])  # dagc


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """One round on this node's lines."""
    config, partition = context.run_config, int(context.node_config["partition-id"])
    model = build(config)
    set_adapters(model, message.content["arrays"])
    tokens = load_train(config, partition)
    number = int(message.content["config"]["server-round"])
    loss = train(model, tokens, config, 1_000_000 * int(config["seed"]) + 1000 * number + partition)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(tokens)})
    return Message(RecordDict({"arrays": adapters_of(model), "metrics": metrics}), reply_to=message)
