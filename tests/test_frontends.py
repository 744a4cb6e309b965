"""Graphs as they come from ONNX, from `relax.frontend.nn` and from torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from bounded import Bounded, constant, gelu, gelu_tanh, relu, silu, softmax
from graph_testing import assert_right, check, lifted
from onnx import TensorProto, helper, numpy_helper
from relax_testing import tensor
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import spec
from tvm.relax.frontend.nn.modules import Attention
from tvm.relax.frontend.onnx import from_onnx

FLOAT = TensorProto.FLOAT


def product(a, b):
    return Bounded.exact(a) @ b


# ONNX


def onnx_model(nodes, inputs, output, constants=(), flags=()):
    """One output `y`; inputs and output are shapes, in which a string is a `dim_param`. `flags`
    are scalar inputs of type bool."""
    typed = [(name, FLOAT, shape) for name, shape in inputs.items()]
    typed += [(name, TensorProto.BOOL, []) for name in flags]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*each) for each in typed],
        [helper.make_tensor_value_info("y", FLOAT, output)],
        [numpy_helper.from_array(array, name) for name, array in dict(constants).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def sized(shape, sizes):
    return tensor(*(sizes.get(dim, dim) for dim in shape))


SIZES = [
    dict(zip("bhmnk", each, strict=True))
    for each in [(2, 3, 4, 5, 6), (1, 1, 1, 1, 1), (3, 2, 17, 9, 33), (2, 0, 3, 4, 5)]
]
EMPTY = [dict(zip("bhmnk", (2, 3, 4, 5, 0), strict=True))]


@pytest.mark.parametrize(
    "a, b, y",
    [
        ("mk", "kn", "mn"),
        ("bmk", "kn", "bmn"),
        ("bmk", "bkn", "bmn"),
        ("b1mk", "hkn", "bhmn"),
        ("mk", "bhkn", "bhmn"),
        ("k", "kn", "n"),
        ("bmk", "k", "bm"),
        ("k", "bkn", "bn"),
        ("k", "k", ""),
    ],
    ids=lambda shape: shape or "scalar",
)
def test_onnx_matmul(a, b, y):
    a, b, y = ([1 if dim == "1" else dim for dim in shape] for shape in (a, b, y))
    mod = from_onnx(onnx_model([helper.make_node("MatMul", "ab", "y")], {"a": a, "b": b}, y))
    feeds, empty = ([(sized(a, s), sized(b, s)) for s in sizes] for sizes in (SIZES, EMPTY))
    check(mod, feeds, product, ours_only=empty)  # plain TVM: stale memory where K is 0


@pytest.mark.parametrize("side", ["left", "right", "vector on the right"])
def test_onnx_matmul_with_a_constant(side):
    node = helper.make_node("MatMul", "wx" if side == "left" else "xw", "y")
    shapes = {
        "left": ((6, 8), ["b", 8, "n"], ["b", 6, "n"]),
        "right": ((8, 24), ["b", "m", 8], ["b", "m", 24]),
        "vector on the right": ((8,), ["b", "m", 8], ["b", "m"]),
    }
    shape, x, y = shapes[side]
    w = tensor(*shape)
    mod = from_onnx(onnx_model([node], {"x": x}, y, {"w": w}))
    check(
        mod,
        [(sized(x, sizes),) for sizes in SIZES],
        (lambda x: product(w, x)) if side == "left" else (lambda x: product(x, w)),
    )


def test_onnx_matmul_of_two_batch_sizes():
    node = helper.make_node("MatMul", "ab", "y")
    shapes = {"a": ["b", "m", 8], "b": ["c", 8, "n"]}
    mod = from_onnx(onnx_model([node], shapes, ["d", "m", "n"]))
    pairs = [(2, 2), (2, 1), (1, 3), (0, 1)]
    feeds = [(tensor(b, 4, 8), tensor(c, 8, 5)) for b, c in pairs]
    check(mod, feeds, product, also_plain=False)  # plain TVM does not compile it


@pytest.mark.parametrize("weight", ["constant", "input"])
@pytest.mark.parametrize("transposed_b", [0, 1])
@pytest.mark.parametrize("transposed_a", [0, 1])
@pytest.mark.parametrize("alpha, beta", [(1.0, 1.0), (0.3, 1.7)])
def test_onnx_gemm(transposed_a, transposed_b, alpha, beta, weight):
    node = helper.make_node(
        "Gemm", "xwc", "y", alpha=alpha, beta=beta, transA=transposed_a, transB=transposed_b
    )
    w, c = tensor(*(24, 8) if transposed_b else (8, 24)), tensor(24)
    x = [8, "m"] if transposed_a else ["m", 8]
    constants = {"c": c} | ({"w": w} if weight == "constant" else {})
    inputs = {"x": x} | ({} if weight == "constant" else {"w": list(w.shape)})
    mod = from_onnx(onnx_model([node], inputs, ["m", 24], constants))

    def reference(x, w=w):
        x = Bounded.exact(x.T if transposed_a else x) * float(np.float32(alpha))
        return x @ (w.T if transposed_b else w) + Bounded.exact(c) * float(np.float32(beta))

    feeds = [(sized(x, sizes), *([] if weight == "constant" else [w])) for sizes in SIZES]
    check(mod, feeds, reference)


@pytest.mark.parametrize("shape", ["none", "", "1", "m1", "1n", "n", "mn", "11"])
def test_onnx_gemm_of_all_dynamic_operands(shape):
    c = [1 if dim == "1" else dim for dim in shape]
    inputs = {"a": ["m", "k"], "b": ["k", "n"]} | ({} if shape == "none" else {"c": c})
    node = helper.make_node("Gemm", list(inputs), "y", beta=0.3)

    def reference(a, b, *c):
        y = product(a, b)
        return y + Bounded.exact(c[0]) * float(np.float32(0.3)) if c else y

    mod = from_onnx(onnx_model([node], inputs, ["m", "n"]))
    feeds, empty = (
        [tuple(sized(each, s) for each in inputs.values()) for s in sizes]
        for sizes in (SIZES, EMPTY)
    )
    check(mod, feeds, reference, ours_only=empty)  # plain TVM: stale memory where K is 0


def test_onnx_attention_as_exporters_write_it():
    """Heads split by Shape, Gather, Concat and Reshape; scores masked by an addend."""
    make = helper.make_node
    heads, depth, width = 2, 4, 8
    w = {
        name: tensor(width, width) * scale for name, scale in zip("qkvo", (1, 2, 3, 4), strict=True)
    }
    nodes = [
        make("Shape", ["x"], ["shape"]),
        make("Gather", ["shape", "zero"], ["batch"], axis=0),
        make("Gather", ["shape", "one"], ["length"], axis=0),
        make("Unsqueeze", ["batch", "axis"], ["batch1"]),
        make("Unsqueeze", ["length", "axis"], ["length1"]),
        make("Concat", ["batch1", "length1", "heads", "depth"], ["split"], axis=0),
        make("Concat", ["batch1", "length1", "width"], ["merged"], axis=0),
    ]
    for name, axes in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            make("MatMul", ["x", f"w{name}"], [f"{name}1"]),
            make("Reshape", [f"{name}1", "split"], [f"{name}2"]),
            make("Transpose", [f"{name}2"], [f"{name}3"], perm=axes),
        ]
    nodes += [
        make("MatMul", ["q3", "k3"], ["scores"]),
        make("Mul", ["scores", "scale"], ["scaled"]),
        make("Add", ["scaled", "mask"], ["masked"]),
        make("Softmax", ["masked"], ["weights"], axis=-1),
        make("MatMul", ["weights", "v3"], ["mixed"]),
        make("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        make("Reshape", ["back", "merged"], ["joined"]),
        make("MatMul", ["joined", "wo"], ["projected"]),
        make("Add", ["projected", "x"], ["y"]),
    ]
    integers = {"zero": 0, "one": 1, "axis": [0], "heads": [heads], "depth": [depth]}
    constants = {f"w{name}": array for name, array in w.items()}
    constants |= {name: np.array(value, "int64") for name, value in integers.items()}
    constants |= {"width": np.array([width], "int64"), "scale": np.float32(0.5).reshape(())}
    shapes = {"x": ["b", "s", width], "mask": ["b", 1, 1, "s"]}
    mod = from_onnx(onnx_model(nodes, shapes, ["b", "s", width], constants))

    def reference(x, mask):
        batch, length, _ = x.shape
        q, k, v = (
            product(x, w[name]).reshape(batch, length, heads, depth).transpose(0, 2, 1, 3)
            for name in "qkv"
        )
        weights = softmax(q @ k.transpose(0, 1, 3, 2) * 0.5 + mask)
        mixed = (weights @ v).transpose(0, 2, 1, 3)
        return mixed.reshape(batch, length, width) @ w["o"] + x

    feeds = []
    for b, s in [(2, 3), (1, 1), (3, 17), (0, 4)]:
        mask = np.zeros((b, 1, 1, s), "float32")
        mask[1:, :, :, -1] = np.finfo("float32").min
        feeds.append((tensor(b, s, width) / 16, mask))
    # one product for all that attention reads, and one of what it gives
    assert [entry.operator for entry in check(mod, feeds, reference)] == [
        *("attention", "matmul", "matmul"),
    ]


def test_onnx_if():
    make = helper.make_node
    w, v = tensor(8, 24), tensor(24, 8)
    result = [helper.make_tensor_value_info("branch", FLOAT, ["m", 8])]
    bodies = {
        "then_branch": [make("MatMul", "xw", ["t"]), make("MatMul", "tv", ["branch"])],
        "else_branch": [
            make("MatMul", "xw", ["e"]),
            make("Relu", ["e"], ["r"]),
            make("MatMul", "rv", ["branch"]),
        ],
    }
    branches = {name: helper.make_graph(body, name, [], result) for name, body in bodies.items()}
    node = make("If", ["taken"], ["y"], **branches)
    constants = {"w": w, "v": v}
    model = onnx_model([node], {"x": ["m", 8]}, ["m", 8], constants, flags=["taken"])

    def reference(x, taken):
        y = product(x, w)
        return (y if taken else relu(y)) @ v

    feeds = [(tensor(m, 8), np.array(taken)) for m in (3, 1, 0, 17) for taken in (True, False)]
    check(from_onnx(model), feeds, reference)


# relax.frontend.nn: the weights are parameters that follow the inputs


def exported(module, shape, argument="x"):
    """The function `forward` of one tensor, and random weights for its parameters."""
    mod, params = module.export_tvm({"forward": {argument: spec.Tensor(shape, "float32")}})
    weights = [tensor(*(int(dim) for dim in param.shape)) for _, param in params]
    names = [name for name, _ in params]
    return mod, dict(zip(names, weights, strict=True))


def check_exported(module, shape, xs, reference, **options):
    """As they are, and with the weights packed once by a function of their own."""
    mod, weights = exported(module, shape, **options)
    feeds = [(x, *weights.values()) for x in xs]
    check(mod, feeds, lambda x, *_: reference(Bounded.exact(x), weights), name="forward")
    run, report = lifted(mod, list(weights.values()), "forward")
    for x in xs:
        assert_right(run((x,)), reference(Bounded.exact(x), weights))
    packed = [entry for entry in report if "weight packed by an operator" in entry.detail]
    linear_layers = sum(array.ndim == 2 for array in weights.values())
    assert len(packed) == linear_layers and not report.left


@pytest.mark.parametrize("bias", [True, False])
def test_nn_linear(bias):
    def reference(x, w):
        y = x @ w["weight"].T
        return y + w["bias"] if bias else y

    xs = [tensor(m, 8) for m in (1, 5, 0, 17)]
    check_exported(nn.Linear(8, 24, bias=bias), ["m", 8], xs, reference)


def test_nn_linear_of_dynamic_widths():
    mod, _ = nn.Linear("inner", "outer").export_tvm(
        {"forward": {"x": spec.Tensor(["m", "inner"], "float32")}}
    )
    sizes = [(3, 8, 5), (1, 1, 1), (0, 4, 2), (17, 33, 24)]
    feeds = [(tensor(m, k), tensor(n, k), tensor(n)) for m, k, n in sizes]
    check(mod, feeds, lambda x, w, b: product(x, w.T) + b, name="forward")


class Mlp(nn.Module):
    def __init__(self, activation):
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8, bias=False)
        self.activation = activation

    def forward(self, x):
        return self.down(self.activation(self.up(x))) + x


@pytest.mark.parametrize(
    "activation, reference",
    [
        (nn.op.relu, relu),
        (nn.op.gelu, gelu),
        (lambda x: nn.op.gelu(x, approximate="tanh"), gelu_tanh),
        (nn.op.silu, silu),
    ],
    ids=["relu", "gelu", "gelu tanh", "silu"],
)
def test_nn_mlp(activation, reference):
    def mlp(x, w):
        return reference(x @ w["up.weight"].T + w["up.bias"]) @ w["down.weight"].T + x

    xs = [tensor(b, s, 8) / 4 for b, s in [(2, 3), (1, 1), (0, 4), (3, 17)]]
    check_exported(Mlp(activation), ["batch", "length", 8], xs, mlp)


def nn_attention(x, w, heads, depth):
    batch, length, _ = x.shape
    q, k, v = (
        (x @ w[f"to_{name}.weight"].T).reshape(batch, length, heads, depth).transpose(0, 2, 1, 3)
        for name in "qkv"
    )
    scale = constant(depth**-0.5)
    mixed = softmax(q @ k.transpose(0, 1, 3, 2) * scale) @ v
    mixed = mixed.transpose(0, 2, 1, 3).reshape(batch, length, heads * depth)
    return mixed @ w["to_out.0.weight"].T + w["to_out.0.bias"]


def test_nn_attention():
    xs = [tensor(b, s, 16) / 16 for b, s in [(2, 3), (1, 1), (3, 17)]]
    check_exported(
        Attention(16, heads=2, dim_head=8),
        ["batch", "length", 16],
        xs,
        lambda x, w: nn_attention(x, w, 2, 8),
        argument="hidden_states",
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nn_linear_that_sums_in_float32(dtype):
    mod, _ = nn.Linear(64, 24, dtype=dtype, out_dtype="float32").export_tvm(
        {"forward": {"x": spec.Tensor(["m", 64], dtype)}}
    )
    from test_graph_dtypes import values

    w, b = values(dtype, 24, 64), tensor(24)

    def reference(x, w, b):
        return product(x.astype("float64"), w.T.astype("float64")) + b

    check(mod, [(values(dtype, m, 64), w, b) for m in (1, 5, 0, 17)], reference, name="forward")
