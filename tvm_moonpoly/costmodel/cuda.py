"""What thread blocks of CUDA micro-kernels cost: integers in picoseconds.

A launch fills the multiprocessors with blocks, wave after wave. A wave takes a prologue, a step for
each `block_k` of the reduction, and an epilogue; how long a step takes depends on how many blocks
share a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: Larger than any cost of one wave's parts. Products of a few such numbers still fit 64 bits.
MAX_COST = 1 << 40

_MAX_BLOCK = 1 << 16
_MAX_RESIDENT = 32


@dataclass(frozen=True)
class BlockCost:
    """The blocks of one micro-kernel: their tile, and picoseconds of a wave of them.

    ``steps[r - 1]`` is the time of one step along the reduction with ``r`` blocks on each
    multiprocessor; as many as there are entries fit. ``around`` is prologue and epilogue.

    Raises ValueError, naming the field and the rule, when a rule is broken.
    """

    name: str
    block_m: int
    block_n: int
    block_k: int
    around: int
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        for field in ("block_m", "block_n", "block_k"):
            _check(f"{self.name}: {field}", getattr(self, field), 1, _MAX_BLOCK)
        _check(f"{self.name}: around", self.around, 0, MAX_COST)
        if not isinstance(self.steps, tuple):
            raise ValueError(f"{self.name}: steps: a list of numbers is needed, not {self.steps!r}")
        if not 1 <= len(self.steps) <= _MAX_RESIDENT:
            raise ValueError(
                f"{self.name}: steps: 1 to {_MAX_RESIDENT} numbers are needed, one for each number "
                f"of blocks on a multiprocessor, not {len(self.steps)}"
            )
        for step in self.steps:
            _check(f"{self.name}: steps", step, 1, MAX_COST)
        if list(self.steps) != sorted(self.steps):
            raise ValueError(f"{self.name}: steps: more blocks cannot be faster, {self.steps}")

    @property
    def resident(self) -> int:
        """Blocks that fit one multiprocessor."""
        return len(self.steps)

    def wave(self, blocks: int, k: int) -> int:
        """Picoseconds of a wave with ``blocks`` blocks on a multiprocessor, over ``k``."""
        return self.around + -(-k // self.block_k) * self.steps[blocks - 1]


@dataclass(frozen=True)
class CudaTable:
    """The costs of one GPU: its multiprocessors, a launch, and the blocks of each micro-kernel.

    ``measured``: false where costs were computed from what is known without running anything.
    """

    multiprocessors: int
    launch: int
    kernels: tuple[BlockCost, ...]
    measured: bool = False

    def __post_init__(self) -> None:
        _check("multiprocessors", self.multiprocessors, 1, 1 << 12)
        _check("launch", self.launch, 0, MAX_COST)
        if not self.kernels:
            raise ValueError("kernels: at least one is needed")
        names = [kernel.name for kernel in self.kernels]
        if len(set(names)) != len(names):
            raise ValueError(f"kernels: names must differ, got {names}")

    def to_entries(self) -> list[dict[str, Any]]:
        """The table as entries of a tuning log."""
        kernels = [
            {"kind": "cuda kernel", **asdict(k), "steps": list(k.steps)} for k in self.kernels
        ]
        return [
            *kernels,
            {
                "kind": "gpu",
                "multiprocessors": self.multiprocessors,
                "launch": self.launch,
                "measured": self.measured,
            },
        ]

    @classmethod
    def from_entries(cls, entries: Sequence[Mapping[str, Any]]) -> CudaTable:
        """Inverse of `to_entries`; raises ValueError when something is missing or malformed."""
        kernels, gpu = [], None
        for entry in entries:
            fields = {name: value for name, value in entry.items() if name not in ("kind", "sum")}
            if entry.get("kind") == "cuda kernel":
                kernels.append(_made(BlockCost, fields))
            elif entry.get("kind") == "gpu":
                gpu = fields
        if gpu is None or not kernels:
            raise ValueError("log: it holds no GPU or none of its kernels")
        if type(gpu.get("measured")) is not bool:
            raise ValueError("log: measured must be true or false")
        return _made(cls, {**gpu, "kernels": tuple(kernels)})


def _made(cls: Any, fields: Mapping[str, Any]) -> Any:
    """An instance from a log's fields; TypeErrors become ValueErrors."""
    listed = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    try:
        return cls(**listed)
    except TypeError as error:
        raise ValueError(f"log: {error}") from None


def _check(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value < high:
        raise ValueError(f"{name}: an integer in {low}..{high - 1} is needed, not {value!r}")
