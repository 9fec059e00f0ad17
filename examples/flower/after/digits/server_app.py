"""What the server does: average the nodes' models, and test what comes of it."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dagc.flower import DataAware
from digits.task import build, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    config = context.run_config
    model = build(config)
    x, y = load_test()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy, loss = test(model, x, y)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    nodes = int(config["nodes"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=nodes)
    strategy = DataAware(strategy, ratio=config["ratio"], down=config["down"], first_model="drawn", run=config["run"])
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
