"""The measured cases as Relax functions of dynamic shape, each compiled when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from bench.gemm.operands import Operands
from bench.gemm.peers import Run
from bench.gemm.shapes import Shape

Dim: TypeAlias = tirx.Var | int


class Models:
    """The functions of cases, compiled for ``target`` with a Relax pipeline that a call makes.

    A function with constant weights holds them, so only the last of them is kept: cases of the same
    weight should follow one another. Functions of two operands serve all cases.
    """

    def __init__(self, target: tvm.target.Target, pipeline: Callable[[], Any]) -> None:
        self.target, self.pipeline = target, pipeline
        self.products: dict[str, Any] = {}
        self.last: tuple[tuple[Any, ...], Any] | None = None

    def function(self, operands: Operands) -> Any:
        """The function of the case, whatever its number of rows."""
        shape = operands.shape
        name = function_name(shape)
        if shape.dynamic:
            if name not in self.products:
                self.products[name] = self.compiled(product_module(shape), name)
            return self.products[name]
        # The arrays themselves are in the key: as long as they are kept no other has their place.
        constants = (name, operands.b, operands.bias, operands.chain)
        if self.last is None or not same(self.last[0], constants):
            self.last = None
            self.last = (constants, self.compiled(linear_module(operands), name))
        return self.last[1]

    def compiled(self, module: tvm.IRModule, name: str) -> Any:
        """The only function of ``module``, ready to be called."""
        executable = tvm.compile(module, self.target, relax_pipeline=self.pipeline())
        return relax.VirtualMachine(executable, tvm.cpu())[name]

    def prepare(self, operands: Operands) -> Run:
        """The call of the function of the case through the virtual machine."""
        function = self.function(operands)
        a = tvm_ffi.from_dlpack(operands.a)
        if operands.shape.dynamic:
            b = tvm_ffi.from_dlpack(operands.stored)
            return lambda: function(a, b)
        if operands.residual is not None:
            residual = tvm_ffi.from_dlpack(operands.residual)
            return lambda: function(a, residual)
        return lambda: function(a)


def same(some: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two keys of functions name the same one: the same words and the very same arrays."""
    return some[0] == other[0] and all(x is y for x, y in zip(some[1:], other[1:], strict=True))


def function_name(shape: Shape) -> str:
    """The Relax function that computes ``shape``: one for each layer, whatever m is."""
    if not shape.dynamic:
        ending = "" if shape.epilogue == "none" else f"_{shape.epilogue}"
        return f"{shape.workload}_{shape.n}_{shape.k}{ending}"
    if shape.batch == 1:
        return "product_by_columns" if shape.transposed else "product"
    # The side that a model knows statically is the width of a head.
    return f"scores_{shape.k}" if shape.transposed else f"context_{shape.n}"


def linear_module(operands: Operands) -> tvm.IRModule:
    """``x (m, k)`` times the constant weight or weights, m symbolic, and the epilogue."""
    shape = operands.shape
    m = dim("m")
    x = relax.Var("x", tensor(m, shape.k))
    residual = relax.Var("residual", tensor(m, shape.n))
    parameters = [x, residual] if operands.residual is not None else [x]
    builder = relax.BlockBuilder()
    with builder.function(function_name(shape), parameters):
        with builder.dataflow():
            y: relax.Expr = x
            for weight in operands.chain or (operands.b,):
                y = builder.emit(relax.op.matmul(y, relax.const(weight)))
            if operands.bias is not None:
                y = builder.emit(relax.op.add(y, relax.const(operands.bias)))
            if operands.residual is not None:
                y = builder.emit(relax.op.add(y, residual))
            if shape.epilogue == "bias_gelu":
                y = builder.emit(relax.op.nn.gelu(y))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


def product_module(shape: Shape) -> tvm.IRModule:
    """The product of two operands; in attention the width of a head is known, all else symbolic."""
    m: Dim = dim("m")
    n: Dim = dim("n")
    k: Dim = dim("k")
    lead: list[Dim] = []
    if shape.batch > 1:
        lead = [dim("batch")]
        if shape.transposed:
            k = shape.k
        else:
            n = shape.n
    a = relax.Var("a", tensor(*lead, m, k))
    b = relax.Var("b", tensor(*lead, n, k) if shape.transposed else tensor(*lead, k, n))
    builder = relax.BlockBuilder()
    with builder.function(function_name(shape), [a, b]):
        with builder.dataflow():
            right: relax.Expr = b
            if shape.transposed:
                axes = [0, 2, 1] if lead else [1, 0]
                right = builder.emit(relax.op.permute_dims(b, axes))
            y = builder.emit_output(relax.op.matmul(a, right))
        builder.emit_func_output(y)
    return builder.get()


def dim(name: str) -> tirx.Var:
    """A symbolic dimension."""
    return tirx.Var(name, "int64")


def tensor(*dims: Dim) -> relax.TensorType:
    """The type of a float32 tensor."""
    return relax.TensorType(list(dims), "float32")
