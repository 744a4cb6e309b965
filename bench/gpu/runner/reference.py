"""What results must be: in float32 by torch, all of them, or else by numpy, windows of them.

A result may differ from the exact one by its rounding and by what float32 sums of ``k`` products of
numbers in -1..1 lose. Nobody has written an element that is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.gpu.runner.device import Device
from bench.gpu.runner.numbers import BYTES, ROUNDING, stored, to_float32
from bench.gpu.runner.operands import UNTOUCHED, Matrix, Operands

#: Windows of the result that numpy computes, each way, and their rows and columns.
_WINDOWS, _ROWS, _COLUMNS = 4, 16, 48

#: Products that torch compares all of.
_ENTRIES = 128

#: Elements that torch holds as float32 at once.
_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class Verdict:
    """Whether a result is right. ``worst``: the largest error by what is allowed; ``reason``, where
    it is wrong, names an element."""

    right: bool
    worst: float
    reason: str = ""


def allowed(expected: Any, dtype: str, k: int) -> Any:
    """How far a result may be from ``expected``."""
    # tensor cores cut off what a partial sum cannot hold, some 2^-23 of it in each step
    return ROUNDING[dtype] * abs(expected) + 2.0**-20 * k + 2.0**-14


class NumpyReference:
    """Windows of the result: at its corners and where chance puts them."""

    name = "numpy, windows of the result"

    def __init__(self, device: Device) -> None:
        self._device = device

    def judge(self, operands: Operands, library: Mapping[str, Any]) -> Verdict:
        """The verdict on the result that lies in the operands' ``c``."""
        c = operands.c
        rng = np.random.default_rng(c.rows + c.columns)
        worst = 0.0
        for entry in _entries(c.batch, 3, rng):
            rows = _windows(c.rows, _ROWS, rng)
            columns = _windows(c.columns, _COLUMNS, rng)
            expected = self._expected(operands, library, entry, rows, columns)
            got = self._numbers(c, entry, rows, columns)
            limits = allowed(expected, c.dtype, operands.a.columns)
            off = np.abs(got - expected) / limits
            bad = ~(off <= 1)
            if bad.any():
                i, j = (int(x) for x in np.argwhere(bad)[0])
                return _wrong(entry, rows[i], columns[j], got[i, j], expected[i, j], bad.sum())
            worst = max(worst, float(off.max(initial=0)))
        return outside(self._device, c) or Verdict(True, worst)

    def _numbers(self, matrix: Matrix, entry: int, rows: list[int], columns: list[int]) -> Any:
        """Some rows and columns of a matrix as float32: (len(rows), len(columns))."""
        size = BYTES[matrix.dtype]
        base = matrix.address + matrix.at(entry) * size
        parts = []
        for first, count in _runs(rows):
            line = [
                self._device.read(
                    base + (first * matrix.row_stride + left) * size,
                    matrix.row_stride * size,
                    width * size,
                    count,
                ).view(stored(matrix.dtype))
                for left, width in _runs(columns)
            ]
            parts.append(np.concatenate(line, axis=1))
        return to_float32(np.concatenate(parts), matrix.dtype)

    def _expected(
        self,
        operands: Operands,
        library: Mapping[str, Any],
        entry: int,
        rows: list[int],
        columns: list[int],
    ) -> np.ndarray:
        k = operands.a.columns
        if k:
            depth = list(range(k))
            a = self._numbers(operands.a, entry, rows, depth).astype(np.float64)
            if library["b_transposed"]:
                b = self._numbers(operands.b, entry, columns, depth).T
            else:
                b = self._numbers(operands.b, entry, depth, columns)
            total = a @ b.astype(np.float64)
        else:
            total = np.zeros((len(rows), len(columns)))
        if operands.bias is not None:
            total = total + self._numbers(operands.bias, 0, [0], columns)
        if operands.residual is not None:
            total = total + self._numbers(operands.residual, entry, rows, columns)
        return activate(library["activation"], total)


