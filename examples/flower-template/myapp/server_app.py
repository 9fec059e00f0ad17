"""What the server does: average the nodes' models, and test the mean."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dagc.flower import DataAware
from myapp.task import build, load_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    config, model, data = context.run_config, build(), load_data()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy, loss = test(model, data)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    nodes = int(config["min-nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    if config["dagc"]:
        budget = {"ratio": config["ratio"]} if config["ratio"] else {}
        strategy = DataAware(strategy, run=config["run"], **budget)
    rounds = int(config["num-server-rounds"])
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, evaluate_fn=evaluate)
