"""Arrays of constants in emitted modules."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import Pointer


def constant_array(symbol: str, numbers: Sequence[int], bits: int) -> Pointer:
    """A view of ``numbers``, integers of ``bits`` bits, which become part of the module that is
    being written under the name ``symbol``, once for all functions that have it."""
    listed = ", ".join(f"i{bits} {number}" for number in numbers)
    source = (
        f"@{symbol}_data = private constant [{len(numbers)} x i{bits}] [{listed}]\n"
        f"define linkonce_odr hidden ptr @{symbol}() alwaysinline {{ ret ptr @{symbol}_data }}\n"
    )
    dtype = f"int{bits}"
    pointer = PointerType(PrimType(dtype), "global")
    with T.attr(tirx.const(0, dtype), "pragma_import_llvm", source):
        found = T.Bind(tirx.call_extern(pointer, symbol))
    return Pointer.to(found, dtype)
