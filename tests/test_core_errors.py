"""Bad arguments: an error that names the argument and the rule, and the output is untouched."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from core_testing import CANARY, Weight, tensor, values
from numpy.lib.stride_tricks import as_strided

from tvm_moonpoly import operators
from tvm_moonpoly.operators import Activation, encode_axes
from tvm_moonpoly.operators.linear import PACK

M, N, K = 5, 21, 13


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def arguments(library):
    """Good arguments of the linear functions, by name."""
    rng = np.random.default_rng(5)
    weight = Weight.of(library, values(rng, K, N), values(rng, N))
    return {
        "x": values(rng, M, K),
        "packed": weight.packed,
        "bias": weight.padded,
        "residual": values(rng, M, N),
        "table": weight.table,
        "labels": None,
        "activation": 0,
        "out": np.full((M, N), CANARY),
    }


@pytest.fixture
def operands():
    """Good arguments of the batched product, by name."""
    rng = np.random.default_rng(6)
    return {
        "a": values(rng, 3, M, K),
        "b": values(rng, 3, K, N),
        **dict.fromkeys(("a_axes", "b_axes", "out_axes"), encode_axes([0, 1, 2])),
        "labels": None,
        "out": np.full((3, M, N), CANARY),
    }


def _call(function, arguments):
    def passed(value):
        return tensor(value) if isinstance(value, np.ndarray) else value

    return function(*[passed(value) for value in arguments.values()])


def check_refused(function, arguments, message, error=ValueError):
    memory = arguments["out"]
    while isinstance(memory, np.ndarray) and isinstance(memory.base, np.ndarray):
        memory = memory.base
    before = memory.copy() if isinstance(memory, np.ndarray) else None
    with pytest.raises(error, match=message) as caught:
        _call(function, arguments)
    assert type(caught.value) is error
    if before is not None:
        np.testing.assert_array_equal(memory, before)


def _strided(*shape):
    """Every second element along the last dimension."""
    return np.full((*shape[:-1], 2 * shape[-1]), CANARY)[..., ::2]


def _uneven(*shape):
    """Matrices further apart than their rows say."""
    return np.full((shape[0], shape[1] + 1, shape[2]), CANARY)[:, :-1]


F32, F64 = np.float32, np.float64

#: (arguments that are replaced, the message, its type)
LINEAR_FAULTS = {
    "x float64": ({"x": np.zeros((M, K))}, "^x: must be float32", TypeError),
    "x int32": ({"x": np.zeros((M, K), np.int32)}, "^x: must be float32", TypeError),
    "x float16": ({"x": np.zeros((M, K), np.float16)}, "^x: must be float32", TypeError),
    "packed float64": ({"packed": np.zeros((3, K, 8))}, "^packed: must be float32", TypeError),
    "bias float64": ({"bias": np.zeros(24)}, "^bias: must be float32", TypeError),
    "residual float64": ({"residual": np.zeros((M, N))}, "^residual: must be float32", TypeError),
    "table int32": ({"table": np.zeros(9, np.int32)}, "^table: must be int64", TypeError),
    "out float64": ({"out": np.zeros((M, N))}, "^out: must be float32", TypeError),
    "x without dimensions": ({"x": np.zeros((), F32)}, "^x: must have at least 1 dim", ValueError),
    "out of another rank": (
        {"out": np.full((1, M, N), CANARY)},
        "^out: must have as many dimensions as x: 3 and 2",
        ValueError,
    ),
    "packed a matrix": (
        {"packed": np.zeros((3, 8), F32)},
        "^packed: must have 3 dimensions, not 2",
        ValueError,
    ),
    "bias a matrix": ({"bias": np.zeros((24, 1), F32)}, "^bias: must have 1 dim", ValueError),
    "bias a scalar": ({"bias": np.zeros((), F32)}, "^bias: must have 1 dim", ValueError),
    "table a scalar": ({"table": np.zeros((), np.int64)}, "^table: must have 1 dim", ValueError),
    "another K": (
        {"x": np.zeros((M, K + 1), F32)},
        "^x: its last dimension must equal the rows of the weight; 14 and 13",
        ValueError,
    ),
    "K of zero": (
        {"x": np.zeros((M, 0), F32)},
        "^x: its last dimension must equal the rows of the weight; 0 and 13",
        ValueError,
    ),
    "too many columns": (
        {"out": np.full((M, N + 8), CANARY), "residual": np.zeros((M, N + 8), F32)},
        "^out: its last dimension must equal the columns of the weight: 29 and up to 24",
        ValueError,
    ),
    "too few columns": (
        {"out": np.full((M, 16), CANARY), "residual": np.zeros((M, 16), F32)},
        "^out: its last dimension must equal the columns of the weight: 16 and up to 24",
        ValueError,
    ),
    "a short bias": (
        {"bias": np.zeros(N, F32)},
        "^bias: must have as many elements as the padded weight has columns: 21 and 24",
        ValueError,
    ),
    "too many rows": (
        {"out": np.full((M + 1, N), CANARY)},
        "^out: must have as many rows as x: 6 and 5",
        ValueError,
    ),
    "a small residual": (
        {"residual": np.zeros((M - 1, N), F32)},
        "^residual: must have as many rows as out: 4 and 5",
        ValueError,
    ),
    "a residual to broadcast": (
        {"residual": np.zeros(N, F32)},
        "^residual: must have as many dimensions as out: 1 and 2",
        ValueError,
    ),
    "a narrow residual": (
        {"residual": np.zeros((M, 1), F32)},
        "^residual: must have as many columns as out: 1 and 21",
        ValueError,
    ),
    "x strided": (
        {"x": _strided(M, K)},
        "^x: elements of the last dimension must be adjacent",
        ValueError,
    ),
    "x a strided vector": (
        {
            "x": _strided(K),
            "out": np.full(N, CANARY),
            "residual": np.zeros(N, F32),
        },
        "^x: elements of the last dimension must be adjacent",
        ValueError,
    ),
    "out strided": (
        {"out": _strided(M, N)},
        "^out: elements of the last dimension must be adjacent",
        ValueError,
    ),
    "residual strided": (
        {"residual": _strided(M, N)},
        "^residual: elements of the last dimension must be adjacent",
        ValueError,
    ),
    "bias strided": ({"bias": _strided(24)}, "^bias: elements of the last dim", ValueError),
    "table strided": (
        {"table": np.zeros(100, np.int64)[::2]},
        "^table: elements of the last dim",
        ValueError,
    ),
    "x uneven": (
        {
            "x": _uneven(2, 3, K),
            "out": np.full((2, 3, N), CANARY),
            "residual": np.zeros((2, 3, N), F32),
        },
        "^x: rows must be evenly spaced in memory",
        ValueError,
    ),
    "out uneven": (
        {
            "x": np.zeros((2, 3, K), F32),
            "out": _uneven(2, 3, N),
            "residual": np.zeros((2, 3, N), F32),
        },
        "^out: rows must be evenly spaced in memory",
        ValueError,
    ),
    "out with rows in one place": (
        {"out": np.lib.stride_tricks.as_strided(np.full(N, CANARY), (M, N), (0, 4))},
        "^out: its elements must not share memory",
        ValueError,
    ),
    "out with overlapping rows": (
        {"out": np.lib.stride_tricks.as_strided(np.full(200, CANARY), (M, N), (4 * (N - 1), 4))},
        "^out: its elements must not share memory",
        ValueError,
    ),
    "activation too large": (
        {"activation": max(Activation) + 1},
        "^activation: is no known number: 8",
        ValueError,
    ),
    "activation negative": ({"activation": -1}, "^activation: is no known number: -1", ValueError),
}


@pytest.mark.parametrize(
    "fault,with_residual",
    [(fault, True) for fault in LINEAR_FAULTS]
    + [
        (fault, False) for fault, (given, *_) in LINEAR_FAULTS.items() if set(given) != {"residual"}
    ],
)
def test_linear(library, arguments, fault, with_residual):
    replaced, message, error = LINEAR_FAULTS[fault]
    arguments.update(replaced)
    if not with_residual:
        del arguments["residual"]
    name = operators.LINEAR_RESIDUAL if with_residual else operators.LINEAR
    check_refused(library.module[name], arguments, message, error)


def test_the_good_arguments_are_accepted(library, arguments, operands):
    """Or else the other tests would prove nothing."""
    _call(library.module[operators.LINEAR_RESIDUAL], arguments)
    assert not (arguments["out"] == CANARY).any()
    _call(library.module[operators.MATMUL], operands)
    assert not (operands["out"] == CANARY).any()


def test_packed_with_gaps(library, arguments):
    panels, k, lanes = arguments["packed"].shape
    for gaps in ((panels, k, 2 * lanes), (panels, k + 1, lanes)):
        arguments["packed"] = np.zeros(gaps, F32)[:, :k, :lanes]
        check_refused(library.module[operators.LINEAR_RESIDUAL], arguments, "^packed: ")


def test_matrices_of_different_lanes(library, arguments):
    panels, k, lanes = arguments["packed"].shape
    arguments["packed"] = np.zeros((panels, k, lanes // 2), F32)
    message = f"^packed: must be {lanes} wide, not {lanes // 2}"
    check_refused(library.module[operators.LINEAR_RESIDUAL], arguments, message)


@pytest.mark.parametrize("name", ["x", "packed", "bias", "residual", "table", "out"])
def test_none_for_a_tensor(library, arguments, name):
    arguments[name] = None
    function = library.module[operators.LINEAR_RESIDUAL]
    check_refused(function, arguments, f"^{name}: must be a tensor, not None", TypeError)


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_none_for_an_operand(library, operands, name):
    operands[name] = None
    function = library.module[operators.MATMUL]
    check_refused(function, operands, f"^{name}: must be a tensor, not None", TypeError)


@pytest.mark.parametrize("name", ["x", "packed", "bias", "residual", "table", "out"])
def test_a_number_for_a_tensor(library, arguments, name):
    position = list(arguments).index(name)
    arguments[name] = 3
    function = library.module[operators.LINEAR_RESIDUAL]
    check_refused(function, arguments, f"argument #{position} ", TypeError)


@pytest.mark.parametrize("value", [None, 0.5])
def test_no_number_for_the_activation(library, arguments, value):
    arguments["activation"] = value
    function = library.module[operators.LINEAR_RESIDUAL]
    check_refused(function, arguments, r"(?s)argument #6 .*activation: int64", TypeError)


def test_missing_argument(library, arguments, operands):
    for name, given in ((operators.LINEAR_RESIDUAL, arguments), (operators.MATMUL, operands)):
        kept = {key: value for key, value in given.items() if key not in ("table", "a_axes")}
        with pytest.raises(TypeError, match=rf"Expected {len(given)} arguments"):
            _call(library.module[name], kept)
        assert (given["out"] == CANARY).all()


def test_byte_offset(library, arguments, operands):
    """A tensor that starts inside its memory is refused rather than read from the wrong place."""
    memory = tvm.runtime.tensor(np.zeros(1000, F32))
    shifted = memory._create_view((M, K), "float32", 4)
    given = {**arguments, "x": shifted}
    check_refused(library.module[operators.LINEAR_RESIDUAL], given, "^x: must have byte offset 0")
    given = {**operands, "b": memory._create_view((3, K, N), "float32", 4)}
    check_refused(library.module[operators.MATMUL], given, "^b: must have byte offset 0")
    # with offset 0 such a view is fine
    given = {**arguments, "x": memory._create_view((M, K), "float32", 0)}
    _call(library.module[operators.LINEAR_RESIDUAL], given)


def _overlapping(*strides):
    """An output of (3, M, N) with these strides, in elements."""
    return as_strided(np.full(1000, CANARY), (3, M, N), [4 * stride for stride in strides])


AXES3, SWAPPED = encode_axes([0, 1, 2]), encode_axes([0, 2, 1])
EITHER = "elements of its rows or of its columns must be adjacent$"
SHARED = "^out: its elements must not share memory$"

#: (arguments that are replaced, the message)
MATMUL_FAULTS = {
    "entries of out one element apart": ({"out": _overlapping(1, N, 1)}, SHARED),
    "entries of out two rows apart": ({"out": _overlapping(2 * N, N, 1)}, SHARED),
    "entries of out between rows that are too near": ({"out": _overlapping(N, 2 * N, 1)}, SHARED),
    "another K": (
        {"a": np.zeros((3, M, K + 1), F32)},
        f"^b: its rows must be as many as the columns of a; {K + 1} and {K}$",
    ),
    "another M": (
        {"out": np.full((3, M + 1, N), CANARY)},
        f"^out: must have as many rows as a: {M + 1} and {M}$",
    ),
    "another N": (
        {"out": np.full((3, M, N - 1), CANARY)},
        f"^out: must have as many columns as b: {N - 1} and {N}$",
    ),
    "another batch of a": (
        {"a": np.zeros((2, M, K), F32)},
        "^a: a batch dimension must be 1 or that of the output: 2 and 3$",
    ),
    "another batch of b": (
        {"b": np.zeros((4, K, N), F32)},
        "^b: a batch dimension must be 1 or that of the output: 4 and 3$",
    ),
    "no batch of b": (
        {"b": np.zeros((0, K, N), F32)},
        "^b: a batch dimension must be 1 or that of the output: 0 and 3$",
    ),
    "a smaller batch of out": (
        {"out": np.full((1, M, N), CANARY)},
        "^a: a batch dimension must be 1 or that of the output: 3 and 1$",
    ),
    "no batch of out": (
        {"out": np.full((0, M, N), CANARY)},
        "^a: a batch dimension must be 1 or that of the output: 3 and 0$",
    ),
    "out a matrix": (
        {"out": np.full((M, N), CANARY), "out_axes": encode_axes([0, 1])},
        "^a_axes: must be the code of at least 2 and at most 2 dimensions$",
    ),
    "a strided": ({"a": _strided(3, M, K)}, f"^a: {EITHER}"),
    "b strided": ({"b": _strided(3, K, N)}, f"^b: {EITHER}"),
    "out strided": ({"out": _strided(3, M, N)}, "^out: elements of its rows must be adjacent$"),
    "a repeated along K": (
        {"a": as_strided(np.zeros((3, M, K), F32), (3, M, K), (4 * M * K, 4 * K, 0))},
        f"^a: {EITHER}",
    ),
    "b repeated along N": (
        {"b": as_strided(np.zeros((3, K, N), F32), (3, K, N), (4 * K * N, 4 * N, 0))},
        f"^b: {EITHER}",
    ),
    "a backwards": ({"a": np.zeros((3, M, K), F32)[..., ::-1]}, f"^a: {EITHER}"),
    "out stored by columns": (
        {"out": np.full((3, N, M), CANARY), "out_axes": SWAPPED},
        "^out: elements of its rows must be adjacent$",
    ),
    "out repeated along the batch": ({"out": _overlapping(0, N, 1)}, SHARED),
    "out repeated along M": ({"out": _overlapping(N, 0, 1)}, SHARED),
    "out repeated along N": ({"out": _overlapping(M, 1, 0)}, SHARED),
    "out with overlapping rows": ({"out": _overlapping(M * N, N - 1, 1)}, SHARED),
    "out with overlapping rows backwards": (
        {"out": _overlapping(M * N, N - 1, 1)[:, ::-1]},
        SHARED,
    ),
}
for _kind, (_axes, _message) in {
    "a permutation alone": (0x210, "must be the code of at least 2 and at most {} dimensions"),
    "no dimensions": (0, "must be the code of at least 2 and at most {} dimensions"),
    "one dimension": (1 << 32, "must be the code of at least 2 and at most {} dimensions"),
    "nine dimensions": (9 << 32 | 0x210, "must be the code of at least 2 and at most {} dim"),
    "all ones": (-1, "must be the code of at least 2 and at most {} dimensions"),
    "fewer dimensions": (2 << 32 | 0x10, "must name each of the 3 dimensions of {} once"),
    "a dimension twice": (3 << 32 | 0x211, "must name each of the 3 dimensions of {} once"),
    "a dimension thrice": (3 << 32 | 0x000, "must name each of the 3 dimensions of {} once"),
    "a dimension beyond": (3 << 32 | 0x310, "must name each of the 3 dimensions of {} once"),
    "one beyond as well": (4 << 32 | 0x3210, "must name each of the 3 dimensions of {} once"),
    "one that is absent": (3 << 32 | 0xF10, "must name each of the 3 dimensions of {} once"),
}.items():
    for _name in ("a", "b", "out"):
        if _kind == "one beyond as well" and _name != "out":
            continue
        _most = 8 if _name == "out" else 3
        MATMUL_FAULTS[f"{_name}_axes: {_kind}"] = (
            {f"{_name}_axes": _axes},
            f"^{_name}_axes: {_message.format(_most if 'most' in _message else _name)}",
        )

#: (arguments that are replaced, the message)
MATMUL_TYPE_FAULTS = {
    "a float64": ({"a": np.zeros((3, M, K))}, "^a: must be float32"),
    "b int8": ({"b": np.zeros((3, K, N), np.int8)}, "^b: must be float32"),
    "out float64": ({"out": np.zeros((3, M, N))}, "^out: must be float32"),
}


@pytest.mark.parametrize("fault", MATMUL_FAULTS)
def test_matmul(library, operands, fault):
    replaced, message = MATMUL_FAULTS[fault]
    operands.update(replaced)
    check_refused(library.module[operators.MATMUL], operands, message)


@pytest.mark.parametrize("fault", MATMUL_TYPE_FAULTS)
def test_matmul_of_other_types(library, operands, fault):
    replaced, message = MATMUL_TYPE_FAULTS[fault]
    operands.update(replaced)
    check_refused(library.module[operators.MATMUL], operands, message, TypeError)


@pytest.mark.parametrize("axes", [0x210, -1, 5 << 32])
def test_axes_of_a_tensor_with_more_dimensions_than_can_be_named(library, operands, axes):
    operands["out"] = np.full((1,) * 9, CANARY)
    operands["out_axes"] = 8 << 32 | 0x76543210
    message = "^out_axes: must name each of the 9 dimensions of out once$"
    check_refused(library.module[operators.MATMUL], operands, message)


AXES2 = encode_axes([0, 1])


@pytest.mark.parametrize(
    "b,b_axes,k,more_panels,message",
    [
        (np.zeros((K, N), F64), AXES2, K, 0, "^b: must be float32"),
        (np.zeros((2, K, N), F32), AXES2, K, 0, "^b_axes: must name each of the 3 dim"),
        (np.zeros((K, N), F32), AXES3, K, 0, "^b_axes: must be the code of at least 2 and at most"),
        (np.zeros((K, N), F32), 0x10, K, 0, "^b_axes: must be the code of at least 2 and at most"),
        (np.zeros((K, N), F32), AXES2 + 1, K, 0, "^b_axes: must name each of the 2 dim"),
        (np.zeros((K, N), F32), AXES2, K, -1, rf"^out: must be compact, of shape \(3, {K}, \d+\)$"),
        (np.zeros((K, N), F32), AXES2, N, 0, rf"^out: must be compact, of shape \(3, {K}, \d+\)$"),
        (_strided(K, N), AXES2, K, 0, f"^b: {EITHER}"),
    ],
)
def test_pack(library, b, b_axes, k, more_panels, message):
    lanes = library.machine.lanes
    out = np.full((-(-N // lanes) + more_panels, k, lanes), CANARY)
    with pytest.raises((TypeError, ValueError), match=message):
        library.module[PACK](tensor(b), b_axes, tensor(out))
    assert (out == CANARY).all()


@pytest.mark.parametrize("shape", [(), (24,), (3, K)])
def test_pack_into_other_ranks(library, shape):
    with pytest.raises(ValueError, match=f"^out: must have 3 dimensions, not {len(shape)}$"):
        library.module[PACK](tensor(np.zeros((K, N), F32)), AXES2, tensor(np.zeros(shape, F32)))


@pytest.mark.parametrize(
    "axes", [[0, 0], [1, 2], [0, 2], [-1, 0], [1, None], [None, 0, 0], list(range(9)), [None] * 9]
)
def test_encode_axes_refuses_what_names_dimensions_wrongly(axes):
    with pytest.raises(ValueError, match=r"^axes: .* must name each dimension once"):
        encode_axes(axes)


def test_encode_axes():
    assert encode_axes([0, 1, 2, 3]) == 4 << 32 | 0x3210
    assert encode_axes([0, 2, 1, 3]) == 4 << 32 | 0x3120
    assert encode_axes([None, 0]) == 2 << 32 | 0x0F
    assert encode_axes([0, None]) == 2 << 32 | 0xF0
    assert encode_axes([0, None, 1, None]) == 4 << 32 | 0xF1F0
    assert encode_axes([None, None]) == 2 << 32 | 0xFF
    axes = [3, 0, 7, 1, 2, 6, 5, 4]
    assert encode_axes(axes) >> 32 == 8
    assert [encode_axes(axes) >> 4 * i & 15 for i in range(8)] == axes


@pytest.mark.parametrize(
    "w", [np.zeros((2, 2)), np.zeros(4, F32), np.zeros((1, 2, 2), F32), np.zeros((2, 2), np.int8)]
)
def test_pack_weight_refuses_what_is_no_float32_matrix(w):
    with pytest.raises(ValueError, match="^w: a float32 matrix is needed"):
        operators.pack_weight(w, 8)


@pytest.mark.parametrize("bias", [np.zeros(5), np.zeros(4, F32), np.zeros((5, 1), F32)])
def test_pad_bias_refuses_what_is_no_float32_vector_of_n(bias):
    with pytest.raises(ValueError, match=r"^bias: float32 of shape \(5,\) is needed"):
        operators.pad_bias(bias, 5, 8)
