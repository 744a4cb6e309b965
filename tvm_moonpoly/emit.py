"""Small helpers to write native functions with tvm's IRBuilder.

The library's loops are private PrimFuncs over raw pointers. A private function is called natively
(no packed calling convention), returns nothing, and keeps its scratch below 1 KiB on the stack:
those are the limits of tvm 0.27 on native callees. One that may fail returns its status, and its
caller fails with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import GlobalVar, PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

Expr = Any
INT = "int64"
FLOAT = "float32"
FLOATS = "float32*"
INTS = "int64*"
BYTE = "uint8"
BYTES = "uint8*"

#: Floats in a cache line.
LINE = 16

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


class Functions:
    """The functions of one native module, by name, while they are being written.

    ``part``: what tells it from other modules that may be linked to it.
    """

    def __init__(self, part: str = "") -> None:
        #: the packed function without arguments that fails, its error having been raised before
        self.failing = f"moonpoly_fail_{part}" if part else "moonpoly_fail"
        #: the private functions that LLVM is told something about, by its word for it
        self.marks: dict[str, list[str]] = {"noinline": [], "cold": [], "optsize": []}
        self._defined: dict[GlobalVar, tirx.PrimFunc] = {}
        self._names: dict[str, GlobalVar] = {}
        self._fallible: set[str] = set()

    @staticmethod
    def current() -> Functions:
        """The functions of which one is being written."""
        return _current.get()

    def __getitem__(self, name: str) -> Callable[..., None]:
        """A callable that emits a native call of the private function ``name``.

        When that function fails, the function that calls it fails with the same error.
        """
        function = self._global(name)

        def call(*arguments: Expr) -> None:
            given = [as_int(a) if isinstance(a, int) else a for a in arguments]
            if name in self._fallible:
                status = tvm.ir.Call(function, given, ret_ty=STATUS)
                unless(status == tirx.const(0, STATUS), fail)
            else:
                T.evaluate(function(*given))

        return call

    def add(self, name: str, function: tirx.PrimFunc) -> None:
        """Take in a finished PrimFunc."""
        self._defined[self._global(name)] = function

    def separate(self, name: str, **parameters: str) -> Callable[[Callable[..., None]], None]:
        """Define a private function that is not to be inlined."""
        self.marks["noinline"].append(name)
        return self.private(name, **parameters)

    def compact(self, name: str, **parameters: str) -> Callable[[Callable[..., None]], None]:
        """Define a private function whose loops LLVM is not to unroll or vectorize at length."""
        self.marks["optsize"].append(name)
        return self.separate(name, **parameters)

    def rare(self, name: str, **parameters: str) -> Callable[[Callable[..., None]], None]:
        """Define a private function that is hardly ever called."""
        self.marks["cold"].append(name)
        return self.separate(name, **parameters)

    def fallible(self, name: str, **parameters: str) -> Callable[[Callable[..., None]], None]:
        """Define a private function, not to be inlined, that may fail; before any call of it."""
        if name in self._names:
            raise ValueError(f"name: {name} is called before it is defined")
        self.marks["noinline"].append(name)
        self._fallible.add(name)
        return self.private(name, **parameters)

    def private(self, name: str, **parameters: str) -> Callable[[Callable[..., None]], None]:
        """Define the private function ``name``; the decorated Python function emits its body."""

        def define(body: Callable[..., None]) -> None:
            with self._writing() as builder:
                with T.prim_func(private=True, s_tir=True):
                    T.func_name(name)
                    T.func_attr({"calling_conv": -1})
                    if name in self._fallible:
                        T.func_ret(PrimType(STATUS))
                    arguments = _declare(parameters)
                    body(
                        **{
                            key: Pointer.to(value, kind[:-1]) if kind.endswith("*") else value
                            for (key, kind), value in zip(
                                parameters.items(), arguments, strict=True
                            )
                        }
                    )
                function = builder.get()
            self.add(name, function)

        return define

    def public(self, name: str, **parameters: str) -> Callable[[Callable[..., None]], None]:
        """Define the packed function ``name``; tensors are parameters of kind ``"handle"``."""

        def define(body: Callable[..., None]) -> None:
            with self._writing() as builder:
                with T.prim_func(s_tir=True):
                    T.func_name(name)
                    T.func_attr({"global_symbol": name})
                    arguments = _declare(parameters)
                    body(**dict(zip(parameters, arguments, strict=True)))
                function = builder.get()
            self.add(name, function)

        return define

    def module(self) -> tvm.IRModule:
        """All functions as one module."""
        missing = [name for name, key in self._names.items() if key not in self._defined]
        if missing:
            raise ValueError(f"functions called but never defined: {', '.join(sorted(missing))}")
        return tvm.IRModule(dict(self._defined))

    def _global(self, name: str) -> GlobalVar:
        return self._names.setdefault(name, GlobalVar(name))

    @contextmanager
    def _writing(self) -> Any:
        token = _current.set(self)
        try:
            with IRBuilder() as builder:
                yield builder
        finally:
            _current.reset(token)


_current: ContextVar[Functions] = ContextVar("functions")

#: What a function that may fail returns.
STATUS = "int32"


def _declare(parameters: dict[str, str]) -> list[Expr]:
    return [T.arg(name, _variable(name, kind)) for name, kind in parameters.items()]


def _variable(name: str, kind: str) -> tirx.Var:
    if kind.endswith("*"):
        return tirx.Var(name, PointerType(PrimType(kind[:-1]), "global"))
    return tirx.Var(name, kind)


def as_int(value: Expr) -> Expr:
    """An int64 expression."""
    return tirx.const(value, INT) if isinstance(value, int) else value


def let(value: Expr) -> Expr:
    """Evaluate once and name it."""
    return T.Bind(as_int(value))


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


def div(a: Expr, b: Expr) -> Expr:
    """Quotient of non-negative integers (one machine division)."""
    return tirx.truncdiv(as_int(a), as_int(b))


def ceil_div(a: Expr, b: Expr) -> Expr:
    """Quotient of non-negative integers, rounded up."""
    return div(as_int(a) + (as_int(b) - 1), b)


def balanced(
    rows: Expr, tallest: Expr, keep: Callable[[Expr], Expr] = let
) -> tuple[Expr, Expr, Expr]:
    """``rows`` in tiles of at most ``tallest``, one row apart: (small, large, tiles).

    ``large`` of the ``tiles`` have ``small + 1`` rows and come first, the others ``small``.
    ``keep`` evaluates once. The twin of `planner.spec.balanced`.
    """
    tiles = keep(ceil_div(rows, tallest))
    small = keep(div(rows, tiles))
    return small, keep(rows - small * tiles), tiles


def minimum(a: Expr, b: Expr) -> Expr:
    return tirx.min(as_int(a), as_int(b))


def maximum(a: Expr, b: Expr) -> Expr:
    return tirx.max(as_int(a), as_int(b))


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """A branch-free choice: both sides are evaluated."""
    return tirx.Select(condition, as_int(then), as_int(otherwise))


def vector(base: Expr, lanes: int) -> Expr:
    """The index of ``lanes`` consecutive elements, or of one."""
    base = as_int(base)
    return base if lanes == 1 else tirx.Ramp(base, tirx.const(1, INT), lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """The type of ``lanes`` elements, or of one."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def spread(value: Expr, lanes: int) -> Expr:
    """``value`` in all ``lanes`` of a vector, or as it is."""
    return value if lanes == 1 else T.Broadcast(value, lanes)


