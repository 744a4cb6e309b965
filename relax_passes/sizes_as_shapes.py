"""Fused functions take sizes as a shape."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, PrimType
from tvm.relax import Function, Var


@tvm.transform.module_pass(opt_level=0, name="SizesAsShapes")
class SizesAsShapes:
    """Between FuseOps and FuseTIR: a fused function takes sizes that none of its operands has, such
    as the `past` of `arange(past, past + seq)`, in a shape instead of as numbers.

    FuseOps makes them numbers, sometimes beside a shape of the same; FuseTIR fails on both.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        moved = {
            gv: found
            for gv, func in mod.functions_items()
            if isinstance(func, Function)
            and (func.attrs or {}).get("Primitive")
            and (found := _moved(func)) is not None
        }
        if not moved:
            return mod
        result = mod.clone()
        for gv in moved:
            del result[gv]
        renewed = {}
        for gv, each in moved.items():
            func = _with_shape(mod[gv], each)
            renewed[gv] = GlobalVar(gv.name_hint)  # the old one has the old type
            relax.expr._update_type(renewed[gv], func.ty)
            result[renewed[gv]] = func
        calls = _Calls(moved, renewed)
        for gv, func in mod.functions_items():
            if isinstance(func, Function) and gv not in moved:
                new = calls.visit_expr(func)
                if not new.same_as(func):
                    result.update_func(gv, new)
        return result


@dataclass(frozen=True)
class _Moved:
    """Positions of the parameters that stay, and of the numbers that come in a shape after them."""

    kept: list[int]
    sizes: list[int]


def _moved(func: Function) -> _Moved | None:
    """What becomes of the parameters; None if none is a number."""
    numbers = [at for at, param in enumerate(func.params) if isinstance(param.ty, PrimType)]
    if not numbers:
        return None
    shapes = [param.ty.values for param in func.params if isinstance(param.ty, relax.ShapeType)]
    given = [size for values in shapes for size in values or () if isinstance(size, Var)]
    kept = [at for at in range(len(func.params)) if at not in numbers]
    return _Moved(
        kept, [at for at in numbers if not any(func.params[at].same_as(size) for size in given)]
    )


def _with_shape(func: Function, moved: _Moved) -> Function:
    params = [func.params[at] for at in moved.kept]
    if moved.sizes:
        params.append(Var("sizes", relax.ShapeType([func.params[at] for at in moved.sizes])))
    return Function(params, func.body, func.ret_ty, func.is_pure, func.attrs)


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    """Calls of the functions with the parameters that these have now."""

    def __init__(self, moved: dict[GlobalVar, _Moved], renewed: dict[GlobalVar, GlobalVar]) -> None:
        super().__init__()
        self.moved, self.renewed = moved, renewed

    def visit_call_(self, call: Call) -> relax.Expr:
        if not isinstance(call.op, GlobalVar) or call.op not in self.moved:
            return super().visit_call_(call)
        moved = self.moved[call.op]
        arguments = [call.args[at] for at in moved.kept]
        if moved.sizes:
            arguments.append(relax.ShapeExpr([call.args[at] for at in moved.sizes]))
        return Call(self.renewed[call.op], arguments, call.attrs, call.ty_args, call.span)
