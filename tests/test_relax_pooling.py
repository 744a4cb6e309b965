"""Pooling: against numpy for random shapes, windows in vectors, and what other schedules keep."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET, tensor
from tvm import relax, tirx
from tvm.relax import op

from relax_passes import KeepNaN, pipeline
from relax_passes.schedule_pooling import schedule_pooling

N, H, W = (tirx.Var(name, "int64") for name in "nhw")
CHANNELS = 5

# layout, pool, window, strides, pads (top, left, bottom, right), ceil mode, pads counted
CASES = {
    "max 3 by 2": ("NCHW", "max", (3, 3), (2, 2), (1, 1, 1, 1), False, False),
    "max 3 by 1": ("NCHW", "max", (3, 3), (1, 1), (1, 1, 1, 1), False, False),
    "max 2 by 2": ("NCHW", "max", (2, 2), (2, 2), (0, 0, 0, 0), False, False),
    "max, ceil": ("NCHW", "max", (3, 3), (2, 2), (0, 0, 1, 1), True, False),
    "max 4 by 3": ("NCHW", "max", (4, 4), (3, 3), (2, 2, 1, 1), False, False),
    "max by rows": ("NCHW", "max", (2, 1), (2, 1), (0, 0, 0, 0), False, False),
    "max in NHWC": ("NHWC", "max", (3, 3), (2, 2), (1, 1, 1, 1), False, False),
    "average 3 by 2": ("NCHW", "avg", (3, 3), (2, 2), (1, 1, 1, 1), False, False),
    "average 3 by 1": ("NCHW", "avg", (3, 3), (1, 1), (1, 1, 1, 1), False, True),
    "average 2 by 2": ("NCHW", "avg", (2, 2), (2, 2), (0, 0, 0, 0), False, False),
    "average 2 by 1, uneven pads": ("NCHW", "avg", (2, 2), (1, 1), (0, 0, 1, 1), False, False),
    "average 3 by 2, counted": ("NCHW", "avg", (3, 3), (2, 2), (1, 1, 1, 1), False, True),
    "average, ceil": ("NCHW", "avg", (3, 3), (2, 2), (0, 1, 1, 0), True, False),
    "average 2 by 3": ("NCHW", "avg", (2, 2), (3, 3), (1, 1, 1, 1), False, False),
    "average of wide pads in NHWC": ("NHWC", "avg", (4, 4), (1, 1), (3, 3, 3, 3), False, True),
    "average in NHWC": ("NHWC", "avg", (3, 2), (2, 1), (1, 0, 1, 1), False, False),
}


def pooled(case, x, activation=False):
    layout, kind, window, strides, pads, ceil, counted = case
    function = op.nn.max_pool2d if kind == "max" else op.nn.avg_pool2d
    y = function(x, window, strides, pads, (1, 1), ceil, counted, layout)
    return op.nn.relu(y) if activation else y


def reference(case, x):
    """In float64; the largest of no element is minus infinity."""
    layout, kind, window, strides, pads, ceil, counted = case
    x = x.astype("float64")
    if layout == "NHWC":
        x = x.transpose(0, 3, 1, 2)
    sizes = []
    for axis in range(2):
        room = x.shape[2 + axis] + pads[axis] + pads[2 + axis] - window[axis]
        size = (-(-room // strides[axis]) if ceil else room // strides[axis]) + 1
        if ceil and (size - 1) * strides[axis] >= x.shape[2 + axis] + pads[axis]:
            size -= 1  # no window lies in the pads behind alone
        sizes.append(size)
    result = np.empty((*x.shape[:2], *sizes))
    for i, j in np.ndindex(*sizes):
        first = [i * strides[0] - pads[0], j * strides[1] - pads[1]]
        ends = [first[0] + window[0], first[1] + window[1]]
        rows, columns = (slice(max(a, 0), max(b, 0)) for a, b in zip(first, ends, strict=True))
        part = x[:, :, rows, columns]
        if kind == "max":
            result[:, :, i, j] = part.max((2, 3), initial=-np.inf)
        else:
            count = window[0] * window[1] if counted else part.shape[2] * part.shape[3]
            result[:, :, i, j] = part.sum((2, 3)) / max(count, 1)
    return result.transpose(0, 2, 3, 1) if layout == "NHWC" else result


def module_of(case, activation=False):
    shape = (N, CHANNELS, H, W) if case[0] == "NCHW" else (N, H, W, CHANNELS)
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(pooled(case, x, activation)))
    return builder.get()


def compiled(case, activation=False, target=TARGET):
    executable = tvm.compile(module_of(case, activation), target, relax_pipeline=pipeline(target))
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda x: main(tvm.runtime.tensor(x)).numpy()


def loops(case):
    """The function of a case as it comes to be scheduled."""
    legal = KeepNaN(TARGET)(relax.transform.LegalizeOps()(module_of(case)))
    (func,) = (each for each in legal.functions.values() if isinstance(each, tirx.PrimFunc))
    return func


@pytest.fixture(scope="module", params=CASES)
def case(request):
    found = CASES[request.param]
    return found, compiled(found)


def check(case, n, h, w):
    layout, kind, window, _, pads, *_ = case[0]
    if h + pads[0] + pads[2] < window[0] or w + pads[1] + pads[3] < window[1]:
        return  # no result
    x = tensor(*((n, CHANNELS, h, w) if layout == "NCHW" else (n, h, w, CHANNELS)))
    expected = reference(case[0], x)
    result = case[1](x)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=0 if kind == "max" else 1e-5, atol=1e-6)


@settings(max_examples=25, derandomize=True)
@given(shape=st.tuples(st.integers(0, 2), st.integers(1, 20), st.integers(1, 40)))
def test_random_shapes(case, shape):
    check(case, *shape)


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 15, 16, 17, 18, 31, 33, 34, 35])
def test_widths_around_vectors(case, width):
    check(case, 1, 5, width)


def test_empty_planes(case):
    """Of an empty tensor with pads, there is no element in any window."""
    for h, w in ((0, 9), (9, 0)):
        if case[0][1] == "max":
            check(case, 2, h, w)


@pytest.mark.parametrize("name", CASES)
def test_no_padded_copy(name):
    scheduled = schedule_pooling(loops(CASES[name]))
    assert scheduled is not None
    text = scheduled.script()
    assert "alloc_buffer" not in text and "if_then_else" not in text
    assert "vectorized(" in text or "Shuffle(" in text or CASES[name][3][1] > 2


def test_large_windows_stay():
    assert (
        schedule_pooling(loops(("NCHW", "max", (5, 5), (1, 1), (2, 2, 2, 2), False, False))) is None
    )


def test_windows_outside_stay():
    outside = ("NCHW", "avg", (2, 2), (1, 1), (2, 2, 2, 2), False, False)
    assert schedule_pooling(loops(outside)) is None


def test_nan_and_infinity_stay_in_their_windows():
    run = compiled(CASES["average 3 by 2"])
    x = tensor(1, CHANNELS, 9, 40)
    x[0, 1, 4, 20], x[0, 2, 0, 0] = np.nan, np.inf
    result = run(x)
    bad = ~np.isfinite(result)
    expected = np.zeros_like(bad)
    expected[0, 1, 2, 10] = expected[0, 2, 0, 0] = True
    np.testing.assert_array_equal(bad, expected)


@pytest.mark.parametrize("name", ["max 3 by 2", "average 3 by 1", "max in NHWC"])
def test_two_cores_and_what_is_fused(name):
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
    run = compiled(CASES[name], activation=True, target=target)
    for h, w in ((3, 5), (70, 90)):
        x = tensor(*((2, CHANNELS, h, w) if "NHWC" not in name else (2, h, w, CHANNELS)))
        expected = np.maximum(reference(CASES[name], x), 0)
        np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)


def test_pads_are_below_minus_infinity():
    run = compiled(CASES["max 3 by 2"])
    for h, w in ((1, 1), (4, 9), (9, 20)):
        result = run(np.full((1, CHANNELS, h, w), -np.inf, "float32"))
        np.testing.assert_array_equal(result, np.full_like(result, -np.inf))
