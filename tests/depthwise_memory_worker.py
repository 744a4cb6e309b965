"""Run as a process by test_conv_depthwise_memory: operands against protected pages.

A read or write outside an operand kills the process. The last line before that names the case.
"""

from __future__ import annotations

import itertools

import numpy as np
from core_memory_worker import Guarded, guarded_library

#: (n, h, w) of images.
SIZES = [(1, 1, 1), (1, 2, 3), (2, 5, 4), (1, 3, 8), (1, 4, 9), (1, 6, 17), (1, 5, 33), (1, 9, 26)]
CHANNELS = (1, 3, 7, 8, 9, 12, 16, 23, 64)

#: (kernel, strides, dilation, padding): known taps, and any.
KINDS = [
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    ((3, 3), (1, 2), (1, 1), (0, 2, 3, 1)),
    ((3, 3), (2, 1), (1, 1), (0, 1, 0, 1)),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2)),
    ((5, 5), (2, 1), (2, 1), (4, 4, 4, 4)),
    ((3, 5), (1, 2), (1, 1), (7, 9, 1, 0)),
    ((1, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((7, 7), (1, 1), (1, 1), (3, 3, 3, 3)),
    ((2, 4), (3, 3), (2, 3), (2, 5, 3, 5)),
]


def main() -> None:
    from core_testing import CANARY_NUMBER, tensor, values
    from depthwise_testing import NAMES, arguments, check_depthwise

    from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec

    library, workspace = guarded_library("depthwise")
    module, lanes = library.module, library.machine.lanes
    rng = np.random.default_rng(61)
    names = ("x", "weight", "bias", "residual", "spec", "out")
    memory = {name: Guarded(1200) for name in names}

    def run(shape, kind, side, dtype, activation):
        kernel, strides, dilation, padding = kind
        channels = shape[3]
        spec = ConvSpec(
            kernel, channels, channels, strides, padding, dilation, channels, activation
        )
        try:
            size = spec.output_size(*shape[1:3])
        except ValueError:
            return
        print(f"{shape=} {kind=} {side=} {dtype=} {activation=}", flush=True)
        x, w = values(rng, *shape).astype(dtype), values(rng, channels, 1, *kernel)
        bias = values(rng, channels)
        residual = values(rng, shape[0], *size, channels).astype(dtype)
        given = arguments(x, w, bias, spec, lanes, residual)
        given["out"] = np.full_like(residual, CANARY_NUMBER)
        placed = {name: memory[name].place(array, side) for name, array in given.items()}
        module[NAMES[dtype, True]](*(tensor(placed[name]) for name in names))
        check_depthwise(placed["out"], x, w, bias, spec, residual)
        for name in names[:-1]:
            assert np.array_equal(placed[name], given[name]), f"{name} was written"

    activations = itertools.cycle(
        [ConvActivation.RELU, ConvActivation.HARDSWISH, ConvActivation.SILU]
    )
    for side, size, channels, kind in itertools.product(("begin", "end"), SIZES, CHANNELS, KINDS):
        run((*size, channels), kind, side, "float32", next(activations))
        if channels in (3, 9, 23):
            run((*size, channels), kind, side, "float16", next(activations))
    assert workspace.pieces == 0
    for side, size, kind in itertools.product(("begin", "end"), SIZES, KINDS):
        run((*size, 512), kind, side, "float32", ConvActivation.NONE)
        run((1, *size[1:], 1024), kind, side, "float32", ConvActivation.NONE)
    assert workspace.pieces > 20
    print("all cases ran", flush=True)


if __name__ == "__main__":
    main()
