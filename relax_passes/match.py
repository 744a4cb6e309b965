"""Which matmuls of a function are ours, and in which form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.tirx import IntImm

from tvm_moonpoly.operators import MAX_DIMS, PRODUCTS

from .bindings import Bindings
from .shapes import dims, dtype_of, is_static, known_dims, same_dim, show, show_dim

MATMUL = Op.get("relax.matmul")
PERMUTE_DIMS = Op.get("relax.permute_dims")

Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Operand:
    """A stored tensor and how the product sees it: its dim i is the stored dim `axes[i]`, or of
    size 1 and not stored where that is None."""

    stored: Expr
    axes: Axes


@dataclass(frozen=True)
class Linear:
    """`matmul(x, weight)`: x of any rank, weight a float32 matrix (K, N) that does not change:
    a constant, or a parameter that is packed by an operator of its own."""

    x: Expr
    weight: Operand
    labels: str | None

    @property
    def is_constant(self) -> bool:
        return isinstance(self.weight.stored, GenericConst)

    def weight_array(self) -> np.ndarray:
        """The constant weight as the product sees it, shape (K, N), float32."""
        # a view: a copy of a large weight would count
        axes = [axis for axis in self.weight.axes if axis is not None]
        return np.from_dlpack(self.weight.stored.value).transpose(axes)

    def weight_shape(self) -> tuple[int, int]:
        """K and N."""
        stored = known_dims(self.weight.stored)
        k, n = (int(stored[axis]) for axis in self.weight.axes if axis is not None)
        return k, n


@dataclass(frozen=True)
class Product:
    """`matmul(a, b)` of two tensors that change from call to call, computed by the packed function
    `function`. `labels` names the contracted dimensions where the call must compare them."""

    a: Operand
    b: Operand
    function: str
    labels: str | None


@dataclass(frozen=True)
class Left:
    """Not ours, for `reason`."""

    reason: str


def classify(var: Var, bindings: Bindings, static: bool = False) -> Linear | Product | Left:
    """The form of the matmul that `var` is bound to, or why it is none of ours.

    Static shapes are ours if `static` says so.
    """
    call = bindings.value[var]
    reason = objection(call, static)
    if reason:
        return Left(reason)
    a, b = call.args
    dtypes = (dtype_of(a), dtype_of(b), dtype_of(call))
    if dtypes not in PRODUCTS:
        return Left(f"dtype {' x '.join(dtypes[:2])} to {dtypes[2]}")
    if any(dims(expr) is None for expr in (a, b)):
        return Left("no shape known")
    labels = _labels(a, b)
    weight = _weight(b, var, bindings) if dtypes[0] == "float32" else None
    if weight is not None:
        return Linear(a, weight, labels)
    return Product(
        _through_permutes(a, var, bindings, column=False),
        _through_permutes(b, var, bindings, column=True),
        PRODUCTS[dtypes],
        labels,
    )


def objection(call: Call, static: bool) -> str | None:
    """Why the matmul `call` is none of ours, whatever its data types, or None."""
    for expr in (*call.args, call):
        if not isinstance(expr.ty, relax.TensorType):
            return "not a tensor"
        if expr.ty.vdevice is not None:
            return "placed on a virtual device"
        if not dtype_of(expr):
            return "dtype unknown"
        if expr.ty.ndim < 0:
            return "rank unknown"
    if not all(isinstance(expr, Var | GenericConst) for expr in call.args):
        return "operand not bound to a variable"
    if not static and all(is_static(dims(expr)) for expr in call.args):
        return "static shapes"
    if max(max(expr.ty.ndim, 2) for expr in call.args) > MAX_DIMS:
        return f"more than {MAX_DIMS} dimensions"
    return None


def _labels(a: Expr, b: Expr) -> str | None:
    """What the error says when the contracted dimensions differ, `#` standing for their sizes;
    None where they cannot."""
    left, right = known_dims(a)[-1], known_dims(b)[-2:][0]
    if same_dim(left, right):
        return None
    names = (
        "#" if isinstance(dim, IntImm) else f"{_word(show_dim(dim))} = #" for dim in (left, right)
    )
    return f"matmul {_word(show(a, b))}: {', '.join(names)}"


def _word(text: str) -> str:
    """`text` without what stands for a number."""
    return text.replace("#", "_")


def _weight(expr: Expr, var: Var, bindings: Bindings) -> Operand | None:
    """The matrix behind `expr`, the operand of `var`, if it stays the same: a constant or a
    parameter, which may be transposed."""
    if len(known_dims(expr)) != 2:
        return None
    definitions = stored_as(Operand(expr, (0, 1)), var, bindings)
    for each in definitions:
        if isinstance(each.stored, GenericConst):
            return each if 0 not in each.stored.value.shape else None
    if not (bindings.is_parameter(expr) and is_static(dims(expr))):
        return None
    weight = _through_permutes(expr, var, bindings, column=True)
    return weight if all(int(dim) > 0 for dim in known_dims(expr)) else None


def _through_permutes(expr: Expr, var: Var, bindings: Bindings, column: bool) -> Operand:
    """`expr`, an operand of `var` (the second one if `column`), read from as far up as its layout
    allows.

    The stored last dim has unit stride, and must be one of the last two dims of the product's
    operand; a `permute_dims` that breaks this stays an operator of its own.
    """
    ndim = len(known_dims(expr))
    if ndim == 1:
        return Operand(expr, (0, None) if column else (None, 0))
    best = Operand(expr, tuple(range(ndim)))
    for operand in stored_as(best, var, bindings):
        adjacent = ndim - 1 in operand.axes[-2:]
        if adjacent and bindings.reaches(operand.stored, bindings.block[var]):
            best = operand
    return best


def stored_as(operand: Operand, var: Var, bindings: Bindings) -> Iterator[Operand]:
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
        composed = tuple(axes[i] for i in operand.axes if i is not None)
        yield from stored_as(Operand(stored.args[0], composed), var, bindings)


def permutation(call: Call, ndim: int) -> tuple[int, ...]:
    """The axes of a `permute_dims`, which reverses all of them when it names none."""
    axes = call.attrs.axes
    return tuple(range(ndim))[::-1] if axes is None else tuple(int(a) % ndim for a in axes)
