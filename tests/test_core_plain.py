"""Products of integers and of doubles: exact, wrapping around, of any strides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from core_testing import CANARY_NUMBER, labels_of, matmul, seen, stored, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tvm_moonpoly import operators
from tvm_moonpoly.operators.plain import KINDS, Kind

NAMES = {kind.suffix: kind for kind in KINDS}


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(37)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.suffix)
def kind(request) -> Kind:
    return request.param


def numbers(rng, kind, *shape):
    """All numbers of an integer type alike, or normally distributed ones."""
    if not kind.wraps:
        return rng.standard_normal(shape)
    of_type = np.iinfo(kind.operand)
    return rng.integers(of_type.min, of_type.max, shape, kind.operand, endpoint=True)


def unwritten(kind, *shape):
    return np.full(shape, CANARY_NUMBER, kind.out)


def check(kind, result, a, b):
    """Integers are numpy's, which wrap around; doubles are within the bound of their sums."""
    expected = np.broadcast_to(np.matmul(a.astype(kind.out), b.astype(kind.out)), result.shape)
    if kind.wraps:
        np.testing.assert_array_equal(result, expected)
        return
    size = np.broadcast_to(np.abs(a) @ np.abs(b), result.shape)
    bound = 2 * (a.shape[-1] + 1) * np.finfo(np.float64).eps * size
    assert (np.abs(result - expected) <= bound).all()


#: Sizes around the tiles of the loops, and of all of them.
SOME = (0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33)


@pytest.mark.parametrize("a_axes", [[0, 1], [1, 0]])
@pytest.mark.parametrize("b_axes", [[0, 1], [1, 0]])
@pytest.mark.parametrize("out_axes", [[0, 1], [1, 0]])
def test_every_size_and_order(library, rng, kind, a_axes, b_axes, out_axes):
    for m, n, k in itertools.product((0, 1, 3, 4, 5, 8, 9), SOME, (0, 1, 2, 4, 7, 8, 9, 31)):
        a, b = numbers(rng, kind, m, k), numbers(rng, kind, k, n)
        out = stored(unwritten(kind, m, n), out_axes)
        matmul(
            *(library, stored(a, a_axes), stored(b, b_axes), out),
            *(a_axes, b_axes, out_axes, kind.function),
        )
        check(kind, seen(out, out_axes), a, b)


@pytest.mark.parametrize("batch,m,n,k", [(1, 300, 70, 90), (40, 1, 130, 200), (7, 33, 65, 129)])
def test_shared_out_among_workers(library, rng, kind, batch, m, n, k):
    """Large enough that ranges of rows begin and end in the middle of batch entries."""
    a, b = numbers(rng, kind, batch, m, k), numbers(rng, kind, batch, k, n)
    for axes in ([0, 1, 2], [0, 2, 1]):
        out = unwritten(kind, batch, m, n)
        matmul(library, a, stored(b, axes), out, None, axes, None, kind.function)
        check(kind, out, a, b)


@pytest.mark.parametrize(
    "left,right",
    [((4,), (4,)), ((4,), (4, 9)), ((9, 4), (4,)), ((4,), (2, 4, 9)), ((2, 3, 5, 4), (3, 4, 9))],
)
def test_vectors_and_broadcasting(library, rng, kind, left, right):
    a, b = numbers(rng, kind, *left), numbers(rng, kind, *right)
    a_axes = [None, 0] if a.ndim == 1 else list(range(a.ndim))
    b_axes = [0, None] if b.ndim == 1 else list(range(b.ndim))
    shape = np.matmul(a, b).shape
    out_axes = list(range(max(a.ndim, b.ndim, 2) - 2))
    for operand in (a, b):
        out_axes.append(None if operand.ndim == 1 else sum(x is not None for x in out_axes))
    out = unwritten(kind, *shape)
    matmul(library, a, b, out, a_axes, b_axes, out_axes, kind.function)
    check(kind, seen(out, out_axes), seen(a, a_axes), seen(b, b_axes))


@st.composite
def operands(draw):
    kind = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    m, n, k = (draw(st.integers(0, 40)) for _ in range(3))
    batch = draw(st.lists(st.integers(0, 3), max_size=2))

    def lay_out(array, may_repeat):
        axes = draw(st.permutations(range(array.ndim)))
        view = stored(array, axes, [draw(st.integers(0, 2)) for _ in axes])
        for dim in range(view.ndim):
            if draw(st.booleans()):
                view = np.flip(view, dim)
            if may_repeat and view.shape[dim] > 0 and draw(st.integers(0, 4)) == 0:
                one = view.take([0], dim)
                strides = [0 if i == dim else s for i, s in enumerate(one.strides)]
                view = as_strided(one, view.shape, strides)
        return view, axes

    def operand(*shape):
        own = [draw(st.sampled_from([1, size])) for size in batch]
        return lay_out(numbers(rng, kind, *own, *shape), True)

    return kind, operand(m, k), operand(k, n), lay_out(unwritten(kind, *batch, m, n), False)


