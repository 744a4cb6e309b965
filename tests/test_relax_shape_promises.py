"""Promises about dimensions: written down, checked at the call, and used."""

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from relax_testing import TARGET, module, tensor
from tvm import relax
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_moonpoly as mp
from relax_passes import (
    CheckReshapes,
    LegalizeAroundViews,
    PromiseShapes,
    Range,
    TellPrimFuncs,
    facts,
    pipeline,
)
from relax_passes.shape_facts_prim import in_steps
from relax_passes.shape_range import LARGEST
from tvm_moonpoly.model_explanation import planned_memory


@R.function
def plain(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("n", "m"), "float32")):
    n = T.int64()
    with R.dataflow():
        a = R.reshape(x, (n // 4, 32))
        b = R.exp(a)
        R.output(b)
    return b


def ran(mod, *shapes, **options):
    executable = tvm.compile(mod, TARGET, relax_pipeline=pipeline(TARGET, **options))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    operands = [tensor(*shape) for shape in shapes]
    return machine, lambda *each: machine["main"](
        *(tvm.runtime.tensor(operand) for operand in each or operands)
    ).numpy()


def test_promises_become_attributes_and_a_check():
    @R.function
    def expected(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("n", "m"), "float32")):
        n, m = T.int64(), T.int64()
        R.func_attr(
            {
                "tir_var_upper_bound": {"m": 9, "n": 512},
                "tir_var_lower_bound": {"n": 1},
                "moonpoly.multiple_of": {"n": 8},
                "moonpoly.likely": {"n": [64, 128]},
                "moonpoly.checked": {"n": [1, 512, 8], "m": [0, 9, 1]},
            }
        )
        with R.dataflow():
            c = R.call_pure_packed(
                "vm.builtin.match_shape",
                R.shape([n]),
                R.prim_value(0),
                R.prim_value(1),
                R.prim_value(0),
                R.prim_value(T.max(T.min(n, 512), 8) // 8 * 8),
                R.str(
                    "main: the dimension n must be between 1 and 512 and a multiple of 8 "
                    "(axis 0 of the input x);"
                ),
                ty_args=R.Shape(ndim=-1),
            )
            kept = R.match_cast(c, R.Any)  # noqa: F841
            d = R.call_pure_packed(
                "vm.builtin.match_shape",
                R.shape([m]),
                R.prim_value(0),
                R.prim_value(1),
                R.prim_value(0),
                R.prim_value(T.min(m, 9)),
                R.str("main: the dimension m must be between 0 and 9 (axis 1 of the input y);"),
                ty_args=R.Shape(ndim=-1),
            )
            also = R.match_cast(d, R.Any)  # noqa: F841
            a = R.reshape(x, (n // 4, 32))
            b = R.exp(a)
            R.output(b)
        return b

    original = module(plain)
    after = PromiseShapes({"n": Range(1, 512, 8, (64, 128)), "y:1": (0, 9)})(original)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, module(expected))
    tvm.ir.assert_structural_equal(original, module(plain))
    # what is checked is not checked again, unless more is promised
    assert PromiseShapes()(after).same_as(after)
    assert PromiseShapes({"n": (0, 600)})(after).same_as(after)
    more = PromiseShapes({"n": Range(16)})(after)["main"]
    assert more.attrs["tir_var_lower_bound"]["n"] == 16
    assert more.script().count("match_shape") == 3


def test_without_promises_nothing_changes():
    original = module(plain)
    assert PromiseShapes()(original).same_as(original)
    assert PromiseShapes({"x:1": Range(1, 8)})(original).same_as(original)


@pytest.mark.parametrize(
    "dims, reason",
    [
        ({"k": (1, 2)}, "no function has a dimension 'k'; dynamic are: n, m"),
        ({"x:2": (1, 2)}, "no function has a dimension 'x:2'; dynamic are: n, m"),
        ({"n": (2, 1)}, "the range of 'n' must rise from 0 or more, got (2, 1)"),
        ({"n": 4}, "'n' must be a Range or two numbers, not 4"),
        ({"n": "m"}, "'n' must be a Range or two numbers, not 'm'"),
        ({"x:1": (9, 16)}, "'x:1' has the fixed size 8, not between 9 and 16"),
    ],
)
def test_promises_that_do_not_fit(dims, reason):
    with pytest.raises(ValueError) as caught:
        PromiseShapes(dims)(module(plain))
    assert str(caught.value) == f"dims: {reason}"


def test_promises_that_contradict_each_other():
    with pytest.raises(ValueError) as caught:
        PromiseShapes({"n": (8, 16), "x:0": (0, 4)})(module(plain))
    assert str(caught.value) == (
        "dims: no size of 'n' is between 0 and 4 (dims['x:0']), and between 8 and 16 (dims['n'])"
    )
    bounded = plain.with_attr("tir_var_upper_bound", {"n": 16})
    with pytest.raises(ValueError) as caught:
        PromiseShapes({"n": Range(17, multiple_of=4)})(module(bounded))
    assert str(caught.value) == (
        "dims: no size of 'n' is between 0 and 16 (attributes of main), and at least 17 and a "
        "multiple of 4 (dims['n'])"
    )
    # 12 is the first multiple of both
    with pytest.raises(ValueError, match=r"of 3 \(dims\['x:0'\]\), and between 1 and 8 and a"):
        PromiseShapes({"n": Range(1, 8, 4), "x:0": Range(0, 11, 3), "y:0": (1, 9)})(module(plain))


@pytest.mark.parametrize("a", [Range(), Range(3, 7), Range(0, 9, 4), Range(5, None, 6)], ids=str)
@pytest.mark.parametrize("b", [Range(2, 3), Range(9, 20, 3), Range(8, 11), Range(7)], ids=str)
def test_ranges_meet_where_they_have_a_size_in_common(a, b):
    common = [size for size in range(100) if size in a and size in b]
    assert a.meets(b) == b.meets(a) == bool(common)
    if common:
        assert [size for size in range(100) if size in a & b] == common
    else:
        with pytest.raises(ValueError, match="Range: no size is "):
            a & b


@pytest.mark.parametrize(
    "numbers, said",
    [
        ((10, 8), "smallest must be at most largest, not 10 with largest 8"),
        ((9, 15, 8), "no multiple of multiple_of, 8, is from smallest, 9, to largest, 15"),
        ((0, 8, 1, (9,)), "the likely size 9 is not between 0 and 8"),
        ((0, -1), "largest must be a whole number from 0 on, not -1"),
        ((LARGEST, None, 2), f"no multiple of multiple_of, 2, is from smallest, {LARGEST}, to"),
    ],
)
def test_ranges_without_a_size_name_their_arguments(numbers, said):
    with pytest.raises(ValueError) as caught:
        Range(*numbers)
    assert str(caught.value).startswith(f"Range: {said}")


def test_a_dimension_that_is_computed():
    @R.function
    def cache(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("n + 1", 8), "float32")):
        return x

    with pytest.raises(ValueError, match=r"dims: 'y:0' is computed \(n \+ .*give the ranges of"):
        PromiseShapes({"y:0": (1, 4)})(module(cache))


# --- at the call


def test_a_broken_promise_raises_at_the_call():
    _, run = ran(module(plain), (8, 8), (8, 3), dims={"n": Range(1, 64, 8), "m": (1, 4)})
    x = tensor(8, 8)
    assert np.allclose(run(), np.exp(x).reshape(2, 32), rtol=1e-6)
    for n, m, rule in (
        (12, 3, r"n must be between 1 and 64 and a multiple of 8 \(axis 0 of the input x\)"),
        (0, 3, "n must be between 1 and 64 and a multiple of 8"),
        (72, 3, "n must be between 1 and 64 and a multiple of 8"),
        (8, 0, r"m must be between 1 and 4 \(axis 1 of the input y\)"),
        (8, 5, "m must be between 1 and 4"),
    ):
        with pytest.raises(RuntimeError, match=f"^main: the dimension {rule}.* instead of "):
            run(tensor(n, 8), tensor(n, m))


def test_bounds_that_others_wrote_are_checked():
    """TVM plans memory by them, and fails in the middle of the function."""
    bounded = plain.with_attr("tir_var_upper_bound", {"n": 16})
    _, run = ran(module(bounded), (16, 8), (16, 3))
    assert run().shape == (4, 32)
    with pytest.raises(RuntimeError, match="the dimension n must be between 0 and 16"):
        run(tensor(20, 8), tensor(20, 3))


@pytest.mark.parametrize("dims", [None, {"n": Range(0, 64, 4)}, {"n": (0, 1000), "m": (0, 9)}])
def test_results_are_the_same_with_and_without_promises(dims):
    _, run = ran(module(plain), (4, 8), (4, 3), dims=dims)
    for n in (0, 4, 20, 64):
        x = tensor(n, 8)
        assert np.allclose(run(x, tensor(n, 3)), np.exp(x).reshape(n // 4, 32), rtol=1e-6)


# --- reshapes


def compiled_calls(func, **dims):
    """The loops and the views that become of `func`."""
    mod = CheckReshapes()(PromiseShapes(dims)(module(func)))
    return LegalizeAroundViews()(mod)["main"].script()


def test_a_promise_proves_a_reshape():
    assert "match_shape" in CheckReshapes()(module(plain))["main"].script()
    promised = PromiseShapes({"n": Range(multiple_of=4)})(module(plain))
    checked = CheckReshapes()(promised)
    assert checked.same_as(promised)
    assert (
        "match_shape"
        in CheckReshapes()(PromiseShapes({"n": (1, 2)})(module(plain)))["main"]
        .script()
        .replace("the dimension n", "")
        and checked["main"].script().count("match_shape") == 1
    )


def test_a_second_check_of_one_equation_is_not_needed():
    @R.function
    def twice(x: R.Tensor(("n", "h"), "float32")):
        n, h = T.int64(), T.int64()
        with R.dataflow():
            a = R.reshape(x, (n * h // 4, 4))
            b = R.reshape(a, (n, h))
            c = R.reshape(b, (2 * (n * h // 4), 2))
            R.output(c)
        return c

    text = CheckReshapes()(module(twice))["main"].script()
    assert text.count("match_shape") == 1


@R.function
def back_and_forth(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        a = R.exp(x)
        b = R.reshape(a, (n // 4, 32))
        c = R.add(b, R.const(1.0))
        d = R.reshape(c, (n, 8))
        R.output(d)
    return d


def test_a_reshape_with_a_division_is_a_view_once_it_is_checked():
    mod = CheckReshapes()(module(back_and_forth))
    legal = LegalizeAroundViews()(mod)
    text = legal["main"].script()
    assert "R.reshape(a" in text and "R.reshape(c" not in text  # the latter leaves the function
    assert [gv.name_hint for gv, f in legal.functions_items() if "reshape" in gv.name_hint] == [
        "reshape"
    ]
    unchecked = LegalizeAroundViews()(module(back_and_forth))["main"].script()
    assert "R.reshape(" not in unchecked


def test_views_and_copies_give_the_same():
    for options in ({}, {"check_reshapes": False}, {"dims": {"n": Range(0, 64, 4)}}):
        _, run = ran(module(back_and_forth), (4, 8), **options)
        for n in (0, 4, 28):
            x = tensor(n, 8)
            result = run(x)
            assert np.allclose(result, np.exp(x) + 1, rtol=1e-6)


def test_a_result_is_never_a_view_of_an_operand():
    @R.function
    def same(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            a = R.reshape(x, (n // 4, 32))
            b = R.reshape(a, (n, 8))
            R.output(b)
        return b

    machine, _ = ran(module(same), (4, 8))
    x = tvm.runtime.tensor(tensor(4, 8))
    result = machine["main"](x)
    tvm.runtime.tensor(np.zeros((4, 8), "float32")).copyto(x)
    assert np.array_equal(result.numpy(), tensor(4, 8))


# --- PrimFuncs


@R.function
def rows(x: R.Tensor(("n", "h"), "float32"), y: R.Tensor(("m", "h"), "float32")):
    with R.dataflow():
        a = R.sum(x, axis=[1])
        b = R.sum(y, axis=[1])
        R.output(a, b)
    return a, b


def test_a_prim_func_is_told_what_holds_at_all_its_calls():
    mod = PromiseShapes({"n": Range(1, 64, 8), "m": Range(0, 32, 12), "h": Range(16, 64, 16)})(
        module(rows)
    )
    told = TellPrimFuncs()(relax.transform.LegalizeOps()(mod))
    (gv,) = [gv for gv, f in told.functions_items() if gv.name_hint == "sum"]
    func = told[gv]
    known = {var.name: each for var, each in facts(func).ranges.items()}
    assert known["h"] == Range(16, 64, 16)
    assert Range(0, 64, 4) in known.values()
    assert (
        TellPrimFuncs()(relax.transform.LegalizeOps()(module(rows)))[gv.name_hint].attrs.get(
            "moonpoly.multiple_of"
        )
        is None
    )


def test_a_public_prim_func_is_told_nothing():
    mod = PromiseShapes({"h": Range(16, 64, 16)})(module(rows))
    legal = relax.transform.LegalizeOps()(mod)
    (gv,) = [gv for gv, f in legal.functions_items() if gv.name_hint == "sum"]
    legal.update_func(gv, legal[gv].with_attr("global_symbol", "sum"))
    assert "moonpoly.multiple_of" not in TellPrimFuncs()(legal)[gv].attrs


def test_loops_along_multiples_have_no_rest():
    mod = PromiseShapes({"h": Range(16, 64, 16)})(module(rows))
    told = TellPrimFuncs()(relax.transform.LegalizeOps()(mod))
    (gv,) = [gv for gv, f in told.functions_items() if gv.name_hint == "sum"]
    text = in_steps(told[gv], 16).script()
    assert "h // T.int64(16) * T.int64(16)" in text
    assert in_steps(told[gv], 32).script() == told[gv].script()


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("largest", [64, 1 << 20])
def test_sums_of_rows_with_and_without_promises(cores, largest):
    """Small ones are serial, and rows of whole vectors have no tail."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": cores})
    promise = {"h": Range(16, largest, 16), "n": (0, 8), "m": (0, 8)}
    executable = tvm.compile(module(rows), target, relax_pipeline=pipeline(target, dims=promise))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for n, m, h in ((0, 1, 16), (3, 8, 48), (7, 5, 64)):
        x, y = tensor(n, h), tensor(m, h) + 1
        a, b = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y))
        assert np.allclose(a.numpy(), x.sum(1, dtype="float64"), atol=1e-5)
        assert np.allclose(b.numpy(), y.sum(1, dtype="float64"), atol=1e-5)


# --- ONNX


def network(shape=("n", "s", 4)):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_an_import_writes_and_checks_ranges():
    mod = mp.import_onnx(network(), {"n": (1, 4), "x:1": mp.Range(8, 64, multiple_of=8)})
    func = mod["main"]
    assert dict(func.attrs["tir_var_upper_bound"]) == {"n": 4, "s": 64}
    assert dict(func.attrs["moonpoly.multiple_of"]) == {"s": 8}
    _, run = ran(mod, (2, 16, 4))
    assert np.array_equal(run(), np.maximum(tensor(2, 16, 4), 0))
    with pytest.raises(RuntimeError, match="the dimension s must be between 8 and 64 and a mult"):
        run(tensor(2, 12, 4))


@pytest.mark.parametrize(
    "dims, reason",
    [
        ({"n": 4, "x:0": (5, 6)}, None),
        ({"n": (1, 4), "x:0": (5, 6)}, None),
        ({"x:2": (5, 8)}, "dims: 'x:2' has the fixed size 4, not between 5 and 8"),
        ({"x:2": "c"}, "dims: 'x:2' has the fixed size 4: it cannot be called 'c'"),
        ({"s": 1.5}, "dims: 's' must be a size, a name or a range, not 1.5"),
        ({"s": (1.5, 2)}, r"dims: 's' must be a Range or two numbers, not \(1.5, 2\)"),
    ],
)
def test_ranges_that_do_not_fit_a_model(dims, reason):
    if reason is None:  # the more special name is the one that counts
        assert mp.import_onnx(network(), dims)["main"].attrs["tir_var_lower_bound"]["n"] == 5
        return
    with pytest.raises(ValueError, match=reason):
        mp.import_onnx(network(), dims)


def test_promises_that_contradict_each_other_in_a_model():
    with pytest.raises(ValueError) as caught:
        mp.import_onnx(network(("n", "n", 4)), {"x:0": (1, 4), "x:1": (5, 6)})
    assert str(caught.value) == (
        "dims: no size of 'n' is between 1 and 4 (dims['x:0']), and between 5 and 6 (dims['x:1'])"
    )


@pytest.mark.parametrize("known", [(1, 4), Range(4), Range(0, 8, 2)], ids=str)
def test_a_fixed_size_within_the_range(known):
    """Both ends of the compiler take it, as it is kept already."""
    mod = mp.import_onnx(network(), {"x:2": known})
    assert "tir_var_upper_bound" not in (mod["main"].attrs or {})
    assert PromiseShapes({"x:2": known})(mod).same_as(mod)


def test_ranges_of_a_renamed_dimension():
    model = network(("n", "n", 4))
    func = mp.import_onnx(model, {"n": "batch", "x:1": (2, 8)})["main"]
    assert dict(func.attrs["tir_var_upper_bound"]) == {"batch": 8}


# --- memory


def storages(mod, **options):
    """The sizes of the blocks that a call of `mod` allocates."""
    steps = []
    pipeline(TARGET, steps=steps, **options)(mod)
    return planned_memory(steps, {}).expressions


@R.function
def chain(x: R.Tensor(("n", 64), "float32"), y: R.Tensor(("m", 64), "float32")):
    with R.dataflow():
        a = R.sum(x, axis=[0], keepdims=True)
        b = R.nn.softmax(R.add(x, a))
        c = R.nn.softmax(R.add(y, R.max(b, axis=[0], keepdims=True)))
        d = R.nn.softmax(R.sum(c, axis=[0]))
        R.output(d)
    return d


def test_blocks_of_bounded_tensors_have_one_size():
    free = storages(module(chain))
    bounded = storages(module(chain), dims={"n": (0, 100), "m": (0, 90)})
    assert any("n" in size for size in free) and any("m" in size for size in free)
    assert all(size.isdigit() for size in bounded)
    assert len(bounded) <= len(free)  # tensors of n rows and of m rows share them
    assert max(map(int, bounded)) == 100 * 64 * 4


def test_memory_does_not_grow_with_changing_shapes():
    _, run = ran(module(chain), (3, 64), (5, 64), dims={"n": (0, 100), "m": (0, 90)})
    for n, m in ((100, 90), (1, 1), (0, 0), (37, 90), (100, 3)):
        x, y = tensor(n, 64), tensor(m, 64)
        b = softmax(x + x.sum(0, keepdims=True))
        most = b.max(0, keepdims=True) if n else np.full((1, 64), np.finfo("float32").min)
        c = softmax(y + most)
        assert np.allclose(run(x, y), softmax(c.sum(0)), atol=1e-5)


def softmax(x):
    if not x.size:
        return x.astype("float64")
    e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_what_is_told_of_other_variables_stays():
    told = plain.with_attr("tir_var_upper_bound", {"n": 16, "inside": 3})
    after = PromiseShapes({"m": (1, 9)})(module(told))["main"]
    assert dict(after.attrs["tir_var_upper_bound"]) == {"n": 16, "inside": 3, "m": 9}
    assert set(after.attrs["moonpoly.checked"]) == {"n", "m"}


def test_sizes_that_never_are_do_not_stop_the_compiler():
    """`n` is one number for both tensors, and cannot be within both ranges."""
    mod = PromiseShapes({"n": (1, 4), "m": (8, 16)})(module(rows))
    legal = relax.transform.LegalizeOps()(mod)
    add = tvm.te.create_prim_func(elementwise(), index_dtype_override="int64")
    builder = relax.BlockBuilder(legal)
    both = builder.add_func(add.without_attr("global_symbol"), "both")
    x, y = (relax.Var(each.name, each.ty) for each in legal["main"].params)
    attrs = {key: value for key, value in legal["main"].attrs.items() if key != "global_symbol"}
    with builder.function("other", [x, y], attrs=attrs):
        z = relax.call_tir(both, [x, y], out_ty=x.ty)
        builder.emit_func_output(builder.emit(z))
    told = TellPrimFuncs()(builder.get())[both]
    assert {each.largest for each in facts(told).ranges.values()} <= {4, 16, None}


def elementwise():
    n, h = (tvm.te.var(name, "int64") for name in "nh")
    a, b = (tvm.te.placeholder((n, h), "float32", name) for name in "ab")
    return [a, b, tvm.te.compute((n, h), lambda i, j: a[i, j] + b[i, j], "c")]
