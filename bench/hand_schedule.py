"""TVM with a schedule written by hand: the baseline that a TVM user gets without tvm_moonpoly.

TVM has no CPU schedule for a matmul whose rows are counted at run time, and cannot tune one either:
MetaSchedule measures static shapes only. What a user can do is to schedule the functions of dynamic
shape after ``LegalizeOps`` and fusion by a few lines of TensorIR. Two such schedules are given:

* the plain one tiles 6 rows by 16 columns, vectorizes, and guards each row of a tile;
* the padded one also copies the rows into a buffer that is a whole number of tiles long
  (``pad_einsum``), which rids the inner loop of guards and lets LLVM keep the tile in registers.

Both compute on any number of rows, 0 included, and leave alone what is no matmul.
"""

from __future__ import annotations

import os

import tvm
from tvm import s_tir, tirx
from tvm.relax.backend.cpu_generic import pipeline as cpu

ROWS = 6
COLUMNS = 16


def hand_scheduled_pipeline(
    target: tvm.target.Target, *, padded: bool = False, threads: int | None = None
) -> tvm.transform.Pass:
    """TVM's default CPU pipeline with every matmul function scheduled by hand after fusion.

    ``padded`` selects the schedule. Loops are made parallel when ``threads``, by default the value
    of ``TVM_NUM_THREADS``, is above 1. To be passed as ``relax_pipeline`` of ``tvm.compile``.
    """
    count = int(os.environ.get("TVM_NUM_THREADS", "1")) if threads is None else threads
    return scheduled_pipeline(target, schedule_matmuls(padded=padded, threads=count))


def scheduled_pipeline(
    target: tvm.target.Target, schedule: tvm.transform.Pass
) -> tvm.transform.Pass:
    """TVM's default CPU pipeline with the pass ``schedule`` after fusion."""

    @tvm.transform.module_pass(opt_level=0, name="ScheduledPipeline")
    def pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        passes = [
            *cpu.library_dispatch_passes(target),
            *cpu.legalize_passes(target),
            schedule,
            *cpu.dataflow_lower_passes(target),
            *cpu.finalize_passes(target),
        ]
        with target:
            return tvm.transform.Sequential(passes)(mod)

    return pipeline


def schedule_matmuls(*, padded: bool = False, threads: int = 1) -> tvm.transform.Pass:
    """A pass that schedules every PrimFunc with a matmul in it and leaves all others alone."""

    @tvm.transform.module_pass(opt_level=0, name="ScheduleMatmuls")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        scheduled = {}
        for name, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                found = schedule_function(func, padded=padded, threads=threads)
                if found is not None:
                    scheduled[name] = found
        for name, func in scheduled.items():
            mod.update_func(name, func)
        return mod

    return run


def schedule_function(
    func: tirx.PrimFunc, *, padded: bool = False, threads: int = 1
) -> tirx.PrimFunc | None:
    """``func`` with its matmul and what is fused to it scheduled; None when it holds no matmul."""
    if "tirx.is_scheduled" in func.attrs:
        return None
    sch = s_tir.Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    matmuls = [at for at, block in enumerate(blocks) if is_matmul(sch.get(block))]
    if len(matmuls) != 1:
        return None
    matmul, consumers = blocks[matmuls[0]], blocks[matmuls[0] + 1 :]
    pads = []
    if padded:
        sch.pad_einsum(matmul, [1] * (len(sch.get_loops(matmul)) - 3) + [ROWS, COLUMNS, 1])
        pads = [block for block in sch.get_producers(matmul) if block not in blocks]
        consumers = sch.get_consumers(matmul) + consumers
    elif not consumers:
        consumers = [sch.cache_write(matmul, 0, "global")]
    for block in consumers[:-1]:
        sch.compute_inline(block)
    tile(sch, matmul, consumers[-1], pads, guarded=not padded, threads=threads)
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def tile(
    sch: s_tir.Schedule,
    matmul: s_tir.schedule.SBlockRV,
    last: s_tir.schedule.SBlockRV,
    pads: list[s_tir.schedule.SBlockRV],
    *,
    guarded: bool,
    threads: int,
) -> None:
    """The lines that a user would write: ``last`` stores the tile that ``matmul`` adds up."""
    whole = has_whole_columns(sch, matmul)
    left = sch.get(matmul).reads[0].source
    *batch, i, j, k = sch.get_loops(matmul)
    if guarded and not whole:
        # A guard on each column would keep the tile from being vectorized: whole rows instead,
        # the columns innermost for LLVM to vectorize.
        sch.reorder(i, k, j)
        sch.reverse_compute_at(last, i)
        outer = [*batch, i]
    else:
        i0, i1 = sch.split(i, [None, ROWS])
        j0, j1 = sch.split(j, [None, COLUMNS])
        sch.reorder(i0, j0, k, i1, j1)
        sch.reverse_compute_at(last, j0)
        sch.unroll(i1)
        sch.vectorize(j1)
        if whole:
            sch.vectorize(sch.get_loops(last)[-1])
        outer = [*batch, i0, j0]
    if threads > 1:
        for pad in pads:
            sch.parallel(sch.fuse(*sch.get_loops(pad)[:-1]))
        sch.parallel(sch.fuse(*outer))
    else:
        for pad in pads:
            if sch.get(pad).writes[0].source.same_as(left):
                sch.compute_at(pad, outer[-2])
    sch.decompose_reduction(matmul, k)


def is_matmul(block: s_tir.SBlock) -> bool:
    """Whether a block adds up products of two elements over one axis, with rows and columns."""
    kinds = [int(axis.iter_type) for axis in block.iter_vars]
    store = block.body
    reduces = kinds[-1:] == [tirx.IterVar.CommReduce] and len(kinds) >= 3
    if not reduces or tirx.IterVar.CommReduce in kinds[:-1]:
        return False
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return False
    product = store.value.b
    return isinstance(product, tirx.Mul) and all(
        isinstance(side, tvm.ir.TensorLoad) and len(side.indices) >= 2
        for side in (product.a, product.b)
    )


def has_whole_columns(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV) -> bool:
    """Whether the columns are a static number that the tile's width divides."""
    extent = sch.get(sch.get_loops(block)[-2]).extent
    return isinstance(extent, tirx.IntImm) and int(extent) % COLUMNS == 0
