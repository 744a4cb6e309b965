"""Convolutions in float16 against the same in float32, ours and those of other libraries.

``python -m bench.conv.half``: one thread, one process, some layers; a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.table import Table

import tvm_moonpoly as mp
from bench import measure
from bench.conv.layer import Layer
from bench.conv.operands import Operands, Run, make_operands
from bench.conv.ours import spec_of
from bench.gemm.peers import reason_of
from tvm_moonpoly import operators
from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.packing import pad_bias

#: The largest error relative to the largest output: a result is rounded to 11 bits.
WRONG = 2e-3
ROUNDS, SECONDS = 41, 0.004

SAME = (1, 1, 1, 1)
LAYERS = (
    Layer(1, 64, 56, 56, 64, (3, 3), padding=SAME),
    Layer(1, 256, 14, 14, 256, (3, 3), padding=SAME),
    Layer(1, 128, 56, 56, 128, (3, 3), (2, 2), SAME),
    Layer(1, 64, 56, 56, 256, (1, 1)),
    Layer(1, 1024, 14, 14, 256, (1, 1)),
    Layer(1, 144, 56, 56, 144, (3, 3), padding=SAME, groups=144),
    Layer(1, 240, 28, 28, 240, (5, 5), (2, 2), (2, 2, 2, 2), groups=240),
    Layer(1, 3, 224, 224, 64, (7, 7), (2, 2), (3, 3, 3, 3)),
)

#: A call, and its result as an array (n, oh, ow, k).
Prepared = tuple[Run, Callable[[Any], np.ndarray]]


def ours(operands: Operands, dtype: str) -> Prepared:
    """The packed function, weights packed, on images in NHWC."""
    layer, spec = operands.layer, spec_of(operands.layer)
    library = operators.library(mp.detect_target(cores=1))
    lanes, half = library.machine.lanes, dtype == "float16"
    if spec.depthwise:
        name = conv_constants.DEPTHWISE_F16 if half else conv_constants.DEPTHWISE
        weight = conv_constants.pack_depthwise_weight(operands.weight, lanes)
        bias = pad_bias(operands.bias, layer.k, lanes)
    else:
        name = conv_constants.CONV2D_F16 if half else conv_constants.CONV2D
        weight = conv_constants.pack_conv_weight(operands.weight, spec, lanes)
        bias = conv_constants.pad_conv_bias(operands.bias, spec, lanes)
    out = np.zeros(operands.out_nhwc.shape, dtype)
    arrays = (operands.nhwc.astype(dtype), weight, bias, spec.encode(), out)
    given = [tvm.runtime.tensor(each) for each in arrays]
    function = library.module[name]
    return lambda: function(*given), lambda _: given[-1].numpy()


def torch(operands: Operands, dtype: str) -> Prepared:
    """``F.conv2d`` in channels-last memory."""
    import torch

    torch.set_num_threads(1)
    layer, kind, order = operands.layer, getattr(torch, dtype), torch.channels_last
    x, weight = (
        torch.from_numpy(each).to(kind).contiguous(memory_format=order)
        for each in (operands.nchw, operands.weight)
    )
    bias = torch.from_numpy(operands.bias).to(kind)
    more = (layer.strides, layer.padding[:2], layer.dilation, layer.groups)

    def run() -> torch.Tensor:
        with torch.inference_mode():
            return torch.nn.functional.conv2d(x, weight, bias, *more)

    return run, lambda result: result.float().permute(0, 2, 3, 1).numpy()


def onnxruntime(operands: Operands, dtype: str) -> Prepared:
    """A session of one layer, NCHW in and out."""
    import onnxruntime as ort
    from onnx import helper, numpy_helper

    layer = operands.layer
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        kernel_shape=layer.kernel,
        strides=layer.strides,
        pads=list(layer.padding),
        dilations=layer.dilation,
        group=layer.groups,
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (
        helper.make_tensor_value_info(name, kind, like.shape)
        for name, like in (("x", operands.nchw), ("y", operands.out_nchw))
    )
    weights = {"w": operands.weight, "b": operands.bias}
    constants = [numpy_helper.from_array(a.astype(dtype), name) for name, a in weights.items()]
    graph = helper.make_graph([node], "layer", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    images = {"x": operands.nchw.astype(dtype)}
    return (
        lambda: session.run(None, images)[0],
        lambda result: np.asarray(result).transpose(0, 2, 3, 1),
    )


MAKERS = {"moonpoly": ours, "torch": torch, "onnxruntime": onnxruntime}
OURS = ("moonpoly", "float16")


def timed(
    layer: Layer, rounds: int = ROUNDS, say: Callable[[str], None] = print
) -> Mapping[tuple[str, str], list[float]]:
    """Seconds of a call of each library in each type, in rounds that all of them take part in.

    Raises RuntimeError where a result is wrong; a library that is not there is left out.
    """
    operands = make_operands(layer)
    runs: dict[tuple[str, str], tuple[Run, int]] = {}
    expected: np.ndarray | None = None
    for name, make in MAKERS.items():
        for dtype in ("float32", "float16"):
            try:
                run, result = make(operands, dtype)
                found = result(run()).astype(np.float64)
            except Exception as reason:  # absent, whatever a library raises
                say(f"{name} {dtype} is absent: {reason_of(reason)}")
                continue
            expected = found if expected is None else expected
            error = np.abs(found - expected).max() / np.abs(expected).max()
            if error > WRONG:
                raise RuntimeError(f"{name} {dtype} is off by {error:.2g} of the largest output")
            start = time.perf_counter()
            run()
            once = time.perf_counter() - start
            runs[name, dtype] = run, max(1, int(SECONDS / once))
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (run, times) in runs.items():
            start = time.perf_counter()
            for _ in range(times):
                run()
            seconds[key].append((time.perf_counter() - start) / times)
    return seconds


def main() -> None:
    console = Console()
    others = [(name, dtype) for name in MAKERS for dtype in ("float32", "float16")]
    others.remove(OURS)
    table = Table(title="time / ours in float16; above 1 ours in float16 is faster")
    for title in ("layer", "GFLOP/s", *(f"{name} {dtype}" for name, dtype in others)):
        table.add_column(title.replace("float", "f"), no_wrap=True)
    for layer in LAYERS:
        seconds = timed(layer, say=console.print)
        half = seconds[OURS]
        row = [layer.key, f"{layer.flops / float(np.median(half)) / 1e9:.1f}"]
        for key in others:
            known = key in seconds
            row.append(f"{measure.paired_ratio(seconds[key], half).median:.2f}" if known else "")
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
