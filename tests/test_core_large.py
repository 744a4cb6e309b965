"""Operands of more than 2^31 elements. Only the pages that are written take memory."""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

import numpy as np
import pytest
from core_testing import CANARY_NUMBER, check_product, matmul, values
from numpy.lib.stride_tricks import as_strided

from tvm_moonpoly import operators
from tvm_moonpoly.operators.plain import KINDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is mapped as on Linux")

#: Of memory that is not there before it is written, and never counted as taken.
NO_RESERVE = 0x4000

BEYOND = (1 << 31) + 9


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


def zeros(size, dtype=np.float32):
    length = size * np.dtype(dtype).itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, length, flags=flags)
    with suppress(OSError):  # a hundred times fewer page faults where the system can do that
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype)


def far_apart(array, dim, distance):
    """A copy of ``array`` whose entries of dimension ``dim`` lie ``distance`` elements apart."""
    inner = np.ascontiguousarray(array)
    strides = list(inner.strides)
    strides[dim] = distance * inner.itemsize
    span = sum((n - 1) * s for n, s in zip(inner.shape, strides, strict=True))
    view = as_strided(zeros(span // inner.itemsize + 1, inner.dtype), inner.shape, strides)
    view[...] = array
    return view


#: Which dimension of which operand is spread over more than 2^31 elements.
SPREAD = [(name, dim) for name in ("a", "b", "out") for dim in (0, 1, 2)]


@pytest.mark.parametrize("name,dim", [case for case in SPREAD if case[1] < 2])
@pytest.mark.parametrize("m,n,k", [(5, 9, 6), (1, 40, 7), (9, 1, 8), (20, 33, 7)])
def test_far_apart(library, name, dim, m, n, k):
    rng = np.random.default_rng(1)
    arrays = {
        "a": values(rng, 5, m, k),
        "b": values(rng, 5, k, n),
        "out": np.full((5, m, n), CANARY_NUMBER, np.float32),
    }
    a, b = arrays["a"], arrays["b"]
    arrays[name] = far_apart(arrays[name], dim, (1 << 30) + 1)
    matmul(library, *arrays.values())
    check_product(arrays["out"], a, b)


def test_columns_far_apart(library):
    """Operands stored by columns."""
    rng = np.random.default_rng(2)
    a, b = values(rng, 1, 9, 6), values(rng, 1, 6, 5)
    out = np.zeros((1, 9, 5), np.float32)
    by_columns = (far_apart(x.transpose(0, 2, 1), 1, (1 << 30) + 1) for x in (a, b))
    axes = (0, 2, 1)
    matmul(library, *by_columns, out, axes, axes)
    check_product(out, a, b)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
@pytest.mark.parametrize("name,dim", SPREAD)
def test_other_types_far_apart(library, kind, name, dim):
    rng = np.random.default_rng(3)
    arrays = {
        "a": rng.integers(-9, 9, (5, 4, 6)).astype(kind.operand),
        "b": rng.integers(-9, 9, (5, 6, 7)).astype(kind.operand),
        "out": np.full((5, 4, 7), CANARY_NUMBER, kind.out),
    }
    expected = arrays["a"].astype(kind.out) @ arrays["b"].astype(kind.out)
    arrays[name] = far_apart(arrays[name], dim, (1 << 30) + 1)
    matmul(library, *arrays.values(), name=kind.function)
    np.testing.assert_array_equal(arrays["out"], expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_a_reduction_of_more_than_2_to_the_31(library, dtype):
    a, b = zeros(BEYOND, dtype).reshape(1, -1), zeros(BEYOND, dtype).reshape(-1, 1)
    for at in (0, BEYOND // 2, 1 << 31, BEYOND - 1):
        a[0, at], b[at, 0] = 3, 7
    out = np.zeros((1, 1), np.int32 if dtype == np.int8 else dtype)
    name = "moonpoly_matmul_i8" if dtype == np.int8 else operators.MATMUL
    matmul(library, a, b, out, name=name)
    assert out[0, 0] == 4 * 21
