"""Numbers that constants of a Relax function hold."""

from __future__ import annotations

from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr

from .bindings import Bindings
from .shapes import same_tensor

MULTIPLY, DIVIDE = Op.get("relax.multiply"), Op.get("relax.divide")
WHERE, LESS = Op.get("relax.where"), Op.get("relax.less")


def scale_of(call: Call, tensor: Expr) -> float | None:
    """The number that the product or quotient `call` scales its operand `tensor` by."""
    a, b = call.args
    other = b if tensor.same_as(a) else a
    if call.op == DIVIDE and not tensor.same_as(a):
        return None
    value = number(other)
    if value is None or not same_tensor(call, tensor):
        return None
    if call.op == MULTIPLY:
        return value
    return 1.0 / value if value else None


def number(expr: Expr) -> float | None:
    """The number that a constant holds, if it is one."""
    if not isinstance(expr, GenericConst) or str(expr.value.dtype) != "float32":
        return None
    values = expr.value.numpy()
    return float(values.reshape(())) if values.size == 1 else None


def whole_number(expr: Expr, bindings: Bindings) -> int | None:
    """The integer without dimensions that `expr` is, where it is known: importers write an index
    as a choice between itself and, below 0, its sum with the size."""
    if isinstance(expr, GenericConst):
        values = expr.value.numpy()
        return int(values) if values.ndim == 0 and values.dtype.kind in "iub" else None
    call = bindings.call(expr, WHERE, LESS)
    if call is None:
        return None
    if call.op == LESS:
        left, right = (whole_number(arg, bindings) for arg in call.args)
        return None if left is None or right is None else int(left < right)
    condition = whole_number(call.args[0], bindings)
    if condition is None:
        return None
    return whole_number(call.args[1 if condition else 2], bindings)
