"""Convolutions of which products with padding are left out: right on every shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conv_testing import Case, call, check, reach, with_activation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tvm_moonpoly
from tvm_moonpoly import operators
from tvm_moonpoly.explanation_conv import explained_conv2d
from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec
from tvm_moonpoly.planner.conv_places import span
from tvm_moonpoly.planner.conv_shapes import Form


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


def form_of(spec: ConvSpec, n: int, h: int, w: int) -> Form:
    return explained_conv2d(n, h, w, spec).plan.form


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    channels=st.integers(1, 90),
    outputs=st.integers(1, 60),
    padding=st.tuples(*[st.integers(0, 9)] * 4).filter(any),
    strides=st.tuples(*[st.integers(1, 4)] * 2),
    groups=st.sampled_from((1, 1, 2, 3)),
    activation=st.sampled_from(ConvActivation),
    n=st.integers(0, 3),
    size=st.tuples(st.integers(0, 12), st.integers(0, 30)),
    residual=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_single_places(
    library, channels, outputs, padding, strides, groups, activation, n, size, residual, seed
):
    """1x1 kernels, also where all of the input is between the strides, or there is none."""
    spec = ConvSpec((1, 1), channels * groups, outputs * groups, strides, padding, groups=groups)
    spec = with_activation(spec, activation)
    h, w = (reach(spec, axis) + size[axis] for axis in range(2))
    case = Case.random(np.random.default_rng(seed), spec, n, h, w, True, residual)
    if min(n, h, w) > 0:
        assert form_of(spec, n, h, w) == Form.PLACES
    check(call(library, case), case)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    channels=st.integers(64, 100),
    outputs=st.integers(17, 120),
    kernel=st.tuples(*[st.integers(1, 7)] * 2),
    padding=st.tuples(*[st.integers(0, 8)] * 4).filter(any),
    strides=st.tuples(*[st.integers(1, 3)] * 2),
    dilation=st.tuples(*[st.integers(1, 3)] * 2),
    groups=st.sampled_from((1, 1, 2)),
    activation=st.sampled_from(ConvActivation),
    n=st.integers(1, 4),
    more=st.tuples(st.integers(0, 4), st.integers(0, 9)),
    residual=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_windows_that_see_much_padding(
    library, channels, outputs, kernel, padding, strides, dilation, groups, activation, n, more,
    residual, seed,
):  # fmt: skip
    spec = ConvSpec(
        kernel, channels * groups, outputs * groups, strides, padding, dilation, groups, direct=True
    )
    spec = with_activation(spec, activation)
    h, w = (reach(spec, axis) + more[axis] for axis in range(2))
    case = Case.random(np.random.default_rng(seed), spec, n, h, w, True, residual)
    check(call(library, case), case)


#: Of each what makes it worth several threads, blocks of several images, or columns cut.
LARGE = {
    "1x1": (ConvSpec((1, 1), 512, 200, (2, 2), (3, 3, 3, 3)), 5, 7, 7),
    "long rows": (ConvSpec((1, 1), 64, 72, padding=(0, 5, 1, 0)), 1, 2, 6000),
    "5x5": (ConvSpec((5, 5), 208, 52, padding=(2, 2, 2, 2)), 6, 7, 7),
    "one image": (ConvSpec((5, 5), 832, 128, padding=(2, 2, 2, 2)), 1, 7, 7),
    "strides": (ConvSpec((5, 5), 256, 130, (2, 2), (2, 2, 2, 2)), 4, 7, 7),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("threads", [1, None])
@pytest.mark.parametrize("activation", [ConvActivation.RELU, ConvActivation.HARDSWISH])
def test_large(name, threads, activation):
    library = operators.library(tvm_moonpoly.detect_target(threads))
    spec, n, h, w = LARGE[name]
    case = Case.random(
        np.random.default_rng(3), replace(spec, activation=activation), n, h, w, residual=True
    )
    assert form_of(spec, n, h, w) == Form.PLACES
    check(call(library, case), case)


def test_weights_that_see_padding_alone_have_no_part(library):
    """Infinite and NaN weights spoil the outputs that see the input at their place alone."""
    spec = ConvSpec((1, 1), 8, 16, padding=(1, 2, 0, 1))
    case = Case.random(np.random.default_rng(1), spec, 2, 5, 6)
    case.weight[3, 2], case.weight[5, 1] = np.inf, np.nan
    case.x[0, 2, 3, 7] = np.nan
    result = call(library, case)
    finite = np.isfinite(result)
    assert finite[:, :1].all() and finite[:, :, :2].all() and finite[:, :, -1:].all()
    inside = finite[:, 1:, 2:-1]
    assert not inside[..., 3].any() and not inside[..., 5].any()
    others = np.delete(inside, [3, 5], -1)
    assert not others[0, 2, 3].any() and others.sum() == others.size - 14


@pytest.mark.parametrize("size", [0, 1, 5, 12])
@pytest.mark.parametrize("stride", [1, 2, 5])
def test_spans_are_those_outputs_whose_input_is_inside(size, stride):
    for at in range(-9, 9):
        for outputs in range(1, 9):
            inside = [i for i in range(outputs) if 0 <= at + i * stride < size]
            first, end = span(at, size, stride, outputs)
            assert list(range(first, end)) == inside
