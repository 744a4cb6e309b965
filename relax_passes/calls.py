"""The calls of the operator library that stand for a matmul and its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from tvm_moonpoly import operators
from tvm_moonpoly.operators import MAX_OPERANDS, Activation, Step

from .bindings import Bindings
from .epilogue import (
    Epilogue,
    Link,
    chain,
    match_epilogue,
    operands,
    transposed_store,
)
from .match import Axes, Linear, Product
from .packing import Packing
from .shapes import dims, dtype_of, known_dims, product_shape, same_dim, same_tensor


@dataclass(frozen=True)
class Replacement:
    """`value` is to be bound to `last` in the place of `epilogue` and of the matmul before it,
    whose result it holds with the dims `axes`; `detail` says what was fused."""

    last: Var
    value: Call
    detail: str
    epilogue: Epilogue
    axes: Axes | None = None

    @property
    def is_transposed(self) -> bool:
        """Whether the dims of the result are stored in another order."""
        return self.axes is not None and is_permuted(self.axes)


def replacement(
    var: Var, form: Linear | Product, bindings: Bindings, packing: Packing
) -> Replacement:
    """What stands for the matmul `var` of the given form, with all that can be fused."""
    if isinstance(form, Linear):
        epilogue = match_epilogue(var, bindings)
        kind = "linear" if form.is_constant else "linear, weight packed by an operator"
        value = _linear(form, epilogue, bindings, packing)
        return Replacement(epilogue.last, value, _detail(kind, epilogue, var), epilogue)
    matrices = None not in (*form.a.axes, *form.b.axes)
    single = form.function == operators.MATMUL
    epilogue = match_epilogue(var, bindings) if matrices and single else Epilogue(var)
    identity: Axes = tuple(range(var.ty.ndim))
    last, axes = transposed_store(epilogue.last, bindings) if matrices else (var, identity)
    seen = (("a", form.a.axes), ("b", form.b.axes), ("output", axes))
    folded = [name for name, each in seen if is_permuted(each)]
    kind = f"product, permute_dims of {', '.join(folded)} folded" if folded else "product"
    if not single:
        kind = f"{kind}, {dtype_of(form.a.stored)}"
    value = _product(var, form, epilogue, last, axes, bindings, packing)
    return Replacement(last, value, _detail(kind, epilogue, var), epilogue, axes)


def _linear(form: Linear, epilogue: Epilogue, bindings: Bindings, packing: Packing) -> Call:
    k, n = form.weight_shape()
    weight = (
        packing.weight(form.weight_array())
        if form.is_constant
        else packing.parameter(form.weight, k, n)
    )
    links = list(epilogue.links)
    sums = list(takewhile(lambda link: link.step == Step.ADD, links))
    bias = next((link for link in sums if packing.takes_bias(link.operand, n, bindings)), None)
    if bias is not None:
        links.remove(bias)
        sums.remove(bias)
    args = [form.x, weight, packing.bias(bias and bias.operand, n)]
    plans = [packing.table(n, k), packing.text(form.labels)]
    out_ty = epilogue.last.ty
    rest = links[len(sums) :]
    simple = all(isinstance(link.step, Activation) for link in rest) and len(rest) < 2
    if simple and len(sums) < 2 and all(same_tensor(e, epilogue.last) for e in operands(sums)):
        activation = rest[0].step if rest else Activation.NONE
        name = operators.LINEAR_RESIDUAL if sums else operators.LINEAR
        args += [*operands(sums), *plans, relax.prim_value(int(activation))]
        return relax.call_dps_packed(name, args, out_ty)
    args += [*plans, *_program(links, packing)]
    return relax.call_dps_packed(operators.LINEAR_CHAIN, args, out_ty)


def _product(
    var: Var,
    form: Product,
    epilogue: Epilogue,
    last: Var,
    axes: Axes,
    bindings: Bindings,
    packing: Packing,
) -> Call:
    call = bindings.value[var]
    out_ty = last.ty
    if dims(last) is None:
        shape = product_shape(*(known_dims(arg) for arg in call.args))
        out_ty = relax.TensorType(shape, dtype_of(call))
    codes = [form.a.axes, form.b.axes, output_axes(axes, form.a.axes, form.b.axes)]
    args = [form.a.stored, form.b.stored]
    args += [relax.prim_value(operators.encode_axes(each)) for each in codes]
    args.append(packing.text(form.labels))
    if not epilogue.links:
        return relax.call_dps_packed(form.function, args, out_ty)
    args += _program(epilogue.links, packing)
    return relax.call_dps_packed(operators.MATMUL_CHAIN, args, out_ty)


def output_axes(axes: Axes, a: Axes, b: Axes) -> Axes:
    """Which stored dim each dim of the product is, given which dim of the result each stored dim
    is and the axes of the operands; a vector among them leaves out a dim."""
    stored = list(axes)
    batch = max(len(a), len(b)) - 2
    rows, columns = (None not in each for each in (a, b))
    there = [True] * batch + [rows, columns]
    numbers = iter(range(len(stored)))
    return tuple(stored.index(next(numbers)) if each else None for each in there)


def _program(links: Sequence[Link], packing: Packing) -> list[Expr]:
    """The chain of an epilogue and its operands, as the packed functions take them."""
    used = operands(links)
    unused = [packing.unused()] * (MAX_OPERANDS - len(used))
    return [relax.prim_value(chain(links).encode()), *used, *unused]


def is_permuted(axes: Axes) -> bool:
    """Whether a tensor's dims are seen in another order than they are stored in."""
    stored = [axis for axis in axes if axis is not None]
    return stored != sorted(stored)


def _detail(kind: str, epilogue: Epilogue, var: Var) -> str:
    names = " + ".join(_name(link, var) for link in epilogue.links)
    return f"{kind}, fused {names}" if names else kind


def _name(link: Link, var: Var) -> str:
    name = link.step.name.lower()
    if link.operand is None:
        return name
    if link.step == Step.ADD and same_tensor(link.operand, var):
        return "residual"
    if link.is_bias(known_dims(var)[-1]):
        return "bias"
    scalar = all(same_dim(dim, 1) for dim in known_dims(link.operand))
    return "scale" if scalar and link.step in (Step.MULTIPLY, Step.DIVIDE) else name
