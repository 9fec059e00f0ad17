"""Select while adding: one pass over residual and gradient that writes their sum and picks out its largest entries.

All comparisons use integer keys: the bits of a float32 without its sign, which sort like magnitudes, with infinity and
NaN above all numbers. So a NaN is never below a threshold and cannot hide in the residual.

A gradient comes as `parts`, one row (address, length, kind) per tensor, so that the tensors of a model are never
copied into one vector. The pass does not write to the residual's own array, so a refused gradient leaves no trace.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dagc._numba import kernel

__all__ = ["BF16", "BLOCK", "FP16", "FP32", "INFINITE", "LANES", "collect", "top_k"]

FP32, FP16, BF16 = 0, 1, 2
MAGNITUDE = 0x7FFFFFFF
INFINITE = 0x7F800000
"""The lowest key of a number that is not finite."""
BLOCK = 64
"""Entries per block: the bits of a mask. A buffer needs room for one whole block."""
AHEAD = 1024
"""How many bytes ahead gradient and residual are prefetched: the processor's own prefetcher stops at every mispredicted
branch."""

GROUP = 8
"""How many neighbours are sampled together: they share a cache line."""

LANES = 8
"""Entries per vector register."""
_I8, _I16, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _vector(builder: Any, value: Any, lanes: int) -> Any:
    """The same value in each lane."""
    if isinstance(value, ir.Constant):
        return ir.Constant(ir.VectorType(value.type, lanes), [value.constant] * lanes)
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def _widen(builder: Any, halves: Any, kind: int) -> Any:
    """Convert 16-bit floats to float32, exactly, with integer operations that every processor has."""
    lanes = halves.type.count

    def const(number: int) -> Any:
        return _vector(builder, _I32(number), lanes)

    bits = builder.zext(halves, ir.VectorType(_I32, lanes))
    floats = ir.VectorType(_F32, lanes)
    if kind == BF16:
        return builder.bitcast(builder.shl(bits, const(16)), floats)
    sign = builder.shl(builder.and_(bits, const(0x8000)), const(16))
    magnitude = builder.and_(bits, const(0x7FFF))
    # Read as float32, the exponent is 112 too small. Denormal numbers are multiples of 2^-24, and are not computed with
    # as floats: the processor may be set to flush them to zero.
    whole = builder.add(builder.shl(magnitude, const(13)), const(112 << 23))
    small = builder.fmul(builder.sitofp(magnitude, floats), _vector(builder, _F32(2.0**-24), lanes))
    denormal = builder.icmp_signed("<", magnitude, const(0x0400))
    whole = builder.select(denormal, builder.bitcast(small, const(0).type), whole)
    special = builder.icmp_signed(">=", magnitude, const(0x7C00))
    whole = builder.or_(whole, builder.select(special, const(INFINITE), const(0)))
    return builder.bitcast(builder.or_(whole, sign), floats)


def _fetch(builder: Any, address: Any, keep: bool = True) -> None:
    """Prefetch an address, valid or not. `keep` says whether it should stay in the cache after it is used."""
    signature = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    fetch = cgutils.get_or_insert_function(builder.module, signature, "llvm.prefetch.p0")
    builder.call(fetch, [builder.inttoptr(address, _I8.as_pointer()), _I32(0), _I32(3 if keep else 0), _I32(1)])


def _load(builder: Any, address: Any, kind: int, lanes: int) -> Any:
    """`lanes` gradient entries from an address, as float32."""
    element = _F32 if kind == FP32 else _I16
    loaded = builder.load(builder.inttoptr(address, ir.VectorType(element, lanes).as_pointer()))
    loaded.align = 4 if kind == FP32 else 2
    return loaded if kind == FP32 else _widen(builder, loaded, kind)


@intrinsic(prefer_literal=True)
def _entry(typing: Any, address: Any, kind: Any) -> Any:
    """One gradient entry of a literal kind, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(_load(builder, arguments[0], kind.literal_value, 1), _I32(0))

    return types.float32(types.int64, kind), generate


