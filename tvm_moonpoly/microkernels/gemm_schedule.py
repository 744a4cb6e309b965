"""What a GEMM micro-kernel computes, and the family's schedule of it.

Every decision is sampled into the schedule's trace, and what is sampled reaches the program only
through the trace's own instructions: factors of splits and values of annotations. A trace replayed
with other decisions is therefore another kernel, which is what a search over traces needs; a branch
in Python on a sampled value would be the same for all replays.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import s_tir, tirx
from tvm.script import tirx as T

from tvm_moonpoly.microkernels.records import Record

#: Annotations of the reduction's loop, to be lowered by `gemm_lowering`.
PREFETCH_B, PREFETCH_C = "moonpoly.prefetch_b", "moonpoly.prefetch_c"


def semantics(record: Record, lanes: int) -> tirx.PrimFunc:
    """The unscheduled kernel on compact operands, for any number of steps."""
    return _semantics(record.mr, record.nv, record.packed_a, lanes)


@functools.lru_cache(maxsize=256)
def _semantics(mr: int, nv: int, packed: bool, lanes: int) -> tirx.PrimFunc:
    # kept, because parsing it takes longer than all else that makes a kernel
    nr = nv * lanes

    @T.prim_func(s_tir=True)
    def tile(  # type: ignore[no-untyped-def]
        a: T.handle, b: T.handle, x: T.handle, z: T.handle, c: T.handle, lo: T.float32
    ):
        k_extent = T.int64()
        A = T.match_buffer(a, (k_extent, mr) if packed else (mr, k_extent), "float32", align=4)
        B = T.match_buffer(b, (nv, k_extent, lanes), "float32", align=4)
        X = T.match_buffer(x, (mr, nr), "float32", align=4)
        Z = T.match_buffer(z, (nr,), "float32", align=4)
        C = T.match_buffer(c, (mr, nr), "float32", align=4)
        acc = T.sblock_alloc_buffer((mr, nv, lanes), "float32")
        for i, v, s, k in T.grid(mr, nv, lanes, k_extent):
            with T.sblock("product"):
                vi, vv, vs, vk = T.axis.remap("SSSR", [i, v, s, k])
                with T.init():
                    acc[vi, vv, vs] = Z[vv * lanes + vs]
                acc[vi, vv, vs] = (
                    acc[vi, vv, vs] + (A[vk, vi] if packed else A[vi, vk]) * B[vv, vk, vs]
                )
        for i, v, s in T.grid(mr, nv, lanes):
            with T.sblock("store"):
                vi, vv, vs = T.axis.remap("SSS", [i, v, s])
                # written so that NaN passes: a comparison with NaN is false
                C[vi, vv * lanes + vs] = T.Select(
                    acc[vi, vv, vs] + X[vi, vv * lanes + vs] < lo,
                    lo,
                    acc[vi, vv, vs] + X[vi, vv * lanes + vs],
                )

    return tile


def at_trip_count(record: Record, lanes: int, steps: int) -> tirx.PrimFunc:
    """`semantics` for exactly ``steps`` steps and no activation: all of its shapes are constants.

    A search needs that, as MetaSchedule takes no symbolic shapes and no scalars. A trace does not
    depend on it: it replays on `semantics` as it does here.
    """
    function = semantics(record, lanes)
    count = tirx.const(steps, "int64")
    shape = [count, record.mr] if record.packed_a else [record.mr, count]
    a = tirx.decl_buffer(shape, "float32", "A", data_alignment=4)
    lowest = tirx.const(float("-inf"), "float32")
    return function.specialize({function.params[0]: a, function.params[-1]: lowest})


def schedule(
    sch: s_tir.Schedule,
    space: Mapping[str, Sequence[int]],
    decisions: Mapping[str, int] | None = None,
) -> None:
    """The family's schedule: the reduction outermost, the tile unrolled in vector registers.

    ``space`` is what each decision may be. Sampled at random where ``decisions`` is None; else as
    it says, and where it does not say, the first choice.
    """
    sampled = {name: _sample(sch, name, options, decisions) for name, options in space.items()}
    product = sch.get_sblock("product")
    i, v, s, k = sch.get_loops(product)
    block, row = sch.split(i, [None, sampled["row_block"]])
    step, unrolled, partial = sch.split(k, [None, sampled["unroll"], sampled["sums"]])
    sch.reorder(step, unrolled, partial, block, v, row, s)
    sch.annotate(step, PREFETCH_B, sampled["prefetch_b"])
    sch.annotate(step, PREFETCH_C, sampled["prefetch_c"])
    _in_registers(sch, unrolled, partial, block, v, row, s)
    # the schedule refuses to vectorize what decomposing leaves, so that comes second
    init = sch.decompose_reduction(product, step)
    for tile in (init, sch.get_sblock("store")):
        _in_registers(sch, *sch.get_loops(tile))


def decisions_of(trace: s_tir.Trace, space: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The decisions that a trace of `schedule` in ``space`` holds.

    Raises ValueError when it is no such trace.
    """
    sampled = [int(trace.decisions[i]) for i in trace.insts if i.kind.name == SAMPLE]
    if len(sampled) != len(space):
        raise ValueError(f"trace: {len(sampled)} decisions, not {len(space)}")
    return {
        name: options[index] for (name, options), index in zip(space.items(), sampled, strict=True)
    }


#: The kind of the trace's instructions that take a decision.
SAMPLE = "SampleCategorical"


def _sample(
    sch: s_tir.Schedule, name: str, options: Sequence[int], decisions: Mapping[str, int] | None
) -> Any:
    at = None if decisions is None else options.index(decisions.get(name, options[0]))
    probabilities = [1.0 / len(options)] * len(options)
    return sch.sample_categorical(list(options), probabilities, decision=at)


def _in_registers(sch: s_tir.Schedule, *loops: Any) -> None:
    *tile, lanes = loops
    for loop in tile:
        sch.unroll(loop)
    sch.vectorize(lanes)
