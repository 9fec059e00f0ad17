"""What travels: an update carries as much of a vector's energy as possible within a number of bytes."""

from dagc.updates.encoder import encode_update
from dagc.updates.frame import decode_update, encode_dense, is_update
from dagc.updates.update import Update

__all__ = ["Update", "decode_update", "encode_dense", "encode_update", "is_update"]
