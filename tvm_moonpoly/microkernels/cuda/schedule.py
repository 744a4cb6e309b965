"""The family's schedule: from `semantics` to loads, tensor-core steps and stores of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx

from tvm_moonpoly.microkernels.cuda import intrinsics
from tvm_moonpoly.microkernels.cuda.collapse import COLLAPSE
from tvm_moonpoly.microkernels.cuda.form import Epilogue, Form
from tvm_moonpoly.microkernels.cuda.intrinsics import fragment
from tvm_moonpoly.microkernels.cuda.tile import CHUNK, MMA, WARP, CudaTile, store_elements

#: A loop, or a block, of a schedule.
Ref = Any


def schedule(func: tirx.PrimFunc, tile: CudaTile, form: Form, epilogue: Epilogue) -> tirx.PrimFunc:
    """Schedule `semantics` of the same tile, form and epilogue."""
    sch = s_tir.Schedule(func)
    warp, rows, columns = _grid(sch, tile)
    _store(sch, rows, columns, tile, form, epilogue)
    _product(sch, warp, tile, form)
    collapsed = {}
    if tile.epilogue == "shared":
        # last: only a memory that each warp has for itself is seen to be written where it is read
        sch.set_scope(sch.get_sblock("stage"), 0, "shared.dyn")
        if tile.warp_m > MMA:
            _by_part(sch, tile)
            collapsed["stage"] = 2
        # 8 words more than a multiple of 32: a half-warp writes 16 pairs into 32 banks
        sch.storage_align(sch.get_sblock("stage"), 0, axis=-2, factor=32, offset=CHUNK)
    if not form.aligned:
        _by_thread(sch, tile, form)
        collapsed |= {"fetch_A": 4, "fetch_B": 4}
    return sch.mod["main"].with_attr(COLLAPSE, collapsed)


def _grid(sch: s_tir.Schedule, tile: CudaTile) -> tuple[Ref, Ref, Ref]:
    """Blocks and warps over the result: the loop of one warp, and those of its rows and columns."""
    z, i, j = sch.get_loops(sch.get_sblock("out"))
    i0, i_warp, rows = sch.split(i, [None, tile.warps_m, tile.warp_m])
    j0, j_warp, columns = sch.split(j, [None, tile.warps_n, tile.warp_n])
    sch.reorder(z, i0, j0, i_warp, j_warp, rows, columns)
    for loop, thread in (
        (z, "blockIdx.z"),
        (i0, "blockIdx.y"),
        (j0, "blockIdx.x"),
        (i_warp, "threadIdx.z"),
        (j_warp, "threadIdx.y"),
    ):
        sch.bind(loop, thread)
    return j_warp, rows, columns


def _store(
    sch: s_tir.Schedule, rows: Ref, columns: Ref, tile: CudaTile, form: Form, epilogue: Epilogue
) -> None:
    """The epilogue of a warp: from its accumulators to the result."""
    lanes = store_elements(tile, form)
    addends = ["load_bias"] * epilogue.bias + ["load_residual"] * epilogue.residual
    if tile.epilogue == "shared":
        # 16 rows at a time, so that the staged sums need little shared memory
        part, rows = sch.split(rows, [None, MMA])
        wide = min(tile.warp_n // lanes, WARP)
        row_turn, row = sch.split(rows, [None, WARP // wide])
        column_turn, column, vector = sch.split(columns, [None, wide, lanes])
        sch.reorder(row_turn, column_turn, row, column, vector)
        thread = sch.fuse(row, column)
        sch.bind(thread, "threadIdx.x")
        for loop in (row_turn, column_turn):
            sch.unroll(loop)
        sch.unroll(part)
        sch.vectorize(vector)
        _locals(sch, ["finish", *addends, "gather"], thread, [*addends, "gather"])
        stage = sch.get_sblock("stage")
        sch.compute_at(stage, part)
        staged = sch.get_loops(stage)
        inner = _fragments(sch, staged[-2], staged[-1], pairs=True)
        _locals(sch, ["collect"], inner, [])
    else:
        inner = _fragments(sch, rows, columns, pairs=lanes == 2)
        vectors = addends if lanes == 2 else []
        _locals(sch, ["finish", *addends, "collect"], inner, vectors)


def _by_part(sch: s_tir.Schedule, tile: CudaTile) -> None:
    """Lay out staged sums by warp and part, so that one part is allocated, not the whole block."""
    group = tile.warp_m

    def regrouped(z: Ref, i: Ref, j: Ref) -> tuple[Ref, ...]:
        return (z, i // group, i % group // MMA, i % MMA, j)

    sch.transform_layout(sch.get_sblock("stage"), ("write", 0), regrouped)


def _fragments(sch: s_tir.Schedule, rows: Ref, columns: Ref, pairs: bool) -> Ref:
    """Distribute a warp's elements as its accumulators lie: thread ``4 * (row % 8) + pair``.

    Returns the loop below which one thread handles a pair of neighbours.
    """
    row_tile, row_half, row = sch.split(rows, [None, 2, MMA // 2])
    column_tile, column_half, pair, element = sch.split(columns, [None, 2, 4, 2])
    sch.reorder(row_tile, column_tile, column_half, row_half, row, pair, element)
    thread = sch.fuse(row, pair)
    sch.bind(thread, "threadIdx.x")
    if pairs:
        sch.vectorize(element)
    else:
        sch.unroll(element)
    for loop in (row_tile, column_tile, column_half, row_half):
        sch.unroll(loop)
    return thread


def _locals(sch: s_tir.Schedule, names: list[str], at: Ref, vectors: list[str]) -> None:
    """Compute blocks, consumers first, in registers of a thread at ``at``."""
    for name in names:
        block = sch.get_sblock(name)
        sch.set_scope(block, 0, "local")
        sch.compute_at(block, at, preserve_unit_loops=True)
        last = sch.get_loops(block)[-1]
        if name in vectors:
            sch.vectorize(last)
        else:
            sch.unroll(last)


def _product(sch: s_tir.Schedule, warp: Ref, tile: CudaTile, form: Form) -> None:
    """The reduction of one warp, copies of the whole block included."""
    product = sch.get_sblock("product")
    sch.compute_at(product, warp, preserve_unit_loops=True)
    i, j, k = sch.get_loops(product)[-3:]
    i_tile, i_in = sch.split(i, [None, MMA])
    j_tile, j_in = sch.split(j, [None, MMA])
    k0, k1, k_in = sch.split(k, [None, tile.block_k // MMA, MMA])
    sch.reorder(k0, k1, i_tile, j_tile, i_in, j_in, k_in)
    outer = sch.blockize(i_in)
    for name in ("A", "B"):
        _copy(sch, name, k0, tile, form)
    fragments = [sch.cache_read(outer, operand, "warp") for operand in (0, 1)]
    for block in fragments:
        sch.compute_at(block, k1)
    sch.set_scope(outer, 0, "warp")
    init = sch.decompose_reduction(outer, k0)
    for block in fragments:
        x, y = sch.get_loops(block)[-2:]
        x0, x1 = sch.split(x, [None, MMA])
        y0, y1 = sch.split(y, [None, MMA])
        sch.reorder(x0, y0, x1, y1)
        sch.unroll(x0)
        sch.unroll(y0)
        sch.transform_layout(block, ("write", 0), _tiled)
    sch.transform_layout(sch.get_sblock("collect"), ("read", 0), _tiled)
    loads = (
        intrinsics.load_a(form.dtype_in),
        intrinsics.load_b(form.dtype_in, form.b_transposed),
    )
    for block, intrinsic in zip(fragments, loads, strict=True):
        loop = sch.get_loops(block)[-2]
        if tile.swizzle:
            tensorized = sch.blockize(loop)
            sch.annotate(tensorized, "permuted_layout", 1)
            sch.tensorize(tensorized, intrinsic)
        else:
            sch.tensorize(loop, intrinsic)
    multiply = intrinsics.multiply(form.dtype_in, form.b_transposed)
    sch.tensorize(sch.get_loops(product)[-3], multiply)
    cleared = sch.get_child_blocks(init)[0]
    sch.tensorize(sch.get_loops(cleared)[-2], intrinsics.clear())
    # copies of a step run `stages - 1` steps ahead of its products
    ahead = tile.stages - 1
    if form.aligned:
        # copy A, copy B, products
        sch.annotate(k0, "software_pipeline_stage", [0, 0, ahead])
        sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
        sch.annotate(k0, "software_pipeline_async_stages", [0])
    else:
        # fetch A, store A, fetch B, store B, products: between fetching and storing come products
        sch.annotate(k0, "software_pipeline_stage", [0, 0, 0, 0, ahead])
        sch.annotate(k0, "software_pipeline_order", [0, 3, 1, 4, 2])
    for loop in (k1, i_tile, j_tile):
        sch.unroll(loop)


def _copy(sch: s_tir.Schedule, name: str, at: Ref, tile: CudaTile, form: Form) -> None:
    """One step of operand ``name`` into shared memory, by all threads of the block."""
    block = sch.get_sblock(f"load_{name}")
    # before compute_at, so that the region covers what all threads read
    sch.set_scope(block, 0, "shared.dyn")
    sch.compute_at(block, at)
    _spread(sch, block, tile, form)
    if not form.aligned:
        fetch = sch.get_sblock(f"fetch_{name}")
        sch.compute_at(fetch, at)
        _spread(sch, fetch, tile, form)
        # after compute_at: a thread keeps what itself stores
        sch.set_scope(fetch, 0, "local")
    if tile.swizzle:
        sch.annotate(block, "permuted_layout", 1)
    else:
        # rows an odd number of 16 bytes apart: the 8 rows that ldmatrix reads are in other banks
        sch.storage_align(block, 0, axis=-2, factor=2 * CHUNK, offset=CHUNK)


def _spread(sch: s_tir.Schedule, block: Ref, tile: CudaTile, form: Form) -> None:
    """Distribute one step's elements over the threads of the block."""
    fused = sch.fuse(*sch.get_loops(block)[-2:])
    lanes = CHUNK if form.aligned else 1
    parts = [None, tile.warps_m, tile.warps_n, WARP, lanes]
    turn, tz, ty, tx, vector = sch.split(fused, parts)
    sch.bind(tx, "threadIdx.x")
    sch.bind(ty, "threadIdx.y")
    sch.bind(tz, "threadIdx.z")
    if lanes > 1:
        sch.vectorize(vector)
    sch.unroll(turn)


def _by_thread(sch: s_tir.Schedule, tile: CudaTile, form: Form) -> None:
    """Lay out fetched elements by thread and turn, so that a thread's own are its registers."""
    depth, columns = tile.block_k, tile.block_n
    shapes = {
        "A": (tile.block_m, depth),
        "B": (columns, depth) if form.b_transposed else (depth, columns),
    }
    for name, (high, wide) in shapes.items():
        layout = _by_turn(high, wide, tile.threads)
        sch.transform_layout(sch.get_sblock(f"fetch_{name}"), ("write", 0), layout)


def _by_turn(high: int, wide: int, threads: int) -> Callable[[Ref, Ref, Ref], tuple[Ref, ...]]:
    def layout(z: Ref, i: Ref, j: Ref) -> tuple[Ref, ...]:
        element = i % high * wide + j % wide
        return (z, i // high, j // wide, element // threads, element % threads)

    return layout


def _tiled(z: Any, i: Any, j: Any) -> tuple[Any, ...]:
    return (z, i // MMA, j // MMA, *fragment(i % MMA, j % MMA))
