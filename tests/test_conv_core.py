"""Convolutions with constant weights: right on every shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conv_testing import Case, call, check, reach, specs, with_activation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tvm_moonpoly import operators
from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec, takes_planes


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    spec=specs(),
    n=st.integers(0, 3),
    more=st.tuples(st.integers(0, 12), st.integers(0, 70)),
    bias=st.booleans(),
    residual=st.booleans(),
    half=st.integers(0, 3),
    seed=st.integers(0, 1 << 16),
)
def test_any_convolution(library, spec, n, more, bias, residual, half, seed):
    rng = np.random.default_rng(seed)
    h, w = (reach(spec, axis) + more[axis] for axis in range(2))
    dtype = "float16" if half == 0 else "float32"
    case = Case.random(rng, spec, n, h, w, bias, residual, dtype)
    check(call(library, case), case)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    channels=st.integers(1, 4),
    vectors=st.integers(1, 7),
    kernel=st.tuples(st.integers(1, 7), st.integers(2, 11)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.one_of(st.just((0, 0, 0, 0)), st.tuples(*[st.integers(0, 4)] * 4)),
    activation=st.sampled_from(ConvActivation),
    n=st.integers(0, 3),
    more=st.tuples(st.integers(0, 12), st.integers(0, 90)),
    planes=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_few_channels(
    library, channels, vectors, kernel, strides, padding, activation, n, more, planes, seed
):
    rng, lanes = np.random.default_rng(seed), library.machine.lanes
    strides = tuple(map(min, zip(strides, kernel, strict=True)))
    spec = ConvSpec(kernel, channels, vectors * lanes, strides, padding, planes=planes)
    assert takes_planes(spec, lanes)
    spec = with_activation(spec, activation)
    h, w = (reach(spec, axis) + more[axis] for axis in range(2))
    case = Case.random(rng, spec, n, h, w)
    check(call(library, case), case)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    channels=st.integers(16, 40),
    outputs=st.integers(16, 60),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    groups=st.sampled_from((1, 1, 2)),
    activation=st.sampled_from(ConvActivation),
    n=st.integers(1, 3),
    size=st.tuples(st.integers(3, 20), st.integers(3, 30)),
    residual=st.booleans(),
    half=st.integers(0, 3),
    seed=st.integers(0, 1 << 16),
)
def test_by_patches(
    library, channels, outputs, padding, groups, activation, n, size, residual, half, seed
):
    rng = np.random.default_rng(seed)
    spec = ConvSpec((3, 3), channels * groups, outputs * groups, padding=padding, groups=groups)
    spec = with_activation(spec, activation)
    assert spec.winograd
    dtype = "float16" if half == 0 else "float32"
    case = Case.random(rng, spec, n, *size, True, residual, dtype)
    check(call(library, case), case)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("activation", [ConvActivation.NONE, ConvActivation.RELU])
def test_what_is_not_finite_stays_where_it_is(library, rng, value, dtype, activation):
    spec = ConvSpec((3, 3), 20, 35, padding=(1, 1, 1, 1), activation=activation)
    case = Case.random(rng, spec, 2, 9, 12, residual=True, dtype=dtype)
    for place in ((0, 0, 0, 3), (0, 4, 5, 7), (1, 8, 11, 19)):
        case.x[place] = value
    result = call(library, case)
    with np.errstate(invalid="ignore"):
        direct = call(library, replace(case, spec=replace(spec, direct=True)))
    finite = np.isfinite(direct)
    assert 0 < (~finite).sum() < 35 * 30
    np.testing.assert_array_equal(np.isfinite(result), finite)
    np.testing.assert_array_equal(result[~finite], direct[~finite])
    np.testing.assert_allclose(result[finite], direct[finite], rtol=2e-3, atol=2e-3)


def test_large_numbers_do_not_overflow_by_the_way(library):
    spec = ConvSpec((3, 3), 16, 16, padding=(1, 1, 1, 1))
    x = np.full((1, 4, 4, 16), 3e38, np.float32)
    x[:, ::2] *= -1
    weight = np.zeros((16, 16, 3, 3), np.float32)
    weight[np.arange(16), np.arange(16), 1, 1] = 1
    np.testing.assert_array_equal(call(library, Case(spec, x, weight)), x)


def test_ones_in_float16_are_summed_in_float32(library):
    for direct in (False, True):
        spec = ConvSpec((3, 3), 512, 16, direct=direct)
        case = Case(spec, np.ones((1, 5, 4, 512), np.float16), np.ones((16, 512, 3, 3), np.float32))
        np.testing.assert_array_equal(call(library, case), np.full((1, 3, 2, 16), 4608, np.float16))
