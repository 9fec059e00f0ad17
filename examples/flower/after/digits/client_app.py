"""What a node does: train the model it is given on its own data."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dagc.flower import compress_with
from digits.task import build, load_train, train

app = ClientApp(mods=[compress_with(lambda context: ArrayRecord(build(context.run_config).state_dict()))])


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """One round on this node's data."""
    config, node = context.run_config, context.node_config
    model = build(config)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_train(int(node["partition-id"]), int(node["num-partitions"]))
    number = int(message.content["config"]["server-round"])
    seed = 1_000_000 * int(config["seed"]) + 1000 * number + int(node["partition-id"])
    steps, batch_size, rate = int(config["local-steps"]), int(config["batch-size"]), float(config["learning-rate"])
    loss = train(model, x, y, steps, batch_size, rate, seed, str(config["optimizer"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
