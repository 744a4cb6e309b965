"""Comparing a product with plain TVM's: what passes, what is refused, and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from core_testing import CANARY, tensor

from tvm_moonpoly import operators
from tvm_moonpoly.operators.verify import FACTOR, KINDS

KIND = {kind.suffix: kind for kind in KINDS}
FLOATS, INTEGERS = ("f32", "f64"), ("i32", "i64")
LABELS = np.frombuffer("matmul (n, k) x (j, m): ü #".encode(), np.uint8).copy()


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


def _given(value):
    return tensor(value) if isinstance(value, np.ndarray) else value


def verify(library, suffix, ours, plain, bound, k=1, labels=None):
    """Call the function; returns ``out``."""
    dtype = np.dtype(KIND[suffix].dtype)
    ours, plain = np.asarray(ours, dtype), np.asarray(plain, dtype)
    if bound is not None:
        bound = np.asarray(np.broadcast_to(np.asarray(bound, dtype), ours.shape), order="C").copy()
    out = np.full(ours.shape, CANARY).astype(dtype)
    arguments = (ours, plain, bound, k, labels, out)
    library.module[KIND[suffix].verify](*map(_given, arguments))
    return out


def refused(library, suffix, ours, plain, bound, k=1, labels=LABELS):
    """The message of the error, which must be the kind that it is."""
    with pytest.raises(RuntimeError) as caught:
        verify(library, suffix, ours, plain, bound, k, labels)
    assert type(caught.value) is RuntimeError
    return str(caught.value)


@pytest.mark.parametrize("suffix", KIND)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 1, 4, 3), (0,), (3, 0, 2)])
def test_what_is_equal_passes_through(library, suffix, shape):
    dtype = KIND[suffix].dtype
    ours = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape) - 3
    result = verify(library, suffix, ours, ours.copy(), np.zeros(shape), labels=LABELS)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, ours)


@pytest.mark.parametrize("suffix", FLOATS)
@pytest.mark.parametrize("k", [0, 1, 64, 1000000])
def test_the_difference_that_rounding_explains(library, suffix, k):
    """Exactly to the limit: it is exact in float64 for these numbers."""
    dtype = np.dtype(KIND[suffix].dtype)
    bound = 8.0
    limit = FACTOR * max(k, 1) * float(np.finfo(dtype).eps) * bound
    plain = np.zeros(9, dtype)
    ours = np.linspace(-1, 1, 9).astype(dtype) * dtype.type(limit)
    np.testing.assert_array_equal(verify(library, suffix, ours, plain, bound, k), ours)
    for sign in (1, -1):
        ours[6] = sign * np.nextafter(dtype.type(limit), dtype.type(np.inf))
        message = refused(library, suffix, ours, plain, bound, k)
        assert message.startswith("ours: element 6 is ")


def test_the_message(library):
    ours = np.array([[1, 2, 3], [4, 5.5, 60]], np.float32)
    plain = np.array([[1, 2, 3], [4, 5.25, 6]], np.float32)
    message = refused(library, "f32", ours, plain, 2.0, k=4)
    assert message == (
        "ours: element 4 is 5.5, but plain TVM's is 5.25; the difference is 2.5e-1, and may be "
        "3.81469727e-6; matmul (n, k) x (j, m): ü #"
    )
    assert refused(library, "f32", ours, plain, 2.0, k=4, labels=None).endswith("3.81469727e-6")
    message = refused(library, "f64", [0.0, np.nan], [0.0, -1e300], 0.5)
    assert message.startswith("ours: element 1 is nan, but plain TVM's is -1e300; the difference")


@pytest.mark.parametrize("suffix", INTEGERS)
def test_integers_are_equal_or_wrong(library, suffix):
    lowest, highest = (getattr(np.iinfo(KIND[suffix].dtype), name) for name in ("min", "max"))
    ours = np.array([0, lowest, highest, -5], KIND[suffix].dtype)
    # what would be their bound, and their k, do not count
    np.testing.assert_array_equal(verify(library, suffix, ours, ours, None, k=1000), ours)
    for at in range(4):
        plain = ours.copy()
        plain[at] ^= 1
        assert refused(library, suffix, ours, plain, 1e9, k=1000) == (
            f"ours: element {at} is {ours[at]}, but plain TVM's is {plain[at]}; "
            "matmul (n, k) x (j, m): ü #"
        )


@pytest.mark.parametrize("suffix", FLOATS)
def test_what_is_not_finite(library, suffix):
    nan, inf = np.nan, np.inf
    largest = float(np.finfo(KIND[suffix].dtype).max)
    right = [
        (nan, nan, nan),
        (inf, nan, nan),
        (inf, inf, inf),
        (-inf, inf, inf),
        (nan, inf, 1.0),
        (inf, inf, 1.0),
        (nan, 1.0, nan),
        (nan, 1.0, inf),
        # sums that may overflow in one order and not in another
        (1.0, inf, inf),
        (1.0, nan, inf),
        (inf, 1.0, largest / 3),
        (1.0, inf, largest / 3),
        (2.0, 2.0, nan),
    ]
    wrong = [
        (nan, 1.0, 1.0),
        (inf, 1.0, 1.0),
        (1.0, nan, 1.0),
        (1.0, inf, 1.0),
        (1.0, nan, nan),
        (1.0, 2.0, nan),
        (inf, 1.0, largest / 5),
    ]
    for case in right:
        ours, plain, bound = np.array(case)[:, None]
        np.testing.assert_array_equal(verify(library, suffix, ours, plain, bound), ours)
    for case in wrong:
        ours, plain, bound = np.array(case)[:, None]
        message = refused(library, suffix, ours, plain, bound)
        assert message.startswith("ours: element 0 is "), case


@pytest.mark.parametrize("suffix", KIND)
def test_the_first_wrong_element_is_named_and_nothing_written(library, suffix):
    dtype = KIND[suffix].dtype
    ours = np.zeros((5, 8), dtype)
    plain = ours.copy()
    plain[2, 3] = plain[4, 0] = 7
    bound, out = np.zeros((5, 8), dtype), np.full((5, 8), 9, dtype)
    arguments = (ours, plain, bound, 3, None, out)
    with pytest.raises(RuntimeError, match=r"^ours: element 19 is 0, but plain TVM's is 7"):
        library.module[KIND[suffix].verify](*map(_given, arguments))
    assert (out == 9).all()


@pytest.mark.parametrize("suffix", KIND)
@pytest.mark.parametrize("shape", [(), (6,), (3, 4), (2, 0, 3)])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_zeros_if_empty(library, suffix, shape, k):
    dtype = KIND[suffix].dtype
    plain, out = np.full(shape, 3, dtype), np.full(shape, 9, dtype)
    library.module[KIND[suffix].zeros_if_empty](tensor(plain), k, tensor(out))
    np.testing.assert_array_equal(out, plain if k else np.zeros(shape, dtype))


def test_zeros_if_empty_in_place(library):
    plain = np.arange(5, dtype=np.float32)
    library.module[KIND["f32"].zeros_if_empty](tensor(plain), 2, tensor(plain))
    np.testing.assert_array_equal(plain, np.arange(5))
    library.module[KIND["f32"].zeros_if_empty](tensor(plain), 0, tensor(plain))
    np.testing.assert_array_equal(plain, np.zeros(5))


F32, F64 = np.float32, np.float64

#: (arguments that are replaced, the message, its type)
FAULTS = {
    "ours float64": ({"ours": np.zeros((3, 4))}, "^ours: must be float32", TypeError),
    "bound int32": ({"bound": np.zeros((3, 4), np.int32)}, "^bound: must be float32", TypeError),
    "no plain": ({"plain": None}, "^plain: must be a tensor, not None", TypeError),
    "no bound": ({"bound": None}, "^bound: must be a tensor, not None", TypeError),
    "another rank": (
        {"plain": np.zeros((12,), F32)},
        "^plain: must have as many dimensions as ours: 1 and 2",
        ValueError,
    ),
    "another shape": (
        {"out": np.zeros((4, 3), F32)},
        "^out: must have the shape of ours: 3 and 4",
        ValueError,
    ),
    "not compact": (
        {"bound": np.zeros((3, 5), F32)[:, :4]},
        "^bound: must be compact",
        ValueError,
    ),
    "turned": ({"ours": np.zeros((4, 3), F32).T}, "^ours: must be compact", ValueError),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_arguments(library, fault):
    replaced, message, error = FAULTS[fault]
    names = ("ours", "plain", "bound", "out")
    given = {name: np.full((3, 4), CANARY) for name in names} | replaced
    before = given["out"].copy()
    arguments = (given["ours"], given["plain"], given["bound"], 1, None, given["out"])
    with pytest.raises(error, match=message) as caught:
        library.module[KIND["f32"].verify](*map(_given, arguments))
    assert type(caught.value) is error
    np.testing.assert_array_equal(given["out"], before)


def test_bad_arguments_of_zeros_if_empty(library):
    function = library.module[KIND["i64"].zeros_if_empty]
    plain = np.zeros((3, 4), np.int64)
    for out, message, error in (
        (np.zeros((3, 4), np.int32), "^out: must be int64", TypeError),
        (np.zeros((3, 3), np.int64), "^out: must have the shape of plain: 3 and 4", ValueError),
        (np.zeros((3, 8), np.int64)[:, ::2], "^out: must be compact", ValueError),
        (None, "^out: must be a tensor, not None", TypeError),
    ):
        with pytest.raises(error, match=message):
            function(tensor(plain), 0, _given(out))


def test_strides_that_no_element_depends_on(library):
    ours = np.arange(6, dtype=F32).reshape(6, 1).copy()
    view = np.zeros((6, 9), F32)[:, :1]
    view[...] = ours
    compact = view.reshape(-1).copy().reshape(6, 1)
    strided = np.lib.stride_tricks.as_strided(compact, (6, 1), (4, 400))
    np.testing.assert_array_equal(verify(library, "f32", strided, ours, 0.0), ours)
