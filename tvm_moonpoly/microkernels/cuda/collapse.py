"""Buffers of which only one slice is used at a time, allocated as that slice."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad, Var

#: Attribute of a micro-kernel: names of buffers, and of each the dimension to be collapsed.
COLLAPSE = "moonpoly.collapse"


def collapse() -> tvm.transform.Pass:
    """Drop a dimension from the buffers that `COLLAPSE` names: all of its indices become 0.

    For loops whose every turn writes a slice before it reads it, and for the dimension of threads
    of what a thread has for itself: tvm allocates all of both.
    """

    @tvm.tirx.transform.prim_func_pass(opt_level=0, name="moonpoly.collapse")
    def apply(func: tirx.PrimFunc, mod: Any, ctx: Any) -> tirx.PrimFunc:
        names = dict(func.attrs.get(COLLAPSE, {})) if func.attrs is not None else {}
        if not names:
            return func
        found: list[tuple[Any, Any, int]] = []

        def variable(var: Any) -> Any:
            if not tirx.is_buffer_var(var):
                return var
            for old, new, _ in found:
                if old.same_as(var):
                    return new
            for name, axis in names.items():
                if var.name.startswith(name):
                    new = _without(var, int(axis))
                    found.append((var, new, int(axis)))
                    return new
            return var

        def at(buffer: Any, indices: Any) -> list[Any] | None:
            for _, new, axis in found:
                if new.same_as(buffer):
                    zero = tirx.const(0, "int32")
                    return [zero if d == axis else index for d, index in enumerate(indices)]
            return None

        def load(node: Any) -> Any:
            indices = at(node.source, node.indices)
            return node if indices is None else node.source[tuple(indices)]

        def store(node: Any) -> Any:
            indices = at(node.buffer, node.indices)
            return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

        callbacks = [(Var, variable), (TensorLoad, load), (tirx.BufferStore, store)]
        return func.with_body(tvm_ffi.structural_map(func.body, callbacks, order="post"))

    return apply


def _without(buffer: Any, axis: int) -> Any:
    shape, strides = list(buffer.shape), list(buffer.strides)
    extent = shape[axis]
    shape[axis] = tirx.const(1, "int32")
    if strides:
        strides = [s // extent if d < axis else s for d, s in enumerate(strides)]
    return tirx.decl_buffer(
        shape,
        str(buffer.dtype),
        buffer.name,
        strides=strides or None,
        scope=buffer.scope(),
        data_alignment=buffer.data_alignment,
    )
