"""argmax and argmin of floats as loops of vectors, in place of TVM's pair of reductions.

TVM compares element by element, and strides through memory where the axis is not the last one.
"""

from __future__ import annotations

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import Call, Expr, Op
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.target import Target
from tvm.tirx import ForKind, IfThenElse, IntImm

from tvm_moonpoly.arguments import target_of

from . import element_count
from .bindings import is_claimed
from .parallel_rows import worth_sharing
from .search_loops import TYPES, Places, columns, rows
from .shapes import dims, dtype_of
from .vector_loops import INDEX, for_each, number

OPERATORS = {Op.get("relax.argmax"): True, Op.get("relax.argmin"): False}


@tvm.transform.module_pass(opt_level=0, name="SearchRows")
class SearchRows:
    """Replace argmax and argmin of tensors of floats along one axis, for a CPU.

    As in numpy, the first of equal elements is found, and the first NaN where there is one. An
    empty axis, which numpy refuses, gives -1.
    """

    def __init__(self, target: Target) -> None:
        self.target = target_of(target)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if self.target.kind.name != "llvm":
            return mod
        rewriter = _Rewrite(mod, int(self.target.attrs.get("num-cores", 1)) > 1)
        for gv, func in mod.functions_items():
            if isinstance(func, relax.Function) and not is_claimed(func):
                new = rewriter.visit_expr(func)
                if not new.same_as(func):
                    rewriter.builder_.update_func(gv, new)
        return rewriter.builder_.get() if rewriter.found else mod


@mutator
class _Rewrite(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, parallel: bool) -> None:
        super().__init__(mod)
        self.parallel = parallel
        self.found = False

    def visit_call_(self, call: Call) -> relax.Expr:
        call = super().visit_call_(call)
        larger = OPERATORS.get(call.op)
        if larger is None or call.attrs.axis is None:
            return call
        (data,) = call.args
        shape, result = dims(data), dims(call)
        dtype = dtype_of(data)
        if not shape or result is None or dtype not in TYPES or dtype_of(call) != INDEX:
            return call
        axis = int(call.attrs.axis) % len(shape)
        func = search(shape, axis, larger, bool(call.attrs.keepdims), self.parallel, dtype)
        self.found = True
        name = self.builder_.add_func(func, "argmax" if larger else "argmin")
        return relax.call_tir(name, [data], out_ty=relax.TensorType(result, INDEX))


def search(
    shape: list[Expr],
    axis: int,
    larger: bool,
    keepdims: bool = False,
    parallel: bool = False,
    dtype: str = "float32",
) -> tirx.PrimFunc:
    """A function of a tensor of `shape`, whose symbols become its own, and of the result."""
    own = [
        each if isinstance(each, IntImm) else tirx.Var(f"n{i}", INDEX)
        for i, each in enumerate(shape)
    ]
    left = [number(1)] if keepdims else []
    source = tirx.decl_buffer(own, dtype, "x")
    result = tirx.decl_buffer([*own[:axis], *left, *own[axis + 1 :]], INDEX, "y")
    outer, inner = (element_count.count(part) for part in (own[:axis], own[axis + 1 :]))
    count = own[axis]
    places = Places(source, result, count, inner, larger)
    found = rows(places, outer) if axis == len(own) - 1 else columns(places, outer)
    body = found(ForKind.SERIAL)
    if parallel:
        large = worth_sharing(outer * count * inner)
        body = IfThenElse(large, found(ForKind.PARALLEL), body)
    nothing = for_each(outer * inner, lambda i: places.store(i, number(-1)))
    body = IfThenElse(count > 0, body, nothing)
    root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
    attrs = {"s_tir": True, "tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}
    return tirx.PrimFunc([source, result], root).with_attr(attrs)
