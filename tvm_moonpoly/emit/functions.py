"""The functions of a native module, while they are being written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import GlobalVar, PointerType, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit.control import unless
from tvm_moonpoly.emit.memory import Pointer
from tvm_moonpoly.emit.values import Expr, as_int


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


def fail() -> None:
    """Leave the function that is being written with the error that has been raised.

    tvm's way out of a function is a packed call that fails: that of `Functions.failing` is inlined
    to it.
    """
    T.evaluate(T.call_cpacked(Functions.current().failing))
