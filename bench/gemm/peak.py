"""The fused multiply-add peak of one core or of several, as a candidate timed among the others.

Independent chains of fused multiply-adds on vector registers, without memory: what a product could
reach if it did nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm.script import tirx as T

# Two pipes with a latency of 4 need 8 chains in flight; with 12 both operands of the chains still
# fit the 16 vector registers of AVX2 beside the accumulators.
CHAINS = 12
STEPS = 20_000
FUNCTION = "moonpoly_bench_fma"


def peak_function(lanes: int, threads: int = 1) -> tvm.tirx.PrimFunc:
    """``state = state * factor + addend`` on CHAINS vectors a thread, ``steps`` times in registers.

    Takes ``operands`` (2 * lanes,): the factor and the addend, and ``state``
    (threads * CHAINS * lanes,).
    """
    width = CHAINS * lanes
    loop = T.parallel if threads > 1 else T.serial

    @T.prim_func(s_tir=True)
    def moonpoly_bench_fma(operands: T.handle, state: T.handle, steps: T.int64) -> None:
        pair = T.match_buffer(operands, [2 * lanes], "float32", align=4)
        memory = T.match_buffer(state, [threads * width], "float32", align=4)
        for thread in loop(threads):
            chain = T.alloc_buffer([width], "float32", scope="global")
            for i in T.unroll(CHAINS):
                for v in T.vectorized(lanes):
                    chain[i * lanes + v] = memory[thread * width + i * lanes + v]
            for _ in range(steps):
                for i in T.unroll(CHAINS):
                    for v in T.vectorized(lanes):
                        chain[i * lanes + v] = chain[i * lanes + v] * pair[v] + pair[lanes + v]
            for i in T.unroll(CHAINS):
                for v in T.vectorized(lanes):
                    memory[thread * width + i * lanes + v] = chain[i * lanes + v]

    return moonpoly_bench_fma


def compile_peak(target: tvm.target.Target, lanes: int, threads: int = 1) -> tvm.runtime.Module:
    """The peak function compiled for ``target``; its name is ``FUNCTION``."""
    return tvm.compile(peak_function(lanes, threads), target=target).mod


def peak_runner(
    target: tvm.target.Target, lanes: int, threads: int = 1, steps: int = STEPS
) -> tuple[Callable[[], object], int]:
    """The call to be timed, and how many floating-point operations one call does."""
    function = compile_peak(target, lanes, threads)[FUNCTION]
    # The chain 0.5 x + 1 settles at 2: no denormal, infinite or growing values at any length.
    operands = tvm.runtime.tensor(np.repeat(np.array([0.5, 1.0], np.float32), lanes))
    state = tvm.runtime.tensor(np.ones(threads * CHAINS * lanes, np.float32))
    return lambda: function(operands, state, steps), 2 * CHAINS * lanes * steps * threads
