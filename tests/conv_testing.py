"""What the tests of convolutions share: the packed functions on numpy arrays, and the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from core_testing import CANARY_NUMBER, EPS, check_close, tensor
from hypothesis import strategies as st

from tvm_moonpoly.operators import OperatorLibrary, bounded_activation
from tvm_moonpoly.operators.conv import KINDS
from tvm_moonpoly.operators.conv_constants import (
    ConvActivation,
    ConvSpec,
    pack_conv_weight,
    pad_conv_bias,
)


@dataclass(frozen=True)
class Case:
    """A convolution with its operands; ``weight`` is (OC, C / groups, KH, KW)."""

    spec: ConvSpec
    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray | None = None
    residual: np.ndarray | None = None

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        spec: ConvSpec,
        n: int,
        h: int,
        w: int,
        bias: bool = True,
        residual: bool = False,
        dtype: str = "float32",
    ) -> Case:
        inputs = spec.in_channels // spec.groups
        shape = (n, *spec.output_size(h, w), spec.out_channels)
        return cls(
            spec,
            rng.standard_normal((n, h, w, spec.in_channels)).astype(dtype),
            rng.standard_normal((spec.out_channels, inputs, *spec.kernel), np.float32),
            rng.standard_normal(spec.out_channels, np.float32) if bias else None,
            rng.standard_normal(shape).astype(dtype) if residual else None,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        n, h, w, _ = self.x.shape
        return (n, *self.spec.output_size(h, w), self.spec.out_channels)

    @property
    def stored(self) -> np.ndarray:
        """The input as the packed function is given it."""
        return np.ascontiguousarray(self.x.transpose(0, 3, 1, 2)) if self.spec.planes else self.x

    def constants(self, lanes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The packed weight, the padded bias and the encoded attributes."""
        packed = pack_conv_weight(self.weight, self.spec, lanes)
        return packed, pad_conv_bias(self.bias, self.spec, lanes), self.spec.encode()


def call(
    library: OperatorLibrary, case: Case, out: np.ndarray | None = None, **replaced: Any
) -> np.ndarray:
    """The packed function on the operands of ``case``; ``replaced``: constants by name."""
    packed, bias, spec = case.constants(library.machine.lanes)
    if out is None:
        out = np.full(case.shape, CANARY_NUMBER, case.x.dtype)
    kind = "f16" if case.x.dtype == np.float16 else "f32"
    _, plain, with_residual = KINDS[kind]
    residual = {} if case.residual is None else {"residual": case.residual}
    arrays = {
        "x": case.stored,
        "weight": packed,
        "bias": bias,
        **residual,
        "spec": spec,
        "out": out,
    }
    arrays.update(replaced)
    name = with_residual if residual else plain
    library.module[name](*map(tensor, arrays.values()))
    return out


def windows(x: np.ndarray, spec: ConvSpec) -> np.ndarray:
    """(N, OH, OW, KH, KW, C): what each pixel sees of the padded input, a view."""
    top, left, bottom, right = spec.padding
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    n, h, w, c = padded.shape
    oh, ow = spec.output_size(*x.shape[1:3])
    s = padded.strides
    steps = [s[1] * spec.strides[0], s[2] * spec.strides[1]]
    inner = [s[1] * spec.dilation[0], s[2] * spec.dilation[1]]
    shape = (n, oh, ow, *spec.kernel, c)
    return np.lib.stride_tricks.as_strided(padded, shape, (s[0], *steps, *inner, s[3]))


def product(x: np.ndarray, weight: np.ndarray, spec: ConvSpec) -> np.ndarray:
    """The convolution alone, in float64."""
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    inputs, outputs = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    seen = windows(x, spec)
    parts = []
    for g in range(spec.groups):
        channels = seen[..., g * inputs : (g + 1) * inputs]
        kernel = weight[g * outputs : (g + 1) * outputs].transpose(2, 3, 1, 0)
        parts.append(np.tensordot(channels, kernel, 3))
    return np.concatenate(parts, axis=-1)


def check(result: np.ndarray, case: Case) -> None:
    """``result`` is ``act(conv + bias + residual)`` within the bound of its arithmetic."""
    before = product(case.x, case.weight, case.spec)
    size = product(np.abs(case.x), np.abs(case.weight), case.spec)
    for addend in (case.bias, case.residual):
        if addend is not None:
            before = before + addend.astype(np.float64)
            size = size + np.abs(addend.astype(np.float64))
    spec = case.spec
    expected = bounded_activation.reference(spec.activation, before, spec.first, spec.second)
    bound = (spec.depth + 3) * EPS * size
    if spec.activation > ConvActivation.RELU:
        bound = 1.2 * bound + 1e-6 * (1 + np.abs(before))
    if result.dtype == np.float16:
        bound = bound + np.abs(expected) * 2.0**-11 + 2.0**-24
    check_close(result, expected, bound)


#: Parameters of activations that have some.
PARAMETERS = {ConvActivation.CLIP: (-0.5, 1.25), ConvActivation.HARDSIGMOID: (0.2, 0.5)}


def with_activation(spec: ConvSpec, activation: ConvActivation) -> ConvSpec:
    first, second = PARAMETERS.get(activation, (0.0, 0.0))
    return replace(spec, activation=activation, first=first, second=second)


@st.composite
def specs(draw: Any, most_channels: int = 20) -> ConvSpec:
    """Any convolution: kernels up to 7 x 7, strides and dilation up to 3, groups."""
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    one_each = draw(st.integers(0, 7)) == 0
    inputs = 1 if one_each else draw(st.integers(1, most_channels))
    groups = draw(st.integers(1, most_channels)) if one_each else groups
    outputs = draw(st.integers(1, most_channels + 12))
    kernel = draw(st.one_of(st.just((1, 1)), st.just((3, 3)), st.tuples(*[st.integers(1, 7)] * 2)))
    spec = ConvSpec(
        kernel=kernel,
        in_channels=groups * inputs,
        out_channels=groups * outputs,
        strides=draw(st.one_of(st.just((1, 1)), st.tuples(*[st.integers(1, 3)] * 2))),
        padding=draw(st.one_of(st.just((0, 0, 0, 0)), st.tuples(*[st.integers(0, 4)] * 4))),
        dilation=draw(st.one_of(st.just((1, 1)), st.tuples(*[st.integers(1, 3)] * 2))),
        groups=groups,
    )
    return with_activation(spec, draw(st.sampled_from(ConvActivation)))


def reach(spec: ConvSpec, axis: int) -> int:
    """The least size of the input along an axis."""
    inner = (spec.kernel[axis] - 1) * spec.dilation[axis] + 1
    return max(inner - spec.padding[axis] - spec.padding[axis + 2], 0)
