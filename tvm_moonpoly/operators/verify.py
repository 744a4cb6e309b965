"""The packed functions that compare a product with plain TVM's, and that mend plain TVM's.

They go over compact tensors once, element by element; they are for finding errors, not for speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_moonpoly.emit import (
    INT,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    fail,
    let,
    loop,
    maximum,
    scratch,
    unless,
    when,
)
from tvm_moonpoly.operators import dltensor
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.messages import Message, double
from tvm_moonpoly.operators.tensors import Tensor


@dataclass(frozen=True)
class Kind:
    """The functions for results of one data type."""

    suffix: str
    dtype: str

    @property
    def verify(self) -> str:
        return f"moonpoly_verify_{self.suffix}"

    @property
    def zeros_if_empty(self) -> str:
        return f"moonpoly_zeros_if_empty_{self.suffix}"

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def wide(self) -> str:
        """The type in which elements are compared and told."""
        return "float64" if self.is_float else INT


KINDS = (Kind("f32", "float32"), Kind("f64", "float64"), Kind("i32", "int32"), Kind("i64", INT))

#: All that are defined here.
NAMES = tuple(name for kind in KINDS for name in (kind.verify, kind.zeros_if_empty))

#: How many times the bound of rounding, K * eps * (|A| @ |B|), two right products may differ.
FACTOR = 4.0


def emit(functions: Functions) -> None:
    """Define the packed functions of all `KINDS`."""
    for first, names in (("ours", ("ours", "plain", "bound", "out")), ("plain", ("plain", "out"))):
        for name in names:
            _emit_shaped_like(functions, name, first)
    for kind in KINDS:
        _emit_raise(functions, kind)
        _emit_verify(functions, kind)
        _emit_zeros_if_empty(functions, kind)


def _emit_verify(functions: Functions, kind: Kind) -> None:
    """``verify(ours, plain, bound, k, labels, out)``: out = ours, which is right.

    Integers must be equal to ``plain``. A float may differ from it by ``FACTOR * k * eps`` times
    its element of ``bound``. Where ``bound`` or ``plain`` is not finite, ours need only be not
    finite either; where ``bound`` nears the largest float, sums may overflow in one order and not
    in another, so anything is right. ``bound`` of integers is not looked at. Raises RuntimeError
    with the first element that is wrong and the text of ``labels``.
    """
    handles = dict.fromkeys(("ours", "plain", "bound"), "handle")

    @functions.public(kind.verify, **handles, k=INT, labels="handle", out="handle")
    def _(ours: Any, plain: Any, bound: Any, k: Expr, labels: Any, out: Any) -> None:
        names = {"ours": ours, "plain": plain, "out": out}
        if kind.is_float:
            names["bound"] = bound
        tensors = {name: Tensor(handle, name, kind.dtype) for name, handle in names.items()}
        size = _same_shape(tensors)
        unit = FACTOR * float(np.finfo(kind.dtype).eps) if kind.is_float else 0.0
        scale = let(tirx.Cast("float64", maximum(k, 1)) * double(unit))

        def wide(name: str, index: Expr) -> Expr:
            return let(tirx.Cast(kind.wide, tensors[name].data[index]))

        def limit(index: Expr) -> Expr:
            return let(scale * wide("bound", index)) if kind.is_float else as_int(0)

        wrong = scratch(1, INT)
        wrong[0] = as_int(-1)
        with loop(size) as i, when(wrong[0] < 0):
            right = tirx.any(wide("ours", i) == wide("plain", i))
            if kind.is_float:
                right = _near(
                    wide("ours", i), wide("plain", i), wide("bound", i), limit(i), kind.dtype
                )
            branch(right, lambda: None, lambda: wrong.__setitem__(0, i))

        def rare() -> None:
            at = let(wrong[0])
            values = [wide("ours", at), wide("plain", at)]
            functions[f"{kind.verify}_raise"](at, *values, limit(at), labels)
            fail()

        unless(wrong[0] < 0, rare)
        with loop(size) as i:
            tensors["out"].data[i] = tensors["ours"].data[i]


def _near(ours: Expr, plain: Expr, bound: Expr, limit: Expr, dtype: str) -> Expr:
    """Whether a float64 is what it should be; comparisons with NaN are false.

    That of a negated comparison is not: tvm turns it round.
    """
    largest = float(np.finfo(dtype).max)

    def size(value: Expr) -> Expr:
        return tirx.Select(value < double(0.0), double(0.0) - value, value)

    def not_finite(value: Expr) -> Expr:
        return tirx.any(tirx.isnan(value), size(value) > double(largest))

    return tirx.any(
        ours == plain,
        size(ours - plain) <= limit,
        bound > double(largest / 4),
        tirx.all(not_finite(ours), tirx.any(not_finite(plain), not_finite(bound))),
    )


def _emit_raise(functions: Functions, kind: Kind) -> None:
    values = dict.fromkeys(("ours", "plain", "limit"), kind.wide)

    @functions.rare(f"{kind.verify}_raise", index=INT, **values, labels="handle")
    def _(index: Expr, ours: Expr, plain: Expr, limit: Expr, labels: Expr) -> None:
        message = Message()
        put = message.number if kind.is_float else message.integer
        message.text("ours: element ")
        message.integer(index)
        message.text(" is ")
        put(ours)
        message.text(", but plain TVM's is ")
        put(plain)
        if kind.is_float:
            message.text("; the difference is ")
            put(tirx.Select(ours < plain, plain - ours, ours - plain))
            message.text(", and may be ")
            put(limit)
        with when(tirx.Not(tirx.isnullptr(labels))):
            message.text("; ")
            message.labels(labels)
        message.raised("RuntimeError")


def _emit_zeros_if_empty(functions: Functions, kind: Kind) -> None:
    """``zeros_if_empty(plain, k, out)``: out = plain, or zeros when k is 0.

    Plain TVM's product over no elements is whatever was in memory.
    """

    @functions.public(kind.zeros_if_empty, plain="handle", k=INT, out="handle")
    def _(plain: Any, k: Expr, out: Any) -> None:
        source, target = Tensor(plain, "plain", kind.dtype), Tensor(out, "out", kind.dtype)
        size = _same_shape({"plain": source, "out": target})

        def zeros() -> None:
            with loop(size) as i:
                target.data[i] = tirx.const(0, kind.dtype)

        def copy() -> None:
            with loop(size) as i:
                target.data[i] = source.data[i]

        branch(k == 0, zeros, copy)


def _same_shape(tensors: dict[str, Tensor]) -> Expr:
    """The number of elements; raises at run time unless all are compact and of one shape."""
    name, first = next(iter(tensors.items()))
    count = scratch(1, INT)
    count[0] = as_int(1)
    with loop(first.ndim) as i:
        count[0] = count[0] * first.shape[i]
    size = let(count[0])
    for each, tensor in tensors.items():
        Functions.current()[_shaped_like(each, name)](tensor.handle, first.handle, size)
    return size


def _shaped_like(name: str, first: str) -> str:
    return f"moonpoly_{name}_shaped_like_{first}"


def _emit_shaped_like(functions: Functions, name: str, first: str) -> None:
    @functions.fallible(_shaped_like(name, first), tensor="handle", like="handle", size=INT)
    def _(tensor: Expr, like: Expr, size: Expr) -> None:
        """Fails unless ``tensor``, of ``size`` elements, is compact and shaped like ``like``."""
        own, model = (
            let(dltensor.number(each, dltensor.NDIM).astype(INT)) for each in (tensor, like)
        )
        rule = f"must have as many dimensions as {first}: # and #"
        require(own == model, name, rule, own, model)
        shape, given = (
            Pointer.to(dltensor.address(each, dltensor.SHAPE, INT), INT) for each in (tensor, like)
        )
        strides = Pointer.to(dltensor.address(tensor, dltensor.STRIDES, INT), INT)
        step = scratch(1, INT)
        step[0] = as_int(1)
        with loop(own) as i:
            dim = let(own - 1 - i)
            extent, right = let(shape[dim]), let(given[dim])
            rule = f"must have the shape of {first}: # and #"
            require(extent == right, name, rule, extent, right)
            told = tirx.Not(tirx.isnullptr(strides.buffer.data))
            with when(tirx.all(told, extent > 1, size > 0)):
                require(strides[dim] == step[0], name, "must be compact")
            step[0] = step[0] * extent
