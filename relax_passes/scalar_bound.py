"""Recognise a PrimFunc that bounds a tensor by a scalar."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx import FloatImm

from .tir_terms import is_number


def scalar_bound(func: tirx.PrimFunc) -> tuple[str, float | None] | None:
    """`("maximum", value)` or `("minimum", value)` if `func` computes no more than that of its
    first parameter into its last, element by element; `value` is None where it is the one number
    of a parameter between them. None for any other function.
    """
    store = _only_store(func)
    if store is None or not isinstance(store.value, tirx.Max | tirx.Min):
        return None
    name = "maximum" if isinstance(store.value, tirx.Max) else "minimum"
    source, *others, destination = filter(tirx.is_buffer_var, func.params)  # no dimensions
    x, bound = store.value.a, store.value.b
    same = isinstance(x, TensorLoad) and x.source.same_as(source)
    if not same or not store.buffer.same_as(destination):
        return None
    if not _same_place(x.indices, store.indices):
        return None
    if isinstance(bound, FloatImm) and not others:
        return name, float(bound.value)
    if not (isinstance(bound, TensorLoad) and len(others) == 1):
        return None
    first = all(is_number(index, 0) for index in bound.indices)
    return (name, None) if first and bound.source.same_as(others[0]) else None


def _only_store(func: tirx.PrimFunc) -> tirx.BufferStore | None:
    """The store of a function that is one loop nest around one block over all its axes."""
    body = func.body
    if not isinstance(body, s_tir.SBlockRealize) or body.block.alloc_buffers:
        return None
    body, loops = body.block.body, []
    while isinstance(body, tirx.For):
        loops.append(body.loop_var)
        body = body.body
    if not isinstance(body, s_tir.SBlockRealize) or not _same_place(body.iter_values, loops):
        return None
    block = body.block
    if not isinstance(block.body, tirx.BufferStore) or block.init is not None:
        return None
    axes = [axis.var for axis in block.iter_vars]
    return block.body if _same_place(block.body.indices, axes) else None


def _same_place(a: list[Expr], b: list[Expr]) -> bool:
    return len(a) == len(b) and all(x.same_as(y) for x, y in zip(a, b, strict=True))
