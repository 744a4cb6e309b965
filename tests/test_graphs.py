"""Graphs that people have, written in TVMScript: control flow, calls, tuples, names."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from bounded import Bounded, concat, exp, gelu, relu, softmax
from graph_testing import assert_right, check, compiled, ours, run
from relax_testing import TARGET, module, tensor
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import PolymerizeDynamicOps, Report, pipeline

W, B = tensor(8, 24), tensor(24)
weight, bias = relax.const(W), relax.const(B)
SIZES = (1, 5, 0, 17)


def x_of(*shape):
    return Bounded.exact(tensor(*shape))


def branches(sizes=SIZES):
    """Both branches in turn at each size, so that neither leaves anything for the other."""
    return [(tensor(n, 8), np.array(taken)) for n in sizes for taken in (True, False)]


def test_matmul_before_in_and_after_branches():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32"), taken: R.Tensor((), "bool")):
        h = R.matmul(x, weight)
        h2 = R.matmul(h, R.permute_dims(weight))
        if taken:
            y = R.matmul(h2, weight)
            u = R.add(y, bias)
        else:
            v = R.add(h2, x)
            u = R.matmul(v, weight)
        z = R.nn.relu(u)
        return R.matmul(z, R.permute_dims(weight))

    def reference(x, taken):
        x = Bounded.exact(x)
        h = x @ W @ W.T
        u = h @ W + B if taken else (h + x) @ W
        return relu(u) @ W.T

    check(graph, branches(), reference)


# TVM's StaticPlanBlockMemory plans the memory of one branch into storage that only the other one
# allocates; a call that takes the first branch never sees it, and crashes.
def test_branches_with_temporaries_of_their_own():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32"), taken: R.Tensor((), "bool")):
        if taken:
            y = R.matmul(x, weight)
            y2 = R.matmul(y, R.permute_dims(weight))
            u = R.matmul(y2, weight)
        else:
            v = R.nn.softmax(R.matmul(x, weight))
            v2 = R.matmul(v, R.permute_dims(weight))
            u = R.matmul(v2, weight)
        return u

    def reference(x, taken):
        y = Bounded.exact(x) @ W
        return (y if taken else softmax(y)) @ W.T @ W

    check(graph, branches(), reference, also_plain=False)


def test_branches_with_dimensions_of_their_own():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32"), taken: R.Tensor((), "bool")):
        if taken:
            y = R.nn.relu(R.matmul(x, weight))
            u = R.sum(y, axis=[0])
        else:
            v = R.matmul(R.nn.pad(x, [0, 1, 0, 0]), weight)
            v2 = R.exp(R.multiply(v, R.const(0.125, "float32")))
            u = R.sum(v2, axis=[0])
        last = R.matmul(R.nn.pad(x, [0, 1, 0, 0]), weight)
        return (u, last)

    def reference(x, taken):
        padded_up = Bounded.exact(np.pad(x, [(0, 1), (0, 0)])) @ W
        y = relu(Bounded.exact(x) @ W) if taken else exp(padded_up * 0.125)
        return y.sum(0)[0], padded_up

    check(graph, branches(), reference, also_plain=False)


def test_match_cast_in_each_branch():
    @R.function
    def graph(x: R.Tensor(ndim=2, dtype="float32"), taken: R.Tensor((), "bool")):
        if taken:
            k = T.int64()
            x2 = R.match_cast(x, R.Tensor((k, 8), "float32"))
            u = R.sum(R.matmul(x2, weight), axis=[0])
        else:
            m, j = T.int64(), T.int64()
            x3 = R.match_cast(x, R.Tensor((m, j), "float32"))
            y = R.matmul(R.permute_dims(x3), x3)
            u = R.sum(y, axis=[0])
        return u

    def reference(x, taken):
        x = Bounded.exact(x)
        return (x @ W if taken else x.transpose(1, 0) @ x).sum(0)[0]

    wide = (tensor(3, 5), np.array(False))
    # Plain TVM leaves stale memory where the contraction is empty.
    full = [feed for feed in branches() if len(feed[0])]
    check(graph, [*full, wide], reference, ours_only=branches((0,)))


def test_private_function_called_with_several_shapes():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def layer(
            x: R.Tensor(("rows", 8), "float32"), y: R.Tensor((8, "columns"), "float32")
        ) -> R.Tensor(("rows", "columns"), "float32"):
            z = R.matmul(x, y)
            return R.nn.relu(z)

        @R.function
        def main(
            x: R.Tensor(("n", 8), "float32"),
            y: R.Tensor(("m", 8), "float32"),
            z: R.Tensor((8, "k"), "float32"),
        ):
            cls = Module
            a = cls.layer(x, z)
            b = cls.layer(y, z)
            c = cls.layer(R.permute_dims(z), R.permute_dims(x))
            d = cls.layer(x, weight)
            return (a, b, c, d)

    def reference(x, y, z):
        x, y, z = (Bounded.exact(each) for each in (x, y, z))
        products = x @ z, y @ z, z.transpose(1, 0) @ x.transpose(1, 0), x @ W
        return tuple(relu(each) for each in products)

    sizes = [(3, 7, 5), (1, 1, 1), (5, 3, 16), (0, 4, 2), (2, 2, 0)]
    check(Module, [(tensor(n, 8), tensor(m, 8), tensor(8, k)) for n, m, k in sizes], reference)


def test_loop_by_recursion():
    @I.ir_module
    class Module:
        @R.function
        def loop(i: R.Tensor((), "int32"), x: R.Tensor(("n", 8), "float32")) -> R.Tensor(
            ndim=2, dtype="float32"
        ):
            cls = Module
            more = R.less(i, R.const(3, "int32"))
            if more:
                y = R.matmul(R.nn.relu(R.matmul(x, weight)), R.permute_dims(weight))
                longer = R.concat((y, x), axis=0)
                u = cls.loop(R.add(i, R.const(1, "int32")), longer)
            else:
                u = x
            return u

        @R.function
        def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(ndim=2, dtype="float32"):
            cls = Module
            u = cls.loop(R.const(0, "int32"), x)
            return u

    def reference(x):
        x = Bounded.exact(x)
        for _ in range(3):
            x = concat([relu(x @ W) @ W.T, x], 0)
        return x

    check(Module, [(tensor(n, 8),) for n in SIZES], reference)


def test_results_used_twice_and_in_nested_tuples():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32")):
        y = R.matmul(x, weight)
        z = R.add(y, bias)
        u = R.nn.relu(y)
        pair = (y, (z, u))
        inner = pair[1]
        v = R.matmul(inner[0], R.permute_dims(weight))
        scores = R.matmul(u, R.permute_dims(u))
        return (pair, v, y, (R.matmul(v, R.permute_dims(x)), scores))

    def reference(x):
        x = Bounded.exact(x)
        y = x @ W
        z, u = y + B, relu(y)
        v = z @ W.T
        return (y, (z, u)), v, y, (v @ x.transpose(1, 0), u @ u.transpose(1, 0))

    check(graph, [(tensor(n, 8),) for n in SIZES], reference)


def test_parameters_that_are_tuples():
    @R.function
    def graph(
        pair: R.Tuple(
            R.Tensor(("n", 8), "float32"),
            R.Tuple(R.Tensor((8, "k"), "float32"), R.Tensor(("k",), "float32")),
        ),
    ):
        x = pair[0]
        layer = pair[1]
        return R.add(R.matmul(x, layer[0]), layer[1])

    def flat_reference(x, w, b):
        return Bounded.exact(x) @ w + b

    vm, report = ours(module(graph))
    for n, k in [(3, 5), (1, 1), (0, 4), (6, 0)]:
        x, w, b = (tensor(*shape) for shape in ((n, 8), (8, k), (k,)))
        as_given = [tvm.runtime.tensor(each) for each in (x, w, b)]
        result = vm["main"]((as_given[0], (as_given[1], as_given[2])))
        assert_right([result.numpy()], flat_reference(x, w, b))
    assert len(report) == 1 and not report.left


def test_same_tensor_as_both_operands_and_chains_on_it():
    @R.function
    def graph(x: R.Tensor(("n", "n"), "float32")):
        y = R.matmul(x, x)
        z = R.matmul(y, R.permute_dims(y))
        return R.add(z, y)

    def reference(x):
        y = Bounded.exact(x) @ x
        return y @ y.transpose(1, 0) + y

    # Plain TVM leaves stale memory where the contraction is empty, not where the output is.
    check(graph, [(tensor(n, n),) for n in SIZES], reference)


def test_match_cast_before_the_use():
    @R.function
    def graph(x: R.Tensor(ndim=3, dtype="float32"), y: R.Tensor(ndim=2, dtype="float32")):
        b, n, m = T.int64(), T.int64(), T.int64()
        x2 = R.match_cast(x, R.Tensor((b, n, 8), "float32"))
        y2 = R.match_cast(y, R.Tensor((8, m), "float32"))
        z = R.matmul(x2, y2)
        z2 = R.match_cast(z, R.Tensor((b, n, 24), "float32"))
        return R.nn.gelu(R.add(z2, bias))

    def reference(x, y):
        return gelu(Bounded.exact(x) @ y + B)

    check(graph, [(tensor(b, n, 8), W) for b, n in [(2, 3), (1, 1), (0, 2)]], reference)
    vm, _ = ours(module(graph))
    with pytest.raises(RuntimeError, match="match_cast"):
        run(vm, (tensor(2, 3, 9), W))
    with pytest.raises(RuntimeError, match="match_cast"):
        run(vm, (tensor(2, 3, 8), tensor(8, 23)))


def test_data_dependent_rows():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32"), mask: R.Tensor(("n",), "bool")):
        k = T.int64()
        found = R.match_cast(R.nonzero(mask), R.Tensor((1, k), "int64"))
        rows = R.take(x, R.reshape(found, (k,)), axis=0)
        y = R.add(R.matmul(rows, weight), bias)
        return (y, R.matmul(rows, R.permute_dims(rows)))

    def reference(x, mask):
        rows = Bounded.exact(x[mask])
        return rows @ W + B, rows @ rows.transpose(1, 0)

    masks = [[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1] * 9, [0, 1]]
    check(graph, [(tensor(len(m), 8), np.array(m, "bool")) for m in masks], reference)


def test_data_dependent_contraction():
    @R.function
    def graph(ids: R.Tensor(("n",), "int64"), table: R.Tensor(("rows", "columns"), "float32")):
        k = T.int64()
        distinct = R.match_cast(R.unique(ids, sorted=True), R.Tensor((k,), "int64"))
        rows = R.take(table, distinct, axis=0)
        return R.matmul(R.permute_dims(rows), rows)

    def reference(ids, table):
        rows = Bounded.exact(table[np.unique(ids)])
        return rows.transpose(1, 0) @ rows

    ids = [[3, 1, 3, 2], [0], [5, 5, 5], list(range(6)) * 3]
    check(graph, [(np.array(each, "int64"), tensor(6, 4)) for each in ids], reference)


def test_bounds_of_dimensions():
    @R.function
    def graph(x: R.Tensor(("n", "k"), "float32"), y: R.Tensor(("k", "m"), "float32")):
        R.func_attr(
            {
                "tir_var_upper_bound": {"n": 16, "k": 64, "m": 32},
                "tir_var_lower_bound": {"n": 1, "k": 1},
            }
        )
        z = R.matmul(x, y)
        u = R.nn.softmax(z)
        v = R.matmul(R.permute_dims(u), x)
        return R.nn.softmax(v)

    def reference(x, y):
        return softmax(softmax(Bounded.exact(x) @ y).transpose(1, 0) @ x)

    sizes = [(5, 8, 6), (16, 64, 32), (1, 1, 1), (3, 33, 2)]
    feeds = [(tensor(n, k) / 4, tensor(k, m)) for n, k, m in sizes]
    check(graph, feeds, reference)


def linear_function(name, x, scale):
    """relu(x @ (W * scale) + B), whose variables are called as in all functions made here."""
    builder = relax.BlockBuilder()
    with builder.function(name, [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(W * np.float32(scale))), "y")
            z = builder.emit(relax.op.add(y, bias), "z")
            u = builder.emit_output(relax.op.nn.relu(z), "u")
        builder.emit_func_output(u)
    return builder.get()[name]


def check_both(mod, passes, second_scale):
    vm = compiled(mod, passes)
    for n in SIZES:
        for name, scale in (("main", 1), ("second", second_scale)):
            actual = run(vm, (tensor(n, 8),), name)
            assert_right(actual, relu(x_of(n, 8) @ (W * np.float32(scale)) + B))


def own_pipeline(report, rest):
    """The pass in front of the passes `rest`, as in a pipeline of the user's own."""

    @tvm.transform.module_pass(opt_level=0)
    def passes(mod, _context):
        with TARGET:
            own = PolymerizeDynamicOps(TARGET, report)
            return tvm.transform.Sequential([own, *rest])(mod)

    return passes


