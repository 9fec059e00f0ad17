"""What is said of a plan before the first round."""

from dagc.policies import Plan
from dagc.protocol.outlook import check_rounds


def test_clients_without_data_are_not_asked():
    plan = Plan(bytes=5000).for_size(100_000)
    check_rounds(plan, 100_000, {"a": 0.0, "b": 5.0}, 3, 1)
    check_rounds(plan, 100_000, {"a": 0.0}, 3, 1)