class TorchReference:
    """All of the result, by torch on the same GPU."""

    name = "torch, float32, all of the result"

    def __init__(self, device: Device, torch: Any) -> None:
        self._device, self._torch = device, torch
        torch.backends.cuda.matmul.allow_tf32 = False

    def judge(self, operands: Operands, library: Mapping[str, Any]) -> Verdict:
        """The verdict on the result that lies in the operands' ``c``."""
        torch, c = self._torch, operands.c
        worst = 0.0
        for entry in _entries(c.batch, _ENTRIES, np.random.default_rng(c.batch)):
            given = [m.single(entry).tensor(self._device) for m in (operands.a, operands.b, c)]
            a, b, got = (torch.from_dlpack(tensor)[0] for tensor in given)
            b = b.transpose(0, 1) if library["b_transposed"] else b
            for left, right in _chunks(c.columns, max(1, _AT_ONCE // max(1, operands.a.columns))):
                wide = b[:, left:right].float()
                for top, bottom in _chunks(c.rows, max(1, _AT_ONCE // max(1, right - left))):
                    total = a[top:bottom].float() @ wide
                    total = self._epilogue(total, operands, library, entry, (top, left))
                    seen = got[top:bottom, left:right].float()
                    off = (seen - total).abs() / allowed(total, c.dtype, operands.a.columns)
                    largest = float(off.max())
                    if not largest <= 1:
                        bad = ~(off <= 1)
                        i, j = (int(x) for x in bad.nonzero()[0])
                        return _wrong(entry, top + i, left + j, seen[i, j], total[i, j], bad.sum())
                    worst = max(worst, largest)
        return outside(self._device, c) or Verdict(True, worst)

    def _epilogue(
        self,
        total: Any,
        operands: Operands,
        library: Mapping[str, Any],
        entry: int,
        corner: tuple[int, int],
    ) -> Any:
        torch, (top, left) = self._torch, corner
        rows, columns = total.shape
        if operands.bias is not None:
            tensor = operands.bias.tensor(self._device)
            total = total + torch.from_dlpack(tensor)[0, 0, left : left + columns].float()
        if operands.residual is not None:
            tensor = operands.residual.single(entry).tensor(self._device)
            added = torch.from_dlpack(tensor)[0, top : top + rows, left : left + columns]
            total = total + added.float()
        functions = torch.nn.functional
        if library["activation"] == "gelu_tanh":
            return functions.gelu(total, approximate="tanh")
        if library["activation"] in ("relu", "gelu", "silu"):
            return getattr(functions, library["activation"])(total)
        return total


def outside(device: Device, c: Matrix) -> Verdict | None:
    """A verdict where something was written between the rows of the result."""
    # between the rows of a head lie those of others
    gap = 0 if c.heads else c.row_stride - c.columns
    if not gap or not c.elements:
        return None
    size = BYTES[c.dtype]
    # behind the last row nothing is read: the memory ends there
    lines = c.batch * c.rows
    between = device.read(c.address + c.columns * size, c.row_stride * size, gap * size, lines)
    if (between == UNTOUCHED).all():
        return None
    line = int(np.argwhere(between != UNTOUCHED)[0][0])
    return Verdict(False, math.inf, f"something was written behind row {line % c.rows}")


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """The activation ``name`` of float64 numbers."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x * math.sqrt(0.5)))
    if name == "gelu_tanh":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "silu":
        return x / (1 + np.exp(-x))
    return x


def _wrong(entry: int, row: int, column: int, got: Any, expected: Any, count: Any) -> Verdict:
    return Verdict(
        False,
        math.inf,
        f"[{entry}, {row}, {column}] is {float(got):g} and not {float(expected):g}; "
        f"{int(count)} such elements were seen",
    )


def _entries(batch: int, most: int, rng: np.random.Generator) -> list[int]:
    """The products that are looked at: all, or the ends, those around the most that one launch may
    have, and others."""
    if batch <= most:
        return list(range(batch))
    some = {0, 1, 65534, 65535, 65536, batch - 1, *rng.integers(0, batch, most).tolist()}
    return sorted(entry for entry in some if entry < batch)


def _windows(size: int, width: int, rng: np.random.Generator) -> list[int]:
    """Indices below ``size``: the first ones, the last ones, and others."""
    starts = [0, size - width, *rng.integers(0, max(1, size - width + 1), _WINDOWS - 2)]
    return sorted({i for s in starts for i in range(max(0, int(s)), min(size, int(s) + width))})


def _runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    """First index and count of each run of neighbours."""
    begin = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield indices[begin], at - begin
            begin = at


def _chunks(size: int, width: int) -> Iterator[tuple[int, int]]:
    for first in range(0, size, width):
        yield first, min(size, first + width)
