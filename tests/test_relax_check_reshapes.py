"""The pass CheckReshapes: a reshape that loses or invents elements raises at the call."""

import re

import numpy as np
import onnx
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from relax_testing import module, tensor
from tvm import relax, tirx
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import CheckReshapes, pipeline
from relax_passes.element_count import count, provably_equal


def symbols(names):
    return [tirx.Var(name, "int64") for name in names]


def changed(func):
    before = module(func)
    after = CheckReshapes()(before)
    relax.analysis.well_formed(after)
    return not after.same_as(before)


@R.function
def fewer(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    with R.dataflow():
        y = R.reshape(x, (n // 4, 32))
        z = R.add(y, y)
        R.output(z)
    return z


@R.function
def more(x: R.Tensor(("n", 8), "float32")):
    n = T.int64()
    y = R.reshape(x, ((n + 3) // 4, 32))
    z = R.add(y, y)
    return z


def test_the_check_comes_before_the_reshape():
    @R.function
    def expected(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            check = R.call_pure_packed(
                "vm.builtin.match_shape",
                R.shape([n // 4 * 32]),
                R.prim_value(0),
                R.prim_value(1),
                R.prim_value(0),
                R.prim_value(n * 8),
                R.str(
                    "main: reshape (n, 8) -> (n // 4, 32) changes the number of elements: "
                    "n // 4 * 32 instead of n * 8;"
                ),
                ty_args=R.Shape(ndim=-1),
            )
            kept = R.match_cast(check, R.Any)  # noqa: F841
            y = R.reshape(x, (n // 4, 32))
            z = R.add(y, y)
            R.output(z)
        return z

    original = module(fewer)
    after = CheckReshapes()(original)
    tvm.ir.assert_structural_equal(after, module(expected))
    tvm.ir.assert_structural_equal(original, module(fewer))


def reshape_of(before, after):
    """A function that reshapes, from the dimensions of its operand and the new ones."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(before, "float32"))
    sizes = relax.Var("sizes", relax.ShapeType([b, s, h, d, n]))  # where the symbols come from
    with builder.function("main", [x, sizes]):
        builder.emit_func_output(builder.emit(relax.op.reshape(x, after)))
    return builder.get()["main"]


b, s, h, d, n = symbols("bshdn")


@pytest.mark.parametrize(
    "before, after",
    [
        ((b, s, h * d), (b * s, h, d)),
        ((b, s, h, d), (d * s, h * b)),
        ((b, s, 768), (b, s, 12, 64)),
        ((b, s, 768), (-1, 768)),
        ((b, s, h, d), (b, -1)),
        ((b, s, 768), (-1, 64)),
        ((n, 8), (4 * n, 2)),
        ((n + 1, s), (n * s + s,)),
        ((b, n * 2 + 4), (2 * b, n + 2)),
        ((n * 4, 8), ((n * 4) // 4, 32)),
        ((n // 4, 32), (n // 4 * 8, 4)),
        ((4, 6), (3, 8)),
        ((4, 6), (-1,)),
        ((), (1, 1)),
        ((0, n), (0,)),
    ],
    ids=str,
)
def test_nothing_is_added_where_the_numbers_are_provably_equal(before, after):
    assert not changed(reshape_of(before, after))


@pytest.mark.parametrize(
    "before, after",
    [((n, 8), (n // 4, 32)), ((n, 8), (-1, 32)), ((n, s), (s, s)), ((n, 8, s), (8 * s,))],
    ids=str,
)
def test_what_is_not_provable_is_checked(before, after):
    assert changed(reshape_of(before, after))


TERMS = st.recursive(
    st.sampled_from(["n", "m", "s", 0, 1, 2, 3]),
    lambda each: st.tuples(st.sampled_from(["+", "-", "*", "//"]), each, each),
    max_leaves=6,
)


def build(term, leaves):
    """The term on symbols or on numbers."""
    if not isinstance(term, tuple):
        return leaves[term]
    operator, a, c = term[0], build(term[1], leaves), build(term[2], leaves)
    if operator == "//":
        return a // (c * c + 1)
    return {"+": a + c, "-": a - c, "*": a * c}[operator]


@given(TERMS, TERMS, st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_what_counts_as_provable_is_true(left, right, values):
    constants = {i: tirx.const(i, "int64") for i in range(4)}
    on_symbols = dict(zip("nms", symbols("nms"), strict=True)) | constants
    on_numbers = dict(zip("nms", values, strict=True)) | {i: i for i in range(4)}
    a, c = build(left, on_symbols), build(right, on_symbols)
    if provably_equal(a, c):
        assert build(left, on_numbers) == build(right, on_numbers)
    assert provably_equal(count([a, c]), count([c, a]))


def given_passes(target, *passes):
    """A Relax pipeline: the given passes, then TVM's own."""

    @tvm.transform.module_pass(opt_level=0)
    def run(mod, _ctx):
        return tvm.transform.Sequential([*passes, relax.get_default_pipeline(target)])(mod)

    return run


def compiled(mod, target, relax_pipeline=None):
    mod = mod if isinstance(mod, tvm.IRModule) else module(mod)
    return tvm.compile(
        mod, target, relax_pipeline=relax_pipeline or given_passes(target, CheckReshapes())
    )


def machine(executable):
    return relax.VirtualMachine(executable, tvm.cpu())


def run(vm, *arguments, name="main"):
    def passed(value):
        if isinstance(value, tuple):
            return tvm.runtime.ShapeTuple(value)
        return tvm.runtime.tensor(np.asarray(value))

    return vm[name](*map(passed, arguments)).numpy()


def check_raises(vm, *arguments, message, name="main"):
    with pytest.raises(RuntimeError) as caught:
        run(vm, *arguments, name=name)
    # in our own pipeline the numbers follow the text
    said = re.sub(r"^(.*) (\d+) instead of (\d+)$", r"(\2 vs. \3) : \1", str(caught.value))
    assert message in said


FEWER = (
    "(32 vs. 48) : main: reshape (n, 8) -> (n // 4, 32) changes the number of elements: "
    "n // 4 * 32 instead of n * 8"
)


def check_fewer(vm):
    x = tensor(8, 8)
    np.testing.assert_array_equal(run(vm, x), 2 * x.reshape(2, 32))
    assert run(vm, tensor(0, 8)).shape == (0, 32)
    check_raises(vm, tensor(6, 8), message=FEWER)
    check_raises(vm, tensor(3, 8), message="(0 vs. 24)")
    np.testing.assert_array_equal(run(vm, x), 2 * x.reshape(2, 32))


@tvm.transform.module_pass(opt_level=0)
def cleaned_and_fused(mod, _ctx):
    """What may drop or move a binding that nothing uses."""
    passes = [
        CheckReshapes(),
        relax.transform.ConvertToDataflow(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
        relax.get_pipeline("zero"),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.DeadCodeElimination(),
        relax.get_pipeline("default"),
    ]
    return tvm.transform.Sequential(passes)(mod)


@tvm.transform.module_pass(opt_level=0)
def unfused(mod, _ctx):
    return tvm.transform.Sequential([CheckReshapes(), relax.get_pipeline("default")])(mod)


@pytest.mark.parametrize("relax_pipeline", [None, cleaned_and_fused, unfused], ids=str)
def test_raises_whatever_else_the_pipeline_does(target, relax_pipeline):
    check_fewer(machine(compiled(fewer, target, relax_pipeline)))


def test_raises_in_ours(target):
    @tvm.transform.module_pass(opt_level=0)
    def both(mod, _ctx):
        return pipeline(target)(CheckReshapes()(mod))

    check_fewer(machine(compiled(fewer, target, both)))


def test_raises_in_compiled_mode(target):
    executable = relax.build(
        module(fewer),
        target,
        relax_pipeline=given_passes(target, CheckReshapes()),
        exec_mode="compiled",
    )
    check_fewer(machine(executable))


def test_raises_after_export(target, tmp_path):
    path = str(tmp_path / "model.so")
    compiled(fewer, target).export_library(path)
    check_fewer(machine(tvm.runtime.load_module(path)))


def test_the_check_is_there_for_a_gpu():
    cuda = tvm.target.Target("nvidia/nvidia-a100").with_host("llvm")
    with cuda:
        mod = relax.get_default_pipeline(cuda)(CheckReshapes()(module(fewer)))
    assert "changes the number of elements" in mod.script()


def test_nothing_is_read_beyond_the_operand(target):
    vm = machine(compiled(more, target))
    x = tensor(8, 8)
    np.testing.assert_array_equal(run(vm, x), 2 * x.reshape(2, 32))
    check_raises(vm, tensor(6, 8), message="(64 vs. 48)")


@pytest.fixture(scope="module")
def everywhere(target):
    """Reshapes in branches, in a nested function, and in two functions."""

    @R.function
    def branches(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        if c:
            y = R.reshape(x, (n // 4, 32))
            z = R.reshape(y, (n * 8,))
        else:
            u = R.reshape(x, (n // 2, 16))
            z = R.reshape(u, (n * 8,))
        return z

    @R.function
    def nested(x: R.Tensor(("n", 8), "float32")):
        @R.function
        def inner(y: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m // 4", 32), "float32"):
            m = T.int64()
            z = R.reshape(y, (m // 4, 32))
            return z

        w = inner(x)
        return w

    mod = tvm.IRModule(
        {
            name: func.with_attr("global_symbol", name)
            for name, func in {"branches": branches, "nested": nested, "main": fewer}.items()
        }
    )
    passes = [CheckReshapes(), relax.transform.LambdaLift()]
    return machine(compiled(mod, target, given_passes(target, *passes)))


def test_in_branches_only_the_one_taken_is_checked(everywhere):
    x = tensor(6, 8)
    np.testing.assert_array_equal(run(everywhere, x, False, name="branches"), x.ravel())
    check_raises(
        everywhere, x, True, message="branches: reshape (n, 8) -> (n // 4, 32)", name="branches"
    )
    check_raises(everywhere, tensor(7, 8), False, message="(n // 2, 16)", name="branches")


def test_in_a_nested_function(everywhere):
    x = tensor(4, 8)
    np.testing.assert_array_equal(run(everywhere, x, name="nested"), x.reshape(1, 32))
    check_raises(everywhere, tensor(6, 8), message="nested: reshape (m, 8)", name="nested")


def test_in_each_function_of_a_module(everywhere):
    check_fewer(everywhere)


def test_the_same_question_is_asked_once():
    @R.function
    def func(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
        n = T.int64()
        y = R.reshape(x, (n // 4, 32))
        z = R.reshape(x, (32, n // 4))
        u = R.reshape(y, (8, n))
        if c:
            v = R.reshape(u, (n // 4, 4, 8))
            w = R.reshape(v, (n * 8,))
        else:
            w = R.reshape(z, (n * 8,))
        return w

    assert CheckReshapes()(module(func)).script().count("R.match_cast") == 1


def test_a_function_of_another_backend_is_left_alone():
    assert not changed(fewer.with_attr("Codegen", "theirs"))


def test_a_module_without_doubt_is_returned_as_it_is():
    @R.function
    def func(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        y = R.reshape(x, (n * 2, 4))
        return y

    assert not changed(func)


@R.function
def by_shape_of(x: R.Tensor(("n", 8), "float32"), y: R.Tensor(("a", "b"), "float32")):
    shape = R.shape_of(y)
    z = R.reshape(x, shape)
    return z


@R.function
def by_known_shape(x: R.Tensor(("n", 8), "float32"), shape: R.Shape(["a", "b"])):
    z = R.reshape(x, shape)
    return z


@R.function
def by_rank(x: R.Tensor(("n", 8), "float32"), shape: R.Shape(ndim=2)):
    z = R.reshape(x, shape)
    return z


@R.function
def by_any_shape(x: R.Tensor(("n", 8), "float32"), shape: R.Shape):
    z = R.reshape(x, shape)
    return z


@R.function
def of_rank(x: R.Tensor(ndim=2, dtype="float32"), shape: R.Shape(["a", "b"])):
    a, b = T.int64(), T.int64()
    z = R.reshape(x, R.shape([a, b]))
    return z


@R.function
def of_any(x: R.Tensor(dtype="float32"), shape: R.Shape(["a", "b"])):
    a, b = T.int64(), T.int64()
    z = R.reshape(x, R.shape([a, b]))
    return z


@R.function
def by_computed(x: R.Tensor(("n", 8), "float32"), dims: R.Tensor((2,), "int64")):
    shape = R.tensor_to_shape(dims)
    z = R.reshape(x, shape)
    return z


@R.function
def by_either(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((2,), "int64")):
    n = T.int64()
    condition = R.greater(R.max(c), R.const(3, "int64"))
    if condition:  # noqa: SIM108 - TVMScript knows no conditional expression
        shape = R.shape([n // 4, 32])
    else:
        shape = R.shape([n * 2, 4])
    z = R.reshape(x, shape)
    return z


def of_shape(shape):
    return tensor(*shape)


COUNTS = "reshape (n, 8) -> "
VIEW = "View with shape"


@pytest.mark.parametrize(
    "func, second, message",
    [
        (by_shape_of, of_shape, COUNTS + "(a, b)"),
        (by_known_shape, tuple, COUNTS + "(a, b)"),
        (by_rank, tuple, COUNTS + "(shape_0, shape_1)"),
        (by_any_shape, tuple, VIEW),
        (of_rank, tuple, "reshape (x_0, x_1) -> (a, b)"),
        (of_any, tuple, VIEW),
        (by_computed, np.array, COUNTS + "(shape_0, shape_1)"),
    ],
    ids=["shape_of", "known", "rank", "any", "operand of known rank", "any operand", "computed"],
)
def test_shapes_that_come_with_the_call(target, func, second, message):
    vm = machine(compiled(func, target))
    x = tensor(6, 8)
    for shape in [(12, 4), (1, 48)]:
        np.testing.assert_array_equal(run(vm, x, second(shape)), x.reshape(shape))
    assert run(vm, tensor(0, 8), second((0, 5))).shape == (0, 5)
    for shape in [(1, 32), (4, 32), (0, 8)]:
        with pytest.raises((RuntimeError, ValueError), match=re.escape(message)):
            run(vm, x, second(shape))


def test_a_shape_from_one_of_two_branches(target):
    vm = machine(compiled(by_either, target))
    x = tensor(6, 8)
    np.testing.assert_array_equal(run(vm, x, np.array([0, 1])), x.reshape(12, 4))
    check_raises(vm, x, np.array([9, 9]), message="(32 vs. 48)")


def test_beside_weights_that_are_transformed_beforehand(target):
    @R.function
    def func(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((4, 32), "float32")):
        R.func_attr({"num_input": 1})
        n = T.int64()
        with R.dataflow():
            y = R.reshape(x, (n // 4, 32))
            u = R.reshape(w, (8, 16))
            v = R.permute_dims(R.reshape(u, (4, 32)))
            z = R.matmul(y, v)
            R.output(z)
        return z

    passes = [CheckReshapes(), relax.transform.LiftTransformParams()]
    vm = machine(compiled(func, target, given_passes(target, *passes)))
    w = tensor(4, 32)
    (transformed,) = vm["main_transform_params"]([tvm.runtime.tensor(w)])
    x = tensor(8, 8)
    result = vm["main"](tvm.runtime.tensor(x), transformed).numpy()
    np.testing.assert_allclose(result, x.reshape(2, 32) @ w.T, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="changes the number of elements"):
        vm["main"](tvm.runtime.tensor(tensor(6, 8)), transformed)


def test_squeeze_of_a_dimension_that_is_not_one(target):
    @R.function
    def func(x: R.Tensor(("n", 8), "float32")):
        y = R.squeeze(x, axis=[0])
        z = R.add(y, y)
        return z

    vm = machine(compiled(func, target))
    x = tensor(1, 8)
    np.testing.assert_array_equal(run(vm, x), 2 * x[0])
    check_raises(vm, tensor(3, 8), message="main: squeeze (n, 8) -> (8)")
    check_raises(vm, tensor(0, 8), message="(8 vs. 0)")


def onnx_reshape(dims, new):
    nodes = [
        helper.make_node("Reshape", ["x", "new"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "reshape",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None] * len(new))],
        [numpy_helper.from_array(np.array(new, "int64"), "new")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return from_onnx(model)


@pytest.mark.parametrize("new", [(0, -1), (-1, 12), (0, 0, 2, 2), (-1, 2)], ids=str)
def test_onnx_reshapes_that_are_sure(new):
    mod = onnx_reshape(["n", 3, 4], new)
    assert CheckReshapes()(mod).same_as(mod)


def test_onnx_reshapes_that_are_not(target):
    vm = machine(compiled(onnx_reshape(["n", "m", 4], (0, -1, 8)), target))
    x = tensor(3, 6, 4)
    np.testing.assert_array_equal(run(vm, x), np.maximum(x.reshape(3, 3, 8), 0))
    assert run(vm, tensor(0, 5, 4)).shape == (0, 2, 8)
    check_raises(vm, tensor(3, 5, 4), message="(48 vs. 60)")
