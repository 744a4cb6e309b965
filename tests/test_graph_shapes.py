"""Graphs whose dimensions are expressions, several symbols, or known at run time only."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from bounded import Bounded, gelu, relu, silu, softmax
from graph_testing import check, ours, run
from relax_testing import check_left, module, tensor
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

W, B = tensor(8, 24), tensor(24)
weight, bias = relax.const(W), relax.const(B)


def product(a, b):
    return Bounded.exact(a) @ b


def raises_both_sizes(vm, feed, *sizes):
    with pytest.raises((ValueError, RuntimeError)) as caught:
        run(vm, feed)
    for size in sizes:
        assert str(size) in str(caught.value)


# Dimension expressions


def test_expressions_of_one_dimension():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        twice = R.concat((x, x), axis=0)
        quads = R.reshape(x, (n * 2, 4))
        long = R.reshape(x, (1, n * 8))
        more = R.nn.pad(x, [0, 1, 0, 0])
        a = R.nn.relu(R.add(R.matmul(twice, weight), bias))
        b = R.matmul(R.permute_dims(twice), twice)
        c = R.matmul(quads, R.permute_dims(quads))
        d = R.matmul(long, R.permute_dims(long))
        e = R.matmul(more, weight)
        f = R.matmul(R.permute_dims(more), more)
        g = R.matmul(more, R.permute_dims(twice))
        return (a, b, c, d, e, f, g)

    def reference(x):
        n = len(x)
        twice, quads = np.concatenate([x, x]), x.reshape(2 * n, 4)
        long, more = x.reshape(1, -1), np.pad(x, [(0, 1), (0, 0)])
        return (
            relu(product(twice, W) + B),
            product(twice.T, twice),
            product(quads, quads.T),
            product(long, long.T),
            product(more, W),
            product(more.T, more),
            product(more, twice.T),
        )

    # Plain TVM leaves stale memory where the contraction is empty.
    check(graph, [(tensor(n, 8),) for n in (3, 1, 16)], reference, ours_only=[(tensor(0, 8),)])


def test_quotients():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        wide = R.reshape(x, (n // 4, 32))
        narrow = R.reshape(R.matmul(wide, R.permute_dims(wide)), (1, n // 4, n // 4))
        y = R.matmul(narrow, wide)
        return (y, R.matmul(R.permute_dims(wide), wide))

    def reference(x):
        wide = x.reshape(len(x) // 4, 32)
        narrow = product(wide, wide.T).reshape(1, len(wide), len(wide))
        return narrow @ wide, product(wide.T, wide)

    check(graph, [(tensor(n, 8),) for n in (4, 8, 20)], reference, ours_only=[(tensor(0, 8),)])


def test_products_of_dimensions_given_with_the_call():
    @R.function
    def graph(
        x: R.Tensor(("n", "k * 2"), "float32"),
        y: R.Tensor(("k * 2", "m * 32"), "float32"),
        sizes: R.Shape(["k", "m"]),
    ):
        return R.matmul(x, y)

    shapes = [(3, 3, 2), (1, 1, 1), (0, 2, 1), (2, 5, 0)]
    feeds = [(tensor(n, 2 * k), tensor(2 * k, 32 * m), tvm_ffi.Shape([k, m])) for n, k, m in shapes]
    empty = (tensor(3, 0), tensor(0, 32), tvm_ffi.Shape([0, 1]))
    check(graph, feeds, lambda x, y, _: product(x, y), ours_only=[empty])


def test_windows_and_steps():
    @R.function
    def graph(x: R.Tensor(("n", 8), "float32")):
        halves = R.strided_slice(x, axes=[0], begin=[0], end=[1000], strides=[2])
        y = R.matmul(halves, weight)
        z = R.matmul(x, R.permute_dims(halves))
        return (y, z)

    def reference(x):
        return product(x[::2], W), product(x, x[::2].T)

    check(graph, [(tensor(n, 8),) for n in (4, 5, 1, 0)], reference)


# Several symbols


def test_all_dimensions_at_once():
    @R.function
    def graph(
        x: R.Tensor(("b", "m", "k"), "float32"),
        y: R.Tensor(("b", "k", "n"), "float32"),
        z: R.Tensor(("h", "b", "n", "k"), "float32"),
    ):
        u = R.matmul(x, y)
        v = R.nn.relu(u)
        w = R.matmul(v, R.permute_dims(y, axes=[0, 2, 1]))
        t = R.matmul(u, z)
        return (u, w, t)

    def reference(x, y, z):
        u = product(x, y)
        return u, relu(u) @ y.transpose(0, 2, 1), u @ z

    def feed(b, m, k, n, h):
        return tensor(b, m, k), tensor(b, k, n), tensor(h, b, n, k)

    sizes = [(2, 3, 4, 5, 2), (1, 1, 1, 1, 1), (0, 3, 4, 5, 2), (2, 0, 4, 5, 1), (3, 17, 33, 9, 1)]
    empty = [(2, 3, 0, 5, 1), (2, 3, 4, 0, 1), (2, 3, 0, 0, 2)]
    # Plain TVM leaves stale memory where a contraction is empty.
    feeds = [feed(*each) for each in sizes]
    check(graph, feeds, reference, ours_only=[feed(*each) for each in empty])


def test_broadcast_batch_dimensions():
    @R.function
    def graph(
        x: R.Tensor(("b", 1, "m", "k"), "float32"),
        y: R.Tensor(("h", "k", "n"), "float32"),
        z: R.Tensor((1, "n", "k"), "float32"),
    ):
        u = R.matmul(x, y)
        v = R.matmul(u, z)
        return (u, v)

    def reference(x, y, z):
        u = product(x, y)
        return u, u @ z

    sizes = [(2, 3, 4, 5, 6), (1, 1, 1, 1, 1), (0, 2, 3, 4, 5), (2, 0, 3, 4, 5)]
    feeds = [(tensor(b, 1, m, k), tensor(h, k, n), tensor(1, n, k)) for b, h, m, k, n in sizes]
    check(graph, feeds, reference)


def test_two_symbols_in_the_contraction():
    @R.function
    def graph(x: R.Tensor(("m", "k"), "float32"), y: R.Tensor(("j", "n"), "float32")):
        return R.nn.relu(R.matmul(x, y))

    # Of sizes that differ, plain TVM reads out of bounds or fails, by luck.
    check(
        graph,
        [
            (tensor(m, k), tensor(k, n))
            for m, k, n in [(2, 3, 4), (1, 1, 1), (0, 3, 2), (5, 33, 17)]
        ],
        lambda x, y: relu(product(x, y)),
        ours_only=[(tensor(2, 0), tensor(0, 3))],
    )
    vm, _ = ours(module(graph))
    for k, j in [(3, 5), (5, 3), (1, 7), (0, 4), (4, 0)]:
        with pytest.raises(ValueError, match=f"k = {k}, j = {j}"):
            run(vm, (tensor(2, k), tensor(j, 4)))


BATCHES = [(2, 2), (1, 2), (2, 1), (1, 1), (0, 1), (1, 0), (0, 0), (5, 5), (1, 17)]


def test_two_symbols_in_the_batch():
    @R.function
    def graph(x: R.Tensor(("a", "m", 8), "float32"), y: R.Tensor(("b", 8, "n"), "float32")):
        return R.matmul(x, y)

    # Plain TVM knows no shape for such a product, and does not compile it.
    feeds = [(tensor(a, 3, 8), tensor(b, 8, 4)) for a, b in BATCHES]
    check(graph, feeds, product, also_plain=False)
    vm, _ = ours(module(graph))
    for a, b in [(2, 3), (3, 2), (0, 2), (2, 0)]:
        raises_both_sizes(vm, (tensor(a, 3, 8), tensor(b, 8, 4)), a, b)


def test_several_pairs_of_symbols_in_the_batch():
    @R.function
    def graph(
        x: R.Tensor(("a", 3, "c", "m", "k"), "float32"),
        y: R.Tensor(("b", 1, "d", "k", "n"), "float32"),
    ):
        u = R.matmul(x, y)
        v = R.nn.relu(u)
        return R.nn.softmax(v)

    pairs = [((2, 2), (1, 4)), ((1, 3), (4, 1)), ((2, 1), (2, 2)), ((0, 1), (1, 1))]
    feeds = [(tensor(a, 3, c, 2, 5), tensor(b, 1, d, 5, 4)) for (a, b), (c, d) in pairs]
    check(graph, feeds, lambda x, y: softmax(relu(product(x, y))), also_plain=False)
    vm, _ = ours(module(graph))
    raises_both_sizes(vm, (tensor(2, 3, 4, 2, 5), tensor(2, 1, 3, 5, 4)), 4, 3)


def test_two_symbols_in_the_batch_then_other_operators():
    @R.function
    def graph(
        x: R.Tensor(("a", "m", 8), "float32"),
        y: R.Tensor(("b", 8, 8), "float32"),
    ):
        u = R.matmul(x, y)
        v = R.nn.relu(R.matmul(u, weight))
        w = R.add(v, bias)
        z = R.matmul(w, R.permute_dims(w, axes=[0, 2, 1]))
        return (u, R.nn.softmax(z))

    def reference(x, y):
        u = product(x, y)
        w = relu(u @ W) + B
        return u, softmax(w @ w.transpose(0, 2, 1))

    feeds = [(tensor(a, 3, 8) / 16, tensor(b, 8, 8)) for a, b in BATCHES]
    check(graph, feeds, reference, also_plain=False)


# Shapes known at run time only; plain TVM compiles none of these.


@pytest.mark.parametrize(
    "a, b",
    [(2, 2), (3, 3), (4, 3), (2, 3), (3, 2), (1, 2), (2, 1), (3, 1), (1, 1)],
)
def test_ranks_alone(a, b):
    x = relax.Var("x", relax.TensorType(ndim=a, dtype="float32"))
    y = relax.Var("y", relax.TensorType(ndim=b, dtype="float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            z = builder.emit_output(relax.op.matmul(x, y))
        builder.emit_func_output(z)

    def operands(k, j, batch_a=2, batch_b=2):
        left = (k,) if a == 1 else (*[batch_a] * (a - 2), 3, k)
        right = (j,) if b == 1 else (*[batch_b] * (b - 2), j, 6)
        return tensor(*left), tensor(*right)

    feeds = [operands(k, k) for k in (5, 1, 33, 0)]
    feeds += [operands(5, 5, *batches) for batches in [(1, 2), (2, 1), (1, 1), (0, 1), (1, 0)]]
    check(builder.get(), feeds, product, also_plain=False)
    vm, _ = ours(builder.get())
    raises_both_sizes(vm, operands(5, 7), 5, 7)
    if min(a, b) > 2:
        raises_both_sizes(vm, operands(5, 5, 4, 9), 4, 9)


def test_rank_alone_times_a_weight():
    @R.function
    def graph(x: R.Tensor(ndim=3, dtype="float32")):
        y = R.add(R.matmul(x, weight), bias)
        z = R.nn.gelu(y)
        return R.matmul(z, R.permute_dims(weight))

    feeds = [(tensor(b, n, 8),) for b, n in [(2, 3), (1, 1), (0, 4), (3, 0), (2, 17)]]
    check(graph, feeds, lambda x: gelu(product(x, W) + B) @ W.T, also_plain=False)
    vm, _ = ours(module(graph))
    raises_both_sizes(vm, (tensor(2, 3, 9),), 9, 8)


def test_rank_alone_in_a_chain():
    @R.function
    def graph(x: R.Tensor(ndim=3, dtype="float32"), y: R.Tensor(("b", 8, "n"), "float32")):
        u = R.matmul(x, y)
        v = R.nn.softmax(u)
        w = R.matmul(R.permute_dims(v, axes=[0, 2, 1]), x)
        return (w, R.nn.relu(w))

    def reference(x, y):
        w = softmax(product(x, y)).transpose(0, 2, 1) @ x
        return w, relu(w)

    feeds = [
        (tensor(b, m, 8) / 4, tensor(b, 8, n)) for b, m, n in [(2, 3, 4), (1, 1, 1), (3, 5, 2)]
    ]
    check(graph, feeds, reference, also_plain=False)


def test_ranks_alone_transposed():
    @R.function
    def graph(
        x: R.Tensor(ndim=2, dtype="float32"),
        y: R.Tensor(ndim=3, dtype="float32"),
        z: R.Tensor(ndim=2, dtype="float32"),
    ):
        u = R.matmul(x, R.permute_dims(y, axes=[0, 2, 1]))
        return R.matmul(u, R.permute_dims(z))

    def reference(x, y, z):
        return product(x, y.transpose(0, 2, 1)) @ z.T

    sizes = [(2, 3, 8, 5, 4), (1, 1, 1, 1, 1), (0, 2, 3, 4, 5), (2, 3, 0, 5, 4), (3, 17, 9, 2, 33)]
    feeds = [(tensor(m, k), tensor(b, n, k), tensor(j, n)) for b, m, k, n, j in sizes]
    check(graph, feeds, reference, also_plain=False)


def test_rank_alone_used_twice():
    @R.function
    def graph(x: R.Tensor(ndim=3, dtype="float32")):
        gate = R.nn.silu(R.matmul(x, weight))
        return R.multiply(gate, R.matmul(x, weight))

    def reference(x):
        y = product(x, W)
        return silu(y) * y

    feeds = [(tensor(b, n, 8),) for b, n in [(2, 3), (1, 1), (0, 4), (3, 0), (2, 17)]]
    check(graph, feeds, reference, also_plain=False)


def test_ranks_alone_between_functions():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def layer(
            x: R.Tensor(ndim=2, dtype="float32"), y: R.Tensor(ndim=2, dtype="float32")
        ) -> R.Tensor(ndim=2, dtype="float32"):
            z = R.matmul(x, y)
            return z

        @R.function
        def main(x: R.Tensor(("n", 8), "float32"), y: R.Tensor((8, "k"), "float32")) -> R.Tensor(
            ndim=2, dtype="float32"
        ):
            cls = Module
            a = cls.layer(R.permute_dims(y), R.permute_dims(x))
            b = cls.layer(a, x)
            return R.matmul(b, weight)

    def reference(x, y):
        return product(y.T, x.T) @ x @ W

    feeds = [(tensor(n, 8), tensor(8, k)) for n, k in [(3, 5), (1, 1), (17, 2), (0, 3), (3, 0)]]
    check(Module, feeds, reference, also_plain=False)


def test_shape_given_with_the_call():
    @R.function
    def graph(x: R.Tensor(("n",), "float32"), shape: R.Shape(ndim=2)):
        y = R.reshape(x, shape)
        return R.matmul(y, weight)

    feeds = [(tensor(8 * n), tvm_ffi.Shape([n, 8])) for n in (2, 1, 17)]
    check(graph, feeds, lambda x, s: product(x.reshape(tuple(s)), W), also_plain=False)


def test_unknown_rank_or_dtype_is_left():
    for types in (
        (relax.TensorType(dtype="float32"), relax.TensorType((8, 3), "float32")),
        (relax.TensorType((tirx.Var("n", "int64"), 8), None), relax.TensorType((8, 3), None)),
    ):
        params = [relax.Var(name, each) for name, each in zip("xy", types, strict=True)]
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            z = builder.emit(relax.op.matmul(*params))
            builder.emit_func_output(z)
        (reason,) = check_left(builder.get()["main"])
        assert reason
