"""Value codecs that only comparisons need, registered as any plugin would: half precision, and indices as int32."""

import numpy as np
from numpy.typing import NDArray

from dagc.wire import VALUE_CODECS, ValueCodec

__all__ = ["CODECS"]

Floats = NDArray[np.float32]


def _write_fp16(values: Floats) -> bytes:
    return np.clip(values, -65504, 65504).astype("<f2").tobytes()


def _read_fp16(section: memoryview, count: int) -> Floats:
    return np.frombuffer(section, dtype="<f2").astype(np.float32)


CODECS: dict[str, ValueCodec] = {
    "fp16": ValueCodec(13, lambda count: 2 * count, _write_fp16, _read_fp16),
    "int32+fp32": VALUE_CODECS["fp32"]._replace(id=14, index_bytes=4),
    "int32+sign": VALUE_CODECS["sign"]._replace(id=15, index_bytes=4),
}
"""Codecs whose indices are int32 are how other systems send entries: 8 bytes each, or 4 and a sign."""
