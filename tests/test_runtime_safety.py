"""Calls of compiled models that go wrong elsewhere: views, odd arguments, forks, huge operands.

Values, and errors that name the argument; nothing crashes and nothing grows.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from core_testing import CANARY, ROOT, Weight, linear
from numpy.lib.stride_tricks import as_strided
from relax_testing import module, tensor
from runtime_safety import REFERENCES, B, K, N, W, call, check, compile_model
from tvm import relax
from tvm.script import relax as R

from relax_passes import pipeline
from tvm_moonpoly import operators

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, maps memory as on Linux")


@pytest.fixture(scope="module")
def vm(target):
    return compile_model(target)


def placed(array, offset):
    """A copy that starts `offset` floats after a cache line."""
    memory = np.empty(array.size + 32, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + offset
    copy = memory[start : start + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def spread(array, *gaps):
    """A copy with `gaps[i]` elements of NaN after each row of dimension i."""
    memory = np.full([size + gap for size, gap in zip(array.shape, gaps, strict=True)], np.nan)
    view = memory.astype(np.float32)[tuple(slice(size) for size in array.shape)]
    view[...] = array
    return view


def repeated(array, shape):
    """`array` broadcast to `shape`: strides of 0."""
    return as_strided(array, shape, np.broadcast_to(array, shape).strides)


x, r = tensor(7, K), tensor(7, N)
p, q, q_rows = tensor(3, 5, 12), tensor(3, 12, 21), tensor(3, 21, 12)


class TestMemoryOfTheCaller:
    """numpy's own memory, handed over without a copy."""

    @pytest.mark.parametrize("offset", [0, 1, 4, 15])
    def test_any_alignment_of_floats(self, vm, offset):
        check(vm, "linear", placed(x, offset))
        check(vm, "residual", placed(x, 4), placed(r, offset))
        check(vm, "chained", placed(x, offset), placed(r, 3))
        check(vm, "product", placed(p, offset), placed(q, 1))
        check(vm, "scaled", placed(p, 2), placed(q, offset))
        check(vm, "transposed", placed(p, 1), placed(q_rows, offset))

    def test_rows_further_apart_than_they_are_long(self, vm):
        check(vm, "linear", spread(x, 0, 3))
        check(vm, "residual", spread(x, 2, 3), spread(r, 0, 5))
        check(vm, "chained", spread(x, 2, 3), spread(r, 1, 5))
        check(vm, "product", spread(p, 0, 2, 3), spread(q, 1, 0, 5))
        check(vm, "transposed", spread(p, 1, 1, 1), spread(q_rows, 0, 3, 7))

    def test_a_stride_of_zero(self, vm):
        check(vm, "linear", repeated(x[0], (7, K)))
        check(vm, "residual", x, repeated(r[0], (7, N)))
        check(vm, "chained", x, repeated(r[:, :1], (7, N)))
        check(vm, "product", repeated(p[:1], p.shape), repeated(q[:1, :1], q.shape))
        check(vm, "transposed", repeated(p[:, :1], p.shape), repeated(q_rows[:1], q_rows.shape))

    def test_rows_in_reverse(self, vm):
        check(vm, "linear", x[::-1])
        check(vm, "product", p[:, ::-1], q[::-1])

    @pytest.mark.parametrize(
        "name, arrays",
        [
            ("linear", [tensor(7, 2 * K)[:, ::2]]),
            ("linear", [np.asfortranarray(x)]),
            ("linear", [repeated(x[:, :1], (7, K))]),
            ("residual", [x, tensor(7, 2 * N)[:, ::2]]),
            ("product", [tensor(3, 5, 24)[:, :, ::2], q]),
            ("product", [p.swapaxes(1, 2).copy().swapaxes(1, 2), q]),
            ("product", [p, tensor(3, 24, 42)[:, ::2, ::2]]),
            ("product", [p, q.swapaxes(1, 2).copy().swapaxes(1, 2)]),
        ],
        ids=lambda each: each if isinstance(each, str) else "",
    )
    def test_elements_apart_are_right_or_refused(self, vm, name, arrays):
        before = [array.copy() for array in arrays]
        try:
            check(vm, name, *arrays)
        except ValueError as error:
            assert re.match(r"(x|residual|a|b|e\d): ", str(error))
        for array, old in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, old)

    def test_the_same_tensor_as_both_operands(self, vm):
        square = tensor(3, 12, 12)
        check(vm, "product", square, square)
        check(vm, "transposed", p, p)
        same = tvm.runtime.tensor(p)
        result = vm["transposed"](same, same).numpy()
        np.testing.assert_allclose(result, REFERENCES["transposed"](p, p), rtol=1e-4, atol=1e-4)

    def test_overlapping_operands(self, vm):
        memory = tensor(4 * 12 * 12)
        check(vm, "product", memory[: 3 * 144].reshape(3, 12, 12), memory[144:].reshape(3, 12, 12))

    def test_weights_that_change_between_calls(self, vm):
        weights = q.copy()
        for _ in range(3):
            check(vm, "product", p, weights)
            weights *= -2
            weights[0, 0, 0] += 1


