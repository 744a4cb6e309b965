"""Tensors against protected pages, with a pattern around them.

A read or write beyond the page kills the process; a write before it changes the pattern, and a read
there sees it: its bytes are those of NaN in every floating-point type.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi

PAGE = mmap.PAGESIZE
PATTERN = 0xFF
#: What code that the compiler generates takes for granted of its operands.
ALIGNMENT = 64

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Memory between two pages that can be neither read nor written."""

    def __init__(self, size: int) -> None:
        """``size``: bytes, a multiple of `PAGE`."""
        self._map = mmap.mmap(-1, size + 2 * PAGE)
        everything = np.frombuffer(self._map, np.uint8)
        start = everything.ctypes.data
        for page in (start, start + PAGE + size):
            if _libc.mprotect(page, PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.bytes = everything[PAGE : PAGE + size]


@dataclass(frozen=True)
class Placed:
    """A tensor in guarded memory. ``array`` sees its elements, ``memory`` all bytes around them."""

    array: np.ndarray
    memory: np.ndarray

    def stray_write(self) -> bool:
        """Whether a byte around the elements was written. The elements are lost."""
        self.array.view(_unsigned(self.array.itemsize))[...] = _all_ones(self.array.itemsize)
        return bool((self.memory != PATTERN).any())


class Pool:
    """Guarded memory that is used again: all of it is free after `release`."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Guarded]] = defaultdict(list)
        self._used: list[Guarded] = []

    def place(
        self,
        shape: Sequence[int],
        dtype: np.dtype,
        side: str,
        alignment: int = 1,
        padding: int = 0,
    ) -> Placed:
        """An array of unset values (each byte `PATTERN`) that begins at a page's begin (``side``
        is "begin") or ends at a page's end as closely as ``alignment`` allows. ``padding``:
        elements between two rows."""
        shape = tuple(int(size) for size in shape)
        row = (shape[-1] if shape else 1) + padding
        strides = [dtype.itemsize]
        for size in [row, *shape[:0:-1][1:]]:
            strides.insert(0, strides[0] * size)
        strides = strides[len(strides) - len(shape) :]
        empty = 0 in shape
        last = 0 if empty else sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        used = 0 if empty else last + dtype.itemsize
        memory = self._take(used)
        start = 0 if side == "begin" else (len(memory) - used) // alignment * alignment
        if empty:
            return Placed(np.empty(shape, dtype), memory[:0])
        first = memory[start : start + used]
        array: Any = np.lib.stride_tricks.as_strided(
            first[: dtype.itemsize].view(dtype), shape, strides
        )
        return Placed(array, memory)

    def release(self) -> None:
        for each in self._used:
            self._free[len(each.bytes)].append(each)
        self._used.clear()

    def _take(self, size: int) -> np.ndarray:
        pages = 1
        while pages * PAGE < size:
            pages *= 2
        free = self._free[pages * PAGE]
        taken = free.pop() if free else Guarded(pages * PAGE)
        self._used.append(taken)
        taken.bytes[...] = PATTERN
        return taken.bytes


def tensor(array: np.ndarray) -> Any:
    """The memory of ``array`` as a tensor, not a copy of it."""
    if array.size == 0:
        # numpy and TVM do not agree on the strides of an empty tensor, which TVM's functions check
        return tvm.runtime.empty(array.shape, array.dtype.name)
    if array.dtype.name == "bfloat16":
        bits: Any = tvm_ffi.from_dlpack(array.view(np.uint16))
        return bits._create_view(array.shape, "bfloat16")
    return tvm_ffi.from_dlpack(array)


def copied(value: Any) -> np.ndarray:
    """The elements of a tensor, in an array of its own."""
    if str(value.dtype) == "bfloat16":
        return np.asarray(value.numpy())
    return np.array(np.from_dlpack(value))


def _unsigned(size: int) -> np.dtype:
    return np.dtype(f"u{size}")


def _all_ones(size: int) -> int:
    return (1 << 8 * size) - 1
