"""TVM without tvm_moonpoly on batches, rows and columns that are counted at run time.

``tvm_plain``: Relax's ``conv2d`` through TVM's own pipeline, which has no schedule for such a
function. ``tvm_hand``: a few lines of TensorIR, NHWC: the border is copied into a padded image, and
tiles of 6 columns by two vectors of output channels are kept in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx

import tvm_moonpoly as mp
from bench.conv.beside import without_groups
from bench.conv.layer import DEPTHWISE, Layer
from bench.conv.operands import Operands, Run
from bench.conv.peers import Peer
from bench.gemm.operands import aligned_copy
from bench.gemm.tvm_models import dim, tensor
from tvm_moonpoly.machine import Machine

COLUMNS, VECTORS = 6, 2


def plain(threads: int) -> Peer:
    """Relax through TVM's default pipeline."""
    target = mp.detect_target(cores=threads)

    def prepare(operands: Operands) -> tuple[Run, Callable[[object], np.ndarray]]:
        layer = operands.layer
        module = plain_module(layer)
        machine = relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
        arrays = (operands.nchw, operands.weight, operands.bias.reshape(1, -1, 1, 1))
        tensors = [tvm.runtime.tensor(each) for each in arrays]
        return lambda: machine["main"](*tensors), lambda result: turned(result)

    mode = "relax conv2d NCHW, TVM's default pipeline, dynamic shapes"
    return Peer("tvm_plain", mode, prepare)


def plain_module(layer: Layer) -> tvm.IRModule:
    """The layer with symbolic batch, rows and columns, NCHW; weight and bias are parameters."""
    x = relax.Var("x", tensor(dim("n"), layer.c, dim("h"), dim("w")))
    weight = relax.Var("weight", tensor(layer.k, layer.c // layer.groups, *layer.kernel))
    bias = relax.Var("bias", tensor(1, layer.k, 1, 1))
    return layer_module(layer, [x, weight, bias], weight, bias)


def layer_module(
    layer: Layer, parameters: list[relax.Var], weight: Any, bias: Any, **layouts: str
) -> tvm.IRModule:
    """The layer as a function "main" of ``parameters``, the first of which are the images."""
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            sums = builder.emit(
                relax.op.nn.conv2d(
                    parameters[0],
                    weight,
                    layer.strides,
                    layer.padding,
                    layer.dilation,
                    layer.groups,
                    **layouts,
                )
            )
            y = builder.emit_output(relax.op.add(sums, bias))
        builder.emit_func_output(y)
    return builder.get()


def by_hand(threads: int) -> Peer:
    """A schedule of a few lines, NHWC, weight (r, s, c, k)."""
    target = mp.detect_target(cores=threads)
    lanes = Machine.from_target(target).lanes

    def prepare(operands: Operands) -> tuple[Run, Callable[[object], np.ndarray]]:
        layer = operands.layer
        function = tvm.compile(hand_schedule(layer, lanes, threads), target).mod["main"]
        weight = aligned_copy(operands.weight.transpose(2, 3, 1, 0))
        tensors = [
            tvm_ffi.from_dlpack(each)
            for each in (operands.nhwc, weight, operands.bias, operands.out_nhwc)
        ]
        operands.out_nhwc.fill(np.nan)

        def run(held: Any = weight) -> None:
            function(*tensors)

        return run, lambda result: operands.out_nhwc

    def refuses(layer: Layer) -> str | None:
        return None if without_groups(layer) else "takes no groups"

    mode = f"TensorIR by hand, NHWC, tiles of {COLUMNS} columns, dynamic shapes"
    return Peer("tvm_hand", mode, prepare, refuses)


def hand_schedule(layer: Layer, lanes: int, threads: int) -> tvm.IRModule:
    """The layer as a scheduled function of x, weight, bias and the output."""
    n, h, w = (te.var(name, "int64") for name in "nhw")
    top, left, bottom, right = layer.padding
    depthwise = layer.group == DEPTHWISE
    x = te.placeholder((n, h, w, layer.c), "float32", "x")
    inputs = 1 if depthwise else layer.c
    weight = te.placeholder((*layer.kernel, inputs, layer.k), "float32", "weight")
    bias = te.placeholder((layer.k,), "float32", "bias")

    def pixel(b: Any, y: Any, z: Any, c: Any) -> Any:
        inside = tirx.all(y >= top, y < h + top, z >= left, z < w + left)
        return tirx.if_then_else(inside, x[b, y - top, z - left, c], tirx.const(0, "float32"))

    image = te.compute((n, h + top + bottom, w + left + right, layer.c), pixel, "image")
    rows, columns = (
        (size - (kernel - 1) * dilation - 1) // stride + 1
        for size, kernel, stride, dilation in zip(
            image.shape[1:3], layer.kernel, layer.strides, layer.dilation, strict=True
        )
    )
    i, j = (te.reduce_axis((0, size), name) for size, name in zip(layer.kernel, "ij", strict=True))
    c = te.reduce_axis((0, inputs), "c")

    def term(b: Any, y: Any, z: Any, k: Any) -> Any:
        at = (
            y * layer.strides[0] + i * layer.dilation[0],
            z * layer.strides[1] + j * layer.dilation[1],
        )
        channel = k if depthwise else c
        return te.sum(image[b, at[0], at[1], channel] * weight[i, j, c, k], [i, j, c])

    sums = te.compute((n, rows, columns, layer.k), term, "sums")
    out = te.compute(sums.shape, lambda b, y, z, k: sums[b, y, z, k] + bias[k], "out")
    function = te.create_prim_func([x, weight, bias, out], index_dtype_override="int64")
    schedule = s_tir.Schedule(tvm.IRModule({"main": function}))
    block = schedule.get_sblock("sums")
    b, y, z, k, i, j, c = schedule.get_loops(block)
    wide = lanes * VECTORS
    outer_z, inner_z = schedule.split(z, [None, COLUMNS])
    outer_k, inner_k = schedule.split(k, [None, wide if layer.k >= wide else min(layer.k, lanes)])
    schedule.reorder(b, y, outer_z, outer_k, i, j, c, inner_z, inner_k)
    schedule.vectorize(inner_k)
    schedule.unroll(inner_z)
    first = schedule.fuse(b, y)
    if threads > 1:
        schedule.parallel(first)
    schedule.decompose_reduction(block, i)
    last = schedule.get_sblock("out")
    schedule.vectorize(schedule.split(schedule.get_loops(last)[-1], [None, lanes])[1])
    return schedule.mod


def turned(result: object) -> np.ndarray:
    """A tensor (n, k, oh, ow) as an array (n, oh, ow, k)."""
    array: np.ndarray = result.numpy().transpose(0, 2, 3, 1)  # type: ignore[attr-defined]
    return array
