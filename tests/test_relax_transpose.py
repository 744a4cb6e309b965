"""Transposes by blocks in registers: against numpy over random shapes, and what is not one."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_testing import TARGET
from tvm import relax, tirx
from tvm.relax import op

from relax_passes import ScheduleMemoryBound, pipeline
from relax_passes.schedule_transpose import schedule_transpose

TWO_CORES = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
# Permutations, and the sizes that are known at compile time.
CASES = {
    "matrix": ([1, 0], {}),
    "keys of heads": ([0, 2, 3, 1], {2: 3, 3: 32}),
    "heads first, reversed": ([0, 2, 1], {}),
    "channels last": ([0, 2, 3, 1], {1: 19}),
    "channels first": ([0, 3, 1, 2], {3: 96}),
    "all reversed": ([3, 2, 1, 0], {}),
}


def function(axes, known, dtype="float32", form=lambda x: x):
    dims = [known.get(i, tirx.Var(f"d{i}", "int64")) for i in range(len(axes))]
    x = relax.Var("x", relax.TensorType(dims, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(form(op.permute_dims(x, axes)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def loops(mod):
    after = relax.transform.LegalizeOps()(mod)
    (func,) = (each for each in after.functions.values() if isinstance(each, tirx.PrimFunc))
    return func


@pytest.fixture(scope="module", params=[(name, t) for name in CASES for t in (TARGET, TWO_CORES)])
def case(request):
    name, target = request.param
    axes, known = CASES[name]
    executable = tvm.compile(function(axes, known), target, relax_pipeline=pipeline(target))
    return axes, known, relax.VirtualMachine(executable, tvm.cpu())


def check(case, shape):
    axes, known, vm = case
    shape = [known.get(i, size) for i, size in enumerate(shape[: len(axes)])]
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    result = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(result, x.transpose(axes))


def test_some_shapes(case):
    for shape in [(0, 5, 3, 9), (1, 1, 1, 1), (8, 8, 8, 8), (7, 9, 16, 3), (33, 41, 8, 17)]:
        check(case, shape)


def test_large_shapes(case):
    check(case, (57, 43, 29, 21))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 26), min_size=4, max_size=4))
def test_random_shapes(case, shape):
    check(case, shape)


@pytest.mark.parametrize("name", CASES)
def test_blocks_are_vectors(name):
    func = schedule_transpose(loops(function(*CASES[name])))
    assert func is not None and func.script().count("T.Shuffle(") >= 24


@pytest.mark.parametrize(
    "mod",
    [
        function([0, 2, 1, 3], {}),  # rows stay rows
        function([1, 0], {0: 4}),  # no block fits
        function([1, 0], {}, "float64"),
        function([1, 0], {0: 1}),
    ],
)
def test_others(mod):
    assert schedule_transpose(loops(mod)) is None


def test_scheduled_by_somebody_else():
    func = loops(function([1, 0], {})).with_attr("tirx.is_scheduled", True)
    assert schedule_transpose(func) is None


def test_other_targets_stay():
    mod = tvm.IRModule({"f": loops(function([1, 0], {}))})
    assert ScheduleMemoryBound(tvm.target.Target("nvidia/nvidia-a100"))(mod).same_as(mod)
