"""The pass RoundStorages: a function called with ever new sizes does not make the pool grow."""

from __future__ import annotations

import numpy as np
import tvm
from graph_testing import ours, run
from relax_testing import TARGET, module
from tvm import te, tirx
from tvm.script import relax as R
from tvm.script import tirx as T

from bench.models.memory import resident
from relax_passes.round_storages import PAGE, RoundStorages, power_of_two


def test_powers_of_two():
    sizes = [0, 1, PAGE - 1, PAGE, PAGE + 1, 8191, 8192, 8193, 10**6, 2**31, 2**31 + 1, 2**40 - 1]
    x = te.placeholder((len(sizes),), "int64", "x")
    out = te.compute(x.shape, lambda i: power_of_two(x[i]), "out")
    function = tvm.compile(te.create_prim_func([x, out]), TARGET)
    result = tvm.runtime.tensor(np.zeros(len(sizes), np.int64))
    function(tvm.runtime.tensor(np.array(sizes)), result)
    expected = [max(PAGE, 1 << max(size - 1, 0).bit_length()) for size in sizes]
    assert result.numpy().tolist() == expected


@R.function
def storages(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    a = R.memory.alloc_storage(
        R.shape([n * 16]), R.prim_value(0), R.str("global"), R.dtype("float32")
    )
    b = R.memory.alloc_storage(R.shape([640]), R.prim_value(0), R.str("global"), R.dtype("float32"))
    return (a, b)


def test_constant_sizes_are_left():
    before = module(storages)
    after = RoundStorages()(before)
    (rounded, constant) = (
        binding.value.args[0].values[0] for binding in after["main"].body.blocks[0].bindings[:2]
    )
    n = before["main"].params[0].ty.shape.values[0]
    assert int(constant) == 640 and not isinstance(rounded, tirx.IntImm)
    assert any(n.name == getattr(var, "name", "") for var in tirx.analysis.undefined_vars(rounded))


@R.function
def chain(x: R.Tensor(("n", "m"), "float32")):
    with R.dataflow():
        a = R.nn.softmax(x, axis=-1)
        b = R.permute_dims(R.add(a, x))
        c = R.concat((b, b), axis=0)
        R.output(c)
    return c


def test_ever_new_sizes_do_not_make_the_pool_grow():
    """Each new size of 100 to 400 KiB would stay in the pool: 300 of them take 100 MB."""
    vm, _ = ours(module(chain))
    rng = np.random.default_rng(0)
    (found,) = run(vm, [np.ones((3, 5), np.float32)])
    np.testing.assert_allclose(found, np.full((10, 3), 1.2), rtol=1e-6)
    before = 0
    for call in range(300):
        rows, columns = rng.integers(160, 320, 2)
        run(vm, [np.zeros((rows, columns), np.float32)])
        if call == 60:
            before = resident()
    assert resident() - before < 8 << 20