@intrinsic(prefer_literal=True)
def _block(
    typing: Any, residual: Any, gradient: Any, out: Any, sums: Any, threshold: Any, kind: Any, write: Any
) -> Any:
    """A mask of 64 entries: bit i is set if the key of residual[i] + gradient[i] is at least the threshold.

    Literal `write`: 0 uses the gradient alone and writes nothing; 1 writes the sums to `out`, and zero where a bit is
    set; 2 does so past the cache, for vectors that do not fit into it: this saves reading memory that is about to be
    overwritten, but `out` must be aligned to 32 bytes.
    Most blocks have no bit set, so the largest key is compared first, and the bits are computed only if needed; then
    all 64 sums are left at the address `sums`. The word after them becomes nonzero if a sum is not finite.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        residual, gradient, out, sums, threshold = arguments[:5]
        width = 4 if kind.literal_value == FP32 else 2
        floats, ints, bits = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES), ir.IntType(LANES)
        below = _vector(builder, builder.sub(threshold, _I32(1)), LANES)
        twice_least = _vector(builder, builder.shl(threshold, _I32(1)), LANES)
        magnitude = _vector(builder, _I32(MAGNITUDE), LANES)
        for start, size in ((gradient, width * BLOCK), (residual, 4 * BLOCK if write.literal_value else 0)):
            for line in range(0, size, 64):
                _fetch(builder, builder.add(start, _I64(AHEAD + line)), keep=write.literal_value != 2)
        totals, keys = [], []
        for lane in range(0, BLOCK, LANES):
            total = _load(builder, builder.add(gradient, _I64(width * lane)), kind.literal_value, LANES)
            if write.literal_value:
                kept = _load(builder, builder.add(residual, _I64(4 * lane)), FP32, LANES)
                total = builder.fadd(kept, total)
            totals.append(total)
            keys.append(builder.and_(builder.bitcast(total, ints), magnitude))

        def store(vectors: list[Any], start: Any, how: int) -> None:
            for i, vector in enumerate(vectors if how else []):
                to = builder.inttoptr(builder.add(start, _I64(4 * LANES * i)), floats.as_pointer())
                stored = builder.store(vector, to, align=32 if how == 2 else 4)
                if how == 2:
                    stored.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))

        largest = keys
        while len(largest) > 1:
            pairs = zip(largest[::2], largest[1::2], strict=True)
            largest = [builder.select(builder.icmp_signed(">", a, b), a, b) for a, b in pairs]
        hits = builder.bitcast(builder.icmp_signed(">", largest[0], below), bits)
        with builder.if_else(builder.icmp_signed("!=", hits, bits(0)), likely=False) as (some, none):
            with some:
                mask, rest = _I64(0), []
                for i, total in enumerate(totals):
                    # The sign is removed again, in another way: keys kept from before would not fit into registers.
                    twice = builder.shl(builder.bitcast(total, ints), _vector(builder, _I32(1), LANES))
                    hit = builder.icmp_unsigned(">=", twice, twice_least)
                    rest.append(builder.select(hit, ir.Constant(floats, None), total))
                    bit = builder.zext(builder.bitcast(hit, bits), _I64)
                    mask = builder.or_(mask, builder.shl(bit, _I64(LANES * i)))
                store(rest, out, write.literal_value)
                store(totals, sums, 1)
                odd = builder.icmp_signed(">", largest[0], _vector(builder, _I32(INFINITE - 1), LANES))
                word = builder.inttoptr(builder.add(sums, _I64(4 * BLOCK)), _I32.as_pointer())
                odds = builder.zext(builder.bitcast(odd, bits), _I32)
                builder.store(builder.or_(builder.load(word), odds), word)
                after_some = builder.block
            with none:
                store(totals, out, write.literal_value)
                after_none = builder.block
        result = builder.phi(_I64)
        result.add_incoming(mask, after_some)
        result.add_incoming(_I64(0), after_none)
        return result

    return types.uint64(*[types.int64] * 4, types.int32, kind, write), generate


@intrinsic
def _fence(typing: Any) -> Any:
    """Writes past the cache are completed before anything that follows, also as seen by other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _extract(typing: Any, mask: Any, position: Any, sums: Any, indices: Any, values: Any) -> Any:
    """Write the places of the mask's bits, counted from `position`, to the address `indices`, their sums to `values`.

    Always four at a time, even if there are fewer: the surplus is overwritten next time, and the end of the loop is
    mispredicted less often. So there must be room for 64.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask, position, sums, indices, values = arguments
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        rest, done = builder.phi(_I64), builder.phi(_I64)
        bits = rest
        for i in range(4):
            bit = builder.cttz(bits, ir.IntType(1)(0))  # 64 if there is none
            bits = builder.and_(bits, builder.sub(bits, _I64(1)))
            place = builder.add(done, _I64(i))
            builder.store(
                builder.add(position, bit), builder.gep(builder.inttoptr(indices, _I64.as_pointer()), [place])
            )
            value = builder.load(builder.gep(builder.inttoptr(sums, _I32.as_pointer()), [bit]))
            builder.store(value, builder.gep(builder.inttoptr(values, _I32.as_pointer()), [place]))
        rest.add_incoming(mask, before)
        rest.add_incoming(bits, loop)
        done.add_incoming(_I64(0), before)
        done.add_incoming(builder.add(done, _I64(4)), loop)
        builder.cbranch(builder.icmp_signed("!=", bits, _I64(0)), loop, after)
        builder.position_at_end(after)
        return builder.ctpop(mask)

    return types.int64(types.uint64, *[types.int64] * 4), generate


@intrinsic
def _copy_eight(typing: Any, indices: Any, values: Any, to_indices: Any, to_values: Any, key: Any) -> Any:
    """Copy eight indices and values between addresses. Returns whether all their keys are above `key`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ints = ir.VectorType(_I32, LANES)
        for start, to, vector in ((0, 2, ir.VectorType(_I64, LANES)), (1, 3, ints)):
            copied = builder.load(builder.inttoptr(arguments[start], vector.as_pointer()), align=4)
            builder.store(copied, builder.inttoptr(arguments[to], vector.as_pointer()), align=4)
        keys = builder.and_(copied, _vector(builder, _I32(MAGNITUDE), LANES))
        above = builder.icmp_signed(">", keys, _vector(builder, arguments[4], LANES))
        return builder.icmp_signed("==", builder.bitcast(above, ir.IntType(LANES)), ir.IntType(LANES)(-1))

    return types.boolean(*[types.int64] * 4, types.int32), generate


