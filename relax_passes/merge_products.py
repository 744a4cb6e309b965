"""Independent products of one tensor as one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax import Expr, Var
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_moonpoly.operators.attention_constants import ATTENTION, ATTENTION_MASKED, ATTRIBUTES

from .attention_masks import ADD
from .bindings import Bindings, analyze
from .functions import with_rewritten
from .match import MATMUL, Operand, stored_as
from .packing import DPS_PACKED
from .shapes import dims, dtype_of, known_dims

#: The operands of an attention that a linear layer may make, in the order of its arguments.
OPERANDS = ("q", "k", "v")


@dataclass(frozen=True, eq=False)
class Layer:
    """``x @ weight + bias``, read by one attention alone as its operand number `position`."""

    position: int
    x: Var
    weight: np.ndarray
    bias: np.ndarray | None


@tvm.transform.module_pass(opt_level=0, name="MergeProducts")
class MergeProducts:
    """Linear layers of one tensor that make operands of one attention become one linear layer.

    Weights and biases are constants, put side by side, and the attention reads its operands as
    columns of the one result: nothing is cut. One product reads its left operand once, and has
    more columns to choose tiles for and to share out. It holds no more memory than the results of
    the layers together. Where anything else reads such a result, a part would have to be cut
    from the whole, which costs more than is won: those layers stay. To be run after
    `FuseAttention`.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return with_rewritten(mod, lambda func, _name: _rewritten(func, mod))


def _rewritten(func: relax.Function, mod: tvm.IRModule) -> relax.Function:
    bindings = analyze(func, mod)
    merged = {}
    for var in bindings.calls(DPS_PACKED):
        call = bindings.value[var]
        if str(call.args[0].global_symbol) in (ATTENTION, ATTENTION_MASKED):
            layers = _layers(var, call, bindings)
            if layers:
                merged[var] = layers
    if not merged:
        return func
    return relax.analysis.remove_all_unused(_Merge(mod, merged).visit_expr(func))


def _layers(var: Var, call: Call, bindings: Bindings) -> list[Layer]:
    """The operands of the attention `var` that one tensor makes, if there are several."""
    operands = call.args[1].fields
    found = [
        layer
        for at in range(len(OPERANDS))
        if (layer := _layer(at, operands[at], var, bindings)) is not None
    ]
    for first in found:
        same = [layer for layer in found if layer.x.same_as(first.x)]
        if len(same) > 1:
            return same
    return []


def _layer(position: int, expr: Expr, var: Var, bindings: Bindings) -> Layer | None:
    if not isinstance(expr, Var) or not _is_only_read_by(expr, var, bindings):
        return None
    bias = None
    product, call = expr, bindings.call(expr, ADD, MATMUL)
    if call is not None and call.op == ADD:
        for inner, other in (call.args, reversed(call.args)):
            values = _bias(other, known_dims(expr)[-1])
            if values is not None and isinstance(inner, Var):
                product, bias = inner, values
        if bias is None or not _is_only_read_by(product, expr, bindings):
            return None
        call = bindings.call(product, MATMUL)
    if call is None or not bindings.undisturbed(product, var):
        return None
    x, weight = call.args
    if not isinstance(x, Var) or not bindings.reaches(x, bindings.block[var]):
        return None
    if {dtype_of(each) for each in (x, weight, call)} != {"float32"}:
        return None
    if len(dims(weight) or []) != 2 or len(dims(expr) or []) != 3:
        return None
    for stored in stored_as(Operand(weight, (0, 1)), product, bindings):
        if isinstance(stored.stored, GenericConst):
            axes = [axis for axis in stored.axes if axis is not None]
            values = np.from_dlpack(stored.stored.value).transpose(axes)
            return Layer(position, x, values, bias)
    return None


def _is_only_read_by(var: Var, reader: Var, bindings: Bindings) -> bool:
    only = bindings.only_user(var)
    same_block = bindings.block.get(var) == bindings.block[reader]
    return only is not None and only.same_as(reader) and same_block


def _bias(expr: Expr, columns: Expr) -> np.ndarray | None:
    """The values of a bias with one for each of the columns."""
    if not isinstance(expr, GenericConst) or str(expr.value.dtype) != "float32":
        return None
    values = expr.value.numpy()
    is_row = values.ndim <= 3 and values.size == int(columns) == (values.shape or (1,))[-1]
    return values.reshape(-1) if is_row else None


@mutator
class _Merge(PyExprMutator):
    """Puts the merged layers of each attention right before it."""

    def __init__(self, mod: tvm.IRModule, merged: dict[Var, list[Layer]]) -> None:
        super().__init__(mod)
        self._merged = merged

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        layers = self._merged.get(binding.var)
        if layers is not None:
            whole = self._product(layers)
            value = _read_from(binding.value, layers, whole)
            binding = relax.VarBinding(binding.var, value)
        super().visit_var_binding_(binding)

    def _product(self, layers: Sequence[Layer]) -> Var:
        weight = np.concatenate([layer.weight for layer in layers], axis=1)
        x = self.visit_expr(layers[0].x)
        product = self.builder_.emit(relax.op.matmul(x, relax.const(weight)))
        if all(layer.bias is None for layer in layers):
            return product
        bias = [
            np.zeros(layer.weight.shape[1], np.float32) if layer.bias is None else layer.bias
            for layer in layers
        ]
        return self.builder_.emit(relax.op.add(product, relax.const(np.concatenate(bias))))


def _read_from(call: Call, layers: Sequence[Layer], whole: Var) -> Call:
    """The attention `call` with the results of `layers` as columns of `whole`."""
    *operands, spec = call.args[1].fields
    numbers = spec.value.numpy().copy()
    first = 0
    for layer in layers:
        operands[layer.position] = whole
        numbers[ATTRIBUTES.index(f"{OPERANDS[layer.position]}_offset")] += first
        first += layer.weight.shape[1]
    name = str(call.args[0].global_symbol)
    return relax.call_dps_packed(name, [*operands, relax.const(numbers, "int64")], call.ty)