def test_functions_that_share_names_and_dimensions():
    n = tirx.Var("n", "int64")
    functions = {
        name: linear_function(name, relax.Var("x", relax.TensorType((n, 8), "float32")), scale)
        for name, scale in (("main", 1), ("second", 2))
    }
    report = Report()
    mod = tvm.IRModule(functions)
    check_both(mod, own_pipeline(report, [relax.get_default_pipeline(TARGET)]), 2)
    assert [entry.function for entry in report.rewritten] == ["main", "second"]


@pytest.mark.parametrize("scale", [1, 2])
def test_functions_that_share_variables(scale):
    """One Relax variable as the parameter of two functions; with scale 1, one body in both."""
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 8), "float32"))
    main = linear_function("main", x, 1)
    second = linear_function("second", x, 2) if scale == 2 else main
    mod = tvm.IRModule({"main": main, "second": second.with_attr("global_symbol", "second")})
    report = Report()
    # TVM's pass FuseOps refuses such a module, hence the pipeline without it.
    check_both(mod, own_pipeline(report, [relax.get_pipeline("default")]), scale)
    assert [entry.function for entry in report.rewritten] == ["main", "second"]


def test_pipeline_takes_shared_variables():
    """They compile with `tvm.compile(mod, target)`."""
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 8), "float32"))
    mod = tvm.IRModule({name: linear_function(name, x, 1) for name in ("main", "second")})
    check_both(mod, pipeline(TARGET), 1)


