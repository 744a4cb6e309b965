"""Forms that are settled before matching: data types, weights that are parameters, static shapes,
and what `verify=True` does about all of them. Run through `pipeline`, against numpy."""

import numpy as np
import pytest
import tvm
from relax_testing import TARGET, module, run_pass, tensor
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import relax as R

from relax_passes import PolymerizeDynamicOps, Report, pipeline
from tvm_moonpoly import operators

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def product_of(a, b, dtypes, out=None):
    """A function `matmul(a, b)`; the shapes `a` and `b` hold names of symbols and numbers."""
    symbols = {}

    def variable(name, shape, dtype):
        dims = [
            symbols.setdefault(d, tirx.Var(d, "int64")) if isinstance(d, str) else d for d in shape
        ]
        return relax.Var(name, relax.TensorType(dims, dtype))

    params = [variable(*each) for each in (("a", a, dtypes[0]), ("b", b, dtypes[1]))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit_output(op.matmul(*params, out_dtype=out))
        builder.emit_func_output(y)
    return builder.get()["main"]


def machine_of(func, **options):
    """The function compiled: called with arrays, it gives arrays."""
    report = Report()
    executable = tvm.compile(
        module(func), TARGET, relax_pipeline=pipeline(TARGET, report=report, **options)
    )
    vm = relax.VirtualMachine(executable, tvm.cpu())

    def call(*arrays, name="main"):
        return vm[name](*(tvm.runtime.tensor(array) for array in arrays)).numpy()

    return call, report, vm


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("out", [None, "float32"])
@pytest.mark.parametrize("verify", [False, True])
def test_narrow_floats_are_summed_in_float32(dtype, out, verify):
    call, report, _ = machine_of(
        product_of(("m", "k"), ("k", "n"), (dtype, dtype), out), verify=verify
    )
    assert len(report.rewritten) == 1
    for m, k, n in [(1, 1, 1), (5, 67, 9), (3, 0, 4), (0, 4, 2)]:
        a, b = (tensor(*shape).astype(dtype) for shape in ((m, k), (k, n)))
        got = call(a, b)
        assert got.dtype == (out or dtype) and got.shape == (m, n)
        exact = a.astype("float64") @ b.astype("float64")
        bound = (
            2 * max(k, 1) * EPS["float32"] * (abs(a.astype("float64")) @ abs(b).astype("float64"))
        )
        bound += EPS[out or dtype] * abs(exact) * 1.01 + 1e-7  # the rounding, subnormals
        assert (abs(got.astype("float64") - exact) <= bound).all()


def test_float16_sums_that_leave_its_range_or_precision():
    call, _, _ = machine_of(product_of(("m", "k"), ("k", "n"), ("float16", "float16")))
    ones = np.ones((4096, 1), "float16")
    assert call(ones.T, ones) == 4096
    there_and_back = np.repeat([200, -200], 4).astype("float16")[None]
    assert call(there_and_back, np.full((8, 1), 200, "float16")) == 0


INTEGER_CASES = [
    ("int8", "int8", "int32"),
    ("int8", "int8", None),
    ("uint8", "int8", "int32"),
    ("uint8", "uint8", None),
    ("int16", "int16", None),
    ("int32", "int32", None),
    ("uint32", "uint32", None),
    ("int64", "int64", None),
    ("int8", "int8", "int64"),
    ("int32", "int32", "int64"),
]


@pytest.mark.parametrize(("a_type", "b_type", "out"), INTEGER_CASES)
def test_integers_wrap_as_in_numpy(a_type, b_type, out):
    verify = out is None
    call, report, _ = machine_of(
        product_of(("b", "m", "k"), ("k", "n"), (a_type, b_type), out), verify=verify
    )
    assert len(report.rewritten) == 1
    rng = np.random.default_rng(3)
    for b, m, k, n in [(2, 3, 5, 9), (1, 1, 300, 1), (2, 0, 3, 4), (2, 3, 0, 4)]:
        left, right = (
            rng.integers(np.iinfo(t).min, np.iinfo(t).max, shape, t, endpoint=True)
            for t, shape in ((a_type, (b, m, k)), (b_type, (k, n)))
        )
        wide = left.astype("int64") @ right.astype("int64")
        got = call(left, right)
        assert got.dtype == (out or a_type)
        np.testing.assert_array_equal(got, wide.astype(out or a_type))


def test_int8_sums():
    call, _, _ = machine_of(product_of(("m", "k"), ("k", "n"), ("int8", "int8"), "int32"))
    lowest = np.full((512, 1), -128, "int8")
    assert call(lowest.T, lowest) == 8388608


def test_float64():
    call, report, _ = machine_of(product_of(("m", "k"), ("k", "n"), ("float64", "float64")))
    assert len(report.rewritten) == 1
    a, b = tensor(7, 19).astype("float64"), tensor(19, 5).astype("float64")
    np.testing.assert_allclose(call(a, b), a @ b, rtol=1e-13, atol=1e-13)


def test_float32_to_float64_is_summed_in_float64():
    call, _, _ = machine_of(product_of(("m", "k"), ("k", "n"), ("float32", "float32"), "float64"))
    a, b = tensor(3, 40), tensor(40, 5)
    np.testing.assert_allclose(
        call(a, b), a.astype("float64") @ b.astype("float64"), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("dtype", ["bool", "float8_e4m3fn"])
def test_other_dtypes_are_left(dtype):
    original = module(product_of(("m", "k"), ("k", "n"), (dtype, dtype)))
    after, report = run_pass(original)
    assert after.same_as(original)
    assert [e.detail for e in report] == [f"dtype {dtype} x {dtype} to {dtype}"]


def test_constant_weights_of_float16_are_packed_when_compiled():
    weight = tensor(24, 16).astype("float16")

    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 16), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            transposed = builder.emit(op.permute_dims(relax.const(weight)))
            y = builder.emit_output(op.matmul(x, transposed))
        builder.emit_func_output(y)
    func = builder.get()["main"]
    after, _ = run_pass(module(func))
    values = [binding.value for binding in after["main"].body.blocks[0].bindings]
    assert [v.op.name for v in values] == ["relax.astype", "relax.call_dps_packed", "relax.astype"]
    call, _, _ = machine_of(func)
    array = tensor(5, 16).astype("float16")
    exact = array.astype("float64") @ weight.T.astype("float64")
    np.testing.assert_allclose(call(array), exact, rtol=2e-3, atol=2e-3)


@R.function
def layers(
    x: R.Tensor(("b", "s", 24), "float32"),
    w: R.Tensor((12, 24), "float32"),
    c: R.Tensor((12,), "float32"),
    v: R.Tensor((24, 16), "float32"),
    d: R.Tensor((16,), "float32"),
):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        wt = R.permute_dims(w)
        y = R.matmul(x, wt)
        y1 = R.add(y, c)
        y2 = R.nn.relu(y1)
        z = R.matmul(x, v)
        z1 = R.add(z, d)
        yt = R.permute_dims(y2, axes=[0, 2, 1])
        out = R.matmul(yt, z1)
        R.output(out)
    return out


def layers_reference(x, w, c, v, d):
    x, w, c, v, d = (each.astype("float64") for each in (x, w, c, v, d))
    return np.maximum(x @ w.T + c, 0).transpose(0, 2, 1) @ (x @ v + d)


WEIGHTS = [tensor(12, 24), tensor(12), tensor(24, 16), tensor(16)]


def test_parameters_are_packed_by_operators_that_are_lifted():
    call, report, vm = machine_of(layers, lift_parameters=True)
    assert [entry.detail for entry in report.rewritten] == [
        "linear, weight packed by an operator, fused bias + relu",
        "linear, weight packed by an operator, fused bias",
        "product, permute_dims of a folded",
    ]
    for scale in (1, 3):  # other weights for the same executable
        weights = [each * np.float32(scale) for each in WEIGHTS]
        prepared = vm["main_transform_params"]([tvm.runtime.tensor(each) for each in weights])
        shapes = sorted(tuple(each.shape) for each in prepared)
        assert shapes == [(2, 24, 8), (2, 24, 8), (16,), (16,)]
        for batch, rows in [(1, 1), (2, 9), (0, 3)]:
            x = tensor(batch, rows, 24)
            got = vm["main"](tvm.runtime.tensor(x), *prepared).numpy()
            expected = layers_reference(x, *weights)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * scale * scale)


