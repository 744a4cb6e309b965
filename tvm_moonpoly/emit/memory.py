"""Memory: typed views of pointers, places on the stack, workspaces, and prefetches."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit.values import FLOAT, INT, Expr, as_int, item_size, vector, vector_type

#: Nominal length of a flat view of a pointer. Nothing checks it; it only has to be large.
_UNBOUNDED = 1 << 40


class Pointer:
    """A flat typed view of memory: at a pointer, or a buffer that was just allocated."""

    def __init__(self, buffer: Expr) -> None:
        self.buffer = buffer

    @classmethod
    def to(cls, data: Expr, dtype: str) -> Pointer:
        """A view of what ``data`` points to; nothing beyond the alignment of floats is assumed."""
        align = min(4, item_size(dtype))
        return cls(T.decl_buffer((_UNBOUNDED,), dtype, data=data, align=align, layout=None))

    def __getitem__(self, index: Expr) -> Expr:
        return self.buffer[index]

    def __setitem__(self, index: Expr, value: Expr) -> None:
        T.buffer_store(self.buffer, value, [index])

    def floats(self, base: Expr, lanes: int = 1) -> Expr:
        """``lanes`` elements from ``base`` on, as float32."""
        value = self[vector(base, lanes)]
        return value if self._dtype == FLOAT else tirx.Cast(vector_type(FLOAT, lanes), value)

    def put_floats(self, base: Expr, value: Expr, lanes: int = 1) -> None:
        """Store ``lanes`` float32 from ``base`` on, as what the elements are."""
        dtype = self._dtype
        stored = value if dtype == FLOAT else tirx.Cast(vector_type(dtype, lanes), value)
        self[vector(base, lanes)] = stored

    @property
    def _dtype(self) -> str:
        return str(self.buffer.dtype)

    def at(self, index: Expr) -> Expr:
        """The address of element ``index``."""
        return T.address_of(self.buffer[index])

    def unless(self, condition: Expr, other: Pointer) -> Pointer:
        """This memory, or ``other`` of the same type where ``condition`` holds."""
        dtype = self._dtype
        addresses = [other.at(0), self.at(0)]
        kind = PointerType(PrimType(dtype), "global")
        chosen = tvm.ir.Call("prim.if_then_else", [condition, *addresses], ret_ty=kind)
        return Pointer.to(T.Bind(chosen), dtype)


def scratch(elements: int, dtype: str = FLOAT) -> Pointer:
    """Memory on the stack; less than 1 KiB, or tvm would take it from the heap."""
    size = elements * item_size(dtype)
    if size >= 1024:
        raise ValueError(f"elements: scratch of {size} bytes does not stay on the stack")
    return Pointer(T.alloc_buffer((elements,), dtype, scope="global", layout=None))


def workspace(elements: Expr) -> Pointer:
    """Floats from tvm's pool of workspaces, until the end of the enclosing scope.

    Only in a packed function, under the attributes that tell the device.
    """
    return Pointer(T.alloc_buffer((elements,), FLOAT, scope="global", layout=None))


def cell(value: Expr, dtype: str = INT, lanes: int = 1) -> Expr:
    """Evaluate once, into a place on the stack that LLVM turns into a register.

    tvm's analysis looks through `let`: it takes time exponential in the length of a chain of them
    that holds choices, and writes what both sides of a choice share twice. It does not look
    through memory.
    """
    place = scratch(lanes, dtype)
    at = vector(0, lanes)
    place[at] = as_int(value)
    return place[at]


def prefetch(address: Expr, level: int = 1) -> None:
    """Fetch the cache line at ``address``, to be read: `fetched` as a statement."""
    T.evaluate(fetched(address, level))


def fetched(address: Expr, level: int = 1, write: bool = False) -> Expr:
    """A call that brings the cache line at ``address`` into the caches from ``level`` (1 to 3) on,
    to be read or to be written. What is not there is no error."""
    numbers = (tirx.const(number, "int32") for number in (int(write), 4 - level, 1))
    return tirx.call_llvm_intrin("void", "llvm.prefetch", address, *numbers)
