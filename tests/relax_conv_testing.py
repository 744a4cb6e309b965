"""What the tests of the passes for convolutions share, with the packed functions in numpy.

The functions stand in for those of the operator library where that is not attached: what the passes
make can then be run without compiling it.
"""

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from relax_passes import (
    ConvertToChannelsLast,
    FoldIntoConvolutions,
    NormalizeOperators,
    PolymerizeConvolutions,
    pipeline,
    polymerize_convolutions,
)
from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
LANES = 8


def activate(spec, x):
    """The activation of `spec` on float64."""
    kind = spec.activation
    if kind == ConvActivation.RELU:
        return np.maximum(x, 0)
    if kind == ConvActivation.GELU:
        return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))
    if kind == ConvActivation.GELU_TANH:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == ConvActivation.SILU:
        return x / (1 + np.exp(-x))
    if kind == ConvActivation.SIGMOID:
        return 1 / (1 + np.exp(-x))
    if kind == ConvActivation.TANH:
        return np.tanh(x)
    if kind == ConvActivation.CLIP:
        return np.clip(x, spec.first, spec.second)
    if kind == ConvActivation.HARDSWISH:
        return x * np.clip(x / 6 + 0.5, 0, 1)
    if kind == ConvActivation.HARDSIGMOID:
        return np.clip(spec.first * x + spec.second, 0, 1)
    return x


def unpacked(packed, spec):
    """The weight (KH, KW, groups, C / groups, OC / groups) behind `pack_conv_weight`."""
    groups, outputs = spec.groups, spec.out_channels // spec.groups
    panels = packed.reshape(groups, -1, spec.depth, packed.shape[-1])
    steps = panels.transpose(0, 2, 1, 3).reshape(groups, spec.depth, -1)[:, :, :outputs]
    kh, kw = spec.kernel
    return steps.reshape(groups, kw, kh, -1, outputs).transpose(2, 1, 0, 3, 4)


def convolve(x, weight, spec):
    """`x` (N, H, W, C) by `weight` (KH, KW, groups, C / groups, OC / groups), float64."""
    oh, ow = spec.output_size(*x.shape[1:3])
    top, left, bottom, right = spec.padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    grouped = padded.reshape(*padded.shape[:3], spec.groups, spec.in_channels // spec.groups)
    total = np.zeros((len(x), oh, ow, spec.out_channels))
    for i in range(spec.kernel[0]):
        for j in range(spec.kernel[1]):
            rows = np.arange(oh) * spec.strides[0] + i * spec.dilation[0]
            columns = np.arange(ow) * spec.strides[1] + j * spec.dilation[1]
            part = grouped[:, rows][:, :, columns]
            product = np.einsum("nhwgc,gco->nhwgo", part, weight[i, j].astype(np.float64))
            total += product.reshape(total.shape)
    return total


def _bias(padded, spec):
    by_group = padded.reshape(spec.groups, -1) if not spec.depthwise else padded.reshape(1, -1)
    groups = len(by_group)
    return by_group[:, : spec.out_channels // groups].ravel()


def _stand_in(depthwise, with_residual):
    def function(*arguments):
        x, weight, bias, *residual, encoded, out = (np.from_dlpack(each) for each in arguments)
        assert len(residual) == with_residual
        spec = ConvSpec.decode(encoded)
        x = x.transpose(0, 2, 3, 1) if spec.planes else x
        assert spec.depthwise == depthwise and weight.dtype == bias.dtype == np.float32
        if depthwise:
            shape = (*spec.kernel, -1, 1, 1)
            kernel = weight[:, : spec.out_channels].reshape(shape)
        else:
            kernel = unpacked(weight, spec)
        total = convolve(x, kernel, spec) + _bias(bias, spec)
        for each in residual:
            assert each.shape == out.shape
            total = total + each
        assert total.shape == out.shape and x.dtype == out.dtype
        out[...] = activate(spec, total)

    return function


def register_stand_ins():
    """The packed functions of `conv_constants` in numpy, under the same names."""
    for kind in ("CONV2D", "DEPTHWISE"):
        for middle in ("", "_RESIDUAL"):
            for suffix in ("", "_F16"):
                name = getattr(conv_constants, f"{kind}{middle}{suffix}")
                function = _stand_in(kind == "DEPTHWISE", bool(middle))
                tvm_ffi.register_global_func(name, function, override=True)


@pytest.fixture
def stand_ins(monkeypatch):
    """Run convolutions in numpy, without the operator library."""
    register_stand_ins()
    monkeypatch.setattr(polymerize_convolutions, "attach_library", lambda mod, target: mod)


def tensor(*shape, dtype="float32"):
    """Reproducible values, different for each shape."""
    return np.random.default_rng([7, *shape]).standard_normal(shape).astype(dtype)


def constant(*shape, dtype="float32", scale=1.0):
    return relax.const((scale * tensor(*shape)).astype(dtype))


def calls(mod, name="main"):
    """The calls of a function, in program order: operators and packed functions by name."""
    found = []

    def visit(expr):
        if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op):
            operator = expr.op.name.removeprefix("relax.")
            packed = operator == "call_dps_packed"
            found.append(expr.args[0].global_symbol if packed else operator)

    relax.analysis.post_order_visit(mod[name], visit)
    return found


def compiled(mod, report=None, target=TARGET, **options):
    """A virtual machine that runs `mod` through our pipeline, or TVM's where `options` is None."""
    executable = tvm.compile(mod, target, relax_pipeline=pipeline(target, report=report, **options))
    return relax.VirtualMachine(executable, tvm.cpu())


def plain(mod, target=TARGET):
    """One that runs `mod` as plain TVM compiles it."""
    return relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())


def run(machine, *inputs, name="main"):
    result = machine[name](*(tvm.runtime.tensor(each) for each in inputs))
    return result.numpy() if hasattr(result, "numpy") else [each.numpy() for each in result]


def converted(mod, report=None, target=TARGET, fold=True, static=False):
    """`mod` after the passes for convolutions, before anything else."""
    passes = [
        NormalizeOperators(target, static),
        *([FoldIntoConvolutions(target, static)] if fold else []),
        ConvertToChannelsLast(target, static),
        PolymerizeConvolutions(target, report, static=static),
    ]
    after = tvm.transform.Sequential(passes)(mod)
    relax.analysis.well_formed(after)
    return after
