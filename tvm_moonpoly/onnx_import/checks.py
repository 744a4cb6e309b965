"""Checks of sizes at the call."""

from __future__ import annotations

from tvm import relax, tirx
from tvm.ir import StringImm
from tvm.relax import Expr

from .dims import Range

ASSERT_EQUAL = 0  # kAssertEqualToImm of TVM's enum MatchShapeCode


def emit_range_check(builder: relax.BlockBuilder, size: tirx.Var, promised: Range) -> None:
    """Emit a check that raises RuntimeError where `size` is outside of the range `promised`."""
    low, high = (tirx.const(each, "int64") for each in (promised.smallest, promised.largest))
    text = (
        f"main: the dimension {size.name} must be between {promised.smallest} and "
        f"{promised.largest};"
    )
    emit_check(builder, tirx.max(low, tirx.min(size, high)), size, text)


def emit_check(builder: relax.BlockBuilder, found: Expr, wanted: Expr, text: str) -> None:
    """Emit a check that raises RuntimeError, beginning with `text`, where the sizes differ."""
    # a shape, no heap, how many dimensions, what to do with the one, and how an error begins
    arguments = [relax.ShapeExpr([found]), relax.prim_value(0), relax.prim_value(1)]
    arguments += [relax.prim_value(ASSERT_EQUAL), relax.prim_value(wanted), StringImm(text)]
    call = relax.op.call_pure_packed(
        "vm.builtin.match_shape", *arguments, ty_args=relax.ShapeType(ndim=-1)
    )
    # a cast to a wider type is never dropped as unused
    builder.match_cast(builder.emit(call), relax.ObjectType())
