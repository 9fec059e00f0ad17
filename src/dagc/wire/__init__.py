"""Sparse entries to bytes and back: the frame, how it holds indices and values, and the coder with memory."""

from dagc.wire.coder import Memory
from dagc.wire.frame import decode, encode, has_signs, is_coded, payload_size
from dagc.wire.values import VALUE_CODECS, ValueCodec, quantize

__all__ = [
    "VALUE_CODECS",
    "Memory",
    "ValueCodec",
    "decode",
    "encode",
    "has_signs",
    "is_coded",
    "payload_size",
    "quantize",
]
