"""Checks that a function makes when it is called, by what is part of TVM's runtime."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Call, StringImm
from tvm.relax import Expr

ASSERT_EQUAL = 0  # kAssertEqualToImm of TVM's enum MatchShapeCode


def assert_equal(made: Expr, given: Expr, text: str) -> Call:
    """A call that raises a RuntimeError with both numbers and `text` unless they are equal."""
    # a shape, no heap, how many dimensions, what to do with the one, and how an error begins
    arguments = [relax.ShapeExpr([made]), relax.prim_value(0), relax.prim_value(1)]
    arguments += [relax.prim_value(ASSERT_EQUAL), relax.prim_value(given), StringImm(text)]
    return relax.op.call_pure_packed(
        "vm.builtin.match_shape", *arguments, ty_args=relax.ShapeType(ndim=-1)
    )


def emit_kept(builder: relax.BlockBuilder, call: Call) -> None:
    """Emit `call`, which would be dropped as pure and unused, and a cast to a wider type, which
    never is. A cast to the same type would be, so that the call may not claim to be Any."""
    builder.match_cast(builder.emit(call), relax.ObjectType())
