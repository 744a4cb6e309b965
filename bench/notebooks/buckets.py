"""Bucketing: static kernels at a few numbers of rows, and padding up to the next of them."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi

Run = Callable[[], np.ndarray]


def pieces(rows: int, sizes: Sequence[int]) -> list[int]:
    """The buckets that compute ``rows`` rows, in order; ``sizes`` are sorted upwards.

    Up to the largest bucket it is the least that holds them. More rows are computed in pieces of
    the largest bucket, the last piece by the least bucket that holds the rest.
    """
    whole, rest = divmod(rows, sizes[-1])
    if rest:
        return [sizes[-1]] * whole + [sizes[bisect.bisect_left(sizes, rest)]]
    return [sizes[-1]] * whole


def wasted(rows: int, sizes: Sequence[int]) -> float:
    """The part of the rows computed for ``rows`` rows that nobody asked for."""
    return 1 - rows / sum(pieces(rows, sizes))


def bucketed(kernels: Mapping[int, Callable[[Any], Any]], x: Any, columns: int) -> Run:
    """A call that computes the product of ``x`` (rows, k), a tensor of TVM's, by ``kernels``.

    ``kernels`` take as many rows as their key says. What a call does besides is part of it: to
    choose the bucket, to copy the rows into a buffer of the bucket's size that is kept, to drop
    the rows of padding (as a view), and to put pieces together.
    """
    sizes = sorted(kernels)
    source = np.from_dlpack(x)
    buffers = {size: aligned(size, source.shape[1]) for size in sizes}
    views = {size: np.from_dlpack(buffer) for size, buffer in buffers.items()}

    def computed(part: np.ndarray, size: int) -> np.ndarray:
        count = len(part)
        if count == size:
            return np.from_dlpack(kernels[size](tvm_ffi.from_dlpack(part)))
        views[size][:count] = part
        return np.from_dlpack(kernels[size](buffers[size]))[:count]

    def run() -> np.ndarray:
        taken = pieces(len(source), sizes)
        if len(taken) == 1:
            return computed(source, taken[0])
        out = np.empty((len(source), columns), np.float32)
        first = 0
        for size in taken:
            part = source[first : first + size]
            out[first : first + size] = computed(part, size)
            first += size
        return out

    return run


def aligned(*shape: int) -> Any:
    """Zeros in memory of TVM's, which starts at a cache line, as its kernels expect."""
    import tvm

    return tvm.runtime.tensor(np.zeros(shape, np.float32))
