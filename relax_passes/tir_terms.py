"""What the schedules ask of TIR: kinds of axes, variables, numbers."""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm.ir import Expr, Op, Var
from tvm.sym import Analyzer
from tvm.tirx import IntImm, const

SPATIAL, REDUCTION = 0, 2  # IterVar.iter_type
IF_THEN_ELSE = Op.get("prim.if_then_else")


def variables(expressions: object) -> set[Var]:
    """All variables, tensors included, in one expression or in several."""
    found: set[Var] = set()
    tvm_ffi.structural_walk(expressions, (Var, found.add))
    return found


def is_number(value: Expr, expected: int) -> bool:
    return isinstance(value, IntImm) and value.value == expected


def value_of(expr: Expr | int, sizes: Mapping[str, int]) -> int | None:
    """The value of an expression of sizes; None where it depends on something else."""
    if isinstance(expr, int):
        return expr
    known = {
        var: const(sizes[var.name], str(var.ty)) for var in variables(expr) if var.name in sizes
    }
    replaced = tvm_ffi.structural_map(expr, (Var, lambda var: known.get(var, var)))
    value = Analyzer().simplify(replaced)
    return int(value) if isinstance(value, IntImm) else None
