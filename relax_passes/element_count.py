"""How many elements a shape has, as an expression, and whether two such numbers are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from typing import TypeAlias

import tvm_ffi
from tvm import tirx
from tvm.relax import Expr
from tvm.sym import Analyzer

# The factors of a product, with their powers; and a sum of products, with how often each is added.
Product: TypeAlias = frozenset[tuple[tvm_ffi.StructuralKey, int]]
Polynomial: TypeAlias = dict[Product, Fraction]

NONE = Fraction()
MOST_STEPS = 64  # of a proof; what takes more is not worth its time


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


def equal_given(a: Expr, b: Expr, known: Iterable[tuple[Expr, Expr]]) -> bool:
    """The same, where the two of each pair in `known` are equal: those need not be provable.

    Each pair is an equation of polynomials, by which its leading product is replaced by the rest
    of it in `a - b`. What comes to 0 is equal; the contrary does not follow.
    """
    rules: list[tuple[Product, Polynomial]] = []
    for left, right in known:
        equation = _reduced(_difference(_multiplied_out(left), _multiplied_out(right)), rules)
        if equation:
            rules.append((max(equation, key=_degree), equation))
    return not _reduced(_difference(_multiplied_out(a), _multiplied_out(b)), rules)


def _reduced(polynomial: Polynomial, rules: list[tuple[Product, Polynomial]]) -> Polynomial:
    """`polynomial` with products replaced until no rule applies."""
    for _ in range(MOST_STEPS):
        step = _step(polynomial, rules)
        if step is None:
            break
        polynomial = step
    return polynomial


def _step(rest: Polynomial, rules: list[tuple[Product, Polynomial]]) -> Polynomial | None:
    """`rest` with one product replaced by an equation; None where none applies."""
    for leading, equation in rules:
        for product, times in rest.items():
            factor = _divided(product, leading)
            if factor is not None:
                scale = times / equation[leading]
                taken = {_times(factor, each): scale * n for each, n in equation.items()}
                return _difference(rest, taken)
    return None


def _degree(product: Product) -> int:
    return sum(power for _, power in product)


def _divided(product: Product, by: Product) -> Product | None:
    powers = Counter(dict(product))
    powers.subtract(dict(by))
    if min(powers.values(), default=0) < 0:
        return None
    return frozenset((key, power) for key, power in powers.items() if power)


def _times(a: Product, b: Product) -> Product:
    powers = Counter(dict(a))
    powers.update(dict(b))
    return frozenset(powers.items())


def _difference(a: Polynomial, b: Polynomial) -> Polynomial:
    products = {
        product: a.get(product, Fraction()) - b.get(product, Fraction()) for product in {**a, **b}
    }
    return {product: times for product, times in products.items() if times}


def _multiplied_out(expr: Expr) -> Polynomial:
    if isinstance(expr, tirx.IntImm):
        return {frozenset(): Fraction(int(expr))} if int(expr) else {}
    if not isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul):
        key = tvm_ffi.StructuralKey(expr)  # type: ignore[call-arg] # the other one is computed
        return {frozenset([(key, 1)]): Fraction(1)}
    a, b = _multiplied_out(expr.a), _multiplied_out(expr.b)
    if not isinstance(expr, tirx.Mul):
        minus_b = {product: -times for product, times in b.items()}
        return _difference(a, minus_b if isinstance(expr, tirx.Add) else b)
    result: Polynomial = {}
    for x, m in a.items():
        for y, n in b.items():
            product = _times(x, y)
            result[product] = result.get(product, Fraction()) + m * n
    return {product: times for product, times in result.items() if times}
