"""Resizing with tables of columns: against TVM's own loops, and what is not one stays."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_testing import TARGET, tensor
from test_relax_memory_bound import UNKNOWN, chain
from tvm import relax, tirx
from tvm.script import tirx as T

from relax_passes import ScheduleMemoryBound
from relax_passes.schedule_columns import schedule_columns

N, H, W = (tirx.Var(name, "int64") for name in "nhw")
TWO_CORES = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
METHODS = {
    "nearest": ("nearest_neighbor", "asymmetric", "floor"),
    "nearest, rounded": ("nearest_neighbor", "half_pixel", "round"),
    "linear": ("linear", "half_pixel", ""),
    "cubic": ("cubic", "half_pixel", ""),
}
SIZES = {
    "twice": lambda h, w: (h * 2, w * 2),
    "nearly twice": lambda h, w: (h * 2 - 1, w * 2 - 1),
    "three times": lambda h, w: (h * 3, w * 3),
    "half": lambda h, w: (h // 2, w // 2),
    "others": lambda h, w: (h + 4, w + 9),
}


def resize(method, size, layout="NCHW"):
    """The function that TVM makes of it, of a tensor (n, 3, h, w) or (n, h, w, 3)."""
    shape = (N, 3, H, W) if layout == "NCHW" else (N, H, W, 3)
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    kind, coordinates, rounding = METHODS[method]
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        out = relax.op.image.resize2d(
            x,
            relax.ShapeExpr(size(H, W)),
            layout=layout,
            method=kind,
            coordinate_transformation_mode=coordinates,
            rounding_method=rounding,
        )
        builder.emit_func_output(builder.emit(out))
    mod = relax.transform.LegalizeOps()(builder.get())
    (func,) = (each for each in mod.functions.values() if isinstance(each, tirx.PrimFunc))
    return func.with_attr("global_symbol", "f")


def call(func, x, size):
    target = func.attrs.get("target", TARGET)
    out = tvm.runtime.tensor(np.full((*x.shape[:2], *size), np.nan, "float32"))
    tvm.compile(tvm.IRModule({"f": func}), target)["f"](tvm.runtime.tensor(x), out)
    return out.numpy()


PAIRS = [
    ("nearest", "twice"),
    ("nearest", "nearly twice"),
    ("nearest", "three times"),
    ("nearest, rounded", "half"),
    ("nearest, rounded", "others"),
    ("linear", "twice"),
    ("linear", "others"),
    ("cubic", "half"),
]


@pytest.mark.parametrize(("method", "size"), PAIRS)
def test_like_the_loops_without_tables(method, size):
    before = resize(method, SIZES[size])
    variants = {
        "before": before,
        "serial": schedule_columns(before),
        "shared": schedule_columns(before, parallel=True),
    }
    named = {name: func.with_attr("global_symbol", name) for name, func in variants.items()}
    executable = tvm.compile(tvm.IRModule(named), TARGET)
    for shape in [(1, 1, 1), (2, 5, 7), (1, 8, 16), (1, 4, 8), (3, 13, 9), (1, 2, 33), (4, 70, 61)]:
        x = tensor(shape[0], 3, *shape[1:])
        x.flat[x.size // 2] = np.inf
        x.flat[x.size // 3] = np.nan
        results = []
        for name in variants:
            out = tvm.runtime.tensor(np.full((shape[0], 3, *SIZES[size](*shape[1:])), 7, "float32"))
            executable[name](tvm.runtime.tensor(x), out)
            results.append(out.numpy())
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-5)


def test_empty_tensors():
    func = tvm.compile(
        tvm.IRModule({"f": schedule_columns(resize("nearest", SIZES["twice"]))}), TARGET
    )["f"]
    for n, h, w in [(0, 3, 3), (1, 0, 3), (1, 3, 0), (1, 0, 0)]:
        out = tvm.runtime.tensor(np.empty((n, 3, 2 * h, 2 * w), "float32"))
        func(tvm.runtime.tensor(np.empty((n, 3, h, w), "float32")), out)


def test_each_element_twice_is_a_copy_of_vectors():
    x = tensor(2, 3, 9, 21)
    func = schedule_columns(resize("nearest", SIZES["twice"]))
    result = call(func, x, (18, 42))
    np.testing.assert_array_equal(result, x.repeat(2, axis=2).repeat(2, axis=3))


def test_nothing_is_rounded_in_the_loop_over_columns():
    func = schedule_columns(resize("linear", SIZES["twice"]))
    nest = func.body.block.body.seq[-1]
    columns = nest.body.body.body
    rounded = []

    def visit(node):
        if node.op.name == "tirx.floor" and columns.loop_var in free(node):
            rounded.append(node)

    def free(node):
        found = set()
        tvm_ffi.structural_walk(node, (tirx.Var, found.add))
        return found

    tvm_ffi.structural_walk(columns, (tvm.ir.Call, visit))
    assert isinstance(columns, tirx.For) and not rounded
    assert len(func.body.block.alloc_buffers) == 4  # two places, two weights


@T.prim_func(s_tir=True)
def each_twice(a: T.handle, b: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n, m))
    B = T.match_buffer(b, (n, m * 2))
    for i, j in T.grid(n, m * T.int64(2)):
        with T.sblock("each"):
            v, w = T.axis.remap("SS", [i, j])
            B[v, w] = A[v, w // T.int64(2)]


def test_what_is_no_resize_stays():
    channels_last = resize("linear", SIZES["twice"], "NHWC")
    for func in (*UNKNOWN.values(), chain, each_twice, channels_last):
        assert schedule_columns(func) is None


def test_two_cores_in_the_pass():
    func = resize("nearest", SIZES["twice"])
    after = ScheduleMemoryBound(TWO_CORES)(tvm.IRModule({"f": func}))["f"]
    kinds = []
    tvm_ffi.structural_walk(after.body, (tirx.For, lambda loop: kinds.append(loop.kind)))
    assert tirx.ForKind.PARALLEL in kinds and tirx.ForKind.SERIAL in kinds
