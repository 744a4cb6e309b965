"""What a CUDA matrix-product micro-kernel computes, as TensorIR before any schedule.

The reduction and the region of the result are padded to whole tiles, and everything that leaves
the operands is read as zero; the last block alone is guarded. Offsets and tile counts of the region
are parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_moonpoly.microkernels.cuda.form import ITEM_BYTES, Epilogue, Form
from tvm_moonpoly.microkernels.cuda.tile import CHUNK, CudaTile, store_elements

Expr = Any


def semantics(tile: CudaTile, form: Form, epilogue: Epilogue, name: str) -> tirx.PrimFunc:
    """The unscheduled micro-kernel.

    Parameters, in order: tensors A (batch, M, K); B (batch, K, N), or (batch, N, K) when
    transposed; bias (N,) and residual (batch, M, N) where the epilogue has them; the result C
    (batch, M, N); int32 ``m0``, ``n0``, ``tiles_m``, ``tiles_n``. All but bias may have any strides
    of rows and batches (0 included for operands), the last dimension is contiguous. Written is
    ``C[:, m0 : m0 + tiles_m * block_m, n0 : n0 + tiles_n * block_n]``, cut at the end of C. The
    grid is ``(tiles_m * tiles_n, 1, batch)``; nothing checks that it is not empty, nor the
    multiples of `tile.requirements` and the limits ``MAX_OPERAND_ELEMENTS`` and ``MAX_BATCH``.
    """
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name(name)
            T.func_attr({"global_symbol": name, "tirx.noalias": True})
            call = _declare(tile, form, epilogue)
            with T.sblock("root"):
                T.reads()
                T.writes()
                _store(call, _epilogue(call, _product(call)))
        return builder.get()


def activate(name: str, x: Expr) -> Expr:
    """The activation ``name`` of a float32 expression."""
    zero, one = T.float32(0), T.float32(1)
    if name == "relu":
        # written so that NaN passes: a comparison with NaN is false
        return tirx.Select(x < zero, zero, x)
    if name == "gelu":
        return x * T.float32(0.5) * (one + tirx.erf(x * T.float32(math.sqrt(0.5))))
    if name == "gelu_tanh":
        # (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)), which needs no branch
        twice = x * (T.float32(0.044715) * x * x + one) * T.float32(2 * math.sqrt(2 / math.pi))
        return x / (one + tirx.exp(zero - twice))
    if name == "silu":
        return x / (one + tirx.exp(zero - x))
    return x


@dataclass(frozen=True)
class _Call:
    """A micro-kernel's parameters, and what they say."""

    tile: CudaTile
    form: Form
    epilogue: Epilogue
    a: Expr
    b: Expr
    bias: Expr
    residual: Expr
    c: Expr
    size: dict[str, Expr]
    m0: Expr
    n0: Expr
    tiles_m: Expr
    tiles_n: Expr

    @property
    def load(self) -> int:
        """Elements that a copy moves at once."""
        return CHUNK if self.form.aligned else 1

    @property
    def store(self) -> int:
        """Elements that a thread stores at once."""
        return store_elements(self.tile, self.form)

    @property
    def plane(self) -> tuple[Expr, Expr, Expr]:
        """The region, in whole tiles."""
        rows, columns = self.tiles_m * self.tile.block_m, self.tiles_n * self.tile.block_n
        return self.size["batch"], rows, columns

    @property
    def depth(self) -> Expr:
        """The reduction, in whole steps."""
        step = self.tile.block_k
        return (self.size["K"] + (step - 1)) // step * step

    def in_rows(self, i: Expr) -> Expr:
        return self.m0 + i < self.size["M"]

    def in_columns(self, j: Expr, lanes: int) -> Expr:
        return self.n0 + _first(j, lanes) < self.size["N"]

    def in_depth(self, s: Expr, lanes: int) -> Expr:
        return _first(s, lanes) < self.size["K"]


def _declare(tile: CudaTile, form: Form, epilogue: Epilogue) -> _Call:
    extras = ["bias"] * epilogue.bias + ["residual"] * epilogue.residual
    handles = {key: T.arg(key, T.handle()) for key in ("A", "B", *extras, "C")}
    region = {key: T.arg(key, tirx.Var(key, "int32")) for key in ("m0", "n0", "tiles_m", "tiles_n")}
    size = {key: _named(key, T.int32()) for key in ("batch", "M", "N", "K")}
    batch, m, n, k = size.values()
    in_bytes = (CHUNK if form.aligned else 1) * ITEM_BYTES[form.dtype_in]
    out_bytes = store_elements(tile, form) * ITEM_BYTES[form.dtype_out]

    def tensor(key: str, rows: Expr, columns: Expr, dtype: str, align: int) -> Expr:
        if key not in handles:
            return None
        strides = [_named(f"{key}_{part}", T.int32()) for part in ("batch", "row")]
        shape, strides = (batch, rows, columns), [*strides, T.int32(1)]
        return _named(key, T.match_buffer(handles[key], shape, dtype, strides=strides, align=align))

    a = tensor("A", m, k, form.dtype_in, in_bytes)
    rows_b, columns_b = (n, k) if form.b_transposed else (k, n)
    b = tensor("B", rows_b, columns_b, form.dtype_in, in_bytes)
    bias = None
    if epilogue.bias:
        matched = T.match_buffer(handles["bias"], (n,), form.dtype_out, align=out_bytes)
        bias = _named("bias", matched)
    residual = tensor("residual", m, n, form.dtype_out, out_bytes)
    c = tensor("C", m, n, form.dtype_out, out_bytes)
    return _Call(tile, form, epilogue, a, b, bias, residual, c, size, **region)


