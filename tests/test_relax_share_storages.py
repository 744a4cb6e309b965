"""The pass ShareStorages: storages that are never alive at the same time become one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from graph_testing import run
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET, branches, module, tensor
from tvm import relax, tirx
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import pipeline
from relax_passes.share_storages import ShareStorages, largest, slots
from relax_passes.storages import Life, lives, storages_of


@R.function(pure=False)
def before(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    s = R.memory.alloc_storage(
        R.shape([n * 16]), R.prim_value(0), R.str("global"), R.dtype("uint8")
    )
    a = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([n, 4]), R.dtype("float32"))
    _a = R.call_packed("first", x, a, ty_args=[R.Tuple()])
    t = R.memory.alloc_storage(R.shape([n * 6]), R.prim_value(0), R.str("global"), R.dtype("uint8"))
    b = R.memory.alloc_tensor(t, R.prim_value(0), R.shape([n, 3]), R.dtype("float16"))
    _b = R.call_packed("second", a, b, ty_args=[R.Tuple()])
    u = R.memory.alloc_storage(
        R.shape([n * n * 4]), R.prim_value(0), R.str("global"), R.dtype("uint8")
    )
    c = R.memory.alloc_tensor(u, R.prim_value(0), R.shape([n, n]), R.dtype("float32"))
    _c = R.call_packed("third", b, c, ty_args=[R.Tuple()])
    out = R.builtin.alloc_tensor(R.shape([n]), R.dtype("float32"), R.prim_value(0))
    _d = R.call_packed("fourth", c, out, ty_args=[R.Tuple()])
    return out


@R.function(pure=False)
def expected(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    s = R.memory.alloc_storage(
        R.shape([T.max(n * n * 4, n * 16)]),
        R.prim_value(0),
        R.str("global"),
        R.dtype("uint8"),
    )
    a = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([n, 4]), R.dtype("float32"))
    _a = R.call_packed("first", x, a, ty_args=[R.Tuple()])
    t = R.memory.alloc_storage(R.shape([n * 6]), R.prim_value(0), R.str("global"), R.dtype("uint8"))
    b = R.memory.alloc_tensor(t, R.prim_value(0), R.shape([n, 3]), R.dtype("float16"))
    _b = R.call_packed("second", a, b, ty_args=[R.Tuple()])
    c = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([n, n]), R.dtype("float32"))
    _c = R.call_packed("third", b, c, ty_args=[R.Tuple()])
    out = R.builtin.alloc_tensor(R.shape([n]), R.dtype("float32"), R.prim_value(0))
    _d = R.call_packed("fourth", c, out, ty_args=[R.Tuple()])
    return out


def test_what_is_alive_at_other_times_shares():
    mod = module(before)
    after = ShareStorages()(mod)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(after, module(expected), map_free_vars=True)
    tvm.ir.assert_structural_equal(mod, module(before))
    # what shares already has nobody left to share with
    assert ShareStorages()(after).same_as(after)


def sequence(steps):
    """A function of storages: of each of ``steps`` the bytes, a function of the dimensions n and m,
    the number of calls until the tensor is read last, and what of it is read: the tensor, a view,
    or a tuple that has it."""
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([n, m], "uint8"))
    builder = relax.BlockBuilder()
    nothing = relax.TupleType([])
    due: dict[int, list[relax.Var]] = {}
    with builder.function("main", [x], pure=False):
        for at, (size, later, kind) in enumerate(steps):
            bytes_ = size(n, m)
            storage = builder.emit(
                relax.op.memory.alloc_storage(relax.ShapeExpr([bytes_]), 0, "global", "uint8"),
                f"s{at}",
            )
            held = builder.emit(
                relax.op.memory.alloc_tensor(storage, 0, relax.ShapeExpr([bytes_]), "uint8")
            )
            written = [held]
            if kind == "view":
                view = relax.TensorType([1, bytes_], "uint8")
                held = builder.emit(relax.call_pure_packed("view", held, ty_args=[view]))
            elif kind == "tuple":
                held = builder.emit(relax.Tuple([held, x]))
            due.setdefault(at + later, []).append(held)
            read = due.pop(at, [])
            builder.emit(relax.Call(relax.ExternFunc("f"), [*written, *read], None, [nothing]))
        builder.emit_func_output(x)
    return builder.get()["main"]


SIZES = {
    "constant": lambda n, m: tirx.IntImm("int64", 96),
    "n": lambda n, m: n * 4,
    "m": lambda n, m: m * 12,
    "both": lambda n, m: n * m,
    "half": lambda n, m: tirx.floordiv(n, 2) * m * 4,
    "sum": lambda n, m: (n + m) * 16,
}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(SIZES.values())),
            st.integers(0, 4),
            st.sampled_from(["tensor", "view", "tuple"]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_no_storage_is_two_that_are_alive(steps):
    func = sequence(steps)
    found = slots(func)
    names = [member.var.name for slot in found for member in slot.members]
    assert sorted(names) == sorted(f"s{at}" for at in range(len(steps)))
    until = {
        f"s{at}": at + later if at + later < len(steps) else at
        for at, (_, later, _) in enumerate(steps)
    }
    for slot in found:
        for a, b in itertools.combinations(slot.members, 2):
            first, second = sorted((a.var.name, b.var.name), key=lambda name: int(name[1:]))
            assert until[first] < int(second[1:])
    after = ShareStorages()(tvm.IRModule({"main": func}))
    relax.analysis.well_formed(after)
    assert len(list(storages_of(after["main"]))) == len(found)


def test_a_view_and_a_tuple_keep_a_storage_alive():
    four = SIZES["n"]
    for kind in ("tensor", "view", "tuple"):
        func = sequence([(four, 2, kind), (four, 0, "tensor"), (four, 0, "tensor")])
        alive = {var.name: life for var, (life,) in lives(func, _vars(func)).items()}
        assert alive["s0"].overlaps(alive["s2"])
        assert not alive["s1"].overlaps(alive["s2"])
        assert sorted(len(slot.members) for slot in slots(func)) == [1, 2]


def _vars(func):
    return [each.var for each in storages_of(func)]


def test_between_its_tensors_a_storage_holds_nothing():
    """But for one that is used for something else."""
    func = sequence([(SIZES["n"], 0, "tensor"), (SIZES["n"], 0, "tensor")])
    first, second = storages_of(func)
    builder = relax.BlockBuilder()
    shape = relax.ShapeExpr([8])
    again = builder.normalize(relax.op.memory.alloc_tensor(first.var, 0, shape, "uint8"))
    tensor_again = relax.Var("again", again.ty)
    read = relax.Call(relax.ExternFunc("f"), [tensor_again], None, [relax.TupleType([])])
    more = [
        relax.VarBinding(tensor_again, again),
        relax.VarBinding(relax.Var("_", relax.TupleType([])), builder.normalize(read)),
    ]

    def with_more(bindings):
        (block,) = func.body.blocks
        body = relax.SeqExpr([relax.BindingBlock([*block.bindings, *bindings])], func.body.body)
        return relax.Function(func.params, body, func.ret_ty, is_pure=False)

    (slot,) = slots(with_more(more))
    assert {each.var.name for each in slot.members} == {"s0", "s1"}
    use = relax.Call(relax.ExternFunc("f"), [first.var], None, [relax.TupleType([])])
    elsewhere = relax.VarBinding(relax.Var("_", relax.TupleType([])), builder.normalize(use))
    assert len(slots(with_more([elsewhere]))) == 2


def test_lives_meet_in_one_binding():
    assert Life(1, 3).overlaps(Life(3, 4)) and Life(3, 4).overlaps(Life(1, 3))
    assert Life(1, 9).overlaps(Life(3, 4)) and not Life(1, 3).overlaps(Life(4, 4))


def test_the_largest_of_sizes_leaves_out_what_is_smaller():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    few, more = (tirx.IntImm("int64", each) for each in (8, 64))
    found = largest([n * 16, n * 16, few, more])
    tvm.ir.assert_structural_equal(found, tirx.max(n * 16, more))
    tvm.ir.assert_structural_equal(largest([m * n, m * n]), m * n)


def test_branches_sizes_that_are_told_later_and_other_memory_are_left():
    @R.function(pure=False)
    def later(x: R.Tensor(("n",), "float32")):
        m = T.int64()
        found = R.call_packed("f", x, ty_args=[R.Tensor(ndim=1, dtype="float32")])
        y = R.match_cast(found, R.Tensor((m,), "float32"))
        s = R.memory.alloc_storage(
            R.shape([m * 4]), R.prim_value(0), R.str("global"), R.dtype("uint8")
        )
        a = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([m]), R.dtype("float32"))
        _a = R.call_packed("first", y, a, ty_args=[R.Tuple()])
        t = R.memory.alloc_storage(
            R.shape([m * 4]), R.prim_value(0), R.str("global"), R.dtype("uint8")
        )
        b = R.memory.alloc_tensor(t, R.prim_value(0), R.shape([m]), R.dtype("float32"))
        _b = R.call_packed("first", y, b, ty_args=[R.Tuple()])
        return x

    @R.function(pure=False)
    def elsewhere(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        s = R.memory.alloc_storage(
            R.shape([n * 4]), R.prim_value(0), R.str("global"), R.dtype("uint8")
        )
        a = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([n]), R.dtype("float32"))
        _a = R.call_packed("first", x, a, ty_args=[R.Tuple()])
        t = R.memory.alloc_storage(
            R.shape([n * 4]), R.prim_value(1), R.str("global"), R.dtype("uint8")
        )
        b = R.memory.alloc_tensor(t, R.prim_value(0), R.shape([n]), R.dtype("float32"))
        _b = R.call_packed("first", x, b, ty_args=[R.Tuple()])
        return x

    for func in (later, elsewhere, branches):
        mod = module(func)
        assert ShareStorages()(mod).same_as(mod)


@R.function
def graph(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("m", "k"), "float32")):
    n = T.int64()
    k = T.int64()
    with R.dataflow():
        a = R.nn.softmax(x, axis=-1)
        b = R.matmul(a, y)
        c = R.reshape(b, (n * k,))
        d = R.concat((c, c), axis=0)
        e = R.reshape(R.nn.softmax(d, axis=-1), (2 * n, k))
        f = R.matmul(e, R.permute_dims(y))
        g = R.split(f, 2, axis=0)
        h = R.multiply(g[0], R.nn.softmax(g[1], axis=0))
        i = R.sum(h, axis=0)
        R.output(h, i)
    return (h, i)


@pytest.fixture(scope="module")
def machines():
    def machine(**options):
        executable = tvm.compile(module(graph), TARGET, relax_pipeline=pipeline(TARGET, **options))
        return relax.VirtualMachine(executable, tvm.cpu())

    return machine(), machine(without=["ShareStorages"])


@pytest.mark.parametrize("n, m, k", [(1, 1, 1), (0, 3, 2), (3, 1, 7), (17, 5, 1), (31, 64, 13)])
def test_results_are_the_same_with_and_without(machines, n, m, k):
    feed = [tensor(n, m), tensor(m, k)]
    with_it, without = (run(machine, feed) for machine in machines)
    for a, b in zip(with_it, without, strict=True):
        np.testing.assert_array_equal(a, b)
