"""A normal form for small elementwise functions of one input.

Exporters spell one and the same function in many orders of operands:
`x * 0.5 * (1 + erf(x / sqrt(2)))`, `(erf(x * 0.7071) + 1) * (0.5 * x)`, and so on. Written out as
a sum of products of the input and of calls such as `erf(...)`, they are all equal.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

# A factor is ("x",) or (name of a function, form of its argument), a monomial a sorted tuple of
# factors, a form a sorted tuple of (monomial, coefficient).
Monomial = tuple[Any, ...]
Polynomial = dict[Monomial, float]
Form = tuple[tuple[Monomial, float], ...]

X: Polynomial = {(("x",),): 1.0}
MAX_TERMS = 16  # no activation comes near it; a chain of products would grow without end


def constant(value: float) -> Polynomial:
    return {(): value}


def constant_value(polynomial: Polynomial) -> float | None:
    """The value of a polynomial without an input, else None."""
    return polynomial[()] if set(polynomial) == {()} else None


def add(a: Polynomial, b: Polynomial) -> Polynomial | None:
    total = {term: a.get(term, 0.0) + b.get(term, 0.0) for term in (*a, *b)}
    return _bounded({term: factor for term, factor in total.items() if factor != 0.0})


def multiply(*operands: Polynomial | None) -> Polynomial | None:
    return reduce(_multiply, operands)


def call(function: str, argument: Polynomial) -> Polynomial:
    """The polynomial that is one call: what the function does is not looked into."""
    return {((function, form(argument)),): 1.0}


def form(polynomial: Polynomial) -> Form:
    """Hashable and comparable; coefficients to five digits, which is what exporters agree on."""
    rounded = ((term, float(f"{factor:.4e}")) for term, factor in polynomial.items())
    return tuple(sorted(rounded, key=repr))


def _multiply(a: Polynomial | None, b: Polynomial | None) -> Polynomial | None:
    if a is None or b is None:
        return None
    total: Polynomial = {}
    for left, p in a.items():
        for right, q in b.items():
            term = tuple(sorted((*left, *right), key=repr))
            total[term] = total.get(term, 0.0) + p * q
    return _bounded(total)


def _bounded(polynomial: Polynomial) -> Polynomial | None:
    small = all(len(term) <= MAX_TERMS for term in polynomial)
    return polynomial if small and len(polynomial) <= MAX_TERMS else None