@settings(max_examples=300)
@given(drawn=operands())
def test_any_strides(library, drawn):
    """Gaps, negative strides and stride 0 in every dimension, the last ones too."""
    kind, (a, a_axes), (b, b_axes), (out, out_axes) = drawn
    whole = out
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    matmul(library, a, b, out, a_axes, b_axes, out_axes, kind.function)
    result = seen(out, out_axes)
    check(kind, result, seen(a, a_axes), seen(b, b_axes))
    out[...] = CANARY_NUMBER
    assert (whole == CANARY_NUMBER).all()


@pytest.mark.parametrize("columns", [1, 3, 8, 40])
@pytest.mark.parametrize("axes", [[0, 1], [1, 0]])
def test_sums_beyond_8_and_16_bits(library, axes, columns):
    """512 products of -128 and -128."""
    lowest = np.full((5, 512), -128, np.int8)
    b = np.full((512, columns), -128, np.int8)
    out = np.zeros((5, columns), np.int32)
    matmul(library, lowest, stored(b, axes), out, None, axes, None, "moonpoly_matmul_i8")
    assert (out == 8388608).all()


@pytest.mark.parametrize("suffix", ["i8", "i32", "i64"])
@pytest.mark.parametrize("axes", [[0, 1], [1, 0]])
def test_integers_wrap_around(library, suffix, axes):
    """The largest sums of the type and one more, through every loop."""
    kind = NAMES[suffix]
    of_type, bits = np.iinfo(kind.operand), np.iinfo(kind.out).bits
    k = (1 << 17) + 5 if suffix == "i8" else 6
    a = np.full((5, k), of_type.min, kind.operand)
    b = np.full((k, 21), of_type.min, kind.operand)
    exact = k * int(of_type.min) ** 2
    wrapped = (exact + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
    assert suffix != "i8" or wrapped != exact
    out = unwritten(kind, 5, 21)
    matmul(library, a, stored(b, axes), out, None, axes, None, kind.function)
    assert (out == wrapped).all()
    a[:, ::2] = of_type.max
    matmul(library, a, stored(b, axes), out, None, axes, None, kind.function)
    check(kind, out, a, b)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("axes", [[0, 1], [1, 0]])
def test_doubles_that_are_no_numbers_stay_in_their_row(library, rng, poison, axes):
    a, b = rng.standard_normal((9, 13)), rng.standard_normal((13, 21))
    a[4, 6] = poison
    out = np.zeros((9, 21))
    matmul(library, a, stored(b, axes), out, None, axes, None, "moonpoly_matmul_f64")
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out[4], poison * b[6])
    others = np.arange(9) != 4
    check(NAMES["f64"], out[others], a[others], b)


@pytest.mark.parametrize(
    "replaced,message",
    [
        ({"a": np.float32}, "^a: must be {operand}"),
        ({"b": np.float32}, "^b: must be {operand}"),
        ({"out": np.float32}, "^out: must be {out}"),
        ({"a": None}, "^a: must be a tensor, not None"),
        ({"a": (5, 8)}, "^b: its rows must be as many as the columns of a; k = 8, j = 7$"),
        ({"out": (5, 8)}, "^out: must have as many columns as b: 8 and 9$"),
        ({"out": (4, 9)}, "^out: must have as many rows as a: 4 and 5$"),
        ({"a_axes": 0x10}, "^a_axes: must be the code of at least 2 and at most 2 dimensions$"),
        ({"b_axes": 2 << 32}, "^b_axes: must name each of the 2 dimensions of b once$"),
    ],
)
def test_faults(library, rng, kind, replaced, message):
    code = operators.encode_axes([0, 1])
    shapes = {"a": (5, 7), "b": (7, 9), "out": (5, 9)}
    given = {
        "a": numbers(rng, kind, 5, 7),
        "b": numbers(rng, kind, 7, 9),
        **dict.fromkeys(("a_axes", "b_axes", "out_axes"), code),
        "labels": labels_of("k = #, j = #"),
        "out": unwritten(kind, 5, 9),
    }
    for name, value in replaced.items():
        if isinstance(value, type):
            value = np.full(shapes[name], CANARY_NUMBER, value)
        elif isinstance(value, tuple):
            value = np.full(value, CANARY_NUMBER, given[name].dtype)
        given[name] = value
    arguments = [tensor(v) if isinstance(v, np.ndarray) else v for v in given.values()]
    with pytest.raises((TypeError, ValueError), match=message.format(**vars(kind))):
        library.module[kind.function](*arguments)
    assert (given["out"] == CANARY_NUMBER).all()


def test_an_output_whose_elements_share_memory(library, kind):
    a, b = np.ones((5, 7), kind.operand), np.ones((7, 9), kind.operand)
    memory = unwritten(kind, 5, 9)
    for strides in ((0, memory.itemsize), (memory.itemsize, 0)):
        out = as_strided(memory, (5, 9), strides)
        with pytest.raises(ValueError, match="^out: its elements must not share memory$"):
            matmul(library, a, b, out, name=kind.function)
    assert (memory == CANARY_NUMBER).all()
