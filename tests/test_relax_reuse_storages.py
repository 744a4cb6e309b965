"""The pass ReuseStorages: a process holds what its largest call needs, whatever sizes there are."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from graph_testing import run
from relax_testing import TARGET, branches, module, tensor
from tvm import relax, tirx
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes import pipeline, reuse_storages, storage_sizes
from relax_passes.reuse_storages import ReuseStorages

PAGE = 4096
ROOT = Path(__file__).parents[1]


@R.function(pure=False)
def planned(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    m = T.int64()
    _a = R.call_packed("first", x, ty_args=[R.Any])
    s = R.memory.alloc_storage(
        R.shape([n * 16]), R.prim_value(0), R.str("global"), R.dtype("uint8")
    )
    fixed = R.memory.alloc_storage(
        R.shape([64]), R.prim_value(0), R.str("global"), R.dtype("uint8")
    )
    t = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([n, 4]), R.dtype("float32"))
    u = R.memory.alloc_tensor(fixed, R.prim_value(0), R.shape([16]), R.dtype("float32"))
    found = R.call_packed("second", x, t, u, ty_args=[R.Tensor(ndim=2, dtype="float32")])
    y = R.match_cast(found, R.Tensor((m, 4), "float32"))
    late = R.memory.alloc_storage(
        R.shape([m * 16]), R.prim_value(0), R.str("global"), R.dtype("uint8")
    )
    v = R.memory.alloc_tensor(late, R.prim_value(0), R.shape([m, 4]), R.dtype("float32"))
    out = R.builtin.alloc_tensor(R.shape([n, 3]), R.dtype("float16"), R.prim_value(0))
    other = R.builtin.alloc_tensor(R.shape([m, 3]), R.dtype("float16"), R.prim_value(0))
    _b = R.call_packed("third", y, v, out, other, ty_args=[R.Any])
    return (out, other)


def test_storages_come_first_and_then_what_results_take():
    before = module(planned)
    after = ReuseStorages()(before)
    relax.analysis.well_formed(after)
    tvm.ir.assert_structural_equal(before, module(planned))
    (block,) = after["main"].body.blocks
    forget, tensors, read, cast, s, fixed, results, *rest = block.bindings
    assert [each.var.name for each in (s, fixed)] == ["s", "fixed"]
    assert forget.value.op.name_hint == reuse_storages.FORGET
    n = before["main"].params[0].ty.shape.values[0].name
    assert str(tensors.value.args[1].fields[1].values[0]).startswith(n)
    assert str(read.value.op.global_symbol) == "vm.builtin.tensor_to_shape"
    assert isinstance(cast, relax.MatchCast)
    (size,) = s.value.args[0].values
    assert isinstance(size, tirx.Max) and size.a.same_as(cast.ty.values[0])
    assert int(fixed.value.args[0].values[0]) == 64
    (size,) = results.value.args[1].fields[1].values
    assert {each.name for each in tirx.analysis.undefined_vars(size)} == {n}
    # what is known only later stays where it is
    assert [each.var.name for each in rest] == [
        each.var.name
        for block in before["main"].body.blocks
        for each in block.bindings
        if each.var.name not in ("s", "fixed")
    ]


def test_what_is_remembered_is_apart():
    """An executable stores equal constants once."""
    first, second = (planned.with_attr("global_symbol", name) for name in ("first", "second"))
    found = set()  # storages are asked for and read

    def visit(expr):
        if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.value, tvm.runtime.Tensor):
            found.add(tuple(expr.value.numpy().tolist()))

    mod = ReuseStorages()(tvm.IRModule({"first": first, "second": second}))
    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    assert found == {(-1,), (-2, 0, 0), (-3,), (-4, 0, 0)}


def test_fixed_sizes_and_branches_are_left():
    @R.function(pure=False)
    def fixed(x: R.Tensor((8, 4), "float32")):
        s = R.memory.alloc_storage(
            R.shape([128]), R.prim_value(0), R.str("global"), R.dtype("uint8")
        )
        t = R.memory.alloc_tensor(s, R.prim_value(0), R.shape([8, 4]), R.dtype("float32"))
        out = R.builtin.alloc_tensor(R.shape([8, 3]), R.dtype("float32"), R.prim_value(0))
        _b = R.call_packed("f", x, t, out, ty_args=[R.Any])
        return out

    for func in (fixed, branches):
        before = module(func)
        assert ReuseStorages()(before).same_as(before)


@pytest.fixture
def cleared(monkeypatch):
    """How often the pool was emptied."""
    times = []
    monkeypatch.setattr(storage_sizes, "CLEAR", "moonpoly.test.clear")
    tvm_ffi.register_global_func("moonpoly.test.clear", lambda: times.append(1), override=True)
    return times


def compiled(func):
    return tvm.compile(func.with_attr("global_symbol", "sizes"), TARGET)


def test_the_pool_is_emptied_when_a_storage_grows(cleared):
    function = compiled(storage_sizes.sizes_of_tensors(2))
    known = tvm.runtime.tensor(np.zeros(2, np.int64))
    for sizes, largest, times in (
        ((0, 5000), (PAGE, 2 * PAGE), 1),
        ((PAGE, 2 * PAGE), (PAGE, 2 * PAGE), 1),
        ((PAGE + 1, 1), (2 * PAGE, 2 * PAGE), 2),
        ((1, 2**40 + 1), (2 * PAGE, 2**41), 3),
        ((0, 0), (2 * PAGE, 2**41), 3),
    ):
        function(known, *sizes)
        assert tuple(known.numpy()) == largest and len(cleared) == times


def test_the_pool_keeps_results_of_the_largest_call(cleared):
    function = compiled(storage_sizes.sizes_of_results())
    known = tvm.runtime.tensor(np.zeros(storage_sizes.RESULTS, np.int64))
    for size, times in (
        *((64, 0), (64, 0), (32, 1), (16, 1), (16, 1), (16, 1), (8, 1), (16, 2), (64, 3)),
        *((128, 4), (128, 4), (64, 5), (64, 5), (32, 5), (16, 5), (8, 5), (8, 5), (16, 6)),
    ):
        function(known, size)
        assert len(cleared) == times, (size, known.numpy())


@R.function
def chain(x: R.Tensor(("n", "m"), "float32")):
    with R.dataflow():
        a = R.nn.softmax(x, axis=-1)
        b = R.permute_dims(R.add(a, x))
        c = R.nn.softmax(b, axis=-1)
        d = R.permute_dims(R.concat((c, b), axis=0))
        R.output(d)
    return d


def expected(x):
    a = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    b = (a + x).T
    return np.concatenate((np.exp(b) / np.exp(b).sum(-1, keepdims=True), b)).T


@pytest.fixture(scope="module")
def executable():
    return tvm.compile(module(chain), TARGET, relax_pipeline=pipeline(TARGET))


#: Prints the bytes that calls of rising, of mixed and of the largest sizes leave in a process.
HELD = """
import ctypes, gc, sys
import numpy as np, tvm
from tvm import relax
from bench.models.memory import resident