def test_parameters_that_are_not_lifted_are_operands():
    call, report, _ = machine_of(layers)
    assert [entry.detail for entry in report.rewritten] == [
        "product, permute_dims of b folded, fused bias + relu",
        "product, fused bias",
        "product, permute_dims of a folded",
    ]
    for batch, rows in [(1, 1), (2, 9), (0, 3)]:
        x = tensor(batch, rows, 24)
        expected = layers_reference(x, *WEIGHTS)
        np.testing.assert_allclose(call(x, *WEIGHTS), expected, rtol=1e-4, atol=1e-4)


def test_a_parameter_that_is_used_twice_is_packed_once():
    @R.function
    def func(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.matmul(y, w)
            t = R.permute_dims(w)
            u = R.matmul(z, t)
            R.output(u)
        return u

    _, _, vm = machine_of(func, lift_parameters=True)
    w, x = tensor(16, 16), tensor(3, 16)
    prepared = vm["main_transform_params"]([tvm.runtime.tensor(w)])
    assert len(prepared) == 2  # and once more for the transposed one
    got = vm["main"](tvm.runtime.tensor(x), *prepared).numpy()
    np.testing.assert_allclose(got, x @ w @ w @ w.T, rtol=1e-4, atol=1e-3)


def test_parameters_that_may_be_written_are_not_packed():
    @R.function(pure=False)
    def func(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 16), "float32")):
        R.func_attr({"num_input": 1})
        _ = R.call_packed("elsewhere", w, ty_args=R.Tuple([]))
        y = R.matmul(x, w)
        return y

    report = Report()
    PolymerizeDynamicOps(TARGET, report, pack_parameters=True)(module(func))
    assert [entry.detail for entry in report] == ["product"]


