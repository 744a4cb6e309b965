"""How many elements a shape has, as an expression, and whether two such numbers are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import reduce

import tvm_ffi
from tvm import tirx
from tvm.relax import Expr
from tvm.sym import Analyzer

# A sum of products: the factors of each, with their powers, and how often it is added.
Polynomial = dict[frozenset[tuple[tvm_ffi.StructuralKey, int]], int]


def count(dims: Iterable[Expr]) -> Expr:
    """The product of `dims`, simplified."""
    product = reduce(lambda a, b: a * b, dims, tirx.const(1, "int64"))
    return Analyzer().simplify(product)


def provably_equal(a: Expr, b: Expr) -> bool:
    """Whether the integers `a` and `b` are equal whatever the values of their variables.

    TVM's analyzer sees no order in sums; here there is none in products either, and products of
    sums are multiplied out: b * s * h is h * s * b.
    """
    return _multiplied_out(a) == _multiplied_out(b) or Analyzer().can_prove_equal(a, b)


def _multiplied_out(expr: Expr) -> Polynomial:
    if isinstance(expr, tirx.IntImm):
        return {frozenset(): int(expr)} if int(expr) else {}
    if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        key = tvm_ffi.StructuralKey(expr)  # type: ignore[call-arg] # the other one is computed
        return {frozenset([(key, 1)]): 1}
    a, b = _multiplied_out(expr.a), _multiplied_out(expr.b)
    result: Counter[frozenset[tuple[tvm_ffi.StructuralKey, int]]] = Counter()
    if isinstance(expr, tirx.Mul):
        for x, m in a.items():
            for y, n in b.items():
                powers = Counter(dict(x))
                powers.update(dict(y))
                result[frozenset(powers.items())] += m * n
    else:
        result.update(a)
        sign = 1 if isinstance(expr, tirx.Add) else -1
        for y, n in b.items():
            result[y] += sign * n
    return {product: times for product, times in result.items() if times}
