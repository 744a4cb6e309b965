"""Arrays that a host function takes for tensors on the GPU."""

from __future__ import annotations

import ctypes

import numpy as np
import tvm_ffi
from numpy.lib.stride_tricks import as_strided

_ALIGNMENT = 256  # of what CUDA allocates
_CUDA = (2, 0)  # DLPack's device type, the first device


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


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
        spans = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
        room = np.empty(sum(spans) + size + _ALIGNMENT, np.uint8)
        begin = -room.ctypes.data % _ALIGNMENT
        bytes_used = 0 if array.size == 0 else sum(spans) + size
        self.memory = room[begin : begin + bytes_used].view(array.dtype)
        self._array = array
        self._copy = as_strided(self.memory, array.shape, array.strides)
        self._copy[...] = array
        dims = ctypes.c_int64 * max(1, array.ndim)
        self._shape = dims(*array.shape)
        # numpy gives empty arrays strides of 0, which no tensor on the device has
        filled = np.empty([max(n, 1) for n in array.shape], array.dtype)
        strides = array.strides if array.size else filled.strides
        self._strides = dims(*(stride // size for stride in strides))
        tensor = _DLTensor(
            self.memory.ctypes.data,
            *_CUDA,
            array.ndim,
            _type_code(array.dtype),
            8 * size,
            1,
            self._shape,
            self._strides,
            0,
        )
        self._managed = _DLManagedTensor(tensor, None, None)
        self.tensor = tvm_ffi.from_dlpack(self)

    def copy_back(self) -> None:
        """Writes what the device has into the caller's array, unless that is read-only."""
        if self._array.flags.writeable:
            self._array[...] = self._copy

    def __dlpack__(self, **_: object) -> object:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA


def _type_code(dtype: np.dtype) -> int:
    """DLPack's code of the type."""
    codes = {"i": 0, "u": 1, "f": 2, "b": 6}
    if dtype.name == "bfloat16":
        return 4
    if dtype.kind not in codes:
        raise ValueError(f"no tensors of {dtype} on the device")
    return codes[dtype.kind]
