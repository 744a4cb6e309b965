"""Every form of a product: vectors, operands stored either way, broadcast and strided views."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from core_testing import (
    CANARY,
    SIZES,
    check_product,
    matmul,
    seen,
    stored,
    tensor,
    values,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tvm_moonpoly import operators
from tvm_moonpoly.operators import encode_axes
from tvm_moonpoly.operators.linear import PACK


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(29)


def like_numpy(library, a, b, out=None):
    """``a @ b`` for arrays of any number of dimensions from 1 on, checked."""
    a_axes = (None, 0) if a.ndim == 1 else tuple(range(a.ndim))
    b_axes = (0, None) if b.ndim == 1 else tuple(range(b.ndim))
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    batch = max(a.ndim, b.ndim, 2) - 2
    out_axes = [*range(batch)]
    for operand in (a, b):
        out_axes.append(None if operand.ndim == 1 else sum(x is not None for x in out_axes))
    if out is None:
        out = np.full(expected.shape, CANARY)
    assert out.shape == expected.shape
    matmul(library, a, b, out, a_axes, b_axes, out_axes)
    check_product(seen(out, out_axes), seen(a, a_axes), seen(b, b_axes))
    return out


def strided(array, step, offset=0):
    """A copy of ``array`` whose elements lie ``step`` apart."""
    memory = np.full(offset + array.size * abs(step) + 1, CANARY)
    view = memory[offset : offset + array.size * abs(step) : abs(step)][:: np.sign(step)]
    view[...] = array.ravel()
    return view


@pytest.mark.parametrize("k", SIZES)
def test_two_vectors(library, rng, k):
    out = like_numpy(library, values(rng, k), values(rng, k))
    assert out.shape == () and (k > 0 or out == 0)


@pytest.mark.parametrize("n", SIZES)
def test_a_vector_and_a_matrix(library, rng, n):
    for k in SIZES:
        like_numpy(library, values(rng, k), values(rng, k, n))
        like_numpy(library, values(rng, n, k), values(rng, k))
        # the matrix stored the other way round
        like_numpy(library, values(rng, k), values(rng, n, k).T)
        like_numpy(library, values(rng, k, n).T, values(rng, k))


@pytest.mark.parametrize("batch", [(3,), (0,), (2, 1, 3), (1,) * 6])
def test_a_vector_and_a_batch(library, rng, batch):
    for rows, k in [(1, 1), (5, 9), (33, 0), (0, 4), (17, 64)]:
        like_numpy(library, values(rng, k), values(rng, *batch, k, rows))
        like_numpy(library, values(rng, *batch, rows, k), values(rng, k))


@pytest.mark.parametrize("step", [2, 7, -1, -3])
@pytest.mark.parametrize("n,k", [(1, 1), (1, 40), (9, 17), (130, 65), (300, 700)])
def test_strided_vectors(library, rng, n, k, step):
    a, b = strided(values(rng, k), step), strided(values(rng, k), step, offset=3)
    like_numpy(library, a, b)
    like_numpy(library, a, values(rng, k, n))
    like_numpy(library, values(rng, n, k), b)
    # a vector that is written with gaps between its elements
    out = strided(np.full(n, CANARY), step)
    like_numpy(library, values(rng, n, k), b, out)
    outside = np.ones(out.base.shape, bool)
    as_strided(outside[_first(out) :], out.shape, (step,))[...] = False
    assert (out.base[outside] == CANARY).all()


def _first(view):
    """The index in the memory of a vector's first element."""
    return (view.ctypes.data - view.base.ctypes.data) // view.itemsize


def test_a_column_is_computed_as_a_row(library, rng):
    """Also in batches, whose steps then belong to the other operand."""
    for m, k in [(2, 1), (7, 9), (64, 33), (300, 70)]:
        a, b = values(rng, 2, 3, m, k), values(rng, 3, k, 1)
        for a_axes, step in itertools.product(([0, 1, 2, 3], [0, 1, 3, 2], [1, 0, 3, 2]), (1, 3)):
            right = np.full((3, k * step, 1), CANARY)[:, ::step]
            right[...] = b
            out = np.full((2, 3, m, 1), CANARY)
            matmul(library, stored(a, a_axes), right, out, a_axes)
            check_product(out, a, b)
            # a column of a larger array, whose elements are not adjacent, stays one
            wide = np.full((2, 3, m, 4), CANARY)
            matmul(library, stored(a, a_axes), right, wide[..., 1:2], a_axes)
            check_product(wide[..., 1:2], a, b)
            assert (wide[..., [0, 2, 3]] == CANARY).all()


