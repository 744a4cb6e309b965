"""What the cost model predicts for the calls of the operator library in a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op
from tvm.target import Target
from tvm.tirx import IntImm

from relax_passes.shapes import dims
from relax_passes.tir_terms import value_of
from tvm_moonpoly import operators
from tvm_moonpoly.explanation import used
from tvm_moonpoly.explanation_conv import convolution_of
from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.conv_constants import ConvSpec
from tvm_moonpoly.planner import conv, spec
from tvm_moonpoly.planner.plan import BMode

from .measured import Key

DPS = Op.get("relax.call_dps_packed")
LINEAR = (operators.LINEAR, operators.LINEAR_RESIDUAL, operators.LINEAR_CHAIN)
MATMUL = (operators.MATMUL, operators.MATMUL_CHAIN)
CONV2D = (conv_constants.CONV2D, conv_constants.CONV2D_RESIDUAL)

Shape = tuple[int, ...]


def predicted(
    mod: tvm.IRModule, sizes: Mapping[str, int], target: Target, threads: int | None
) -> dict[Key, float]:
    """Seconds on one core of each call of products and convolutions in float32 in `main` of
    `mod`, by the name of the function and the shapes of its tensors, the result last.

    `mod` is the module before operators become loops. Calls of sizes that are not known, of size
    0, and of functions that have no cost model are left out.
    """
    if operators.supported(target) is not None:
        return {}
    machine, _, table = used(target, threads)
    found: dict[Key, float] = {}

    def visit(expr: Expr) -> None:
        if not isinstance(expr, Call) or expr.op != DPS:
            return
        name = str(expr.args[0].global_symbol)
        arguments = list(expr.args[1].fields)
        shapes = [_shape(each, sizes) for each in (*arguments, expr) if dims(each) is not None]
        if name not in (*LINEAR, *MATMUL, *CONV2D):
            return
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or 0 in (prod(known[0]), prod(known[-1])):
            return
        key = (name, tuple(known))
        if key in found:
            return
        if name in CONV2D:
            n, h, w = known[0][:3]
            each = convolution_of(_spec(arguments), n, h, w)
            found[key] = conv.plan(each, machine, table.of_convolutions).picoseconds * 1e-12
        else:
            product = _linear(known) if name in LINEAR else _matmul(arguments, known)
            each_product = spec.best(product, machine, table).picoseconds
            found[key] = product.batch * each_product * 1e-12

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def _linear(shapes: Sequence[Shape]) -> spec.Product:
    x, out = shapes[0], shapes[-1]
    return spec.Product(prod(x[:-1]), out[-1], x[-1], 1, BMode.PREPACKED)


def _matmul(arguments: Sequence[Expr], shapes: Sequence[Shape]) -> spec.Product:
    codes = [int(each) for each in arguments if isinstance(each, IntImm)]
    of_a, of_b = (_axes(code) for code in codes[:2])
    m, k = _sizes(shapes[0], of_a)
    _, n = _sizes(shapes[1], of_b)
    by_columns = of_b[-1] is None or of_b[-1] < len(shapes[1]) - 1
    mode = BMode.PACKED if by_columns else BMode.DIRECT
    return spec.Product(m, n, k, prod(shapes[-1]) // (m * n), mode)


def _axes(code: int) -> list[int | None]:
    """Which stored dimension the last two of a product are; see `operators.encode_axes`."""
    each = [code >> 4 * i & operators.ABSENT for i in range(code >> operators.COUNT_BIT)]
    return [None if axis == operators.ABSENT else axis for axis in each[-2:]]


def _sizes(stored: Shape, axes: Sequence[int | None]) -> list[int]:
    return [1 if axis is None else stored[axis] for axis in axes]


def _spec(arguments: Sequence[Expr]) -> ConvSpec:
    """The attributes of a convolution, the last of its constants."""
    last = [each for each in arguments if isinstance(each, GenericConst)][-1]
    return ConvSpec.decode(last.value.numpy())


def _shape(expr: Expr, sizes: Mapping[str, int]) -> Shape | None:
    found = [value_of(size, sizes) for size in dims(expr) or []]
    known = [size for size in found if size is not None]
    return tuple(known) if len(known) == len(found) else None