@intrinsic
def _prefetch(typing: Any, address: Any) -> Any:
    """Prefetch an address that is read or written soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _fetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@kernel
def _total(gradient, kind, residual):
    """The entry at an address, plus the float32 at the address `residual` if that is not 0.

    Addresses, not arrays: passing an array increments its reference count, which waits for all writes past the cache.
    """
    if kind == FP32:
        value = _entry(gradient, 0)
    elif kind == FP16:
        value = _entry(gradient, 1)
    else:
        value = _entry(gradient, 2)
    if residual:
        value = _entry(residual, 0) + value
    return value


@kernel
def collect(parts, residual, out, stream, threshold, cursor, indices, values):
    """Continue from the cursor, until the end (False) or a full buffer (True).

    The cursor is: part, offset in it, position in the whole, number found, and nonzero if a sum is not finite.
    Invariant: before the cursor's position, `out` holds residual + gradient, with zero for what was found. Found is
    every entry whose key is at least the threshold (which may rise between calls), in ascending order.
    With an empty residual, the entries are the gradient's own and nothing is written.
    """
    part, offset, position, found = cursor[0], cursor[1], cursor[2], cursor[3]
    threshold = np.int32(threshold)
    write = len(residual) > 0
    residual_start = np.int64(residual.ctypes.data) if write else 0
    out_start = np.int64(out.ctypes.data)
    sums = np.zeros(BLOCK + 1, np.float32)
    sums_start = np.int64(sums.ctypes.data)
    indices_start, values_start = np.int64(indices.ctypes.data), np.int64(values.ctypes.data)
    keys = sums.view(np.int32)
    full = False
    while part < len(parts) and not full:
        address, length, kind = parts[part, 0], parts[part, 1], parts[part, 2]
        width = 4 if kind == FP32 else 2
        while offset < length:
            if found + BLOCK > len(indices):
                full = True
                break
            gradient = address + width * offset
            kept = residual_start + 4 * position if write else 0
            to = out_start + 4 * position
            mask = np.uint64(0)
            size = BLOCK
            if length - offset < BLOCK or (stream and to % 32):
                # The ends of a part are done one by one; at the start, up to where `out` is aligned for streaming.
                size = length - offset
                if stream and to % 32:
                    size = min(size, (32 - to % 32) // 4)
                for i in range(size):
                    total = _total(gradient + width * i, kind, kept + 4 * i if write else 0)
                    key = np.float32(total).view(np.int32) & MAGNITUDE
                    hit = key >= threshold
                    keys[BLOCK] |= key >= INFINITE
                    mask |= np.uint64(hit) << np.uint64(i)
                    sums[i] = total
                    if write:
                        out[position + i] = np.float32(0) if hit else total
            elif kind == FP32:
                if stream:
                    mask = _block(kept, gradient, to, sums_start, threshold, 0, 2)
                elif write:
                    mask = _block(kept, gradient, to, sums_start, threshold, 0, 1)
                else:
                    mask = _block(kept, gradient, to, sums_start, threshold, 0, 0)
            elif kind == FP16:
                if stream:
                    mask = _block(kept, gradient, to, sums_start, threshold, 1, 2)
                elif write:
                    mask = _block(kept, gradient, to, sums_start, threshold, 1, 1)
                else:
                    mask = _block(kept, gradient, to, sums_start, threshold, 1, 0)
            else:
                if stream:
                    mask = _block(kept, gradient, to, sums_start, threshold, 2, 2)
                elif write:
                    mask = _block(kept, gradient, to, sums_start, threshold, 2, 1)
                else:
                    mask = _block(kept, gradient, to, sums_start, threshold, 2, 0)
            if mask:
                found += _extract(mask, position, sums_start, indices_start + 8 * found, values_start + 4 * found)
            offset += size
            position += size
        if not full:
            part, offset = part + 1, 0
    cursor[0], cursor[1], cursor[2], cursor[3] = part, offset, position, found
    cursor[4] |= keys[BLOCK]
    _fence()
    return full


@kernel
def _largest(keys, rank, low, high, scratch):
    """The rank-th largest of the keys (from 1, signs ignored), and how many equal to it are within that rank.

    No key is below `low`. That the result is at most `high` is a guess, which saves work if it is right.
    Invariant: `scratch[:count]` are the keys from low to high, and the one sought is the rank-th largest of those.
    """
    within = np.uint64(0)
    for bits in keys:
        key = bits & np.int32(MAGNITUDE)
        scratch[within] = key
        within += np.uint64(key <= high)
    count = np.int64(within)
    above = len(keys) - count
    if above >= rank:
        high = np.int64(MAGNITUDE)
        count, above = len(keys), 0
        for i in range(count):
            scratch[i] = keys[i] & MAGNITUDE
    rank -= above
    bins = np.empty(1024 if count > 1024 else 64, np.int64)
    while high > low:
        shift = 0
        while (high - low) >> shift >= len(bins):
            shift += 1
        bins[:] = 0
        for i in range(count):
            bins[(scratch[i] - low) >> shift] += 1
        best = (high - low) >> shift
        while rank > bins[best]:
            rank -= bins[best]
            best -= 1
        low += best << shift
        high = min(high, low + (1 << shift) - 1)
        kept = 0
        for i in range(count):
            key = scratch[i]
            scratch[kept] = key
            kept += (key >= low) & (key <= high)
        count = kept
    return low, rank


@kernel
def _sample(parts, residual, size, sample):
    """Fill the sample with the bits of `GROUP` neighbours from each of many equal strata, always the same ones."""
    residual_start = np.int64(residual.ctypes.data) if len(residual) else 0
    strata = len(sample) // GROUP
    stride = size / strata
    places = np.empty((BLOCK, 4), np.int64)
    part = start = 0
    for begin in range(0, strata, BLOCK):
        # They are far apart, so many are prefetched at a time.
        count = min(BLOCK, strata - begin)
        for j in range(count):
            z = np.uint64(begin + j + 1) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            at = min(size - 1, int((begin + j + (z >> np.uint64(40)) * 2.0**-24) * stride))
            while at - start >= parts[part, 1]:
                start += parts[part, 1]
                part += 1
            length, kind = parts[part, 1], parts[part, 2]
            offset = max(0, min((at - start) // GROUP * GROUP, length - GROUP))
            gradient = parts[part, 0] + offset * (4 if kind == FP32 else 2)
            kept = residual_start + 4 * (start + offset) if residual_start else 0
            places[j, 0], places[j, 1], places[j, 2], places[j, 3] = gradient, kind, kept, length
            _prefetch(gradient)
            _prefetch(kept)
        for j in range(count):
            gradient, kind, kept, length = places[j, 0], places[j, 1], places[j, 2], places[j, 3]
            for i in range(GROUP):
                k = min(i, length - 1)
                total = _total(gradient + (4 if kind == FP32 else 2) * k, kind, kept + 4 * k if kept else 0)
                sample[(begin + j) * GROUP + i] = np.float32(total).view(np.int32)


@kernel
def bracket(parts, residual, size, count):
    """Two keys that most likely have the count-th largest of all keys between them: a guess from a sample.

    The keys are the sample's ranks three standard deviations to either side of the expected one (with half as much
    variance again, since neighbours are correlated). The lower one is too high in about one call in a thousand. The
    sample's size balances the time to draw it and the time to put surplus entries back, as measured.
    """
    share = count / size
    s = max(256, int(4 * size**0.5), int((size * share**0.5) ** (2 / 3))) // GROUP * GROUP
    low, high = np.int64(1), np.int64(MAGNITUDE)
    if s * 4 > size:
        return low, high
    sample, scratch = np.empty(s, np.int32), np.empty(s, np.int32)
    _sample(parts, residual, size, sample)
    expected = s * share
    margin = 3 * (1.5 * expected * (1 - share)) ** 0.5 + 3
    if expected + margin < s:
        low = max(low, _largest(sample, int(expected + margin), np.int64(0), high, scratch)[0])
    if expected - margin >= 1:
        high = max(low, _largest(sample, int(expected - margin), np.int64(0), high, scratch)[0])
    return low, high


@kernel
def choose(indices, values, count, low, high, out, scratch, to_indices, to_values):
    """Copy the `count` largest, the first ones if several are equal. The others go back to `out`, if it is not empty.

    `to_indices` and `to_values` are other arrays, with room for eight more. All keys are at least `low`; `high` is a
    guess that is at least the smallest key kept, which is returned. If eight in a row are kept, as they mostly are if
    few are dropped, they are copied together. Otherwise the loop writes to both places first and then advances one of
    them, which is faster than a branch that cannot be predicted.
    Invariant: of the first i entries, `kept` are copied, and the places of the others are in `scratch`.
    """
    keys = values.view(np.int32)
    smallest, equal = _largest(keys, count, low, high, scratch)
    smallest = bound = np.int32(smallest)  # the least key to keep: one more after the last equal one that is kept
    indices_start, values_start = np.int64(indices.ctypes.data), np.int64(values.ctypes.data)
    to_indices_start, to_values_start = np.int64(to_indices.ctypes.data), np.int64(to_values.ctypes.data)
    kept, i, total = np.uint64(0), np.uint64(0), np.uint64(len(keys))
    eight = np.uint64(LANES)
    while i < total:
        end = min(i + eight, total)
        here, there = np.int64(i), np.int64(kept)
        if end - i == eight and _copy_eight(
            indices_start + 8 * here,
            values_start + 4 * here,
            to_indices_start + 8 * there,
            to_values_start + 4 * there,
            smallest,
        ):
            kept, i = kept + eight, end
            continue
        while i < end:
            key = keys[i] & np.int32(MAGNITUDE)
            scratch[i - kept] = i
            to_indices[kept], to_values[kept] = indices[i], values[i]
            kept += np.uint64(key >= bound)
            if key == smallest:
                equal -= 1
                if equal == 0:
                    bound += np.int32(1)
            i += np.uint64(1)
    if len(out):
        start = np.int64(out.ctypes.data)
        dropped, ahead = total - kept, np.uint64(16)
        for j in range(dropped):
            if j + ahead < dropped:
                _prefetch(start + 4 * indices[np.uint64(scratch[j + ahead])])
            i = np.uint64(scratch[j])
            out[np.uint64(indices[i])] = values[i]
    return smallest


@kernel
def top_k(parts, residual, out, stream, size, count, guess, candidates, to_indices, to_values):
    """Collect what is above a guessed threshold, then choose among that. Exact, however good the guess was.

    Returns how many were chosen, or -1 if a sum is not finite. A guess of (0, 0) is replaced by one from a sample.
    `candidates` must have room for 2 · count + 8192 entries, or `size` if that is less, and one block more. Each takes
    two words (an index, half a word for its value and half a word of scratch). The results need room for count +
    `LANES`.
    """
    room = len(candidates) // 2
    indices, halves = candidates[:room], candidates[room:].view(np.int32)
    values, scratch = halves[:room].view(np.float32), halves[room:]
    low, high = guess
    if count == 0:
        low, high = np.int64(INFINITE), np.int64(MAGNITUDE)
    elif low == 0:
        low, high = bracket(parts, residual, size, count)
    while True:
        cursor = np.zeros(5, np.int64)
        threshold = low
        while collect(parts, residual, out, stream, threshold, cursor, indices, values) and not cursor[4]:
            # Too many. What is not among the largest so far never will be, nor will later entries equal to those.
            found = indices[: cursor[3]], values[: cursor[3]]
            threshold = 1 + choose(*found, count, threshold, MAGNITUDE, out, scratch, to_indices, to_values)
            indices[:count], values[:count] = to_indices[:count], to_values[:count]
            cursor[3] = count
        if cursor[4]:
            return -1
        found = cursor[3]
        if found >= count or low == 1:
            break
        low = np.int64(1)  # Too few: start again with everything that is not zero.
    if found > count:
        choose(indices[:found], values[:found], count, low, high, out, scratch, to_indices, to_values)
        return count
    to_indices[:found], to_values[:found] = indices[:found], values[:found]
    return found
