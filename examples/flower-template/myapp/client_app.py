"""What a node does: train the model it is given on its own data."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from dagc.flower import compress_with
from myapp.task import build, load_data, train


def examples(context: Context) -> int:
    """How many examples this node has, so that it need not train once just to report that."""
    return len(_data(context)[1])


app = ClientApp(mods=[compress_with(examples=examples)])  # does nothing if the server does not compress


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """One round on this node's data."""
    config, data = context.run_config, _data(context)
    model = build()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    epochs, rate, batch_size = int(config["local-epochs"]), float(config["learning-rate"]), int(config["batch-size"])
    loss = train(model, data, epochs, rate, batch_size)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def _data(context: Context) -> tuple[Tensor, Tensor]:
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]))
