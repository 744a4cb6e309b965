"""Operands of products in device memory, and results of which every byte is known before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.gpu.runner.device import Device
from bench.gpu.runner.numbers import BYTES, from_float32

#: What a byte holds that nobody wrote: as numbers these are NaN.
UNTOUCHED = 0xFF

#: Elements that are drawn at random; larger operands repeat them. No power of two divides it.
DRAWN = 33_554_393

#: Operands begin at multiples of so many elements, unless they are to be misaligned.
_ALIGNED = 128


@dataclass(frozen=True)
class Matrix:
    """``batch`` matrices of ``rows`` rows in device memory; strides in elements.

    Where there are ``heads``, so many follow one another ``columns`` apart, and ``batch_stride`` is
    from one such group to the next.
    """

    address: int
    dtype: str
    batch: int
    rows: int
    columns: int
    batch_stride: int
    row_stride: int
    heads: int = 0

    def at(self, entry: int) -> int:
        """Where a matrix of the batch begins, in elements."""
        group, head = divmod(entry, self.heads or 1)
        return group * self.batch_stride + head * self.columns

    def single(self, entry: int) -> Matrix:
        """One matrix of the batch."""
        address = self.address + self.at(entry) * BYTES[self.dtype]
        return replace(self, address=address, batch=1, heads=0)

    @property
    def elements(self) -> int:
        """From the first to behind the last."""
        if 0 in (self.batch, self.rows, self.columns):
            return 0
        return self.at(self.batch - 1) + (self.rows - 1) * self.row_stride + self.columns

    def tensor(self, device: Device) -> Any:
        """As a device's tensor of three dimensions, of four where there are heads."""
        if self.heads:
            shape = (self.batch // self.heads, self.heads, self.rows, self.columns)
            strides = (self.batch_stride, self.columns, self.row_stride, 1)
            return device.tensor(self.address, self.dtype, shape, strides)
        return device.tensor(
            self.address,
            self.dtype,
            (self.batch, self.rows, self.columns),
            (self.batch_stride, self.row_stride, 1),
        )


@dataclass(frozen=True)
class Operands:
    """The matrices of one product; bias is (1, 1, N)."""

    a: Matrix
    b: Matrix
    c: Matrix
    bias: Matrix | None
    residual: Matrix | None

    def tensors(self, device: Device) -> list[Any]:
        """In the order of the functions' arguments; a and b are the first."""
        found = [self.a.tensor(device), self.b.tensor(device)]
        if self.bias is not None:
            bias = self.bias
            found.append(device.tensor(bias.address, bias.dtype, (bias.columns,), (1,)))
        if self.residual is not None:
            found.append(self.residual.tensor(device))
        return [*found, self.c.tensor(device)]


class Pool:
    """Random numbers on the device that operands are cut out of, and memory for results.

    Memory grows as it is needed and is kept.
    """

    def __init__(self, device: Device, drawn: int = DRAWN) -> None:
        self._device, self._drawn = device, drawn
        self._numbers: dict[str, tuple[int, int]] = {}
        self._values: dict[str, np.ndarray] = {}
        self._result = (0, 0)

    def numbers(self, dtype: str, elements: int) -> int:
        """The address of at least ``elements`` numbers, uniform in -1..1.

        Raises MemoryError when the device has no room for them.
        """
        address, held = self._numbers.get(dtype, (0, 0))
        if held >= elements:
            return address
        if address:
            self._device.synchronize()
            self._device.free(address)
            self._numbers.pop(dtype)
        if dtype not in self._values:
            drawn = np.random.default_rng(7).random(self._drawn, np.float32) * 2 - 1
            self._values[dtype] = from_float32(drawn, dtype)
        # half as many again, so that growing cases do not make it grow each time
        wanted = max(elements, min(held * 3 // 2, self._device.free_bytes() // 4))
        held = -(-wanted // self._drawn) * self._drawn
        address = self._device.allocate(held * BYTES[dtype])
        self._device.write(address, self._values[dtype])
        size = self._drawn * BYTES[dtype]
        for part in range(1, held // self._drawn):
            self._device.copy(address + part * size, address, size)
        self._numbers[dtype] = (address, held)
        return address

    def result(self, size: int) -> int:
        """The address of ``size`` bytes that hold `UNTOUCHED`."""
        address, held = self._result
        if held < size:
            if address:
                self._device.synchronize()
                self._device.free(address)
                self._result = (0, 0)
            address = self._device.allocate(size)
            self._result = (address, size)
        self._device.fill(address, UNTOUCHED, size)
        return address

    def operands(self, case: Mapping[str, Any], library: Mapping[str, Any]) -> Operands:
        """Those of a case: ``batch, m, n, k`` and, where they are not 0, ``pad`` (elements between
        rows, by the operand's letter), ``shift`` (elements that A and B begin after an aligned
        address), ``shared`` (whether all batches have one B) and ``heads`` (which lie between rows
        and columns, in batch / heads groups).

        Raises MemoryError when the device has no room for them.
        """
        batch, m, n, k = (case[name] for name in ("batch", "m", "n", "k"))
        pad, shift, heads = case.get("pad", {}), case.get("shift", 0), case.get("heads", 0)
        b_rows, b_columns = (n, k) if library["b_transposed"] else (k, n)
        b_batch = 1 if case.get("shared") else batch
        dtype = library["dtype_in"]
        plans = [("a", dtype, batch, m, k), ("b", dtype, b_batch, b_rows, b_columns)]
        if library["bias"]:
            plans.append(("bias", library["dtype_out"], 1, 1, n))
        if library["residual"]:
            plans.append(("residual", library["dtype_out"], batch, m, n))
        placed: list[tuple[str, str, int, int, int, int, int, int]] = []
        ends: dict[str, int] = {}
        for name, dtype, count, rows, columns in plans:
            moved = shift if name in ("a", "b") else 0
            begin = -(-ends.get(dtype, 0) // _ALIGNED) * _ALIGNED + moved
            side = 0 if name == "bias" else heads
            stride = columns * (side or 1) + pad.get(name, 0)
            ends[dtype] = begin + count // (side or 1) * rows * stride
            placed.append((name, dtype, begin, count, rows, columns, stride, side))
        bases = {dtype: self.numbers(dtype, end + 1) for dtype, end in ends.items()}
        found = {
            name: Matrix(
                bases[dtype] + begin * BYTES[dtype],
                dtype,
                batch if name == "b" else count,
                rows,
                columns,
                0 if count == 1 and batch > 1 else rows * stride,
                stride,
                side,
            )
            for name, dtype, begin, count, rows, columns, stride, side in placed
        }
        stride = n * (heads or 1) + pad.get("c", 0)
        dtype = library["dtype_out"]
        address = self.result(batch // (heads or 1) * m * stride * BYTES[dtype])
        c = Matrix(address, dtype, batch, m, n, m * stride, stride, heads)
        return Operands(found["a"], found["b"], c, found.get("bias"), found.get("residual"))
