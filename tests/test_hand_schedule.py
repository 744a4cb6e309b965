"""The hand-written schedules compute what numpy does, whatever the number of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from bench import hand_schedule

TARGET = tvm.target.Target({"kind": "llvm"})
SIZES = [(1, 0), (0, 3), (1, 1), (2, 5), (1, 6), (3, 7), (2, 16), (1, 17), (2, 33)]


@I.ir_module
class Model:
    """Linear layers with and without whole columns, and the two products of attention."""

    @R.function
    def main(
        x: R.Tensor(("b", "s", 40), "float32"),
        w: R.Tensor((40, 48), "float32"),
        narrow: R.Tensor((48, 20), "float32"),
        bias: R.Tensor((48,), "float32"),
        q: R.Tensor(("b", 3, "s", 8), "float32"),
        k: R.Tensor(("b", 3, 8, "s"), "float32"),
        v: R.Tensor(("b", 3, "s", 32), "float32"),
        mask: R.Tensor(("b", 1, 1, "s"), "float32"),
    ):
        with R.dataflow():
            hidden = R.nn.gelu(R.add(R.matmul(x, w), bias))
            linear = R.matmul(hidden, narrow)
            scores = R.add(R.divide(R.matmul(q, k), R.const(2.0, "float32")), mask)
            context = R.matmul(R.nn.softmax(scores), v)
            result = (hidden, linear, scores, context)
            R.output(result)
        return result


def operands(b: int, s: int) -> list[np.ndarray]:
    rng = np.random.default_rng(100 * b + s)
    shapes = [
        (b, s, 40),
        (40, 48),
        (48, 20),
        (48,),
        (b, 3, s, 8),
        (b, 3, 8, s),
        (b, 3, s, 32),
        (b, 1, 1, s),
    ]
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def reference(arrays: list[np.ndarray]) -> list[np.ndarray]:
    x, w, narrow, bias, q, k, v, mask = (array.astype(np.float64) for array in arrays)
    hidden = gelu(x @ w + bias)
    scores = q @ k / 2 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(-1, keepdims=True)
    return [hidden, hidden @ narrow, scores, weights @ v]


@pytest.fixture(scope="module", params=[(False, 1), (True, 1), (False, 2), (True, 2)], ids=str)
def machine(request) -> relax.VirtualMachine:
    padded, threads = request.param
    pipeline = hand_schedule.hand_scheduled_pipeline(TARGET, padded=padded, threads=threads)
    return relax.VirtualMachine(tvm.compile(Model, TARGET, relax_pipeline=pipeline), tvm.cpu())


def test_equals_numpy_at_every_size(machine):
    for size in SIZES:
        arrays = operands(*size)
        results = machine["main"](*map(tvm.runtime.tensor, arrays))
        for result, expected in zip(results, reference(arrays), strict=True):
            assert result.shape == expected.shape
            np.testing.assert_allclose(result.numpy(), expected, rtol=2e-4, atol=2e-5)


def test_a_row_of_nan_stays_in_its_row(machine):
    arrays = operands(2, 7)
    arrays[0][1, 4] = np.nan
    hidden, linear, *_ = machine["main"](*map(tvm.runtime.tensor, arrays))
    for result in (hidden.numpy(), linear.numpy()):
        bad = np.isnan(result)
        assert bad[1, 4].all() and bad.sum() == result.shape[-1]


def fused() -> dict[str, tirx.PrimFunc]:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    mod = tvm.transform.Sequential(passes)(Model)
    return {
        name.name_hint: func
        for name, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc)
    }


def test_every_matmul_is_scheduled_and_nothing_else():
    functions = fused()
    after = {name: hand_schedule.schedule_function(func) for name, func in functions.items()}
    assert sum("matmul" in name for name in functions) == 4 and "softmax" in functions
    for name, func in after.items():
        assert (func is not None) == ("matmul" in name)
        if func is not None:
            assert hand_schedule.schedule_function(func) is None


def test_the_pass_leaves_other_functions_as_they_were():
    functions = fused()
    mod = tvm.IRModule(functions)
    result = hand_schedule.schedule_matmuls()(mod)
    assert tvm_ffi.structural_equal(result["softmax"], functions["softmax"])
    for name in functions:
        changed = not tvm_ffi.structural_equal(result[name], functions[name])
        assert changed == ("matmul" in name)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_loops_are_parallel_only_with_several_threads(padded, threads):
    for name, func in fused().items():
        if "matmul" in name:
            found = hand_schedule.schedule_function(func, padded=padded, threads=threads)
            assert ("T.parallel" in found.script()) == (threads > 1)


@pytest.mark.parametrize("padded", [False, True])
def test_the_tile_is_vectorized_and_guarded_only_without_padding(padded):
    found = hand_schedule.schedule_function(fused()["fused_matmul_add_gelu"], padded=padded)
    update = found.script().split('T.sblock("matmul_update")')
    assert "T.vectorized(T.int64(16))" in update[0].splitlines()[-2]
    assert ("T.where" in update[1].split("T.writes")[0]) != padded


def test_threads_default_to_the_environment(monkeypatch):
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    seen = []
    monkeypatch.setattr(
        hand_schedule,
        "schedule_matmuls",
        lambda *, padded, threads: seen.append(threads) or relax.transform.ToNonDataflow(),
    )
    hand_schedule.hand_scheduled_pipeline(TARGET)(Model)
    assert seen == [2]
