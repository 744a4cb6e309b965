"""Products on a GPU of tensors with their dimensions in any order, run in the emulator."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from cuda_emulator import Launch, emulate, missing_compiler, run_host
from cuda_testing import EPILOGUE, small_assemblies
from numpy.lib.stride_tricks import as_strided

from bench.gpu.runner.reference import activate
from tvm_moonpoly.microkernels.cuda import Epilogue, cuda_source, lower_parts
from tvm_moonpoly.operators import encode_axes
from tvm_moonpoly.operators.cuda import Operator, launches, walk
from tvm_moonpoly.operators.cuda.matmul import host_module

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

HALF = np.float16


@functools.cache
def _lowered(operator: Operator) -> tuple[tvm.IRModule, list[tvm.runtime.Module]]:
    return lower_parts(operator.kernels(99 << 10))


class Product:
    """The operator, whose micro-kernels are those that `test_cuda_matmul` has compiled."""

    def __init__(self, transposed: bool = False, epilogue: Epilogue | None = None) -> None:
        self.transposed, self.epilogue = transposed, epilogue or Epilogue()
        operator = Operator("product", small_assemblies(transposed), self.epilogue, by_axes=True)
        lowered, kernels = _lowered(operator)
        self.module = host_module([operator], lowered)
        for each in kernels:
            self.module.import_module(each)
        self.emulated = emulate(cuda_source(self.module))

    def launches(self, a, b, axes: Sequence[Sequence[int | None]], *rest) -> list[Launch]:
        """A call; what it launched."""
        codes = [encode_axes(each) for each in axes]
        return run_host(self.module, self.emulated, "product", [a, b, *codes, *rest])

    def check(self, a: Stored, b: Stored, out: Stored) -> list[Launch]:
        """A call of random numbers against numpy in float64; what it launched."""
        rng = np.random.default_rng(math.prod(a.shape) + math.prod(b.shape))
        given = [each.random(rng) for each in (a, b)]
        result = out.random(rng)
        seen = [x.seen(array).astype(np.float64) for x, array in zip((a, b), given, strict=True)]
        extras = []
        expected = seen[0] @ seen[1]
        if self.epilogue.bias:
            bias = rng.uniform(-1, 1, out.shape[-1]).astype(HALF)
            residual = rng.uniform(-1, 1, expected.shape).astype(HALF)
            extras = [bias, residual]
            expected = activate(self.epilogue.activation, expected + bias + residual)
        done = self.launches(*given, (a.axes, b.axes, out.axes), *extras, result)
        got = out.seen(result)
        np.testing.assert_allclose(got, expected.reshape(got.shape), rtol=2e-3, atol=4e-3)
        return done


class Stored:
    """A tensor that a product sees in another order of dimensions: of ``shape`` as it is seen."""

    def __init__(self, *shape: int, axes: Sequence[int | None] | None = None, pad: int = 0) -> None:
        self.shape, self.pad = shape, pad
        self.axes = tuple(range(len(shape))) if axes is None else tuple(axes)
        kept = [axis for axis in self.axes if axis is not None]
        sizes = dict(zip(self.axes, shape, strict=True))
        self.stored = [sizes[axis] for axis in sorted(kept)]

    def random(self, rng: np.random.Generator) -> np.ndarray:
        """Numbers as they are stored, rows ``pad`` elements further apart than they are long."""
        *leading, last = self.stored
        memory = rng.uniform(-1, 1, (*leading, last + self.pad)).astype(HALF)
        return memory[..., :last]

    def seen(self, array: np.ndarray) -> np.ndarray:
        """What is stored, as the product sees it."""
        kept = array.transpose([axis for axis in self.axes if axis is not None])
        return np.expand_dims(kept, [i for i, axis in enumerate(self.axes) if axis is None])


@pytest.fixture(scope="module")
def plain() -> Product:
    return Product()


@pytest.fixture(scope="module")
def transposed() -> Product:
    return Product(True, EPILOGUE)


HEADS = (0, 2, 1, 3)  # (batch, heads, rows, columns), stored as (batch, rows, heads, columns)


def grids(done: Sequence[Launch]) -> list[int]:
    """The products of each launch."""
    return [launch.grid[2] for launch in done]


def test_heads_are_read_and_written_where_they_are_stored(plain):
    done = plain.check(
        Stored(2, 3, 5, 64, axes=HEADS),
        Stored(2, 3, 64, 72, axes=HEADS),
        Stored(2, 3, 5, 72, axes=HEADS),
    )
    # the longer of the two leading dimensions is one launch
    assert grids(done) == [3, 3]


def test_one_sequence_is_one_launch(plain):
    done = plain.check(
        Stored(1, 3, 5, 64, axes=HEADS), Stored(1, 3, 64, 72, axes=HEADS), Stored(1, 3, 5, 72)
    )
    assert grids(done) == [3]


def test_keys_of_heads_with_an_epilogue(transposed):
    done = transposed.check(
        Stored(4, 3, 5, 64, axes=HEADS),
        Stored(4, 3, 64, 72, axes=(0, 2, 3, 1)),
        Stored(4, 3, 5, 72, axes=HEADS),
    )
    assert grids(done) == [4, 4, 4]


@pytest.mark.parametrize("rows", [0, 1, 17, 64, 65])
def test_dimensions_that_lie_evenly_are_one(plain, rows):
    done = plain.check(Stored(2, 3, rows, 64), Stored(2, 3, 64, 72), Stored(2, 3, rows, 72))
    assert grids(done) == [6] * bool(rows)


@pytest.mark.parametrize("rows", [1, 5, 33])
def test_rows_that_share_a_matrix_are_rows_of_one_product(plain, rows):
    done = plain.check(Stored(2, 3, rows, 64), Stored(1, 1, 64, 72), Stored(2, 3, rows, 72))
    assert set(grids(done)) == {1}
    padded = Stored(2, 3, rows, 64, pad=8)
    assert set(grids(plain.check(padded, Stored(64, 72), Stored(2, 3, rows, 72)))) == {1}


@pytest.mark.parametrize(
    "a, b, products",
    [
        ((2, 1, 5, 64), (1, 3, 64, 72), [3, 3]),
        ((1, 3, 5, 64), (2, 1, 64, 72), [2]),  # heads that share a matrix are rows
        ((4, 1, 5, 64), (1, 3, 64, 72), [4, 4, 4]),
        ((3, 5, 64), (2, 3, 64, 72), [3, 3]),
        ((2, 3, 5, 64), (3, 64, 72), [3, 3]),
        ((5, 64), (2, 3, 64, 72), [6]),
        ((2, 1, 2, 1, 5, 64), (1, 3, 1, 2, 64, 8), [3] * 8),
    ],
)
def test_leading_dimensions_that_broadcast(plain, a, b, products):
    leading = np.broadcast_shapes(a[:-2], b[:-2])
    done = plain.check(Stored(*a), Stored(*b), Stored(*leading, a[-2], b[-1]))
    assert grids(done) == products


def test_a_broadcast_tensor_with_an_epilogue(transposed):
    done = transposed.check(
        Stored(2, 1, 3, 64), Stored(1, 3, 64, 24, axes=(0, 1, 3, 2)), Stored(2, 3, 3, 24)
    )
    assert grids(done) == [3, 3]


def test_a_vector_on_either_side(plain):
    out = Stored(2, 3, 1, 72, axes=(0, 1, None, 2))
    plain.check(Stored(1, 64, axes=(None, 0)), Stored(2, 3, 64, 72), out)
    out = Stored(2, 3, 5, 1, axes=(0, 1, 2, None))
    assert set(grids(plain.check(Stored(2, 3, 5, 64), Stored(64, 1, axes=(0, None)), out))) == {1}


@pytest.mark.parametrize("shape", [(0, 3, 4, 8), (2, 0, 4, 8), (2, 3, 0, 8)])
def test_an_empty_result_launches_nothing(plain, shape):
    batch, heads, rows, columns = shape
    out = Stored(batch, heads, rows, columns, axes=HEADS)
    a, b = Stored(batch, heads, rows, 16, axes=HEADS), Stored(batch, heads, 16, columns)
    assert plain.check(a, b, out) == []


def test_a_product_over_nothing_is_zero(plain):
    a, b = Stored(1, 3, 4, 0, axes=HEADS), Stored(1, 3, 0, 8)
    assert plain.check(a, b, Stored(1, 3, 4, 8, axes=HEADS))


def test_what_is_not_aligned_goes_to_the_kernels_for_the_rest(plain):
    def names(*given: Stored) -> set[bool]:
        return {"_any_" in launch.kernel for launch in plain.check(*given)}

    even = Stored(2, 3, 5, 64, axes=HEADS), Stored(2, 3, 64, 72), Stored(2, 3, 5, 72)
    assert names(*even) == {False}
    # rows of 4 elements more: their distance is no multiple of 16 bytes
    assert names(Stored(2, 3, 5, 64, axes=HEADS, pad=4), *even[1:]) == {True}
    assert names(Stored(2, 3, 5, 63, axes=HEADS), Stored(2, 3, 63, 72), even[2]) == {True}
    assert names(even[0], Stored(2, 3, 64, 71), Stored(2, 3, 5, 71)) == {True}


def test_a_dimension_that_no_launch_walks_counts_as_well(plain):
    """The matrices of a are a multiple of 16 bytes apart along the longer dimension alone."""
    memory = np.random.default_rng(0).uniform(-1, 1, 4096).astype(HALF)
    a = as_strided(memory, (2, 3, 5, 64), (2 * 1028, 2 * 320, 2 * 64, 2))
    b, c = np.ones((1, 1, 64, 8), HALF), np.zeros((2, 3, 5, 8), HALF)
    done = plain.launches(a, b, [range(4)] * 3, c)
    assert all("_any_" in launch.kernel for launch in done)
    np.testing.assert_allclose(c[..., 0], a.astype(np.float64).sum(-1), rtol=2e-3, atol=4e-3)


def test_rows_are_one_matrix_only_as_far_as_it_may_span(monkeypatch):
    monkeypatch.setattr(walk, "MAX_OPERAND_ELEMENTS", 2 * 5 * 72)
    small = Product()
    done = small.check(Stored(2, 3, 5, 64), Stored(64, 72), Stored(2, 3, 5, 72))
    assert grids(done) == [6]


def test_products_beyond_what_a_launch_can_have_are_several(monkeypatch):
    monkeypatch.setattr(launches, "MAX_BATCH", 2)
    small = Product()
    a, b = Stored(2, 3, 5, 64, axes=HEADS), Stored(2, 3, 64, 72)
    assert grids(small.check(a, b, Stored(2, 3, 5, 72))) == [2, 1, 2, 1]


@pytest.mark.parametrize(
    "a, b, axes, message",
    [
        ((2, 4, 8), (2, 16, 8), None, "b: its rows must be as many as the columns of a; 8 and 16"),
        ((3, 4, 8), (2, 8, 8), None, "b: a batch dimension must be 1 or that of the output"),
        ((2, 5, 8), (2, 8, 8), None, "out: must have as many rows as a: 4 and 5"),
        ((2, 8, 4), (2, 8, 8), (0, 2, 1), "a: elements along the contracted dimension must be"),
        ((2, 4, 8), (2, 8, 8), (0, 1), "a_axes: must name each of the 3 dimensions of a once"),
    ],
)
def test_bad_calls_are_told(plain, a, b, axes, message):
    shape = (max(a[0], b[0]), 4, 8)
    given = [np.zeros(each, HALF) for each in (a, b, shape)]
    with pytest.raises(ValueError, match=message):
        plain.launches(*given[:2], [axes or range(3), range(3), range(3)], given[2])


@pytest.mark.parametrize(
    "b, axes, message",
    [
        ((2, 24, 8), (0, 2, 1), "b: elements of its rows must be adjacent"),
        ((2, 8, 24), (0, 1, 2), None),
    ],
)
def test_columns_of_b_are_not_rows(plain, b, axes, message):
    given = [np.zeros((2, 4, 8), HALF), np.zeros(b, HALF), [range(3), axes, range(3)]]
    out = np.zeros((2, 4, 24), HALF)
    if message is None:
        plain.launches(*given, out)
    else:
        with pytest.raises(ValueError, match=message):
            plain.launches(*given, out)


@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (3, 2, 5, 8), (2, 3, 5, 16), (6, 5, 8)])
def test_a_residual_of_another_shape_is_told(transposed, shape):
    given = [np.zeros(each, HALF) for each in ((2, 3, 5, 16), (2, 3, 8, 16), (8,), shape)]
    axes = [range(4), (0, 1, 3, 2), range(4)]
    with pytest.raises(ValueError, match="residual: "):
        transposed.launches(*given[:2], axes, *given[2:], np.zeros((2, 3, 5, 8), HALF))


def test_a_wrong_dtype_is_told(plain):
    a, b, c = np.zeros((1, 4, 8), HALF), np.zeros((1, 8, 8), HALF), np.zeros((1, 4, 8), np.float32)
    with pytest.raises(TypeError, match="out: must be float16"):
        plain.launches(a, b, [range(3)] * 3, c)