def held(inputs):
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("RssAnon")
    for each in inputs:
        machine["main"](each)
    return resident("RssAnon") - before

inputs = [tvm.runtime.tensor(np.ones((int(n), int(n)), np.float32)) for n in sys.argv[2:]]
machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
mixed = (6, 0, 5, 3, 1, 6, 2, 4, 3, 5, 6, 4, 1, 6, 5)
print(held(inputs), held([inputs[at] for at in mixed]), held(inputs[-1:]))
"""


def test_a_process_holds_what_its_largest_call_needs(executable, tmp_path):
    """Blocks of all sizes that are powers of two would be twice as much."""
    executable.export_library(tmp_path / "chain.so")
    sides = [int(160 * 2 ** (at / 2)) - 1 for at in range(7)]
    # the C library gives back what is freed, instead of what it learns to keep
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    command = [sys.executable, "-c", HELD, tmp_path / "chain.so", *map(str, sides)]
    done = subprocess.run(
        command, check=True, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    rising, mixed, largest = map(int, done.stdout.split())
    assert largest > 4 * 4 * sides[-1] ** 2  # a result of twice the input, and what is between
    assert max(rising, mixed) < 1.4 * largest


def test_results_that_are_kept_stay(executable):
    machine = relax.VirtualMachine(executable, tvm.cpu())
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(40):
        x = tensor(*rng.integers(1, 120, 2))
        kept.append((x, machine["main"](tvm.runtime.tensor(x))))
    for x, found in kept:
        np.testing.assert_allclose(found.numpy(), expected(x), rtol=1e-4, atol=1e-5)


def test_machines_of_several_threads(executable):
    """They share what is known of sizes."""

    def calls(seed):
        machine = relax.VirtualMachine(executable, tvm.cpu())
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x = tensor(*rng.integers(1, 200, 2))
            found = machine["main"](tvm.runtime.tensor(x)).numpy()
            np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(calls, range(3)))


def test_an_executable_that_ran_is_exported(executable, tmp_path):
    """With what it knows of sizes."""
    sizes = ((3, 5), (0, 4), (50, 70), (4, 0), (2, 2))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for shape in sizes:
        run(machine, [tensor(*shape)])
    library = str(tmp_path / "model.so")
    executable.export_library(library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    for shape in sizes:
        (found,) = run(machine, [tensor(*shape)])
        np.testing.assert_allclose(found, expected(tensor(*shape)), rtol=1e-4, atol=1e-5)
