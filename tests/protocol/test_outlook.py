"""A plan that cannot learn is refused before the first round, and others are not."""

from dagc.policies import Plan
from dagc.protocol.outlook import check_rounds


def test_clients_without_data_are_not_asked():
    plan = Plan(bytes=5000).for_size(100_000)
    check_rounds(plan, 100_000, {"a": 0.0, "b": 5.0}, 3, 1)
    check_rounds(plan, 100_000, {"a": 0.0}, 3, 1)
