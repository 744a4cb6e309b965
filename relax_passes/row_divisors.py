"""Rows divided by a number of their own, as in softmax and the norms, multiplied by its inverse.

A vector of quotients takes five times as long as one of products. The inverse rounds once more, and
is used where it is a normal number: of what is read at the call, that is asked once a row.
"""

from __future__ import annotations

from functools import reduce

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.tirx import FloatImm, For, IfThenElse, Stmt

from .renamed import renamed
from .row_loops import RowLoop, row_loop
from .tir_terms import SPATIAL, variables

# Between these, a number and its inverse are both normal.
SMALLEST, LARGEST = 2.0**-126, 2.0**126


def invert_divisors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with such loops in two variants, one that multiplies and one that divides, and with
    products in place of quotients by constants."""
    body = tvm_ffi.structural_map(func.body, (tirx.Div, _by_constant))
    return func.with_body(tvm_ffi.structural_map(body, (For, _inverted)))


def _by_constant(quotient: tirx.Div) -> Expr:
    divisor = quotient.b
    if not isinstance(divisor, FloatImm) or str(quotient.ty) != "float32":
        return quotient
    if not SMALLEST <= abs(divisor.value) <= LARGEST:
        return quotient
    return quotient.a * tirx.const(1.0 / divisor.value, "float32")


def _inverted(loop: For) -> Stmt:
    row = row_loop(loop)
    if row is None or row.axis.iter_type != SPATIAL:
        return loop
    divisors: list[Expr] = []

    def multiply(quotient: tirx.Div) -> Expr:
        if not _is_of_row(row, quotient):
            return quotient
        divisors.append(row.at(quotient.b, row.number(0)))
        return quotient.a * (tirx.const(1.0, "float32") / quotient.b)

    products = tvm_ffi.structural_map(loop, (tirx.Div, multiply))
    if not divisors:
        return loop
    normal = reduce(tirx.all, map(_has_normal_inverse, divisors))
    return IfThenElse(normal, renamed(products), loop)


def _is_of_row(row: RowLoop, quotient: tirx.Div) -> bool:
    """Whether a row is divided by what is read for it, or computed from that."""
    divisor = quotient.b
    if str(quotient.ty) != "float32" or row.axis.var in variables(divisor):
        return False
    loads: list[Expr] = []
    tvm_ffi.structural_walk(divisor, (TensorLoad, loads.append))
    return bool(loads) and row.axis.var in variables(quotient.a)


def _has_normal_inverse(divisor: Expr) -> Expr:
    size = tirx.abs(divisor)
    return tirx.all(size >= tirx.const(SMALLEST, "float32"), size <= tirx.const(LARGEST, "float32"))