@pytest.mark.parametrize("stride", [1, 5, 8, 33, 64, 100, 1000])
def test_a_matrix_of_any_row_stride_and_a_vector(library, rng, stride):
    """Every row stride has the same path; the shorter ones make rows that overlap."""
    for m, k in [(1, 1), (4, 8), (37, 33), (129, 64), (8, 1000)]:
        memory = values(rng, (m - 1) * stride + k)
        a = as_strided(memory, (m, k), (4 * stride, 4))
        like_numpy(library, a, values(rng, k))
        like_numpy(library, values(rng, m), a)


@pytest.mark.parametrize("m", SIZES)
def test_a_stored_by_columns(library, rng, m):
    for k, n in itertools.product(SIZES, (0, 1, 7, 8, 17, 40)):
        a, b = values(rng, m, k), values(rng, k, n)
        for b_axes in ([0, 1], [1, 0]):
            out = np.full((m, n), CANARY)
            matmul(library, stored(a, [1, 0]), stored(b, b_axes), out, [1, 0], b_axes)
            check_product(out, a, b)


@pytest.mark.parametrize("m,n,k", [(239, 9, 17), (240, 16, 8), (241, 33, 20), (721, 40, 530)])
@pytest.mark.parametrize("batch", [1, 3])
def test_more_rows_than_are_turned_at_once(library, rng, batch, m, n, k):
    a, b = values(rng, batch, m, k), values(rng, k, n)
    out = np.full((batch, m, n), CANARY)
    matmul(library, stored(a, [0, 2, 1], [1, 2, 3]), b, out, [0, 2, 1])
    check_product(out, a, b)


@pytest.mark.parametrize("m,n,k", [(1, 8, 8), (1, 33, 100), (9, 1, 1), (5, 7, 1), (1, 1, 17)])
def test_strides_of_single_elements_say_nothing(library, rng, m, n, k):
    """A row, a column or a number of a larger array, both strides of which are odd."""
    a = values(rng, 3 * m, 5 * k)[::3, ::5] if m == 1 or k == 1 else None
    b = values(rng, 3 * k, 5 * n)[::3, ::5] if k == 1 or n == 1 else None
    a = values(rng, m, k) if a is None else a
    b = values(rng, k, n) if b is None else b
    like_numpy(library, a, b)


#: Axes of operands that lack dimensions: (product's dimension present?) for batch, row, column.
PRESENT = list(itertools.product((False, True), repeat=3))


@pytest.mark.parametrize("a_has", PRESENT)
@pytest.mark.parametrize("b_has", PRESENT)
def test_absent_dimensions(library, rng, a_has, b_has):
    """Each operand may lack any of its dimensions, and the output those that both sides lack."""
    sizes = {"batch": 3, "m": 5, "k": 6, "n": 9}
    if not (a_has[2] and b_has[1]):
        sizes["k"] = 1

    def operand(has, names):
        shape = [sizes[name] if there else 1 for there, name in zip(has, names, strict=True)]
        axes, number = [], 0
        for there in has:
            axes.append(number if there else None)
            number += there
        return values(rng, *shape), axes

    a, a_axes = operand(a_has, ("batch", "m", "k"))
    b, b_axes = operand(b_has, ("batch", "k", "n"))
    shape = np.matmul(a, b).shape
    for out_axes in ([0, 1, 2], [0, None, 1], [0, 1, None], [0, None, None], [None, 0, 1]):
        if any(axis is None and size != 1 for axis, size in zip(out_axes, shape, strict=True)):
            continue
        out = stored(np.full(shape, CANARY), out_axes)
        matmul(library, stored(a, a_axes), stored(b, b_axes), out, a_axes, b_axes, out_axes)
        check_product(seen(out, out_axes), a, b)