def test_static_shapes_on_request():
    func = product_of((4, 8), (8, 5), ("float32", "float32"))
    call, report, _ = machine_of(func, static=True)
    assert len(report.rewritten) == 1
    a, b = tensor(4, 8), tensor(8, 5)
    np.testing.assert_allclose(call(a, b), a @ b, rtol=1e-5, atol=1e-5)
    _, report, _ = machine_of(func)
    assert [entry.detail for entry in report] == ["static shapes"]


VERIFIED = {
    "two symbols": ((("p", "m", "k"), ("q", "k", "n")), [(2, 2), (1, 3), (3, 1), (0, 1)]),
    "one symbol": ((("p", "m", "k"), (1, "k", "n")), [(2, 1), (0, 1)]),
}


@pytest.mark.parametrize("name", VERIFIED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "float64"])
def test_verify_lets_what_is_right_pass(name, dtype):
    (a, b), batches = VERIFIED[name]
    call, _, _ = machine_of(product_of(a, b, (dtype, dtype)), verify=True)
    for p, q in batches:
        for m, k, n in [(3, 5, 2), (1, 0, 4), (4, 17, 9)]:
            left, right = tensor(p, m, k) * 3, tensor(q, k, n) * 3
            left, right = left.astype(dtype), right.astype(dtype)
            got = call(left, right).astype("float64")
            exact = left.astype("float64") @ right.astype("float64")
            if dtype == "int8":
                exact = exact.astype("int64").astype("int8")
            np.testing.assert_allclose(got, exact, rtol=4e-3, atol=4e-2)


def test_verify_keeps_the_error_of_a_mismatch():
    call, _, _ = machine_of(product_of(("m", "k"), ("j", "n"), ("float32", "float32")), verify=True)
    with pytest.raises(ValueError, match=r"k = 5, j = 6"):
        call(tensor(3, 5), tensor(6, 2))


def test_verify_finds_what_is_wrong(monkeypatch):
    """A weight that is packed wrongly."""
    pack = operators.pack_weight

    def wrong(w, lanes):
        packed = pack(w, lanes)
        packed[0, 3, 1] += 0.01
        return packed

    weight = relax.const(tensor(8, 16))

    @R.function
    def func(x: R.Tensor(("n", 8), "float32")):
        with R.dataflow():
            y = R.matmul(x, weight)
            z = R.nn.gelu(y)
            R.output(z)
        return z

    call, _, _ = machine_of(func, verify=True)
    call(tensor(4, 8))
    monkeypatch.setattr(operators, "pack_weight", wrong)
    call, _, _ = machine_of(func, verify=True)
    with pytest.raises(RuntimeError, match=r"matmul \(n, 8\) x \(8, 16\)"):
        call(tensor(4, 8))
