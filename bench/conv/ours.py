"""Ours: the packed functions of the operator library, into an output that the caller allocated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

import tvm_moonpoly as mp
from bench.conv.layer import FIRST, Layer
from bench.conv.operands import Operands, Run
from bench.conv.peers import OURS, Peer
from bench.gemm.tvm_models import dim, tensor
from tvm_moonpoly import operators
from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.conv_constants import ConvSpec
from tvm_moonpoly.operators.packing import pad_bias


def direct(threads: int) -> Peer:
    """The functions for ``threads`` threads. Raises ValueError without micro-kernels for this CPU.

    A first layer is given its images as NCHW, and turns them round in each call where it does not
    read them as they are.
    """
    target = mp.detect_target(cores=threads)
    library = operators.library(target)
    lanes = library.machine.lanes

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
        in_planes = layer.group == FIRST and conv_constants.takes_planes(spec, lanes)
        if in_planes:
            spec = replace(spec, planes=True)
        constants = [tvm.runtime.tensor(each) for each in (weight, bias, spec.encode())]
        given = operands.nchw if in_planes else operands.nhwc
        x, out = (tvm_ffi.from_dlpack(each) for each in (given, operands.out_nhwc))
        operands.out_nhwc.fill(np.nan)
        if layer.group != FIRST or in_planes:
            return lambda: function(x, *constants, out), lambda result: operands.out_nhwc
        turn, images = turning(target, layer.c), tvm_ffi.from_dlpack(operands.nchw)

        def run() -> None:
            function(turn(images), *constants, out)

        return run, lambda result: operands.out_nhwc

    mode = "packed function, NHWC, weights packed; NCHW images of a first layer"
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


@functools.cache
def turning(target: tvm.target.Target, channels: int) -> Callable[[Any], Any]:
    """NCHW to NHWC as the pipeline compiles it: what a network pays for at its border."""
    builder = relax.BlockBuilder()
    images = relax.Var("images", tensor(dim("n"), channels, dim("h"), dim("w")))
    with builder.function("main", [images]):
        with builder.dataflow():
            turned = builder.emit_output(relax.op.permute_dims(images, [0, 2, 3, 1]))
        builder.emit_func_output(turned)
    made = tvm.compile(builder.get(), target, relax_pipeline=mp.pipeline(target))
    found: Callable[[Any], Any] = relax.VirtualMachine(made, tvm.cpu())["main"]
    return found
