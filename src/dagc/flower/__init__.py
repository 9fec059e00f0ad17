"""Flower: an app sends a few entries of its models instead of all of them, after a change of four lines.

On the client, `ClientApp(mods=[dagc.flower.compress])`; on the server, `dagc.flower.DataAware(FedAvg(), ratio=0.01)`.
"""

try:
    import flwr.app  # noqa: F401
except ImportError as error:
    raise ImportError(
        "dagc.flower needs Flower 1.41 or newer: pip install 'dagc-fl[flower]', or '.[flower]' in a clone"
    ) from error

from dagc.flower.mod import compress, compress_with
from dagc.flower.strategy import DataAware

__all__ = ["DataAware", "compress", "compress_with"]
