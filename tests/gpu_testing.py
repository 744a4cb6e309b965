"""A device made of numpy for the modules of `bench.gpu.runner`, and a bundle of numpy functions.

Its clock goes on by what calls are said to take, so that measurements have known results.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from bench.gpu.runner.bundled import Bundle, Functions
from bench.gpu.runner.calls import Setting
from bench.gpu.runner.device import DeviceLost, GpuFacts
from bench.gpu.runner.numbers import BYTES, from_float32, stored, to_float32
from bench.gpu.runner.operands import Operands, Pool
from bench.gpu.runner.reference import NumpyReference, activate
from bench.gpu.runner.timing import Timer

FACTS = GpuFacts("A GPU of numpy", "sm_90", 4, 1 << 20, 1000, "1.2", 1 << 30)

#: Bytes a second of the device's fills, and what a call takes longer where L2 is not warm.
FILL_RATE, COLD_FACTOR = 1e12, 3.0

Product = Callable[..., None]


class FakeDevice:
    """Memory is numpy's; ``lost`` makes all calls fail, as after an error of a kernel."""

    def __init__(self, room: int = 1 << 28) -> None:
        self.facts = FACTS
        self.now, self.cold, self.lost = 0.0, True, False
        self._room = room
        self._arrays: dict[int, np.ndarray] = {}

    def allocate(self, size: int) -> int:
        if size > self.free_bytes():
            raise MemoryError(f"{size} bytes")
        array = np.zeros(size + 256, np.uint8)
        address = array.ctypes.data + -array.ctypes.data % 256
        self._arrays[address] = array
        return address

    def free(self, address: int) -> None:
        del self._arrays[address]

    def free_bytes(self) -> int:
        return self._room - sum(array.nbytes for array in self._arrays.values())

    def write(self, address: int, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def read(self, address: int, pitch: int, width: int, height: int) -> np.ndarray:
        self.synchronize()
        if not width * height:
            return np.zeros((height, width), np.uint8)
        span = pitch * (height - 1) + width
        memory = (ctypes.c_uint8 * span).from_address(address)
        return as_strided(np.frombuffer(memory, np.uint8), (height, width), (pitch, 1)).copy()

    def copy(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def fill(self, address: int, byte: int, size: int) -> None:
        # zeros are only written to pass the time
        if byte:
            ctypes.memset(address, byte, size)
        self.now += size / FILL_RATE
        self.cold = True

    def mark(self) -> float:
        return self.now

    def between(self, first: float, second: float) -> float:
        return second - first

    def synchronize(self) -> None:
        if self.lost:
            raise DeviceLost("an error that stays")

    def tensor(
        self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]
    ) -> np.ndarray:
        size = BYTES[dtype]
        pairs = zip(shape, strides, strict=True)
        elements = 0 if 0 in shape else sum((n - 1) * s for n, s in pairs) + 1
        memory = (ctypes.c_uint8 * (elements * size)).from_address(address)
        array = np.frombuffer(memory, stored(dtype))
        return as_strided(array, tuple(shape), tuple(s * size for s in strides))

    def took(self, seconds: float) -> None:
        """A call took so long, or longer where L2 was cold."""
        self.now += seconds * (COLD_FACTOR if self.cold else 1.0)
        self.cold = False


def library(name: str = "f16_nt", **changes: Any) -> dict[str, Any]:
    """A manifest's entry, of two kernels."""
    entry = {
        "name": name,
        "file": f"lib/{name}.so",
        "function": f"product_{name}",
        "by_axes": f"product_{name}_by_axes",
        "dtype_in": "float16",
        "dtype_out": "float16",
        "b_transposed": True,
        "bias": False,
        "residual": False,
        "activation": "none",
        "kernels": [
            {"name": f"{name}_small", "form": "nt", "block_m": 16, "block_n": 64, "block_k": 32},
            {"name": f"{name}_large", "form": "nt", "block_m": 64, "block_n": 64, "block_k": 32},
        ],
    }
    return {**entry, **changes}


def product(entry: dict[str, Any]) -> Product:
    """What an operator of numpy computes: ``function(a, b, ..., c)``."""

    def function(a: np.ndarray, b: np.ndarray, *rest: Any) -> None:
        rest = [each for each in rest if isinstance(each, np.ndarray)]  # without codes of axes
        c = rest[-1]
        left, right = (to_float32(x, entry["dtype_in"]) for x in (a, b))
        total = left @ (right.swapaxes(-1, -2) if entry["b_transposed"] else right)
        for extra in rest[:-1]:
            total = total + to_float32(extra, entry["dtype_out"])
        c[...] = from_float32(
            activate(entry["activation"], total.astype(np.float64)).astype(np.float32),
            entry["dtype_out"],
        )

    return function


def kernel(entry: dict[str, Any], which: dict[str, Any]) -> Product:
    """A micro-kernel of numpy: of the region that it is told."""
    whole = product(entry)

    def function(*args: Any) -> None:
        *tensors, m0, n0, down, across = args
        rows = slice(m0, m0 + down * which["block_m"])
        columns = slice(n0, n0 + across * which["block_n"])
        result = np.empty_like(tensors[-1])
        whole(*tensors[:-1], result)
        tensors[-1][:, rows, columns] = result[:, rows, columns]

    return function


def make_setting(
    folder: Path,
    libraries: Sequence[dict[str, Any]] = (),
    cases: dict[str, Any] | None = None,
    tasks: Sequence[dict[str, Any]] = (),
    functions: dict[str, Product] | None = None,
    seconds: Callable[[str, tuple[int, ...]], float] = lambda name, shape: 1e-5,
    device: FakeDevice | None = None,
    peer: Any = None,
) -> Setting:
    """A setting with functions of numpy, or ``functions`` by their names instead, that take
    ``seconds(name, shape of the result)``."""
    entries = list(libraries) or [library()]
    empty: dict[str, Any] = {"correct": [], "speed": [], "planner": []}
    (folder / "cases.json").write_text(json.dumps({**empty, **(cases or {})}))
    (folder / "tasks.json").write_text(json.dumps(list(tasks)))
    manifest = {
        "digest": "d1",
        "gpu": {"name": "nvidia-h200", "arch": "sm_90", "peak_tflops": 100.0},
        "versions": {"tvm": "0.27"},
        "libraries": entries,
        "files": {},
    }
    made = device or FakeDevice()
    known: dict[str, Product] = {}
    for entry in entries:
        if entry["function"]:
            known[entry["function"]] = known[entry["by_axes"]] = product(entry)
        known |= {each["name"]: kernel(entry, each) for each in entry["kernels"]}
    known |= functions or {}

    def find(_: str, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            arrays = [x for x in args if isinstance(x, np.ndarray)]
            known[name](*args)
            made.took(seconds(name, arrays[-1].shape))

        return call

    return Setting(
        Bundle(folder, manifest),
        Functions(find, lambda tensor: tensor),
        made,
        Pool(made, drawn=9973),
        Timer.of(made),
        NumpyReference(made),
        peer(made) if peer else None,
        "" if peer else "no torch",
    )


class FakePeer:
    """Numpy, which takes ``seconds`` a call."""

    def __init__(self, device: FakeDevice, seconds: float) -> None:
        self._device, self._seconds = device, seconds

    def bind(self, operands: Operands, entry: dict[str, Any]) -> Callable[[], None]:
        tensors = operands.tensors(self._device)

        def call() -> None:
            product(entry)(*tensors)
            self._device.took(self._seconds)

        return call


def case(entry: dict[str, Any], batch: int, m: int, n: int, k: int, **more: Any) -> dict[str, Any]:
    """A case of one library."""
    key = f"{entry['name']}/{batch}x{m}x{n}x{k}" + "".join(f"/{name}" for name in more)
    return {"key": key, "library": entry["name"], "batch": batch, "m": m, "n": n, "k": k, **more}
