"""What a form gives for inputs: numpy in float64 (int64 for integers), with its bound of error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bench.fuzz import bounds
from bench.fuzz.bounds import Value
from bench.fuzz.graph import Body, Dim, Form, Node

#: Matmuls that plain TVM computes, by their node's name.
Plain = Collection[str]


class Mismatch(Exception):
    """The call has no result. ``sizes`` are the two that do not fit, ``plain`` says whether plain
    TVM meets it, which does not look."""

    def __init__(self, how: str, sizes: tuple[int, int], plain: bool = False) -> None:
        super().__init__(f"{how}: {sizes[0]} and {sizes[1]} do not fit")
        self.how, self.sizes, self.plain = how, sizes, plain


def evaluate(
    form: Form, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], plain: Plain = ()
) -> list[Value]:
    """The values of the outputs of ``form``. Raises Mismatch where the call must raise."""
    values = {each.name: Value.of(arrays[each.name], each.dtype) for each in form.inputs}
    with np.errstate(all="ignore"):
        _run(form.nodes, values, sizes, plain)
    return [values[name] for name in form.outputs]


def _run(
    nodes: Sequence[Node], values: dict[str, Value], sizes: Mapping[str, int], plain: Plain
) -> Value:
    """Adds the values of ``nodes`` to ``values``; the last one."""
    for node in nodes:
        args = [values[name] for name in node.args]
        if node.op == "branch":
            body: Body = node.attrs["then" if args[0].exact else "otherwise"]
            result = _run(body.nodes, dict(values), sizes, plain)
        elif node.op == "call":
            body = node.attrs["body"]
            given = {each.name: arg for each, arg in zip(body.parameters, args, strict=True)}
            result = _run(body.nodes, given, sizes, plain)
        elif node.op == "matmul":
            result = _matmul(args[0], args[1], node.attrs["out_dtype"], node.name in plain)
        elif node.op == "reshape":
            result = _reshape(args[0], node.attrs["shape"], sizes)
        else:
            result = RULES[node.op](*args, **node.attrs)
        values[node.name] = result
    return values[nodes[-1].name]


def _matmul(a: Value, b: Value, out_dtype: str | None, plain: bool) -> Value:
    left, right = a.exact.shape, b.exact.shape
    rows = right[-2] if len(right) >= 2 else right[-1]
    if left[-1] != rows:
        raise Mismatch("contraction", (left[-1], rows), plain)
    for m, n in zip(left[:-2][::-1], right[:-2][::-1], strict=False):
        if m != n and 1 not in (m, n):
            raise Mismatch("batch", (m, n), plain)
    return bounds.contract(a, b, out_dtype or a.dtype, plain)


def _reshape(x: Value, shape: Sequence[Dim], sizes: Mapping[str, int]) -> Value:
    target = tuple(dim.at(sizes) for dim in shape)
    if int(np.prod(target)) != x.exact.size:
        raise Mismatch("reshape", (x.exact.size, int(np.prod(target))))
    return x.moved(lambda array: array.reshape(target), x.terms)


def _cast(x: Value, to: str) -> Value:
    if to.startswith("int"):
        return bounds.whole(x.exact, x.anything, to)
    return bounds.rounded(x.exact.astype(np.float64), x.error, x.anything, to)


def _permute(x: Value, axes: tuple[int, ...] | None) -> Value:
    return x.moved(lambda array: np.transpose(array, axes), x.terms)


def _activation(name: str) -> Callable[[Value], Value]:
    return lambda x: bounds.activate(x, name)


def _clip(low: float, high: float) -> Callable[[Value], Value]:
    return lambda x: _clipped(x, low, high)


def _clipped(x: Value, low: float, high: float) -> Value:
    if x.is_integer:
        return bounds.whole(np.asarray(np.clip(x.exact, int(low), high)), x.anything, x.dtype)
    return bounds.clip(x, low, high)


def _relu(x: Value) -> Value:
    if x.is_integer:
        return bounds.whole(np.maximum(x.exact, 0), x.anything, x.dtype)
    return bounds.clip(x, 0.0, np.inf)


def _negative(x: Value) -> Value:
    if x.is_integer:
        return bounds.whole(-x.exact, x.anything, x.dtype)
    return bounds.rounded(-x.exact, x.error, x.anything, x.dtype)


def _binary(
    function: Callable[..., Any], rule: Callable[[Value, Value, np.ndarray], Value]
) -> Callable[[Value, Value], Value]:
    def apply(x: Value, y: Value) -> Value:
        exact = np.asarray(function(x.exact, y.exact))
        if x.is_integer:
            return bounds.whole(exact, x.anything | y.anything, x.dtype)
        return rule(x, y, exact)

    return apply


RULES: dict[str, Callable[..., Value]] = {
    "permute": _permute,
    "cast": _cast,
    "match_cast": lambda x, shape: x,
    "relu": _relu,
    "relu6": _clip(0.0, 6.0),
    "clip": _clipped,
    **{name: _activation(name) for name in bounds.ACTIVATIONS},
    "negative": _negative,
    "add": _binary(np.add, bounds.add),
    "subtract": _binary(np.subtract, bounds.add),
    "multiply": _binary(np.multiply, lambda x, y, _: bounds.multiply(x, y)),
    "divide": _binary(np.divide, lambda x, y, _: bounds.divide(x, y)),
    "maximum": _binary(np.maximum, bounds.select),
    "minimum": _binary(np.minimum, bounds.select),
}


def fault(result: np.ndarray, value: Value) -> str | None:
    """What is wrong with ``result``, or None."""
    if str(result.dtype) != value.dtype:
        return f"dtype {result.dtype}, not {value.dtype}"
    if result.shape != value.exact.shape:
        return f"shape {result.shape}, not {value.exact.shape}"
    exact, asked = value.exact, ~value.anything
    if value.is_integer:
        wrong = asked & (result.astype(np.int64) != exact)
    else:
        with np.errstate(all="ignore"):
            close = np.abs(result.astype(np.float64) - exact) <= value.error
            got = result.astype(np.float64)
        same = (np.isnan(exact) & np.isnan(got)) | (np.isinf(exact) & (got == exact))
        wrong = asked & ~np.where(np.isfinite(exact), close, same)
    if not wrong.any():
        return None
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong, the first at {list(where)}: "
        f"{result[where]} instead of {exact[where]} (bound {value.error[where]:.3g})"
    )