def test_eight_dimensions(library, rng):
    a, b = values(rng, 2, 1, 2, 1, 2, 1, 3, 5), values(rng, 2, 1, 3, 1, 2, 5, 4)
    like_numpy(library, a, b)
    axes = [6, 5, 4, 3, 2, 1, 0, 7]
    out = stored(np.full((2, 2, 2, 3, 2, 2, 3, 4), CANARY), axes)
    turned = np.full((2, 2, 2, 3, 2, 2, 3, 5), 0, np.float32) + a
    matmul(library, stored(turned, axes), b, out, axes, None, axes)
    check_product(seen(out, axes), turned, np.broadcast_to(b, (2, *b.shape)))


@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (5, 9, 17), (40, 24, 33), (100, 1, 65), (1, 65, 40)])
def test_broadcast_views(library, rng, m, n, k):
    """Stride 0 in batch and row dimensions."""
    a, b = values(rng, m, k), values(rng, k, n)
    out = np.full((4, m, n), CANARY)
    for left, right in [
        (as_strided(a, (4, m, k), (0, *a.strides)), as_strided(b, (4, k, n), (0, *b.strides))),
        # all rows of a the same, all rows of b, all columns of b
        (as_strided(a, (4, m, k), (0, 0, 4)), b[None]),
        (a[None], as_strided(b, (4, k, n), (0, 0, 4))),
        (a[None], as_strided(b, (4, k, n), (0, 4, 0))),
        # all columns of a, which are stored one after another
        (as_strided(a, (4, m, k), (0, 4, 0)), b[None]),
    ]:
        out[...] = CANARY
        matmul(library, left, right, out)
        check_product(out, np.broadcast_to(left, (4, m, k)), np.broadcast_to(right, (4, k, n)))


def test_negative_strides_of_every_dimension(library, rng):
    a, b = values(rng, 3, 6, 12), values(rng, 3, 12, 20)
    out = np.full((3, 6, 20), CANARY)
    for turn in itertools.product((1, -1), repeat=3):
        left = a[:: turn[0], :: turn[1]]
        right = b[:: turn[0], :: turn[2]]
        matmul(library, left, right, out[:: turn[2], :: turn[0]])
        check_product(out[:: turn[2], :: turn[0]], left, right)
    # rows read from the last element to the first are those of a matrix stored by columns
    left = stored(a, [0, 2, 1])[:, ::-1].transpose(0, 2, 1)
    matmul(library, left, b, out)
    check_product(out, left, b)


def test_nothing_is_summed_up(library, rng):
    """K = 0 gives zeros, whatever form the operands have."""
    for shape_a, shape_b in [
        ((0,), (0,)),
        ((0,), (0, 5)),
        ((4, 0), (0,)),
        ((4, 0), (0, 5)),
        ((2, 3, 0), (0, 5)),
        ((3, 0), (2, 0, 5)),
        ((0,), (2, 0, 5)),
        ((300, 0), (0, 130)),
    ]:
        for _ in range(2):
            out = like_numpy(library, np.zeros(shape_a, np.float32), np.zeros(shape_b, np.float32))
            assert not np.any(out)
    for a_axes, b_axes, out_axes in itertools.product(([0, 1], [1, 0]), repeat=3):
        a, b = np.zeros((9, 0), np.float32), np.zeros((0, 9), np.float32)
        out = stored(np.full((9, 9), CANARY), [0, 1])
        if out_axes == [0, 1]:
            matmul(library, a.transpose(a_axes), b.transpose(b_axes), out, a_axes, b_axes)
            assert not out.any()


def test_nothing_is_written(library, rng):
    """Empty M, N or batch, with strides that mean nothing."""
    for shape_a, shape_b in [
        ((0, 5), (5, 4)),
        ((3, 5), (5, 0)),
        ((0, 3, 5), (5, 4)),
        ((3, 5), (0, 5, 4)),
        ((0, 0), (0, 0)),
        ((5,), (5, 0)),
        ((0, 5), (5,)),
    ]:
        a, b = values(rng, *shape_a), values(rng, *shape_b)
        out = like_numpy(library, a, b)
        assert out.size == 0
        if a.size == 0:
            like_numpy(library, as_strided(a, shape_a, [8] * a.ndim), b)


