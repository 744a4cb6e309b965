"""The fields of a tensor argument as a packed function gets it (DLTensor)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import INT, Expr, Pointer

#: tvm's numbers of the fields (TVMStructFieldKind).
DATA, SHAPE, STRIDES, NDIM, TYPE_CODE, TYPE_BITS, TYPE_LANES, BYTE_OFFSET = 1, 2, 3, 4, 5, 6, 7, 8
DEVICE_TYPE = 10

#: A DLTensor as 64-bit words, on a 64-bit machine: data, device, dimensions and type, shape,
#: strides, byte offset.
WORDS = 6

#: The type of each field that is a number.
_NUMBERS = {
    NDIM: "int32",
    TYPE_CODE: "uint8",
    TYPE_BITS: "uint8",
    TYPE_LANES: "uint16",
    BYTE_OFFSET: "uint64",
    DEVICE_TYPE: "int32",
}

CPU, CUDA = 1, 2

#: What messages call the kinds of devices.
DEVICES = {CPU: "the CPU", CUDA: "the GPU"}


def number(tensor: Expr, field: int) -> Expr:
    """A field that is a number, of the type that it has."""
    return T.tvm_struct_get(tensor, 0, field, _NUMBERS[field])


def address(tensor: Expr, field: int, dtype: str) -> Expr:
    """A field that points to elements of ``dtype``."""
    return T.tvm_struct_get(tensor, 0, field, PointerType(PrimType(dtype), "global"))


def type_of(dtype: str) -> tuple[int, int]:
    """The type code and bits of ``dtype``."""
    described: Any = tvm.DataType(dtype)
    return int(described.type_code), int(described.bits)


def write(memory: Pointer, like: Expr, shape: Expr, strides: Expr, ndim: int) -> None:
    """Make the `WORDS` int64 at ``memory`` a tensor over the memory of ``like``, of its type and on
    its device, with other dimensions: ``shape`` and ``strides`` are addresses of int64."""
    words = Pointer.to(T.reinterpret(PointerType(PrimType(INT), "global"), like), INT)
    dtype_mask = tirx.const(~0xFFFFFFFF, INT)  # the number of dimensions is the lower half
    memory[0] = words[0]
    memory[1] = words[1]
    memory[2] = tirx.bitwise_or(tirx.bitwise_and(words[2], dtype_mask), tirx.const(ndim, INT))
    memory[3] = T.reinterpret(INT, shape)
    memory[4] = T.reinterpret(INT, strides)
    memory[5] = tirx.const(0, INT)
