"""What the server does: average the nodes' adapters, and measure the loss on the lines that they have held out."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dagc.flower import DataAware  # dagc
from shakespeare.task import adapters_of, build, load_test, set_adapters, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds."""
    config = context.run_config
    model, nodes = build(config), int(config["nodes"])
    first, texts = adapters_of(model), load_test(config, nodes)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        set_adapters(model, arrays)
        return MetricRecord({"loss": test(model, texts, config)})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=nodes)
    if config["compress"]:
        strategy = DataAware(  # dagc
            strategy,
            method="dagc",
            bytes=float(config["bytes"]),
            first_model="drawn",
            budget_mb=float(config["budget-mb"]),
            run=config["run"],
        )
    strategy.start(
        grid,
        first,
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=evaluate,
    )
