"""Memory: nothing outside the operands is read or written; calls of any size, from any thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from core_testing import CANARY, ROOT, SIZES, Weight, check_linear, linear, matmul, values
from tvm import relax

from tvm_moonpoly import operators
from tvm_moonpoly.operators import Activation, encode_axes

WORKER = Path(__file__).with_name("core_memory_worker.py")


@pytest.fixture(scope="module")
def library(target):
    return operators.library(target)


@pytest.fixture
def rng():
    return np.random.default_rng(41)


def _worker(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(WORKER.parent)])}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", str(WORKER), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )


linux = pytest.mark.skipif(sys.platform != "linux", reason="mprotect is called as on Linux")


@linux
def test_operands_against_protected_pages(library):
    """In a process of its own: a crash names the case that it came from."""
    ran = _worker()
    lines = ran.stdout.splitlines() or ["nothing ran"]
    assert ran.returncode == 0, f"ended with {ran.returncode} in: {lines[-1]}\n{ran.stderr[-3000:]}"
    assert lines[-1] == "all cases ran"


@linux
@pytest.mark.parametrize("side", ["begin", "end"])
def test_protected_pages_protect(side):
    ran = _worker(f"overrun-{side}")
    assert ran.stdout.strip() == "reading outside"
    assert ran.returncode < 0


def _misaligned(array, offset):
    """A copy that starts ``4 * offset`` bytes after a cache line."""
    memory = np.empty(array.size + 64, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + offset
    placed = memory[start : start + array.size].reshape(array.shape)
    placed[...] = array
    assert array.size == 0 or placed.ctypes.data % 64 == 4 * offset % 64
    return placed


@pytest.mark.parametrize("offset", [1, 3, 15])
@pytest.mark.parametrize("m,n,k", [(1, 8, 8), (5, 24, 16), (13, 65, 33), (97, 40, 1030)])
def test_misaligned_operands(library, rng, m, n, k, offset):
    weight = Weight.of(library, values(rng, k, n), values(rng, n))
    moved = Weight(
        weight.w,
        weight.bias,
        _misaligned(weight.packed, offset),
        _misaligned(weight.padded, offset),
        weight.table,
    )
    x, residual = _misaligned(values(rng, m, k), offset), _misaligned(values(rng, m, n), offset)
    for activation in Activation:
        out = _misaligned(np.full((m, n), CANARY), offset)
        linear(library, x, moved, activation, residual, out)
        check_linear(out, x, weight, activation, residual)
    for axes in ([0, 1], [1, 0]):
        b = _misaligned(np.ascontiguousarray(weight.w.transpose(axes)), offset)
        out = _misaligned(np.full((m, n), CANARY), offset)
        for a_axes in ([0, 1], [1, 0]):
            a = _misaligned(np.ascontiguousarray(x.transpose(a_axes)), offset)
            out[...] = CANARY
            matmul(library, a, b, out, a_axes, axes)
            check_linear(out, x, Weight(weight.w, None, None, None, None))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("m,n,k", [(1, 9, 5), (7, 43, 12), (29, 24, 31), (100, 35, 530)])
def test_a_row_of_nan_or_infinity_stays_in_its_row(library, rng, m, n, k, activation, poison):
    weight = Weight.of(library, values(rng, k, n), values(rng, n))
    clean = values(rng, m, k)
    expected = linear(library, clean, weight, activation)
    for row in {0, m // 2, m - 1}:
        x = clean.copy()
        x[row] = poison
        result = linear(library, x, weight, activation)
        others = np.arange(m) != row
        np.testing.assert_array_equal(result[others], expected[others])
        if np.isnan(poison):
            assert np.isnan(result[row]).all()
        x[row] = clean[row]
        x[row, k // 2] = poison  # one element: each sum of the row is that or its opposite
        result = linear(library, x, weight, Activation.NONE)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(result[row], x[row, k // 2] * weight.w[k // 2])
        np.testing.assert_array_equal(
            np.isfinite(result).all(axis=1), others, err_msg="rows without the poison are finite"
        )


def test_nan_of_the_residual_and_of_the_bias_stay_in_place(library, rng):
    bias = values(rng, 21)
    bias[20] = np.nan  # in the partial panel
    weight = Weight.of(library, values(rng, 6, 21), bias)
    residual = values(rng, 9, 21)
    residual[4, 3] = np.nan
    for activation in Activation:
        result = linear(library, values(rng, 9, 6), weight, activation, residual)
        expected = np.zeros((9, 21), bool)
        expected[:, 20] = expected[4, 3] = True
        np.testing.assert_array_equal(np.isnan(result), expected)


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("a_by_columns", [False, True])
def test_nan_in_a_product_stays_in_its_row_and_column(library, rng, by_columns, a_by_columns):
    a, b = values(rng, 2, 11, 7), values(rng, 2, 7, 19)
    a[0, 3, 2] = np.nan
    b[1, 6, 18] = np.nan  # in the partial panel
    axes = [0, 2, 1] if by_columns else [0, 1, 2]
    memory = np.ascontiguousarray(b.transpose(axes))
    out = np.full((2, 11, 19), CANARY)
    a_axes = [0, 2, 1] if a_by_columns else [0, 1, 2]
    matmul(library, np.ascontiguousarray(a.transpose(a_axes)), memory, out, a_axes, axes)
    expected = np.zeros(out.shape, bool)
    expected[0, 3, :] = expected[1, :, 18] = True
    np.testing.assert_array_equal(np.isnan(out), expected)


def test_zeros_of_the_padding_do_not_meet_infinity(library, rng):
    """0 * inf is NaN: the padding of the last panel must not come back from there."""
    weight = Weight.of(library, np.full((3, 9), np.inf, np.float32))
    result = linear(library, np.ones((2, 3), np.float32), weight)
    np.testing.assert_array_equal(result, np.full((2, 9), np.inf))


@pytest.fixture(scope="module")
def executable(target):
    """x @ w + bias with gelu, then a product with itself, of any number of rows."""
    rng = np.random.default_rng(3)
    w, bias = values(rng, 24, 37), values(rng, 37)
    library = operators.library(target)
    packed = relax.const(operators.pack_weight(w, library.machine.lanes))
    padded = relax.const(operators.pad_bias(bias, 37, library.machine.lanes))
    table = relax.const(library.plan_table(37, 24), "int64")
    rows, columns = (relax.prim_value(encode_axes(axes)) for axes in ([0, 1, 2], [0, 2, 1]))
    gelu = relax.prim_value(int(Activation.GELU))

    builder = relax.BlockBuilder()
    b, m = tvm.tirx.Var("b", "int64"), tvm.tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([b, m, 24], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(
                relax.call_dps_packed(
                    operators.LINEAR,
                    [x, packed, padded, table, relax.op.null_value(), gelu],
                    relax.TensorType([b, m, 37], "float32"),
                )
            )
            scores = builder.emit(
                relax.call_dps_packed(
                    operators.MATMUL,
                    [hidden, hidden, rows, columns, rows, relax.op.null_value()],
                    relax.TensorType([b, m, m], "float32"),
                )
            )
            result = builder.emit_output(relax.Tuple([hidden, scores]))
        builder.emit_func_output(result)
    module = builder.get().with_attr("external_mods", [library.module.part("gemm")])
    return tvm.compile(module, target), w, bias


def _check_executable(machine, executable, x):
    _, w, bias = executable
    hidden, scores = (part.numpy() for part in machine["main"](tvm.runtime.tensor(x)))
    check_linear(hidden, x, Weight(w, bias, None, None, None), Activation.GELU)
    exact = hidden.astype(np.float64)
    bound = 40 * 1.2e-7 * (np.abs(exact) @ np.abs(exact).transpose(0, 2, 1))
    assert scores.shape == (*x.shape[:2], x.shape[1])
    assert (np.abs(scores - exact @ exact.transpose(0, 2, 1)) <= bound).all()


def test_one_executable_grows_and_shrinks(executable, rng):
    machine = relax.VirtualMachine(executable[0], tvm.cpu())
    sizes = [*SIZES, *reversed(SIZES), 1100, 0, 1100, 1, 7, 0, 0, 200]
    for batch in (1, 3, 0, 2):
        for m in sizes if batch == 1 else SIZES[::3]:
            _check_executable(machine, executable, values(rng, batch, m, 24))


def test_a_machine_for_each_of_four_threads(executable):
    """They share the executable, its constants and the library. Sizes differ from call to call,
    large ones among them so that all hand work to pools of workers."""
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            machine = relax.VirtualMachine(executable[0], tvm.cpu())
            start.wait(60)
            for _ in range(150):
                batch, m = int(rng.integers(0, 3)), int(rng.choice([*SIZES, 200, 300]))
                _check_executable(machine, executable, values(rng, batch, m, 24))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert not failures, failures[0]


def test_threads_share_one_library(target, rng):
    """Packed functions called at once on operands of their own, each thread always the same."""
    library = operators.library(target)
    weight = Weight.of(library, values(rng, 70, 90), values(rng, 90))
    inputs = [values(rng, m, 70) for m in (1, 40, 129, 400)]
    expected = [linear(library, x, weight, Activation.SILU) for x in inputs]
    wrong: list[str] = []

    def work(i):
        for step in range(300):
            if not np.array_equal(linear(library, inputs[i], weight, Activation.SILU), expected[i]):
                wrong.append(f"thread {i}, call {step}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong
