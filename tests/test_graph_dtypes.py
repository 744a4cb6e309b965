"""Matrix products of other types than float32, and results of another type than the operands."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from bounded import Bounded, relu
from graph_testing import check
from relax_testing import check_left, tensor
from tvm import relax, tirx

SMALL_FLOATS = ("float16", "bfloat16")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def numpy_dtype(name):
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def values(dtype, *shape):
    """Reproducible values of a type, integers over its whole range."""
    dtype = numpy_dtype(dtype)
    if np.issubdtype(dtype, np.integer):
        rng = np.random.default_rng([7, *shape])
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return tensor(*shape).astype(dtype)


def product_of(a, b, out_dtype=None):
    """`matmul` of two tensors (constants where they are arrays) as a function of the others."""
    operands, params = [], []
    for name, each in zip("ab", (a, b), strict=True):
        if isinstance(each, np.ndarray):
            operands.append(relax.const(each, str(each.dtype)))
        else:
            operands.append(relax.Var(name, relax.TensorType(*each)))
            params.append(operands[-1])
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            z = builder.emit_output(relax.op.matmul(*operands, out_dtype=out_dtype))
        builder.emit_func_output(z)
    return builder.get()


def symbols(names):
    return [tirx.Var(name, "int64") for name in names]


def linear(a_dtype, b_dtype, out_dtype, make=values):
    """A layer of 24 columns with a constant weight, its feeds, and the operands of a feed."""
    weight = make(b_dtype, 40, 24)
    mod = product_of(((*symbols("n"), 40), a_dtype), weight, out_dtype)
    return mod, [(make(a_dtype, rows, 40),) for rows in (1, 5, 0, 17)], lambda x: (x, weight)


def batched(a_dtype, b_dtype, out_dtype, make=values):
    """The same for a product of two tensors."""
    m, k, n = symbols("mkn")
    mod = product_of(((2, m, k), a_dtype), ((k, n), b_dtype), out_dtype)
    sizes = [(3, 5, 7), (1, 33, 1), (0, 2, 3), (2, 3, 0), (3, 0, 2)]
    feeds = [(make(a_dtype, 2, m, k), make(b_dtype, k, n)) for m, k, n in sizes]
    return mod, feeds, lambda x, y: (x, y)


both_forms = pytest.mark.parametrize("form", [linear, batched])


@both_forms
@pytest.mark.parametrize(
    "a_dtype, b_dtype, out_dtype",
    [
        ("float16", "float16", None),
        ("float16", "float16", "float32"),
        ("bfloat16", "bfloat16", None),
        ("bfloat16", "bfloat16", "float32"),
        ("float16", "float32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float32", "float32", "float16"),
        ("float32", "int8", "float32"),
        ("int8", "int8", "float32"),
        ("uint8", "int8", "float32"),
    ],
)
def test_floats_are_summed_in_float32(form, a_dtype, b_dtype, out_dtype):
    mod, feeds, operands = form(a_dtype, b_dtype, out_dtype)
    result = out_dtype or a_dtype

    def reference(*feed):
        a, b = (each.astype("float64") for each in operands(*feed))
        product = Bounded.exact(a) @ b
        return product if result == "float32" else product.rounded(result)

    # Plain TVM sums in the type of the result, and leaves stale memory where K is 0.
    check(mod, feeds, reference, also_plain=result == "float32" and form is linear)


@both_forms
@pytest.mark.parametrize(
    "a_dtype, b_dtype, out_dtype",
    [
        ("int8", "int8", "int32"),
        ("int8", "int8", "int64"),
        ("int8", "int8", None),
        ("uint8", "int8", "int32"),
        ("uint8", "uint8", "uint32"),
        ("int16", "int16", "int32"),
        ("int32", "int32", None),
        ("int64", "int64", None),
        ("uint8", "uint8", None),
        ("uint32", "uint32", None),
    ],
)
def test_integers_are_exact_and_wrap_around(form, a_dtype, b_dtype, out_dtype):
    mod, feeds, operands = form(a_dtype, b_dtype, out_dtype)

    def reference(*feed):
        return np.matmul(*(each.astype(out_dtype or a_dtype) for each in operands(*feed)))

    check(mod, feeds, reference, also_plain=form is linear)  # stale memory where K is 0


@both_forms
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_float64_is_exact_where_float32_is_not(form, dtype):
    def integers(dtype, *shape):
        """Up to 2**20: products up to 2**40, and their sums, fit into float64 alone."""
        return np.round(tensor(*shape) * 2**18).clip(-(2**20), 2**20).astype(dtype)

    mod, feeds, operands = form(dtype, dtype, "float64", integers)

    def reference(*feed):
        return np.matmul(*(each.astype("float64") for each in operands(*feed)))

    check(mod, feeds, reference, also_plain=form is linear)  # stale memory where K is 0


def test_weight_that_is_decoded_at_each_call():
    n = symbols("n")[0]
    weight, scale = values("int8", 40, 24), values("float32", 24)
    x = relax.Var("x", relax.TensorType((n, 40), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            wide = relax.op.astype(relax.const(weight, "int8"), "float32")
            decoded = builder.emit(relax.op.multiply(wide, relax.const(scale)))
            y = builder.emit_output(relax.op.matmul(x, decoded))
        builder.emit_func_output(y)

    def reference(x):
        return Bounded.exact(x) @ (Bounded.exact(weight) * scale)

    check(builder.get(), [(tensor(rows, 40),) for rows in (1, 5, 0, 17)], reference)


def test_float16_counts_beyond_its_integers():
    n, k = symbols("nk")
    mod = product_of(((n, k), "float16"), ((k, 3), "float16"))
    feeds = [
        (np.ones((2, size), "float16"), np.ones((size, 3), "float16")) for size in (4096, 2048)
    ]
    check(
        mod, feeds, lambda x, y: np.full((2, 3), x.shape[1], "float16"), also_plain=False
    )  # plain TVM: 2048 of 4096


def test_float16_partial_sums_may_leave_its_range():
    n, k = symbols("nk")
    mod = product_of(((n, k), "float16"), ((k, 3), "float16"))
    x = np.repeat(np.array([[256, -256]], "float16"), 8, axis=1)  # 8 products up, 8 down
    y = np.full((16, 3), 256, "float16")
    mod_of_weight = product_of(((n, 16), "float16"), y)
    expected = np.zeros((1, 3), "float16")
    # Plain TVM reaches infinity and gives NaN.
    check(mod, [(x, y)], lambda *_: expected, also_plain=False)
    check(mod_of_weight, [(x,)], lambda *_: expected, also_plain=False)


def test_int8_products_fill_int32():
    n, k = symbols("nk")
    mod = product_of(((n, k), "int8"), ((k, 3), "int8"), "int32")
    x, y = np.full((2, 512), -128, "int8"), np.full((512, 3), -128, "int8")
    check(mod, [(x, y)], lambda *_: np.full((2, 3), 8388608, "int32"))


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_a_layer_of_small_floats(dtype):
    """relu(x W + b) W' with weights as constants, each result rounded to the small type."""
    n = symbols("n")[0]
    w1, b1, w2 = values(dtype, 40, 24), values(dtype, 24), values(dtype, 24, 40)
    x = relax.Var("x", relax.TensorType((n, 40), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = relax.op.add(relax.op.matmul(x, relax.const(w1, dtype)), relax.const(b1, dtype))
            y = builder.emit(relax.op.nn.relu(builder.emit(y)))
            z = builder.emit_output(relax.op.matmul(y, relax.const(w2, dtype)))
        builder.emit_func_output(z)

    def reference(x):
        x, w, b, v = (each.astype("float64") for each in (x, w1, b1, w2))
        y = ((Bounded.exact(x) @ w).rounded(dtype) + b).rounded(dtype)
        return (relu(y) @ v).rounded(dtype)

    feeds = [(values(dtype, rows, 40),) for rows in (1, 5, 0, 17)]
    check(builder.get(), feeds, reference, also_plain=False)


@pytest.mark.parametrize("dtype", ["bool", "float8_e4m3fn"])
def test_types_without_a_meaning_here_are_left(dtype):
    n, k = symbols("nk")
    mod = product_of(((n, k), dtype), ((k, 3), dtype))
    (reason,) = check_left(mod["main"])
    assert dtype in reason
