"""The fields of a tensor argument as a packed function gets it (DLTensor)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import PointerType, PrimType
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import Expr

#: tvm's numbers of the fields (TVMStructFieldKind).
DATA, SHAPE, STRIDES, NDIM, TYPE_CODE, TYPE_BITS, TYPE_LANES, BYTE_OFFSET = 1, 2, 3, 4, 5, 6, 7, 8
DEVICE_TYPE = 10

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
