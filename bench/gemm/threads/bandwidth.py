"""How fast several cores read memory at once: `bench.gemm.bandwidth`, each core a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm.script import tirx as T

from bench.gemm.bandwidth import NAME, PATTERNS, Reader


def read_function(lanes: int, streams: int, vectors: int, threads: int) -> tvm.tirx.PrimFunc:
    """Sums of ``data`` by register and thread, in ``total``.

    Each of ``threads`` threads reads ``steps`` * streams * vectors * lanes values of its own, each
    of ``streams`` parts of equal length from its start.
    """
    step = vectors * lanes
    sums = streams * step

    @T.prim_func(s_tir=True)
    def moonpoly_bench_read(data: T.handle, total: T.handle, steps: T.int64) -> None:
        length = T.int64()
        values = T.match_buffer(data, [length], "float32", align=64)
        memory = T.match_buffer(total, [threads * sums], "float32", align=4)
        for thread in T.parallel(threads):
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
class SharedReader(Reader):
    """The compiled patterns for ``lanes`` lanes on each of ``threads`` threads."""

    threads: int

    def run(self, data: tvm.runtime.Tensor, streams: int, vectors: int) -> Callable[[], object]:
        """The call that reads ``data`` once, but for less than a step of each thread at its end."""
        sums = streams * vectors * self.lanes
        total = tvm.runtime.tensor(np.zeros(self.threads * sums, np.float32))
        function = self.functions[streams, vectors]
        steps = data.shape[0] // (self.threads * sums)
        return lambda: function(data, total, steps)


def compile_reader(target: tvm.target.Target, lanes: int, threads: int) -> SharedReader:
    """All ``PATTERNS`` compiled for ``target``."""
    functions = {
        pattern: tvm.compile(read_function(lanes, *pattern, threads), target=target).mod[NAME]
        for pattern in PATTERNS
    }
    return SharedReader(lanes, functions, threads)
