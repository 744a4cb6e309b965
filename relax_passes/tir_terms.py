"""What the schedules ask of TIR: kinds of axes, variables, numbers."""

from __future__ import annotations

import tvm_ffi
from tvm.ir import Expr, Op, Var
from tvm.tirx import IntImm

SPATIAL, REDUCTION = 0, 2  # IterVar.iter_type
IF_THEN_ELSE = Op.get("prim.if_then_else")


def variables(expressions: object) -> set[Var]:
    """All variables, tensors included, in one expression or in several."""
    found: set[Var] = set()
    tvm_ffi.structural_walk(expressions, (Var, found.add))
    return found


def is_number(value: Expr, expected: int) -> bool:
    return isinstance(value, IntImm) and value.value == expected
