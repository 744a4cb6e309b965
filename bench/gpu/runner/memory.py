"""Tensors over memory of the device that packed functions and torch take without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

#: DLPack's code of a GPU of NVIDIA, and the first of them.
CUDA = (2, 0)

#: DLPack's code of each type, and its bits.
CODES = {
    f"{kind}{bits}": (code, bits)
    for code, kind in enumerate(("int", "uint", "float"))
    for bits in (8, 16, 32, 64)
    if bits > 8 or kind != "float"
} | {"bfloat16": (4, 16), "bool": (6, 8)}


class _Tensor(ctypes.Structure):
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


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DeviceTensor:
    """A tensor at an address; strides in elements. It must outlive what was made of it, and the
    memory both."""

    def __init__(
        self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]
    ) -> None:
        dims = ctypes.c_int64 * max(1, len(shape))
        self._shape, self._strides = dims(*shape), dims(*strides)
        code, bits = CODES[dtype]
        self._managed = _Managed(
            _Tensor(address, *CUDA, len(shape), code, bits, 1, self._shape, self._strides, 0)
        )

    def __dlpack__(self, **_: object) -> object:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA
