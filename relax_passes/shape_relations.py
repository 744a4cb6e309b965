"""Equations between sizes that hold from a binding of a Relax function on: checked at run time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax
from tvm.ir import Call, Expr, Var
from tvm.tirx import IntImm

from .run_time_checks import ASSERT_EQUAL
from .shapes import show_dim


@dataclass(frozen=True, eq=False)
class Relation:
    """`left == right` once the variable `since` is bound. `source` says what keeps it."""

    left: Expr
    right: Expr
    since: Var
    source: str

    def __str__(self) -> str:
        return f"{show_dim(self.left)} = {show_dim(self.right)} ({self.source})"


def relations_of(func: relax.Function) -> tuple[list[Relation], dict[Var, int]]:
    """The relations of `func`, and its variables numbered in program order.

    `match_cast` and the checks that `CheckReshapes` and the importer of ONNX emit raise where two
    sizes differ. What is in a branch, or in a function inside, tells nothing of the rest.
    """
    order: dict[Var, int] = {param: i for i, param in enumerate(func.params)}
    found: list[Relation] = []
    if not isinstance(func.body, relax.SeqExpr):
        return found, order
    for block in func.body.blocks:
        for binding in block.bindings:
            order[binding.var] = len(order)
            found += _told_by(binding)
    return found, order


def _told_by(binding: relax.Binding) -> Iterator[Relation]:
    if isinstance(binding, relax.MatchCast):
        before, after = (_sizes(each.ty) for each in (binding.value, binding.var))
        if before is not None and after is not None and len(before) == len(after):
            for left, right in zip(before, after, strict=True):
                if not left.same_as(right):
                    yield Relation(left, right, binding.var, "a cast")
        return
    pair = asserted(binding.value)
    if pair is not None:
        yield Relation(*pair, binding.var, "a check")


def asserted(expr: Expr) -> tuple[Expr, Expr] | None:
    """The two sizes that `expr` compares, if it is a call by `assert_equal`."""
    if not isinstance(expr, Call) or len(expr.args) != 7:
        return None
    function, shape, *numbers, given, _text = expr.args
    if not isinstance(function, relax.ExternFunc):
        return None
    if function.global_symbol != "vm.builtin.match_shape" or not isinstance(shape, relax.ShapeExpr):
        return None
    codes = [int(each) for each in numbers if isinstance(each, IntImm)]
    if codes != [0, 1, ASSERT_EQUAL] or len(shape.values) != 1:
        return None
    return shape.values[0], given


def _sizes(ty: relax.Type) -> list[Expr] | None:
    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        return list(ty.shape.values)
    if isinstance(ty, relax.ShapeType) and ty.values is not None:
        return list(ty.values)
    return None
