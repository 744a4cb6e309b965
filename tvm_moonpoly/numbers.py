"""Integers in memory, by name: how native functions tell each other what a call is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import tirx

from tvm_moonpoly.emit import FLOAT, INT, Expr, Pointer, as_int, let, scratch


class Numbers:
    """The int64 called ``names``, one after another at ``memory``, or in new ones on the stack."""

    def __init__(self, names: Sequence[str], memory: Pointer | None = None) -> None:
        self.names = names
        self.memory = scratch(len(names), INT) if memory is None else memory

    def __getitem__(self, name: str) -> Expr:
        return self.memory[self.names.index(name)]

    def __setitem__(self, name: str, value: Expr) -> None:
        self.memory[self.names.index(name)] = as_int(value)

    def fill(self, values: Mapping[str, Expr]) -> None:
        """Store several."""
        for name, value in values.items():
            self[name] = value

    def kept(self, *names: str) -> dict[str, Expr]:
        """Some of them, or all, read once."""
        return {name: let(self[name]) for name in names or self.names}


def as_float(bits: Expr) -> Expr:
    """The float32 whose bits are the lower half of an int64."""
    return let(tirx.reinterpret(FLOAT, tirx.Cast("int32", bits)))
