"""Relax functions of forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op

from bench.fuzz.graph import Body, Dim, Form, Input, Node, Role
from bench.fuzz.values import constant, numpy_dtype

#: Name of the parameter that gives the symbols which no tensor's type defines.
SIZES = "sizes"


def build_module(forms: Sequence[Form], seed: int, share_symbols: bool = False) -> tvm.IRModule:
    """One module with a function of each form. ``share_symbols``: symbols of the same name in two
    functions are the same variable."""
    builder = relax.BlockBuilder()
    shared: dict[str, Any] = {}
    for form in forms:
        names = (*form.symbols, "p", "q", "r")
        if share_symbols and not form.bounds:  # a bound would hold for the other functions too
            variables = {n: shared.setdefault(n, tirx.Var(n, "int64")) for n in names}
        else:
            variables = {n: tirx.Var(n, "int64") for n in names}
        _Function(builder, form, seed, variables).define()
    return builder.get()


def extent(dim: Dim, variables: Mapping[str, Any]) -> Any:
    """``dim`` as an expression of the symbols' variables."""
    if dim.is_static:
        return tirx.const(dim.plus, "int64")
    value = variables[dim.symbol]
    value = value * dim.times if dim.times != 1 else value
    value = value // dim.over if dim.over != 1 else value
    return value + dim.plus if dim.plus else value


class _Function:
    def __init__(
        self, builder: relax.BlockBuilder, form: Form, seed: int, variables: Mapping[str, Any]
    ) -> None:
        self.builder, self.form, self.seed, self.variables = builder, form, seed, variables

    def define(self) -> None:
        form = self.form
        functions = {
            node.name: self._private(node)
            for node in form.nodes
            if node.op == "call" and node.attrs["body"].parameters
        }
        undefined = [self.variables[name] for name in form.undefined_symbols()]
        given = [relax.Var(SIZES, relax.ShapeType(undefined))] if undefined else []
        dynamic = form.of_role(Role.DYNAMIC, Role.CONDITION)
        weights = form.of_role(Role.WEIGHT)
        parameters = [relax.Var(each.name, self._type(each)) for each in (*dynamic, *weights)]
        attrs: dict[str, Any] = {}
        if weights:
            attrs["num_input"] = len(given) + len(dynamic)
        if form.bounds:
            attrs["tir_var_upper_bound"] = dict(form.bounds)
        values: dict[str, Any] = {each.name: each for each in parameters}
        for each in form.of_role(Role.CONSTANT):
            values[each.name] = relax.const(constant(each, self.seed, form.index), each.dtype)
        with self.builder.function(form.name, [*given, *parameters], attrs=attrs):
            if form.dataflow:
                with self.builder.dataflow():
                    self._emit_all(values, functions)
                    result = self.builder.emit_output(self._result(values))
            else:
                self._emit_all(values, functions)
                result = self._result(values)
            self.builder.emit_func_output(result)

    def _emit_all(self, values: dict[str, Any], functions: Mapping[str, Any]) -> None:
        for node in self.form.nodes:
            args = [values[name] for name in node.args]
            if node.op == "branch":
                branches = [self._nested(node.attrs[side], values) for side in BRANCHES]
                values[node.name] = self.builder.emit(relax.If(args[0], *branches))
            elif node.op == "call":
                values[node.name] = self.builder.emit(relax.Call(functions[node.name], args))
            elif node.op == "match_cast":
                shape = [extent(dim, self.variables) for dim in node.attrs["shape"]]
                dtype = args[0].ty.dtype
                values[node.name] = self.builder.match_cast(
                    args[0], relax.TensorType(shape, str(dtype))
                )
            else:
                values[node.name] = self.builder.emit(self._apply(node, args))

    def _apply(self, node: Node, args: Sequence[Any]) -> Any:
        if node.op == "reshape":
            return op.reshape(args[0], [extent(dim, self.variables) for dim in node.attrs["shape"]])
        return OPERATORS[node.op](*args, **node.attrs)

    def _nested(self, body: Body, values: Mapping[str, Any]) -> Any:
        """One nested expression, which Relax flattens into the branch."""
        inner = dict(values)
        for node in body.nodes:
            inner[node.name] = self._apply(node, [inner[name] for name in node.args])
        return inner[body.nodes[-1].name]

    def _private(self, node: Node) -> Any:
        """The private function that a ``call`` calls: one for all calls of the same body."""
        body: Body = node.attrs["body"]
        name = f"{self.form.name}_part"
        known = {gv.name_hint: gv for gv in self.builder.get().get_global_vars()}
        if name in known:
            return known[name]
        parameters = [relax.Var(each.name, self._type(each)) for each in body.parameters]
        values: dict[str, Any] = {each.name: each for each in parameters}
        with self.builder.function(name, parameters, private=True):
            with self.builder.dataflow():
                for inner in body.nodes:
                    args = [values[each] for each in inner.args]
                    values[inner.name] = self.builder.emit(self._apply(inner, args))
                result = self.builder.emit_output(values[body.nodes[-1].name])
            self.builder.emit_func_output(result)
        return self.builder.get().get_global_var(name)

    def _type(self, each: Input) -> Any:
        if each.only_rank:
            return relax.TensorType(ndim=len(each.dims), dtype=each.dtype)
        return relax.TensorType([extent(dim, self.variables) for dim in each.dims], each.dtype)

    def _result(self, values: Mapping[str, Any]) -> Any:
        results = [values[name] for name in self.form.outputs]
        return results[0] if len(results) == 1 else relax.Tuple(results)


BRANCHES = ("then", "otherwise")


def _gelu_spelled(x: Any) -> Any:
    """gelu as exporters spell it; the constants have the type of ``x``."""
    dtype = str(x.ty.dtype)

    def number(value: float) -> Any:
        return relax.const(np.asarray(value, numpy_dtype(dtype)), dtype)

    halved = op.multiply(x, number(0.5))
    return op.multiply(halved, op.add(op.erf(op.divide(x, number(math.sqrt(2)))), number(1.0)))


OPERATORS: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, b, out_dtype: op.matmul(a, b, out_dtype=out_dtype),
    "permute": lambda x, axes: op.permute_dims(x, axes),
    "cast": lambda x, to: op.astype(x, to),
    "relu": op.nn.relu,
    "relu6": op.nn.relu6,
    "clip": lambda x, low, high: op.clip(x, low, high),
    "gelu": op.nn.gelu,
    "gelu_tanh": op.nn.gelu_tanh,
    "gelu_spelled": _gelu_spelled,
    "silu": op.nn.silu,
    "sigmoid": op.sigmoid,
    "tanh": op.tanh,
    "negative": op.negative,
    "add": op.add,
    "subtract": op.subtract,
    "multiply": op.multiply,
    "divide": op.divide,
    "maximum": op.maximum,
    "minimum": op.minimum,
}