class Foreign:
    """The memory of an array, said to be on another device or to begin elsewhere. To be kept for as
    long as a tensor made of it."""

    class _Tensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 4),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        )

    def __init__(self, array, device_type, byte_offset=0):
        numbers = ctypes.c_int64 * array.ndim
        strides = numbers(*(stride // array.itemsize for stride in array.strides))
        self._keep = (array, shape := numbers(*array.shape), strides)
        float32 = (ctypes.c_uint8 * 4)(2, 32, 1, 0)
        self._device = (device_type, 0)
        self._tensor = self._Tensor(
            array.ctypes.data, *self._device, array.ndim, float32, shape, strides, byte_offset
        )

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self._device


CPU, CUDA, CUDA_HOST = 1, 2, 3


class TestArguments:
    """Errors name the argument: TVM's for what the function's types say, ours for the rest."""

    @pytest.mark.parametrize(
        "name, arrays, message",
        [
            (
                "linear",
                [x.astype("float64")],
                "linear: the input x .*dtype float32 but get float64",
            ),
            (
                "linear",
                [x.astype("float16")],
                "linear: the input x .*dtype float32 but get float16",
            ),
            ("linear", [x[0]], "linear: the input x .*ndim 2 but get 1"),
            ("linear", [x[None]], "linear: the input x .*ndim 2 but get 3"),
            ("linear", [x[:, 1:].copy()], r"\(63 vs. 64\).*the input x must be"),
            ("residual", [x, r[1:]], r"\(6 vs. 7\).*the input r must be"),
            ("residual", [x, r[:, 1:].copy()], r"\(89 vs. 90\).*the input r must be"),
            ("product", [p, q[:2]], r"\(2 vs. 3\).*the input q must be"),
            ("product", [p, q[:, 1:].copy()], r"\(11 vs. 12\).*the input q must be"),
            ("product", [p, q[0]], "product: the input q .*ndim 3 but get 2"),
        ],
        ids=lambda each: each if isinstance(each, str) else "",
    )
    def test_a_wrong_tensor(self, vm, name, arrays, message):
        with pytest.raises((RuntimeError, ValueError), match=message):
            call(vm, name, *arrays)

    @pytest.mark.parametrize("wrong", [None, 3, 0.5, "x", [x]], ids=lambda w: type(w).__name__)
    def test_no_tensor(self, vm, wrong):
        with pytest.raises(TypeError, match="linear: the input x .*expect a Tensor"):
            vm["linear"](wrong)

    def test_missing_and_superfluous(self, vm):
        with pytest.raises(RuntimeError, match=r"residual expects 2 arguments \(x, r\), but 1"):
            call(vm, "residual", x)
        with pytest.raises(RuntimeError, match=r"linear expects 1 arguments \(x\), but 2"):
            call(vm, "linear", x, x)

    @pytest.mark.parametrize("device", [CUDA, CUDA_HOST])
    def test_another_device(self, vm, device):
        foreign = Foreign(x, device)
        elsewhere = tvm_ffi.from_dlpack(foreign)
        with pytest.raises(ValueError, match="^x: must be on the CPU"):
            vm["linear"](elsewhere)

    def test_an_offset_that_the_pointer_does_not_include(self, vm):
        memory = tensor(8 * K)
        foreign = Foreign(memory[: 7 * K].reshape(7, K), CPU, 4 * K)
        shifted = tvm_ffi.from_dlpack(foreign)
        with pytest.raises(ValueError, match="^x: must have byte offset 0"):
            vm["linear"](shifted)

    def test_the_model_works_after_errors(self, vm):
        for wrong in (x.astype("float64"), tensor(7, 2 * K)[:, ::2]):
            with pytest.raises(ValueError):
                call(vm, "linear", wrong)
        check(vm, "linear", x)


MAP_NORESERVE = 0x4000  # of Linux: no swap space is put aside, however large the mapping
FAR = 2**29 + 16  # five rows that far apart are more than 2**31 elements


def untouched(*shape):
    """Zeros on pages that do not exist until they are written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, 4 * int(np.prod(shape, dtype=np.int64)), flags=flags)
    with contextlib.suppress(OSError):  # only for speed: not every kernel has them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)


def far_apart(array, stride=FAR):
    """A copy of a matrix, or of a batch of one, with `stride` elements from row to row."""
    rows = array.reshape(-1, array.shape[-1])
    memory = untouched(len(rows) * stride)
    view = as_strided(memory, array.shape, [*[4 * stride] * (array.ndim - 1), 4])
    view[...] = array
    return view


@linux
class TestHugeOperands:
    """Offsets of more than 2**31 elements, on memory that is never there as a whole."""

    def test_an_operand_of_more_than_2_to_the_31_elements(self, target):
        rows, columns = 70_000, 32_768
        weight = tensor(columns, 8)
        constant = relax.const(weight)

        @R.function
        def wide(x: R.Tensor(("n", 32768), "float32")):
            y = R.matmul(x, constant)
            return y

        executable = tvm.compile(module(wide), target, relax_pipeline=pipeline(target))
        x = untouched(rows, columns)
        assert x.size > 2**31
        expected = np.zeros((rows, 8))
        for row in (0, 65_535, 65_536, rows - 1):
            x[row] = tensor(columns) + row % 7
            expected[row] = x[row].astype("float64") @ weight
        result = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm_ffi.from_dlpack(x))
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-3, atol=1e-2)

    def test_rows_of_operands(self, vm):
        rows, added = tensor(5, K), tensor(5, N)
        check(vm, "linear", far_apart(rows))
        check(vm, "residual", far_apart(rows), far_apart(added))
        check(vm, "chained", far_apart(rows), far_apart(added))

    def test_rows_of_a_product(self, vm):
        left, right, transposed = tensor(1, 5, 6), tensor(1, 6, 21), tensor(1, 21, 6)
        check(vm, "product", far_apart(left), right)
        check(vm, "product", left, far_apart(right))
        check(vm, "transposed", left, far_apart(transposed, 2**27))
        check(vm, "scaled", far_apart(left), far_apart(right))

    def test_batches_of_a_product(self, vm):
        def batches(array):
            view = as_strided(untouched(5, FAR), array.shape, [4 * FAR, *array.strides[1:]])
            view[...] = array
            return view

        left, right = tensor(5, 3, 6), tensor(5, 6, 21)
        check(vm, "product", batches(left), right)
        check(vm, "product", left, batches(right))

    def test_rows_of_the_output(self, target):
        """An output of more than 2**31 elements would be 8 GiB of memory: a spread one is not."""
        weight = Weight.of(operators.library(target), W, B)
        rows = tensor(5, K)
        memory = untouched(5, FAR)
        memory[:, : N + 1] = CANARY
        linear(operators.library(target), rows, weight, out=memory[:, :N])
        expected = rows.astype("float64") @ W + B
        np.testing.assert_allclose(memory[:, :N], expected, rtol=1e-4, atol=1e-4)
        assert (memory[:, N] == CANARY).all()


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def seen(request):
    """What the model's own process saw, with that many threads."""
    folders = [str(ROOT), str(Path(__file__).parent)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        "TVM_NUM_THREADS": str(request.param),
    }
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("runtime_safety.py"))],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1200,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["started"] == request.param - 1  # the calls were parallel
    return {**result, "threads": request.param}


@linux
class TestProcess:
    def test_ten_thousand_calls_do_not_grow(self, seen):
        assert seen["growth"] <= 512

    def test_a_child_forked_before_the_first_parallel_call(self, seen):
        assert seen["forked before"] == 0

    def test_a_child_forked_later(self, seen, request):
        if seen["threads"] > 1:
            reason = "TVM's pool of threads is not in the child, which waits for them for ever"
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
        assert seen["forked after"] == 0