@st.composite
def forms(draw):
    """Operands and output of any form: axes with absent dimensions, strides, stride 0."""
    sizes = {name: draw(st.integers(0, 20) | st.integers(0, 80)) for name in "mnk"}
    batch = draw(st.lists(st.integers(0, 3), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))

    def operand(names, may_repeat=True):
        """Dimensions may be absent where that leaves the product as it is."""
        own = batch[draw(st.integers(0, len(batch))) :]
        shape = [draw(st.sampled_from([1, size])) for size in own]
        shape += [sizes[name] for name in names]
        absent = [size == 1 and draw(st.booleans()) for size in shape]
        return lay_out(shape, absent, rng, may_repeat)

    def lay_out(shape, absent, rng, may_repeat, unit=None):
        kept = [i for i, gone in enumerate(absent) if not gone]
        order = draw(st.permutations(kept))
        # one of the last two comes last, or they are alone with another one of a single element
        candidates = [i for i in kept if i >= len(shape) - 2] if unit is None else [unit]
        if candidates and any(i in kept for i in candidates):
            last = draw(st.sampled_from([i for i in candidates if i in kept]))
            order = [*(i for i in order if i != last), last]
        axes = [None] * len(shape)
        for position, dim in enumerate(order):
            axes[dim] = position
        gaps = [draw(st.integers(0, 2)) for _ in order]
        logical = values(rng, *shape) if may_repeat else np.full(shape, CANARY)
        view = stored(logical, axes, gaps)
        if may_repeat and draw(st.booleans()):
            for position, dim in enumerate(order[:-1]):
                if draw(st.booleans()) and view.shape[position] > 0 and dim != len(shape) - 1:
                    one = view[(slice(None),) * position + (slice(0, 1),)]
                    strides = [*view.strides]
                    strides[position] = 0
                    view = as_strided(one, view.shape, strides)
        return view, axes

    a, a_axes = operand("mk")
    b, b_axes = operand("kn")
    shape = [*batch, sizes["m"], sizes["n"]]
    absent = [size == 1 and draw(st.booleans()) and i >= len(batch) for i, size in enumerate(shape)]
    out, out_axes = lay_out(shape, absent, rng, False, unit=len(shape) - 1)
    return a, a_axes, b, b_axes, out, out_axes


@settings(max_examples=400)
@given(drawn=forms())
def test_any_form(library, drawn):
    a, a_axes, b, b_axes, out, out_axes = drawn
    whole = out if out.base is None else out.base
    matmul(library, a, b, out, a_axes, b_axes, out_axes)
    result = seen(out, out_axes)
    operands = [
        np.broadcast_to(x, (*result.shape[:-2], *x.shape[-2:]))
        for x in (seen(a, a_axes), seen(b, b_axes))
    ]
    check_product(result, *operands)
    out[...] = CANARY
    assert (whole == CANARY).all()


@pytest.mark.parametrize("axes", [[0, 1], [1, 0]])
def test_packing_of_every_size(library, rng, axes):
    lanes = library.machine.lanes
    for k, n in itertools.product(SIZES, SIZES):
        w = values(rng, k, n)
        out = np.full((-(-n // lanes), k, lanes), CANARY)
        memory = stored(w, axes, [2, 3])
        library.module[PACK](tensor(memory), encode_axes(axes), tensor(out))
        np.testing.assert_array_equal(out, operators.pack_weight(w, lanes))


def test_packing_a_vector(library, rng):
    """A weight of one row or one column may lack that dimension."""
    lanes = library.machine.lanes
    for length, step in itertools.product((1, 7, 8, 33), (1, 3)):
        vector = strided(values(rng, length), step)
        for axes in ([None, 0], [0, None]):
            w = np.ascontiguousarray(seen(vector, axes))
            out = np.full((-(-w.shape[1] // lanes), w.shape[0], lanes), CANARY)
            library.module[PACK](tensor(vector), encode_axes(axes), tensor(out))
            np.testing.assert_array_equal(out, operators.pack_weight(w, lanes))
