"""Depthwise convolution: right for any size, kernel, stride, dilation, padding and activation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from core_testing import values
from depthwise_testing import check_depthwise, depthwise, square
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm.target import Target

from tvm_moonpoly import native, operators
from tvm_moonpoly.emit import Functions
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators import activation, bounded_activation, errors, sharing, tensors
from tvm_moonpoly.operators import depthwise as depthwise_functions
from tvm_moonpoly.operators.conv_constants import ConvActivation, ConvSpec
from tvm_moonpoly.operators.depthwise_pairs import PAIRS
from tvm_moonpoly.operators.depthwise_tiles import ANY_COLUMNS, TAPS

CHANNELS = (1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 64)


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(51)


def run(library, rng, shape, spec, residual=False, dtype="float32"):
    """Call and check on random values; returns the output."""
    channels = shape[-1]
    x, w = values(rng, *shape).astype(dtype), values(rng, channels, 1, *spec.kernel)
    bias = values(rng, channels)
    size = (shape[0], *spec.output_size(*shape[1:3]), channels)
    added = values(rng, *size).astype(dtype) if residual else None
    out = depthwise(library.module, library.machine.lanes, x, w, bias, spec, added)
    check_depthwise(out, x, w, bias, spec, added)
    return out


@st.composite
def convolutions(draw):
    """A shape of x, and attributes whose kernel fits it."""
    number = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    known = draw(st.booleans())
    kernel = (number(1, 7), draw(st.sampled_from([3, 5])) if known else number(1, 7))
    strides = (number(1, 3), number(1, 2 if known else 3))
    dilation = (number(1, 3), 1 if known else number(1, 3))
    padding = tuple(number(0, draw(st.sampled_from([0, 3, 9]))) for _ in range(4))
    channels = draw(st.sampled_from(CHANNELS))
    size = []
    for axis in range(2):
        reach = (kernel[axis] - 1) * dilation[axis] + 1 - padding[axis] - padding[axis + 2]
        size.append(max(0, reach) + draw(st.sampled_from([0, 0, 1, 2, 5, 9, 14, 23, 40])))
    shape = (number(0, 3), *size, channels)
    kind = draw(st.sampled_from(ConvActivation))
    first, second = (0.25, 0.4) if kind == ConvActivation.HARDSIGMOID else (-0.5, 1.5)
    spec = ConvSpec(kernel, channels, channels, strides, padding, dilation, channels)
    return shape, replace(spec, activation=kind, first=first, second=second)


@settings(max_examples=300)
@given(case=convolutions(), residual=st.booleans(), half=st.booleans(), seed=st.integers(0, 99))
def test_any_convolution(library, case, residual, half, seed):
    shape, spec = case
    dtype = "float16" if half else "float32"
    run(library, np.random.default_rng(seed), shape, spec, residual, dtype)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("taps", TAPS, ids=lambda taps: taps.name)
def test_every_width_of_known_taps(library, rng, taps, rows):
    """One tile, two, and more with some of full width between; with padding and without."""
    for columns in range(1, 4 * taps.columns + 2):
        for left, right in ((0, 0), (taps.count // 2,) * 2, (0, taps.count - 1), (7, 2)):
            width = (columns - 1) * taps.stride + taps.count - left - right
            if width < 0:
                continue
            spec = square(9, 3)
            kernel, strides = (rows, taps.count), (1, taps.stride)
            spec = replace(spec, kernel=kernel, strides=strides, padding=(1, left, 0, right))
            out = run(library, rng, (1, 4, width, 9), spec)
            assert out.shape[2] == columns


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_every_height_of_two_rows_at_once(library, rng, pair):
    """No pair, one, and more, odd rows before and after them, and rows in the padding only."""
    for rows, (top, bottom) in itertools.product(range(1, 10), ((0, 0), (1, 1), (4, 0), (0, 5))):
        height = (rows - 1) * pair.stride_h + 3 - top - bottom
        for columns in (1, 2, 5, 9, 17):
            if height < 0:
                continue
            width = (columns - 1) * pair.stride_w + 3 - 2
            strides = (pair.stride_h, pair.stride_w)
            spec = square(9, 3, strides=strides, padding=(top, 1, bottom, 1))
            assert run(library, rng, (2, height, width, 9), spec).shape[1:3] == (rows, columns)


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_large_images(library, rng, strides):
    """Of which rows are fetched ahead, in strips of a few columns and in chunks of a few rows."""
    for shape in ((1, 9, 500, 520), (1, 70, 230, 136)):
        run(library, rng, shape, square(shape[3], strides=strides))


@pytest.mark.parametrize("kernel,dilation", [(1, 1), (2, 1), (7, 1), (3, 2), (4, 3)])
def test_every_width_of_any_taps(library, rng, kernel, dilation):
    for columns, pad in itertools.product(range(1, 3 * ANY_COLUMNS), (0, 1, 4)):
        for stride in (1, 2, 3):
            width = (columns - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad
            if width < 0:
                continue
            spec = replace(
                square(9, 3),
                kernel=(2, kernel),
                strides=(2, stride),
                dilation=(1, dilation),
                padding=(0, pad, 1, pad),
            )
            assert run(library, rng, (1, 4, width, 9), spec).shape[2] == columns


@pytest.mark.parametrize("kernel,stride", list(itertools.product((3, 5, 7), (1, 2))))
def test_every_number_of_channels(library, rng, kernel, stride):
    for channels in range(1, 42):
        run(library, rng, (1, 7, 9, channels), square(channels, kernel, stride), residual=True)


@pytest.mark.parametrize("channels", [256, 512, 768, 1024, 2048])
@pytest.mark.parametrize("kernel,strides", [(3, (1, 1)), (3, (2, 2)), (5, (1, 1)), (5, (2, 1))])
def test_pixels_that_are_a_power_of_two_apart(library, rng, channels, kernel, strides):
    """Where the inputs of a chunk are copied: whole images, and some rows of wide ones."""
    for shape in ((2, 7, 7), (1, 14, 13), (1, 9, 70), (1, 1, 1), (1, 30, 3)):
        spec = square(channels, kernel, strides=strides)
        run(library, rng, (*shape, channels), spec, residual=channels == 512)
        spec = replace(spec, padding=(0, 4, 3, 0), dilation=(2, 1))
        if shape[1] > 9:
            run(library, rng, (*shape, channels), spec)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ConvActivation)
def test_activations(library, rng, kind, dtype):
    parameters = {ConvActivation.CLIP: (0.0, 6.0), ConvActivation.HARDSIGMOID: (0.2, 0.5)}
    first, second = parameters.get(kind, (0.0, 0.0))
    for kernel in (3, 7):
        spec = square(19, kernel, activation=kind, first=first, second=second)
        x_shape = (2, 6, 21, 19)
        run(library, rng, x_shape, spec, dtype=dtype)
        run(library, rng, x_shape, spec, residual=True, dtype=dtype)


@pytest.mark.parametrize("kernel", [3, 7])
def test_relu_keeps_nan(library, kernel):
    x = np.full((1, 9, 20, 8), np.nan, np.float32)
    w = np.ones((8, 1, kernel, kernel), np.float32)
    for kind in (ConvActivation.RELU, ConvActivation.CLIP, ConvActivation.HARDSWISH):
        spec = square(8, kernel, activation=kind, second=6.0)
        assert np.isnan(depthwise(library.module, library.machine.lanes, x, w, None, spec)).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kernel,channels", [(3, 9), (5, 9), (7, 9), (4, 3), (3, 1024)])
def test_what_is_no_number_reaches_the_outputs_over_it_only(library, kernel, channels, poison):
    """At each edge too, where columns of the padding are read from the image and masked."""
    x = np.ones((1, 8, 19, channels), np.float32)
    w = np.ones((channels, 1, kernel, kernel), np.float32)
    spec = replace(square(channels, kernel), padding=(2, 2, 2, 2))
    clean = depthwise(library.module, library.machine.lanes, x, w, None, spec)
    for row, column in itertools.product((0, 3, 7), (0, 1, 9, 17, 18)):
        touched = x.copy()
        touched[0, row, column, channels // 2] = poison
        out = depthwise(library.module, library.machine.lanes, touched, w, None, spec)
        over = np.zeros(out.shape, bool)
        rows = slice(max(0, row + 3 - kernel), row + 3)
        columns = slice(max(0, column + 3 - kernel), column + 3)
        over[0, rows, columns, channels // 2] = True
        np.testing.assert_array_equal(out[over], np.full(over.sum(), poison, np.float32))
        np.testing.assert_array_equal(out[~over], clean[~over])


@pytest.mark.parametrize("shape", [(0, 5, 5, 8), (2, 0, 5, 8), (2, 5, 0, 8), (1, 0, 0, 9)])
def test_images_without_elements(library, rng, shape):
    """No images: no outputs. No rows or columns but padding: outputs of the bias alone."""
    for kernel in (3, 5, 7, 2):
        spec = replace(square(shape[3], kernel), padding=(kernel,) * 4)
        run(library, rng, shape, spec, residual=True)


def test_half_precision_sums_in_single_precision(library):
    """2500 ones; in float16 they would add up to 2048."""
    x = np.ones((1, 50, 50, 5), np.float16)
    w = np.ones((5, 1, 50, 50), np.float32)
    out = depthwise(
        library.module,
        library.machine.lanes,
        x,
        w,
        None,
        replace(square(5, 50), padding=(0, 0, 0, 0)),
    )
    assert out.dtype == np.float16 and (out == 2500).all()


@pytest.mark.parametrize(
    "shape,kernel,stride",
    [
        ((6, 40, 40, 40), 3, 1),
        ((1, 90, 30, 64), 5, 2),
        ((3, 2, 3, 4099), 3, 1),
        ((2, 14, 14, 512), 3, 1),
        ((1, 3, 500, 1024), 5, 1),
        ((1, 33, 45, 61), 7, 1),
        ((1, 260, 100, 7), 3, 2),
    ],
)
def test_shared_out_among_threads(library, rng, shape, kernel, stride):
    """More than one worker has a part, and the result is that of a call for each image and some
    of its channels, which is too small to be shared out."""
    channels, lanes = shape[3], library.machine.lanes
    x, w, bias = (
        values(rng, *shape),
        values(rng, channels, 1, kernel, kernel),
        values(rng, channels),
    )
    spec = square(channels, kernel, stride)
    out = depthwise(library.module, lanes, x, w, bias, spec)
    check_depthwise(out, x, w, bias, spec)
    step = max(lanes, 48)
    for image, first in itertools.product(range(shape[0]), range(0, channels, step)):
        part = slice(first, first + step)
        some = np.ascontiguousarray(x[image : image + 1, ..., part])
        own = square(some.shape[3], kernel, stride)
        alone = depthwise(library.module, lanes, some, w[part], bias[part], own)
        np.testing.assert_allclose(out[image : image + 1, ..., part], alone, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module", params=[4, 16])
def other_lanes(request, target):
    """The functions with vectors of another length, which LLVM makes of what this CPU has."""
    machine = replace(Machine.from_target(target), lanes=request.param)
    defined = Functions()
    errors.emit(defined)
    tensors.emit(defined)
    activation.emit(defined, machine.lanes)
    bounded_activation.emit(defined, machine.lanes)
    sharing.emit(defined)
    depthwise_functions.emit(defined, machine)
    module = native.build(defined.module(), Target(target), defined.marks)
    return operators.OperatorLibrary(machine, None, module)


@settings(max_examples=80)
@given(case=convolutions(), residual=st.booleans(), half=st.booleans(), seed=st.integers(0, 99))
def test_vectors_of_other_lengths(other_lanes, case, residual, half, seed):
    shape, spec = case
    dtype = "float16" if half else "float32"
    run(other_lanes, np.random.default_rng(seed), shape, spec, residual, dtype)
