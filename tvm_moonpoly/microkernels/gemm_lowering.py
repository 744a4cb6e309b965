"""From the scheduled micro-kernel to a function over pointers.

A split reduction guards every step, as the trip count need not be a multiple of what is unrolled.
Here it becomes a loop without guards and a loop over the rest. Partial sums get accumulators of
their own, and the prefetches that the schedule asked for are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import PointerType, PrimType, Var

from tvm_moonpoly.emit import LINE, fetched
from tvm_moonpoly.microkernels.gemm_schedule import PREFETCH_B, PREFETCH_C
from tvm_moonpoly.microkernels.records import Record


def lower(
    scheduled: tirx.PrimFunc, record: Record, lanes: int, ahead: bool = False
) -> tirx.PrimFunc:
    """``scheduled``, a result of `gemm_schedule.schedule`, as a private function over pointers.

    Its parameters are those of `cpu_gemm.build`.
    """
    return _over_pointers(_Kernel(scheduled, record, lanes, ahead).function(), record, lanes)


def _int(value: int, dtype: str = "int32") -> Any:
    return tirx.const(value, dtype)


class _Kernel:
    """The parts of a scheduled kernel, and the kernel made of them."""

    def __init__(self, scheduled: tirx.PrimFunc, record: Record, lanes: int, ahead: bool) -> None:
        self.scheduled, self.record, self.lanes = scheduled, record, lanes
        shape = [scheduled.params[1].shape[1], _int(lanes)]
        self.later = tirx.decl_buffer(shape, "float32", "P", data_alignment=4) if ahead else None
        self.buffers = {p.name: p for p in scheduled.params if tirx.is_buffer_var(p)}
        root = scheduled.body.block
        self.init, self.reduction, self.store = root.body.seq
        (self.tile,) = root.alloc_buffers
        self.unrolled = self.reduction.body
        self.partial = self.unrolled.body
        self.sums = int(self.partial.extent)
        self.steps = int(self.unrolled.extent) * self.sums
        self.accumulators = tirx.decl_buffer(
            [_int(self.sums), *self.tile.shape], "float32", "accumulators"
        )

    def function(self) -> tirx.PrimFunc:
        statements = [
            *self._prefetch_c(),
            self._plain(self.init, _int(0)),
            *(self._elementwise(self._clear(part)) for part in range(1, self.sums)),
            *self._reduction(),
            *(self._elementwise(self._add(*parts)) for parts in self._pairs()),
            self._plain(self.store, _int(0)),
        ]
        block = s_tir.SBlock(
            [], [], [], "root", tirx.SeqStmt(statements), None, [self.accumulators]
        )
        root = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        later = [] if self.later is None else [self.later]
        return tirx.PrimFunc([*self.scheduled.params, *later], root).with_attr("s_tir", True)

    def _reduction(self) -> Iterator[tirx.Stmt]:
        """The loop over whole iterations, and the loop over the steps that are left."""
        loop, extent = self.reduction, self.buffers["B"].shape[1]
        body = self._plain(self.unrolled, self.partial.loop_var)
        prefetches = [*self._prefetch_b(), *self._prefetch_later()]
        if prefetches:
            body = tirx.SeqStmt([*prefetches, body])
        whole = tirx.truncdiv(extent, _int(self.steps, "int64"))
        yield _serial(loop.loop_var, whole, body)
        if self.steps == 1:
            return
        step = tirx.Var("rest", "int64")
        rest = _substitute(
            self.partial.body,
            {
                loop.loop_var: whole,
                self.unrolled.loop_var: _int(0, "int64"),
                self.partial.loop_var: step,
            },
        )
        left = extent - whole * _int(self.steps, "int64")
        yield _serial(step, left, self._plain(rest, _int(0)))

    def _plain(self, statement: tirx.Stmt, part: Any) -> tirx.Stmt:
        """Without blocks and their guards, on the accumulators of partial sum ``part``."""

        def inlined(realize: s_tir.SBlockRealize) -> tirx.Stmt:
            block = realize.block
            variables = (axis.var for axis in block.iter_vars)
            return _substitute(block.body, dict(zip(variables, realize.iter_values, strict=True)))

        def load(expr: Any) -> Any:
            if not expr.source.same_as(self.tile):
                return expr
            return tirx.BufferLoad(self.accumulators, [part, *expr.indices])

        def store(stmt: Any) -> Any:
            if not stmt.buffer.same_as(self.tile):
                return stmt
            return tirx.BufferStore(self.accumulators, stmt.value, [part, *stmt.indices])

        plain = tvm_ffi.structural_map(statement, (s_tir.SBlockRealize, inlined))
        return tvm_ffi.structural_map(plain, [(tvm.ir.TensorLoad, load), (tirx.BufferStore, store)])

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Which partial sum is added to which, so that all end up in the first."""
        half = self.sums // 2
        while half:
            yield from ((part, part + half) for part in range(half))
            half //= 2

    def _clear(self, part: int) -> Callable[..., tirx.Stmt]:
        zero = tirx.const(0.0, "float32")
        return lambda *at: tirx.BufferStore(self.accumulators, zero, [_int(part), *at])

    def _add(self, to: int, part: int) -> Callable[..., tirx.Stmt]:
        def added(*at: Any) -> tirx.Stmt:
            left, right = (tirx.BufferLoad(self.accumulators, [_int(p), *at]) for p in (to, part))
            return tirx.BufferStore(self.accumulators, left + right, [_int(to), *at])

        return added

    def _elementwise(self, body: Callable[..., tirx.Stmt]) -> tirx.Stmt:
        """``body`` at each row, vector and lane of the tile."""
        i, v, s = (tirx.Var(name, "int32") for name in "ivs")
        kinds = tirx.ForKind
        lanes = tirx.For(s, _int(0), _int(self.lanes), kinds.VECTORIZED, body(i, v, s))
        columns = tirx.For(v, _int(0), _int(self.record.nv), kinds.UNROLLED, lanes)
        return tirx.For(i, _int(0), _int(self.record.mr), kinds.UNROLLED, columns)

    def _prefetch_b(self) -> Iterator[tirx.Stmt]:
        """What later iterations read of B, each line once.

        Of panels, rows further down. Of B in place, the columns of the next group in the same rows,
        into the second-level cache: rows further down may lie a large power of two away, where they
        push out of the first-level cache what is read next.

        All that may lie beyond the end of B: a prefetch of what is not there does nothing.
        """
        ahead = int(self.reduction.annotations[PREFETCH_B])
        if not ahead:
            return
        fit = max(LINE // self.lanes, 1)
        first = self.reduction.loop_var * _int(self.steps, "int64")
        nv, b = self.record.nv, self.buffers["B"]
        if self.record.in_place_b:
            for v in range(nv, 2 * nv, fit):
                for step in range(self.steps):
                    row = first + _int(step, "int64")
                    yield _prefetch(b, [_int(v), row, _int(0)], write=False, level=2)
            return
        # a line holds neighbouring rows of a panel
        for v in range(nv):
            for step in range(0, self.steps, fit):
                row = first + _int(ahead + step, "int64")
                yield _prefetch(b, [_int(v), row, _int(0)], write=False)

    def _prefetch_later(self) -> Iterator[tirx.Stmt]:
        """The panel of a later group, row by row as the kernel goes through its own.

        Into the second cache: its turn comes when the tiles below this one are done.
        """
        if self.later is None:
            return
        fit = max(LINE // self.lanes, 1)
        first = self.reduction.loop_var * _int(self.steps, "int64")
        for step in range(0, self.steps, fit):
            row = first + _int(step, "int64")
            yield _prefetch(self.later, [row, _int(0)], write=False, level=2)

    def _prefetch_c(self) -> Iterator[tirx.Stmt]:
        if not int(self.reduction.annotations[PREFETCH_C]):
            return
        for row in range(self.record.mr):
            for column in range(0, self.record.nv * self.lanes, LINE):
                yield _prefetch(self.buffers["C"], [_int(row), _int(column)], write=True)


def _prefetch(buffer: Any, indices: list[Any], write: bool, level: int = 1) -> tirx.Stmt:
    """Bring an element near: into the caches from ``level`` on."""
    address = tirx.address_of(tirx.BufferLoad(buffer, indices))
    return tirx.Evaluate(fetched(address, level, write))


def _serial(variable: Any, extent: Any, body: tirx.Stmt) -> tirx.Stmt:
    return tirx.For(variable, _int(0, "int64"), extent, tirx.ForKind.SERIAL, body)


def _substitute(node: Any, values: dict[Any, Any]) -> Any:
    return tvm_ffi.structural_map(node, (Var, lambda v: values.get(v, v)))


def _over_pointers(function: tirx.PrimFunc, record: Record, lanes: int) -> tirx.PrimFunc:
    """Swap the compact buffers for strided ones over pointer parameters.

    Scheduling happens on compact buffers because ``cache_write`` and allocation copy strides.
    """
    one = tirx.const(1, "int64")
    stride = {name: tirx.Var(name, "int64") for name in ("lda", "b_vector", "b_row", "ldx", "ldc")}
    strides = {
        "A": [tirx.const(record.mr, "int64"), one] if record.packed_a else [stride["lda"], one],
        "B": [
            stride["b_vector"],
            stride["b_row"] if record.in_place_b else tirx.const(lanes, "int64"),
            one,
        ],
        "X": [stride["ldx"], one],
        "Z": [one],
        "C": [stride["ldc"], one],
        "P": [tirx.const(lanes, "int64"), one],
    }
    buffers = [p for p in function.params if tirx.is_buffer_var(p)]
    scalars = [p for p in function.params if not tirx.is_buffer_var(p)]
    (extent,) = {b.shape[1] for b in buffers if b.name == "B"}
    replaced, pointers, declarations = {}, [], []
    for buffer in buffers:
        # align=4: operands are views at any element
        strided = tirx.decl_buffer(
            list(buffer.shape),
            str(buffer.dtype),
            buffer.name,
            strides=strides[buffer.name],
            data_alignment=4,
        )
        pointer_type = PointerType(PrimType(str(buffer.dtype)), "global")
        pointer = tirx.Var(buffer.name.lower(), pointer_type)
        replaced[buffer] = strided
        pointers.append(pointer)
        declarations.append(tirx.DeclBuffer(strided, data=pointer))
    root = tvm_ffi.structural_map(function.body, (Var, lambda v: replaced.get(v, v)), order="post")
    block = root.block
    inner = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.SeqStmt([*declarations, block.body]),
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    body = s_tir.SBlockRealize(root.iter_values, root.predicate, inner)
    parameters = [*pointers, *stride.values(), extent, *scalars]
    return tirx.PrimFunc(parameters, body).with_attr({"s_tir": True, "calling_conv": -1})