def _product(call: _Call) -> Expr:
    """The sums of the region's products, in float32."""
    batch, rows, columns = call.plane
    depth, transposed = call.depth, call.form.b_transposed

    def from_a(z: Expr, i: Expr, s: Expr) -> Expr:
        guard = tirx.all(call.in_rows(i), call.in_depth(s, call.load))
        return tirx.if_then_else(guard, call.a[z, call.m0 + i, s], _zero(call.form.dtype_in))

    def from_b(z: Expr, x: Expr, y: Expr) -> Expr:
        if transposed:
            guard = tirx.all(call.in_columns(x, 1), call.in_depth(y, call.load))
            source = call.b[z, call.n0 + x, y]
        else:
            guard = tirx.all(call.in_depth(x, 1), call.in_columns(y, call.load))
            source = call.b[z, x, call.n0 + y]
        return tirx.if_then_else(guard, source, _zero(call.form.dtype_in))

    a = _copied(call, "A", (batch, rows, depth), from_a)
    b = _copied(
        call, "B", (batch, columns, depth) if transposed else (batch, depth, columns), from_b
    )
    total = _buffer("total", call.plane, "float32")
    with T.grid(*call.plane, depth) as (z, i, j, s), T.sblock("product"):
        vz, vi, vj, vs = T.axis.remap("SSSR", [z, i, j, s])
        with T.init():
            T.buffer_store(total, T.float32(0), [vz, vi, vj])
        x = T.Cast("float32", a[vz, vi, vs])
        y = T.Cast("float32", b[vz, vj, vs] if transposed else b[vz, vs, vj])
        T.buffer_store(total, total[vz, vi, vj] + x * y, [vz, vi, vj])
    return total


def _copied(call: _Call, key: str, shape: Sequence[Expr], value: Callable[..., Expr]) -> Expr:
    """An operand in shared memory; single elements go there through registers."""
    if call.form.aligned:
        return _each(f"load_{key}", shape, call.form.dtype_in, value)
    fetched = _each(f"fetch_{key}", shape, call.form.dtype_in, value)
    return _each(f"load_{key}", shape, call.form.dtype_in, lambda *at: fetched[at])


def _epilogue(call: _Call, total: Expr) -> Expr:
    """What is stored, from the sums."""
    sums = collected = _each("collect", call.plane, "float32", lambda *at: total[at])
    if call.tile.epilogue == "shared":
        staged = _each("stage", call.plane, "float32", lambda *at: collected[at])
        sums = _each("gather", call.plane, "float32", lambda *at: staged[at])
    addends = []
    if call.epilogue.bias:
        addends.append(_each("load_bias", call.plane, call.form.dtype_out, _bias_of(call)))
    if call.epilogue.residual:
        addends.append(_each("load_residual", call.plane, call.form.dtype_out, _residual_of(call)))

    def finished(*at: Expr) -> Expr:
        value = sums[at]
        for addend in addends:
            value = value + T.Cast("float32", addend[at])
        return T.Cast(call.form.dtype_out, activate(call.epilogue.activation, value))

    return _each("finish", call.plane, call.form.dtype_out, finished)


# The offset of a vector is written as a multiple of its length, which tvm has to see.


def _bias_of(call: _Call) -> Callable[[Expr, Expr, Expr], Expr]:
    def value(z: Expr, i: Expr, j: Expr) -> Expr:
        source = call.bias[_first(call.n0, call.store) + j]
        return tirx.if_then_else(call.in_columns(j, call.store), source, _zero(call.form.dtype_out))

    return value


def _residual_of(call: _Call) -> Callable[[Expr, Expr, Expr], Expr]:
    def value(z: Expr, i: Expr, j: Expr) -> Expr:
        by_batch, by_row, _ = call.residual.strides
        row = _first(z * by_batch + (call.m0 + i) * by_row, call.store)
        source = call.residual[0, 0, row + _first(call.n0, call.store) + j]
        guard = tirx.all(call.in_rows(i), call.in_columns(j, call.store))
        return tirx.if_then_else(guard, source, _zero(call.form.dtype_out))

    return value


def _store(call: _Call, result: Expr) -> None:
    with T.grid(*call.plane) as (z, i, j), T.sblock("out"):
        vz, vi, vj = T.axis.remap("SSS", [z, i, j])
        target = [vz, call.m0 + vi, call.n0 + vj]
        T.reads(result[vz, vi, vj])
        T.writes(call.c[tuple(target)])
        with T.If(tirx.all(call.in_rows(vi), call.in_columns(vj, call.store))), T.Then():
            T.buffer_store(call.c, result[vz, vi, vj], target)


def _each(name: str, shape: Sequence[Expr], dtype: str, value: Callable[..., Expr]) -> Expr:
    """A buffer, and the block of the same name that computes each of its elements."""
    buffer = _buffer(name, shape, dtype)
    with T.grid(*shape) as (z, i, j), T.sblock(name):
        at = T.axis.remap("SSS", [z, i, j])
        T.buffer_store(buffer, value(*at), list(at))
    return buffer


def _first(index: Expr, lanes: int) -> Expr:
    """The first index of the vector that ``index`` is in: one guard for all of a vector."""
    return index if lanes == 1 else index // lanes * lanes


def _zero(dtype: str) -> Expr:
    return tirx.const(0, dtype)


def _named(name: str, value: Expr) -> Expr:
    IRBuilder.name(name, value)
    return value


def _buffer(name: str, shape: Sequence[Expr], dtype: str) -> Expr:
    return _named(name, T.sblock_alloc_buffer(tuple(shape), dtype))