def test_module_of_nothing_but_our_calls_runs_without_a_c_compiler():
    @R.function
    def graph(x: R.Tensor((4, "k"), "float32"), y: R.Tensor(("k", 8), "float32")):
        return R.matmul(x, y)  # a static shape: not even the output's size is computed

    executable = tvm.compile(module(graph), TARGET, relax_pipeline=pipeline(TARGET))
    assert {each.kind for each in executable.mod.imports} == {"llvm"}


def test_nested_functions():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32"), y: R.Tensor((8, "k"), "float32")):
        n, k = T.int64(), T.int64()

        @R.function
        def own(z: R.Tensor(("m", 8), "float32")) -> R.Tensor(("m", 24), "float32"):
            u = R.matmul(z, weight)
            return R.nn.relu(u)

        @R.function
        def capturing(z: R.Tensor((n, 8), "float32")) -> R.Tensor((n, k), "float32"):
            u = R.matmul(z, y)
            return R.nn.relu(u)

        a = own(x)
        b = own(R.concat((x, x), axis=0))
        c = capturing(x)
        return (a, b, c)

    def reference(x, y):
        x = Bounded.exact(x)
        a = relu(x @ W)
        twice = relu(Bounded.exact(np.concatenate([x.value, x.value])) @ W)
        return a, twice, relu(x @ y)

    report = Report()
    rest = [relax.transform.LambdaLift(), relax.get_default_pipeline(TARGET)]
    vm = compiled(module(graph), own_pipeline(report, rest))
    for n, k in [(3, 5), (1, 1), (0, 4), (4, 0)]:
        feed = tensor(n, 8), tensor(8, k)
        assert_right(run(vm, feed), reference(*feed))
    assert len(report.rewritten) == 2 and not report.left


@tvm.register_global_func("moonpoly.test.graphs.double", override=True)
def double(x):
    array = np.from_dlpack(x)
    np.add(array, array, out=array)
    return x


def test_in_place_calls_around():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32"), y: R.Tensor((8, "k"), "float32")):
        n, k = T.int64(), T.int64()
        with R.dataflow():
            a = R.matmul(x, y)
            x2 = R.call_inplace_packed(
                "moonpoly.test.graphs.double",
                x,
                inplace_indices=[0],
                ty_args=R.Tensor((n, 8), "float32"),
            )
            b = R.matmul(x2, y)
            b2 = R.call_inplace_packed(
                "moonpoly.test.graphs.double",
                b,
                inplace_indices=[0],
                ty_args=R.Tensor((n, k), "float32"),
            )
            c = R.matmul(x2, R.permute_dims(x2))
            R.output(a, b2, c)
        return (a, b2, c)

    def reference(x, y):
        x = Bounded.exact(x)
        doubled = Bounded.exact(2 * x.value)
        b = doubled @ y
        return x @ y, b + b, doubled @ doubled.transpose(1, 0)

    check(graph, [(tensor(n, 8), tensor(8, k)) for n, k in [(3, 5), (1, 1), (0, 2)]], reference)
