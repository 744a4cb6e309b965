"""The few tensor intrinsics of the family: ldmatrix, mma.sync and the clearing of accumulators.

They are registered on first use, and written with tvm's IRBuilder: tvm's own module of intrinsics
parses some two hundred functions when it is imported, which takes a minute, and has none for
bfloat16.

A 16x16 tile of 2-byte elements lies in a warp as 8 elements a thread, as mma.sync m16n8k16 has it
(PTX ISA, "Matrix Fragments for mma.m16n8k16"): `fragment` gives thread and element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_moonpoly.microkernels.cuda.tile import CHUNK, MMA, WARP

Expr = Any

#: Elements of a 16x16 tile in one thread.
LOCAL = MMA * MMA // WARP

_PTX = {"float16": "fp16", "bfloat16": "bf16"}


def fragment(row: Expr, column: Expr) -> tuple[Expr, Expr]:
    """Thread of the warp, and element in it, that hold an element of a 16x16 tile."""
    thread = 4 * (row % 8) + (column % 8) // 2
    return thread, 4 * (column // 8) + (row // 8) * 2 + column % 2


def load_a(dtype: str) -> str:
    """The name of the intrinsic that loads a tile of A, (rows, k), from shared memory."""
    return _register(f"moonpoly.ldmatrix_a.{dtype}", lambda: _ldmatrix(dtype, False, False))


def load_b(dtype: str, transposed: bool) -> str:
    """The one that loads a tile of B, (k, columns), or (columns, k) when ``transposed``."""
    name = f"moonpoly.ldmatrix_b{'_t' * transposed}.{dtype}"
    return _register(name, lambda: _ldmatrix(dtype, not transposed, transposed))


def multiply(dtype: str, b_transposed: bool) -> str:
    """The one that adds the product of two tiles to a tile of float32 accumulators."""
    name = f"moonpoly.mma{'_t' * b_transposed}.{dtype}"
    return _register(name, lambda: _mma(dtype, b_transposed))


def clear() -> str:
    """The one that clears a tile of accumulators."""
    return _register("moonpoly.mma_clear", _clear)


_registered: set[str] = set()


def _register(name: str, make: Callable[[], tuple[tirx.PrimFunc, tirx.PrimFunc]]) -> str:
    if name not in _registered:
        s_tir.TensorIntrin.register(name, *make(), override=True)
        _registered.add(name)
    return name


def _function(
    buffers: dict[str, Callable[[Expr], Expr]], body: Callable[..., None]
) -> tirx.PrimFunc:
    """A function over ``buffers``: each made from its handle, then the body over all of them."""
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            handles = {name: T.arg(name, T.handle()) for name in buffers}
            matched = [make(handles[name]) for name, make in buffers.items()]
            for name, buffer in zip(buffers, matched, strict=True):
                IRBuilder.name(name, buffer)
            with T.sblock("root"):
                body(*matched)
        return builder.get()


def _warp(dtype: str, factor: int = MMA) -> Callable[[Expr], Expr]:
    return lambda handle: T.match_buffer(
        handle, (WARP, LOCAL), dtype, align=64, offset_factor=factor, scope="warp"
    )


def _ldmatrix(
    dtype: str, transpose: bool, columns_first: bool
) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """``transpose``: the .trans form. ``columns_first``: the order of the four 8x8 tiles."""

    def shared(handle: Expr, strides: list[Expr] | None = None) -> Expr:
        return T.match_buffer(
            handle,
            (MMA, MMA),
            dtype,
            strides=strides,
            align=64,
            offset_factor=MMA,
            scope="shared.dyn",
        )

    def strided(handle: Expr) -> Expr:
        return shared(handle, [T.int32(), T.int32()])

    def describe(warp: Expr, source: Expr) -> None:
        T.reads(source[0:MMA, 0:MMA])
        T.writes(warp[0:WARP, 0:LOCAL])
        with T.grid(MMA, MMA) as (i, j), T.sblock("element"):
            vi, vj = T.axis.remap("SS", [i, j])
            thread, local = fragment(vi, vj)
            T.reads(source[vi, vj])
            T.writes(warp[thread, local])
            T.buffer_store(warp, source[vi, vj], [thread, local])

    def implement(warp: Expr, source: Expr) -> None:
        T.reads(source[0:MMA, 0:MMA])
        T.writes(warp[0:WARP, 0:LOCAL])
        stride = source.strides[0]
        with T.thread_binding(0, WARP, "threadIdx.x") as tx:
            # each thread names one row of 16 bytes of one of the four 8x8 tiles
            if columns_first:
                row = stride * 8 * (tx // 16) + stride * (tx % 8) + CHUNK * (tx % 16 // 8)
            else:
                row = stride * (tx % 16) + CHUNK * (tx // 16)
            T.evaluate(
                T.ptx_legacy.ldmatrix(
                    transpose,
                    4,
                    ".b16",
                    warp.data,
                    warp.elem_offset + LOCAL * tx,
                    source.access_ptr("r"),
                    row,
                    dtype=dtype,
                )
            )

    return (
        _function({"warp": _warp(dtype), "shared": shared}, describe),
        _function({"warp": _warp(dtype), "shared": strided}, implement),
    )


def _mma(dtype: str, b_transposed: bool) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    def describe(a: Expr, b: Expr, c: Expr) -> None:
        _touch(a, b, c)
        with T.grid(MMA, MMA, MMA) as (i, j, k), T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            at_a = fragment(vi, vk)
            at_b = fragment(vj, vk) if b_transposed else fragment(vk, vj)
            at_c = fragment(vi, vj)
            T.reads(c[at_c], a[at_a], b[at_b])
            T.writes(c[at_c])
            product = T.Cast("float32", a[at_a]) * T.Cast("float32", b[at_b])
            T.buffer_store(c, c[at_c] + product, list(at_c))

    def implement(a: Expr, b: Expr, c: Expr) -> None:
        _touch(a, b, c)
        half = LOCAL // 2
        with T.thread_binding(0, WARP, "threadIdx.x") as tx:
            for side in range(2):  # columns 0..7 and 8..15
                T.evaluate(
                    T.ptx_legacy.mma(
                        "m16n8k16",
                        "row",
                        "col",
                        _PTX[dtype],
                        _PTX[dtype],
                        "fp32",
                        a.data,
                        a.elem_offset + tx * LOCAL,
                        b.data,
                        b.elem_offset + tx * LOCAL + side * half,
                        c.data,
                        c.elem_offset + tx * LOCAL + side * half,
                        False,
                        dtype="float32",
                    )
                )

    buffers = {"a": _warp(dtype), "b": _warp(dtype), "c": _warp("float32")}
    return _function(buffers, describe), _function(buffers, implement)


def _touch(a: Expr, b: Expr, c: Expr) -> None:
    T.reads(*(buffer[0:WARP, 0:LOCAL] for buffer in (c, a, b)))
    T.writes(c[0:WARP, 0:LOCAL])


def _clear() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    def describe(c: Expr) -> None:
        T.reads()
        T.writes(c[0:WARP, 0:LOCAL])
        with T.grid(MMA, MMA) as (i, j), T.sblock("element"):
            vi, vj = T.axis.remap("SS", [i, j])
            thread, local = fragment(vi, vj)
            T.reads()
            T.writes(c[thread, local])
            T.buffer_store(c, T.float32(0), [thread, local])

    def implement(c: Expr) -> None:
        T.reads()
        T.writes(c[0:WARP, 0:LOCAL])
        with T.thread_binding(0, WARP, "threadIdx.x"):
            T.evaluate(T.cuda.mma_fill_legacy(LOCAL, c.data, c.elem_offset, dtype="float32"))

    return (
        _function({"c": _warp("float32", 0)}, describe),
        _function({"c": _warp("float32", 1)}, implement),
    )
