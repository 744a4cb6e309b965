"""Ours: the packed functions of the operator library, into an output that the caller allocated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi

import tvm_moonpoly as mp
from bench.conv.layer import FIRST, Layer
from bench.conv.operands import Operands, Run
from bench.conv.peers import OURS, Peer
from tvm_moonpoly import operators
from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.conv_constants import ConvSpec
from tvm_moonpoly.operators.packing import pad_bias


def direct(threads: int) -> Peer:
    """The functions for ``threads`` threads. Raises ValueError without micro-kernels for this CPU.

    A first layer is given its images as NCHW, and turns them round in each call.
    """
    target = mp.detect_target(cores=threads)
    library = operators.library(target)
    lanes = library.machine.lanes
    turn = turning(target)

    def prepare(operands: Operands) -> tuple[Run, Callable[[object], np.ndarray]]:
        layer = operands.layer
        spec = spec_of(layer)
        if spec.depthwise:
            name = conv_constants.DEPTHWISE
            weight = conv_constants.pack_depthwise_weight(operands.weight, lanes)
            bias = pad_bias(operands.bias, layer.k, lanes)
        else:
            name = conv_constants.CONV2D
            weight = conv_constants.pack_conv_weight(operands.weight, spec, lanes)
            bias = conv_constants.pad_conv_bias(operands.bias, spec, lanes)
        function = library.module[name]
        constants = [tvm.runtime.tensor(each) for each in (weight, bias, spec.encode())]
        x, out = (tvm_ffi.from_dlpack(each) for each in (operands.nhwc, operands.out_nhwc))
        operands.out_nhwc.fill(np.nan)
        if layer.group != FIRST:
            return lambda: function(x, *constants, out), lambda result: operands.out_nhwc
        images = tvm_ffi.from_dlpack(operands.nchw)
        operands.nhwc.fill(np.nan)

        def run() -> None:
            turn(images, x)
            function(x, *constants, out)

        return run, lambda result: operands.out_nhwc

    mode = "packed function, NHWC, weights packed; a first layer turns NCHW images round"
    return Peer(OURS, mode, prepare)


def spec_of(layer: Layer) -> ConvSpec:
    """The attributes of ``layer``."""
    return ConvSpec(
        layer.kernel,
        layer.c,
        layer.k,
        layer.strides,
        layer.padding,
        layer.dilation,
        layer.groups,
    )


def turning(target: tvm.target.Target) -> Callable[..., object]:
    """NCHW to NHWC for few channels: what a network pays for at its border."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def bench_turn(images: T.handle, turned: T.handle) -> None:
        n, c, h, w = T.int64(), T.int64(), T.int64(), T.int64()
        source = T.match_buffer(images, [n, c, h, w], "float32", align=4)
        result = T.match_buffer(turned, [n, h, w, c], "float32", align=4)
        for i, y, x, j in T.grid(n, h, w, c):
            result[i, y, x, j] = source[i, j, y, x]

    found: Callable[..., object] = tvm.compile(bench_turn, target=target).mod["bench_turn"]
    return found
