"""The fused multiply-add peak of one core, as a candidate that is timed among the others.

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


def peak_function(lanes: int) -> tvm.tirx.PrimFunc:
    """``state = state * factor + addend`` on CHAINS vectors, ``steps`` times in registers.

    Takes ``operands`` (2 * lanes,): the factor and the addend, and ``state`` (CHAINS * lanes,).
    """

    @T.prim_func(s_tir=True)
    def moonpoly_bench_fma(operands: T.handle, state: T.handle, steps: T.int64) -> None:
        pair = T.match_buffer(operands, [2 * lanes], "float32", align=4)
        memory = T.match_buffer(state, [CHAINS * lanes], "float32", align=4)
        chain = T.alloc_buffer([CHAINS * lanes], "float32", scope="global")
        for i in T.unroll(CHAINS):
            for v in T.vectorized(lanes):
                chain[i * lanes + v] = memory[i * lanes + v]
        for _ in range(steps):
            for i in T.unroll(CHAINS):
                for v in T.vectorized(lanes):
                    chain[i * lanes + v] = chain[i * lanes + v] * pair[v] + pair[lanes + v]
        for i in T.unroll(CHAINS):
            for v in T.vectorized(lanes):
                memory[i * lanes + v] = chain[i * lanes + v]

    return moonpoly_bench_fma


def compile_peak(target: tvm.target.Target, lanes: int) -> tvm.runtime.Module:
    """The peak function compiled for ``target``; its name is ``moonpoly_bench_fma``."""
    return tvm.compile(peak_function(lanes), target=target).mod


def peak_runner(target: tvm.target.Target, lanes: int) -> tuple[Callable[[], object], int]:
    """The call to be timed, and how many floating-point operations one call does."""
    function = compile_peak(target, lanes)["moonpoly_bench_fma"]
    # The chain 0.5 x + 1 settles at 2: no denormal, infinite or growing values at any length.
    operands = tvm.runtime.tensor(np.repeat(np.array([0.5, 1.0], np.float32), lanes))
    state = tvm.runtime.tensor(np.ones(CHAINS * lanes, np.float32))
    return lambda: function(operands, state, STEPS), 2 * CHAINS * lanes * STEPS
