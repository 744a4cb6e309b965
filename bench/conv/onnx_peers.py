"""onnxruntime: a session of one layer, and its own operator on the blocked layout.

Within a network onnxruntime converts to blocks of channels at the border only, and its inner layers
read and write them: that is measured by a model of its internal operator, without conversions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bench.conv.layer import DEPTHWISE, FIRST, WINDOW, Layer
from bench.conv.operands import Operands, Run
from bench.conv.peers import Peer, Prepare
from bench.gemm.operands import aligned_copy

BLOCKED = "com.microsoft.nchwc"
OPSET, IR_VERSION = 17, 8


def converting(threads: int) -> Peer:
    """NCHW in and out, with whatever conversions its optimiser puts around the layer."""
    mode = "session of one layer, NCHW in and out, all memory bound, graph optimisation ALL"
    return Peer("onnxruntime", mode, session(threads, 0))


def blocked(threads: int) -> Peer:
    """Blocks of channels in and out, as within a network."""
    size = block_size(threads)
    mode = f"its operator on blocks of {size} channels, as within a network; memory bound"

    def refuses(layer: Layer) -> str | None:
        if layer.group == FIRST or layer.k % size or layer.c % size:
            return f"its channels are no blocks of {size}"
        if layer.group == WINDOW and layer.groups > 1:
            return "takes no groups"
        return None

    return Peer("onnxruntime_blocked", mode, session(threads, size), refuses)


def block_size(threads: int) -> int:
    """Channels of a block, which depends on the CPU: by what a small layer gives."""
    layer = Layer(1, 16, 3, 3, 16, (3, 3), padding=(1, 1, 1, 1), groups=16)
    from bench.conv.operands import error_in, make_operands

    for size in (8, 16):
        operands = make_operands(layer)
        run, result = session(threads, size)(operands)
        if error_in(result(run()), operands) is None:
            return size
    raise RuntimeError("its blocked layout is not known")


def session(threads: int, block: int) -> Prepare:
    """What binds operands to a session; on blocks of ``block`` channels unless that is 0."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3

    def prepare(operands: Operands) -> tuple[Run, Callable[[object], np.ndarray]]:
        layer = operands.layer
        x, out, weight = operands.nchw, operands.out_nchw, operands.weight
        if block:
            x = aligned_copy(to_blocks(x, block))
            weight = blocked_weight(weight, layer, block)
        out.fill(np.nan)
        made = ort.InferenceSession(
            model(layer, weight, operands.bias, block),
            options,
            providers=["CPUExecutionProvider"],
        )
        binding = made.io_binding()
        shape = [layer.n, layer.c, layer.h, layer.w]
        binding.bind_input("x", "cpu", 0, np.float32, shape, x.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, list(out.shape), out.ctypes.data)

        # a binding to an address does not hold the array
        def run(held: object = x) -> None:
            made.run_with_iobinding(binding)

        def result(_: object) -> np.ndarray:
            found = from_blocks(out, block) if block else out
            return found.transpose(0, 2, 3, 1)

        return run, result

    return prepare


def model(layer: Layer, weight: np.ndarray, bias: np.ndarray, block: int) -> bytes:
    """A serialized model of the layer, with dynamic batch, rows and columns."""
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        domain=BLOCKED if block else "",
        kernel_shape=layer.kernel,
        strides=layer.strides,
        pads=layer.padding,
        dilations=layer.dilation,
        group=layer.groups,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", layer.c, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", layer.k, "oh", "ow"])
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph([node], "layer", [x], [y], constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(BLOCKED, 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return made.SerializeToString()


def to_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """(n, c, h, w) with its memory as (n, c / block, h, w, block)."""
    n, c, h, w = x.shape
    turned = x.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(turned).reshape(x.shape)


def from_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """Inverse of `to_blocks`."""
    n, c, h, w = x.shape
    turned = x.reshape(n, c // block, h, w, block).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(turned).reshape(x.shape)


def blocked_weight(weight: np.ndarray, layer: Layer, block: int) -> np.ndarray:
    """The weight as the operator reads it: blocks of outputs, and of inputs where all inputs
    count, the outputs of a block innermost."""
    k, c, r, s = weight.shape
    if layer.group == DEPTHWISE:
        turned = weight.reshape(k // block, block, r, s).transpose(0, 2, 3, 1)
    else:
        split = weight.reshape(k // block, block, c // block, block, r, s)
        turned = split.transpose(0, 2, 4, 5, 3, 1)
    return np.ascontiguousarray(turned).reshape(weight.shape)
