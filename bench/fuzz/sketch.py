"""A form while it is drawn: its values so far, and how dimensions and operands come about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bench.fuzz.graph import Dim, Input, Node, Pair, Role, static

T = TypeVar("T")

#: Static sizes by what the dimension is for: around the tiles (1..16 rows, 8, 16, 24, 32 columns).
STATIC = {
    "batch": (1, 2, 3, 4),
    "m": (1, 1, 2, 4, 5, 7, 8, 16, 17, 33),
    "n": (1, 2, 7, 8, 9, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 40, 61, 64, 96, 130),
    "k": (1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 129, 300),
}
#: Of a constant that the executable holds, or that Relax prints.
MAX_CONSTANT = 40_000


@dataclass(frozen=True)
class Known:
    """What is known of a value: its dimensions (None: two symbols were broadcast), its type."""

    dims: tuple[Dim | None, ...]
    dtype: str

    @property
    def is_static(self) -> bool:
        return all(dim is not None and dim.is_static for dim in self.dims)


@dataclass
class Sketch:
    """``values`` are the inputs and nodes by name."""

    rng: np.random.Generator
    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Known] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    work: list[tuple[Dim, ...]] = field(default_factory=list)
    emitted: int = 0

    # --- chance

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def weighted(self, options: dict[T, float]) -> T:
        weights = np.array(list(options.values()))
        return list(options)[int(self.rng.choice(len(options), p=weights / weights.sum()))]

    # --- dimensions

    def symbol(self, purpose: str) -> Dim:
        """A new symbol."""
        letter = {"batch": "b"}.get(purpose, purpose)
        name = f"{letter}{sum(s.startswith(letter) for s in self.symbols) or ''}"
        self.symbols[name] = purpose
        return Dim(name)

    def expression(self, purpose: str) -> Dim:
        """2*n, 32*n, n+1 or n//4, mostly of a symbol that is there already."""
        same = [name for name, each in self.symbols.items() if each == purpose]
        name = self.pick(same) if same and self.chance(0.7) else self.symbol(purpose).symbol
        return self.pick([Dim(name, 2), Dim(name, 3), Dim(name, plus=1), Dim(name, over=4)])

    def dim(self, purpose: str, p_static: float = 0.3) -> Dim:
        """A static size, a symbol (mostly a new one) or an expression."""
        if self.chance(p_static):
            return static(self.pick(STATIC[purpose]))
        if self.chance(0.1):
            return self.expression(purpose)
        same = [name for name, each in self.symbols.items() if each == purpose]
        return Dim(self.pick(same)) if same and self.chance(0.15) else self.symbol(purpose)

    # --- values

    def input(
        self,
        dims: Sequence[Dim],
        dtype: str = "float32",
        role: Role = Role.DYNAMIC,
        **options: bool,
    ) -> str:
        """A new input. Only what is static and small can be a constant; weights are static."""
        size = int(np.prod([dim.plus for dim in dims])) if _is_static(dims) else None
        if size is None or (role is Role.CONSTANT and size > MAX_CONSTANT):
            role = Role.DYNAMIC
        prefix = {Role.DYNAMIC: "x", Role.WEIGHT: "w", Role.CONSTANT: "c", Role.CONDITION: "if"}
        name = f"{prefix[role]}{len(self.inputs)}"
        self.inputs.append(Input(name, tuple(dims), dtype, role, **options))
        self.values[name] = Known(tuple(dims), dtype)
        return name

    def emit(
        self, op: str, *args: str, dims: Sequence[Dim | None], dtype: str, **attrs: Any
    ) -> str:
        name = f"v{self.emitted}"
        self.emitted += 1
        self.nodes.append(Node(name, op, args, attrs))
        self.values[name] = Known(tuple(dims), dtype)
        return name

    def permute(self, value: str, axes: Sequence[int]) -> str:
        """``value`` with its dim ``axes[i]`` as dim i."""
        known = self.values[value]
        reverse = list(axes) == list(range(len(axes)))[::-1]
        return self.emit(
            "permute",
            value,
            dims=[known.dims[axis] for axis in axes],
            dtype=known.dtype,
            axes=None if reverse and self.chance(0.5) else tuple(axes),
        )

    def some_axes(self, ndim: int) -> list[int]:
        """The last two swapped, or any permutation."""
        axes = list(range(ndim))
        if self.chance(0.6):
            return [*axes[:-2], axes[-1], axes[-2]]
        self.rng.shuffle(axes)
        return axes

    def operand(self, dims: Sequence[Dim], dtype: str, role: Role, only_rank: bool = False) -> str:
        """A tensor that has the dimensions ``dims`` when the product sees it: stored so, or stored
        in another order or shape or type and brought there by operators."""
        stored_dtype = dtype
        if dtype == "float32" and self.chance(0.03):
            stored_dtype = self.pick(["float16", "int8", "float64"])
        if len(dims) >= 2 and self.chance(0.45):
            axes = self.some_axes(len(dims))
            stored = [dims[axes.index(i)] for i in range(len(dims))]
            value = self.input(stored, stored_dtype, role, only_rank=only_rank)
            if only_rank and self.chance(0.8):  # TVM permutes only what it knows the shape of
                value = self.cast_shape(value)
            value = self.permute(value, axes)
        elif self.chance(0.12) and self._can_merge(dims) and not only_rank:
            value = self._merged(dims, stored_dtype)
        else:
            value = self.input(dims, stored_dtype, role, only_rank=only_rank)
            if self.chance(0.5 if only_rank else 0.03):
                value = self.cast_shape(value)
        if stored_dtype != dtype:
            known = self.values[value]
            value = self.emit("cast", value, dims=known.dims, dtype=dtype, to=dtype)
        return value

    def cast_shape(self, value: str) -> str:
        """``match_cast`` to the shape that the value has."""
        known = self.values[value]
        if any(dim is None for dim in known.dims):
            return value
        return self.emit(
            "match_cast", value, dims=known.dims, dtype=known.dtype, shape=tuple(known.dims)
        )

    def _can_merge(self, dims: Sequence[Dim]) -> bool:
        first = dims[0]
        return len(dims) >= 2 and not first.is_static and (first.over, first.plus) == (1, 0)

    def _merged(self, dims: Sequence[Dim], dtype: str) -> str:
        """Stored with the first of ``dims`` (``n``, ``n * 2``) as two, and merged by a reshape."""
        first, rest = dims[0], dims[1:]
        stored = [Dim(first.symbol), static(first.times), *rest]
        value = self.input(stored, dtype)
        return self.emit("reshape", value, dims=dims, dtype=dtype, shape=tuple(dims))


def _is_static(dims: Sequence[Dim]) -> bool:
    return all(dim.is_static for dim in dims)
