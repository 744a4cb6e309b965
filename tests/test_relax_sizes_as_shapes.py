"""The pass SizesAsShapes: fused functions that read sizes which none of their operands has."""

import numpy as np
import pytest
import tvm
from graph_testing import ours, run
from relax_testing import TARGET, module
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.script import relax as R
from tvm.script import tirx as T

from relax_passes.sizes_as_shapes import SizesAsShapes


@R.function
def from_size(x: R.Tensor(("n", "m"), "int64")):
    n, m = T.int64(), T.int64()
    with R.dataflow():
        start = R.reshape(R.shape_to_tensor(R.shape([n])), R.shape([]))
        y = R.add(R.arange(0, m, 1, dtype="int64"), start)
        R.output(y)
    return y


@R.function
def from_range(x: R.Tensor(("n", "m"), "int64")):
    n, m = T.int64(), T.int64()
    with R.dataflow():
        y = R.multiply(R.arange(n, n + m, 1, dtype="int64"), R.const(2, "int64"))
        R.output(y)
    return y


@R.function
def from_operands(x: R.Tensor(("n", "m"), "int64")):
    with R.dataflow():
        y = R.multiply(R.add(x, x), R.const(2, "int64"))
        R.output(y)
    return y


REFERENCES = {
    "from_size": (from_size, lambda n, m: np.arange(m) + n),
    "from_range": (from_range, lambda n, m: 2 * np.arange(n, n + m)),
    "from_operands": (from_operands, lambda n, m: np.full((n, m), 4)),
}


def fused(func: relax.Function) -> tvm.IRModule:
    """What FuseOps leaves of it."""
    with TARGET:
        return tvm.transform.Sequential(cpu.legalize_passes(TARGET)[:-1])(module(func))


def primitives(mod: tvm.IRModule) -> list[relax.Function]:
    functions = [each for _, each in mod.functions_items() if isinstance(each, relax.Function)]
    return [each for each in functions if (each.attrs or {}).get("Primitive")]


@pytest.mark.parametrize("name", ["from_size", "from_range"])
def test_numbers_become_a_shape(name):
    before = fused(REFERENCES[name][0])
    assert any(isinstance(p.ty, tvm.ir.PrimType) for f in primitives(before) for p in f.params)
    after = SizesAsShapes()(before)
    relax.analysis.well_formed(after)
    (function,) = primitives(after)
    assert {type(param.ty) for param in function.params} == {relax.ShapeType}
    given = [size.name for param in function.params for size in param.ty.values]
    assert sorted(given) == ["m", "n"]
    names = [gv.name_hint for gv, _ in after.functions_items()]
    assert sorted(names) == sorted(gv.name_hint for gv, _ in before.functions_items())


def test_a_module_without_such_functions_is_left():
    before = fused(from_operands)
    assert SizesAsShapes()(before).same_as(before)


@pytest.mark.parametrize("name", list(REFERENCES))
def test_they_run(name):
    func, reference = REFERENCES[name]
    vm, _ = ours(module(func))
    for n, m in [(3, 4), (0, 5), (7, 0), (1, 1), (17, 33)]:
        (found,) = run(vm, [np.ones((n, m), np.int64)])
        np.testing.assert_array_equal(found, reference(n, m), strict=True)
