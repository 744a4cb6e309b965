"""Which matmuls of a function are ours, and in which of the two forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from .bindings import Bindings
from .shapes import dims, is_float32

MATMUL = Op.get("relax.matmul")
PERMUTE_DIMS = Op.get("relax.permute_dims")
MAX_NDIM = 8  # a permutation is passed as four bits a dimension in one integer


@dataclass(frozen=True)
class Operand:
    """A stored tensor and how the product sees it: its dim i is the stored dim `axes[i]`."""

    stored: Expr
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """`matmul(x, weight)`: x of any rank, weight a constant of shape (K, N)."""

    x: Expr
    weight: Operand

    def weight_array(self) -> np.ndarray:
        """The weight as the product sees it, shape (K, N), float32."""
        return self.weight.stored.value.numpy().transpose(self.weight.axes)


@dataclass(frozen=True)
class Product:
    """`matmul(a, b)` of two tensors of rank 2 or more, leading dims broadcast as numpy's."""

    a: Operand
    b: Operand


@dataclass(frozen=True)
class Left:
    """Not ours, for `reason`."""

    reason: str


def classify(var: Var, bindings: Bindings) -> Linear | Product | Left:
    """The form of the matmul that `var` is bound to, or why it is none of ours."""
    call = bindings.value[var]
    reason = _objection(call)
    if reason:
        return Left(reason)
    a, b = call.args
    weight = _constant_weight(b, var, bindings)
    if weight is not None:
        if 0 in weight.stored.value.shape:
            return Left("empty weight")
        return Linear(a, weight)
    ranks = [len(dims(operand) or ()) for operand in (a, b)]
    if min(ranks) < 2:
        return Left("1-D operand")
    if max(ranks) > MAX_NDIM:
        return Left(f"more than {MAX_NDIM} dimensions")
    return Product(
        _through_permutes(a, var, bindings, unit_stride=(-1,)),
        _through_permutes(b, var, bindings, unit_stride=(-1, -2)),
    )


def _objection(call: Call) -> str | None:
    for expr in (*call.args, call):
        if not isinstance(expr.ty, relax.TensorType):
            return "not a tensor"
        if not is_float32(expr):
            return f"dtype {expr.ty.dtype or 'unknown'}"
        if expr.ty.vdevice is not None:
            return "placed on a virtual device"
    if not all(isinstance(expr, Var | GenericConst) for expr in call.args):
        return "operand not bound to a variable"
    if any(dims(expr) is None for expr in call.args):
        return "no shape known"
    if all(isinstance(dim, IntImm) for expr in call.args for dim in dims(expr) or ()):
        return "static shapes"
    if dims(call) is None:  # batch dims of two symbols, which may broadcast at run time
        return "no output shape known"
    return None


def _constant_weight(expr: Expr, var: Var, bindings: Bindings) -> Operand | None:
    """The 2-D constant behind `expr`, the operand of `var`, which may be transposed."""
    if len(dims(expr) or ()) != 2:
        return None
    definitions = _definitions(Operand(expr, (0, 1)), var, bindings)
    return next((each for each in definitions if isinstance(each.stored, GenericConst)), None)


def _through_permutes(
    expr: Expr, var: Var, bindings: Bindings, unit_stride: tuple[int, ...]
) -> Operand:
    """`expr`, an operand of `var`, read from as far up as its layout allows.

    The stored last dim has unit stride, and must be one of the dims `unit_stride` of the product's
    operand; a `permute_dims` that breaks this stays an operator of its own.
    """
    ndim = len(dims(expr) or ())
    best = Operand(expr, tuple(range(ndim)))
    for operand in _definitions(best, var, bindings):
        strided = all(operand.axes[i] != ndim - 1 for i in unit_stride)
        if not strided and bindings.reaches(operand.stored, bindings.block[var]):
            best = operand
    return best


def _definitions(operand: Operand, var: Var, bindings: Bindings) -> Iterator[Operand]:
    """`operand` of `var`, then what it is made from by `permute_dims`, the permutations composed,
    as far as `var` can read that in place of `operand`."""
    permuted, stored = None, operand.stored
    for stored in bindings.definitions(operand.stored):
        yield Operand(stored, operand.axes)
        permuted = stored if isinstance(stored, Var) else permuted
    if not (isinstance(stored, Call) and stored.op == PERMUTE_DIMS and permuted is not None):
        return
    if bindings.undisturbed(permuted, var):
        axes = permutation(stored, len(operand.axes))
        composed = tuple(axes[i] for i in operand.axes)
        yield from _definitions(Operand(stored.args[0], composed), var, bindings)


def permutation(call: Call, ndim: int) -> tuple[int, ...]:
    """The axes of a `permute_dims`, which reverses all of them when it names none."""
    axes = call.attrs.axes
    return tuple(range(ndim))[::-1] if axes is None else tuple(int(a) % ndim for a in axes)
