"""A form: one function with matrix products, as data that Relax and the reference are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class Dim:
    """A dimension: ``symbol * times // over + plus``; without a symbol the constant ``plus``."""

    symbol: str = ""
    times: int = 1
    over: int = 1
    plus: int = 0

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its size, given those of the symbols."""
        if not self.symbol:
            return self.plus
        return sizes[self.symbol] * self.times // self.over + self.plus

    @property
    def is_static(self) -> bool:
        return not self.symbol

    @property
    def is_plain(self) -> bool:
        """Whether it is a symbol alone, which a parameter of this shape defines."""
        return bool(self.symbol) and (self.times, self.over, self.plus) == (1, 1, 0)

    def __str__(self) -> str:
        if not self.symbol:
            return str(self.plus)
        text = self.symbol if self.times == 1 else f"{self.symbol}*{self.times}"
        text = text if self.over == 1 else f"{text}//{self.over}"
        return text if self.plus == 0 else f"{text}+{self.plus}"


def static(size: int) -> Dim:
    return Dim(plus=size)


class Role(Enum):
    """How an input reaches the function."""

    DYNAMIC = "dynamic"  # a parameter that changes at each call
    WEIGHT = "weight"  # a parameter beyond `num_input`
    CONSTANT = "constant"
    CONDITION = "condition"  # a dynamic boolean scalar


@dataclass(frozen=True)
class Input:
    """A tensor that the function is given. ``only_rank``: its type does not tell its shape.
    ``divisor``: values stay away from 0 and are finite."""

    name: str
    dims: tuple[Dim, ...]
    dtype: str = "float32"
    role: Role = Role.DYNAMIC
    only_rank: bool = False
    divisor: bool = False


@dataclass(frozen=True)
class Node:
    """``name = op(*args, **attrs)``, where args are names of inputs or of nodes before it.

    The operators are those that `build.OPERATORS` and `reference.RULES` have an entry for. Those
    of a ``branch`` (args: the condition) and of a ``call`` are bodies: ``then`` and ``otherwise``,
    ``body`` with its parameters.
    """

    name: str
    op: str
    args: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """Nodes inside a branch or a private function; the last one is the result.

    A branch sees all values before it, a private function only its ``parameters``.
    """

    nodes: tuple[Node, ...]
    parameters: tuple[Input, ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two dimensions that the form itself does not say to fit: ``how`` they must."""

    left: Dim
    right: Dim
    how: str  # "contraction": equal; "batch": equal or one of them 1; "multiple": right divides


@dataclass(frozen=True)
class Form:
    """One function. ``symbols`` maps each symbol to what it is for (batch, m, n, k), ``work`` lists
    the dimensions whose product is the multiplications of one matmul."""

    index: int
    kind: str
    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    symbols: Mapping[str, str]
    pairs: tuple[Pair, ...] = ()
    work: tuple[tuple[Dim, ...], ...] = ()
    dataflow: bool = True
    bounds: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"form_{self.index}"

    def of_role(self, *roles: Role) -> list[Input]:
        return [each for each in self.inputs if each.role in roles]

    def undefined_symbols(self) -> list[str]:
        """Symbols that no parameter's type defines: they are given as a shape of their own."""
        parameters = self.of_role(Role.DYNAMIC, Role.WEIGHT)
        defined = {
            dim.symbol
            for each in parameters
            if not each.only_rank
            for dim in each.dims
            if dim.is_plain
        }
        return [symbol for symbol in self.symbols if symbol not in defined]


def walk(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """All nodes in program order, those of branches and private functions included."""
    for node in nodes:
        yield node
        for body in node.attrs.values():
            if isinstance(body, Body):
                yield from walk(body.nodes)
