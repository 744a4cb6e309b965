"""How fast memory can be read, as a candidate that is timed among the others.

Vector additions over a buffer as large as the right operand of a case: what a product of few rows,
whose time is the reading of its weight, could reach at best. Hardware follows some access patterns
better than others, so several are tried for each size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T

from bench.gemm.operands import aligned_empty

NAME = "moonpoly_bench_read"
# (streams, vectors of each that are added in a step): how many vector registers are in use is their
# product. One stream is what prefetchers like best; several keep more lines in flight.
PATTERNS = ((1, 8), (2, 4), (4, 2), (8, 1), (4, 4))
TRIES = 5


def read_function(lanes: int, streams: int, vectors: int, threads: int = 1) -> tvm.tirx.PrimFunc:
    """Sums of ``data`` by register and thread, in ``total``.

    Each of ``threads`` threads reads ``steps`` * streams * vectors * lanes values of its own, each
    of ``streams`` parts of equal length from its start.
    """
    step = vectors * lanes
    sums = streams * step
    loop = T.parallel if threads > 1 else T.serial

    @T.prim_func(s_tir=True)
    def moonpoly_bench_read(data: T.handle, total: T.handle, steps: T.int64) -> None:
        length = T.int64()
        values = T.match_buffer(data, [length], "float32", align=64)
        memory = T.match_buffer(total, [threads * sums], "float32", align=4)
        for thread in loop(threads):
            added = T.alloc_buffer([sums], "float32", scope="global")
            for i in T.unroll(streams * vectors):
                for v in T.vectorized(lanes):
                    added[i * lanes + v] = T.float32(0)
            for at in range(steps):
                for s in T.unroll(streams):
                    for u in T.unroll(vectors):
                        for v in T.vectorized(lanes):
                            added[s * step + u * lanes + v] = (
                                added[s * step + u * lanes + v]
                                + values[
                                    (thread * streams + s) * steps * step
                                    + at * step
                                    + u * lanes
                                    + v
                                ]
                            )
            for i in T.unroll(streams * vectors):
                for v in T.vectorized(lanes):
                    memory[thread * sums + i * lanes + v] = added[i * lanes + v]

    return moonpoly_bench_read.with_attr("global_symbol", NAME)


@dataclass(frozen=True)
class Reader:
    """The compiled patterns for ``lanes`` lanes on each of ``threads`` threads."""

    lanes: int
    functions: dict[tuple[int, int], Callable[..., object]]
    threads: int = 1

    def run(self, data: tvm.runtime.Tensor, streams: int, vectors: int) -> Callable[[], object]:
        """The call that reads ``data`` once, but for less than a step of each thread at its end."""
        sums = self.threads * streams * vectors * self.lanes
        total = tvm.runtime.tensor(np.zeros(sums, np.float32))
        function, steps = self.functions[streams, vectors], data.shape[0] // sums
        return lambda: function(data, total, steps)

    def fastest(self, count: int) -> tuple[Callable[[], object], tuple[int, int]]:
        """The call that reads ``count`` values fastest, tried here, and its pattern."""
        array = aligned_empty((count,))
        array.fill(1.0)
        data = tvm_ffi.from_dlpack(array)
        calls = {pattern: self.run(data, *pattern) for pattern in self.functions}
        took = {pattern: best_of(call, TRIES) for pattern, call in calls.items()}
        chosen = min(took, key=lambda pattern: took[pattern])
        return calls[chosen], chosen


def compile_reader(target: tvm.target.Target, lanes: int, threads: int = 1) -> Reader:
    """All ``PATTERNS`` compiled for ``target``."""
    functions = {
        pattern: tvm.compile(read_function(lanes, *pattern, threads), target=target).mod[NAME]
        for pattern in PATTERNS
    }
    return Reader(lanes, functions, threads)


def best_of(call: Callable[[], object], tries: int) -> float:
    """The shortest of some calls, in seconds of processor time."""
    took = []
    for _ in range(tries):
        start = time.process_time()
        call()
        took.append(time.process_time() - start)
    return min(took)
