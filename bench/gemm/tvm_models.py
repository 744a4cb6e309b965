"""The measured products as Relax functions of dynamic shape, compiled once for all layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from bench.gemm.operands import Operands
from bench.gemm.peers import Run
from bench.gemm.shapes import Shape


def function_name(shape: Shape) -> str:
    """The Relax function that computes ``shape``: one for each layer, whatever m is."""
    if not shape.dynamic:
        return f"linear_{shape.n}_{shape.k}"
    # The side that a model knows statically is the width of a head.
    return f"scores_{shape.k}" if shape.transposed else f"context_{shape.n}"


def layers_module(
    weights: Mapping[tuple[int, int], np.ndarray], shapes: Iterable[Shape]
) -> tvm.IRModule:
    """One function a layer of ``shapes``; ``weights`` holds the (k, n) array of each (n, k)."""
    builder = relax.BlockBuilder()
    done = set()
    for shape in shapes:
        name = function_name(shape)
        if name in done:
            continue
        done.add(name)
        if shape.dynamic:
            emit_product(builder, name, shape)
        else:
            emit_linear(builder, name, weights[shape.n, shape.k])
    return builder.get()


def emit_linear(builder: relax.BlockBuilder, name: str, weight: np.ndarray) -> None:
    """``x (m, k) @ weight`` with m symbolic."""
    x = relax.Var("x", tensor(dim("m"), weight.shape[0]))
    with builder.function(name, [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(y)


def emit_product(builder: relax.BlockBuilder, name: str, shape: Shape) -> None:
    """The attention product with all symbolic but the width of a head."""
    batch, m, n, k = dim("batch"), dim("m"), dim("n"), dim("k")
    if shape.transposed:
        a = relax.Var("a", tensor(batch, m, shape.k))
        b = relax.Var("b", tensor(batch, n, shape.k))
    else:
        a = relax.Var("a", tensor(batch, m, k))
        b = relax.Var("b", tensor(batch, k, shape.n))
    with builder.function(name, [a, b]):
        with builder.dataflow():
            right = builder.emit(relax.op.permute_dims(b, [0, 2, 1])) if shape.transposed else b
            y = builder.emit_output(relax.op.matmul(a, right))
        builder.emit_func_output(y)


def dim(name: str) -> tirx.Var:
    """A symbolic dimension."""
    return tirx.Var(name, "int64")


def tensor(*dims: tirx.Var | int) -> relax.TensorType:
    """The type of a float32 tensor."""
    return relax.TensorType(list(dims), "float32")


def virtual_machine(
    module: tvm.IRModule, target: tvm.target.Target, pipeline: Any
) -> relax.VirtualMachine:
    """``module`` compiled for ``target`` with a Relax pipeline, ready to be called."""
    executable = tvm.compile(module, target, relax_pipeline=pipeline)
    return relax.VirtualMachine(executable, tvm.cpu())


def vm_runner(vm: relax.VirtualMachine, operands: Operands) -> Run:
    """The call of the function of ``operands.shape`` through the virtual machine."""
    function = vm[function_name(operands.shape)]
    a = tvm_ffi.from_dlpack(operands.a)
    if not operands.shape.dynamic:
        return lambda: function(a)
    stored = operands.b if operands.b is not None else operands.bt
    b = tvm_ffi.from_dlpack(stored)
    return lambda: function(a, b)