def loop(extent: Expr) -> AbstractContextManager[Expr]:
    """``for i in range(extent)`` over int64."""
    return T.serial(0, as_int(extent))


@contextmanager
def when(condition: Expr) -> Any:
    """``if condition:`` without an else."""
    with T.If(condition), T.Then():
        yield


def unless(
    condition: Expr, rare: Callable[[], None], usual: Callable[[], None] | None = None
) -> None:
    """``rare()`` unless ``condition`` holds, else ``usual()`` or nothing.

    tvm tells LLVM that an ``if`` without an else is taken; this one has both.
    """
    nothing = T.call_llvm_intrin("void", "llvm.donothing")
    branch(condition, usual or (lambda: T.evaluate(nothing)), rare)


def fail() -> None:
    """Leave the function that is being written with the error that has been raised.

    tvm's way out of a function is a packed call that fails: that of `Functions.failing` is inlined
    to it.
    """
    T.evaluate(T.call_cpacked(Functions.current().failing))


def branch(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """``if condition: then() else: otherwise()``."""
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()


def switch(value: Expr, cases: Sequence[int], emit: Callable[[int], None]) -> None:
    """Emit ``emit(case)`` for the case equal to ``value``, found by bisection.

    A value that is no case takes the nearest one above it, or the last.
    """
    if len(cases) == 1:
        emit(cases[0])
        return
    middle = len(cases) // 2
    branch(
        value < cases[middle],
        lambda: switch(value, cases[:middle], emit),
        lambda: switch(value, cases[middle:], emit),
    )


def prefetch(address: Expr, level: int = 1) -> None:
    """Fetch the cache line at ``address``, to be read: `fetched` as a statement."""
    T.evaluate(fetched(address, level))


def fetched(address: Expr, level: int = 1, write: bool = False) -> Expr:
    """A call that brings the cache line at ``address`` into the caches from ``level`` (1 to 3) on,
    to be read or to be written. What is not there is no error."""
    numbers = (tirx.const(number, "int32") for number in (int(write), 4 - level, 1))
    return tirx.call_llvm_intrin("void", "llvm.prefetch", address, *numbers)


def item_size(dtype: str) -> int:
    """Bytes of one element."""
    return tvm.DataType(dtype).bits // 8


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
