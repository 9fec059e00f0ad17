"""Sparse entries to bytes and back: the frame, its index codecs and its value codecs."""

from dagc.wire.coder import Memory
from dagc.wire.frame import FRAMES, Header, decode, encode, has_signs, is_coded, payload_size, read_header
from dagc.wire.indices import INDEX_CODECS, IndexCodec
from dagc.wire.values import VALUE_CODECS, ValueCodec, quantise

__all__ = [
    "FRAMES",
    "INDEX_CODECS",
    "VALUE_CODECS",
    "Header",
    "IndexCodec",
    "Memory",
    "ValueCodec",
    "decode",
    "encode",
    "has_signs",
    "is_coded",
    "payload_size",
    "quantise",
    "read_header",
]
