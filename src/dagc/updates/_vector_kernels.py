"""Compiled loops over whole vectors and matrices: the same bits as the array code in `vectors` and `update`."""

import numpy as np

from dagc._numba import kernel

__all__ = ["add_terms", "histogram"]


@kernel
def histogram(values, bits, stride, count, energy):
    """Count every `stride`-th entry, and add up its square, by half octaves of the magnitude."""
    for i in range(0, len(bits), stride):
        place = (bits[i] & np.uint32(0x7FFFFFFF)) >> np.uint32(22)
        count[place] += 1
        energy[place] += np.float64(values[i]) * np.float64(values[i])


@kernel
def add_terms(target, left, right, unit, weight, start, indices, values):
    """Add weight · ((left · right) · unit + entries) to a matrix in the vector that begins at `start`.

    `left · right` is a sum of integers that float32 holds exactly, so its order does not matter. Then there is one
    rounding for each of: the entry, the weight, the target.
    """
    rows, terms = left.shape
    columns = right.shape[1]
    row = np.empty(columns, dtype=np.float32)
    entry = 0
    for i in range(rows):
        row[:] = 0
        for k in range(0, terms - 3, 4):
            a, b, c, d = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            p, q, r, s = right[k], right[k + 1], right[k + 2], right[k + 3]
            for j in range(columns):
                row[j] += (a * p[j] + b * q[j]) + (c * r[j] + d * s[j])
        for k in range(terms - terms % 4, terms):
            a, p = left[i, k], right[k]
            for j in range(columns):
                row[j] += a * p[j]
        for j in range(columns):
            row[j] *= unit
        first = start + i * columns
        while entry < len(indices) and indices[entry] < first + columns:
            row[indices[entry] - first] += values[entry]
            entry += 1
        part = target[first : first + columns]
        for j in range(columns):
            part[j] += weight * row[j]
