"""Arrays that a host function takes for tensors on the GPU."""

from __future__ import annotations

import numpy as np
import tvm_ffi
from numpy.lib.stride_tricks import as_strided

from bench.gpu.runner import memory

_ALIGNMENT = 256  # of what CUDA allocates


class DeviceTensor:
    """A copy of an array, aligned as on the device, and a tensor of device type CUDA over it.

    The copy has the array's strides; what lies between its elements belongs to it.

    Attributes:
        memory: all elements of the copy's memory, one-dimensional.
        tensor: what a packed function takes; it does not own the copy.
    """

    def __init__(self, array: np.ndarray) -> None:
        size = array.dtype.itemsize
        if any(stride < 0 or stride % size for stride in array.strides):
            raise ValueError(f"no tensor on the device has the strides {array.strides}")
        if array.dtype.name not in memory.CODES:
            raise ValueError(f"no tensors of {array.dtype} on the device")
        spans = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
        room = np.empty(sum(spans) + size + _ALIGNMENT, np.uint8)
        begin = -room.ctypes.data % _ALIGNMENT
        bytes_used = 0 if array.size == 0 else sum(spans) + size
        self.memory = room[begin : begin + bytes_used].view(array.dtype)
        self._array = array
        self._copy = as_strided(self.memory, array.shape, array.strides)
        self._copy[...] = array
        # numpy gives empty arrays strides of 0, which no tensor on the device has
        filled = np.empty([max(n, 1) for n in array.shape], array.dtype)
        steps = array.strides if array.size else filled.strides
        strides = [step // size for step in steps]
        address = self.memory.ctypes.data
        self._lent = memory.DeviceTensor(address, array.dtype.name, array.shape, strides)
        self.tensor = tvm_ffi.from_dlpack(self._lent)

    def copy_back(self) -> None:
        """Writes what the device has into the caller's array, unless that is read-only."""
        if self._array.flags.writeable:
            self._array[...] = self._copy
