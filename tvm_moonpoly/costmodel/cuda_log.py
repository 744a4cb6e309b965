"""Micro-kernels for a GPU as entries of a tuning log: form, tile, what the compiler told, costs.

The order of a form's micro-kernels is that of their usefulness. What is read may come from anybody:
a kernel that breaks a rule is left out, and `Contents.faults` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from tvm_moonpoly.costmodel.cuda import BlockCost, CudaTable
from tvm_moonpoly.microkernels.cuda.form import Form
from tvm_moonpoly.microkernels.cuda.gpus import architecture
from tvm_moonpoly.microkernels.cuda.kernel import kernel_name
from tvm_moonpoly.microkernels.cuda.tile import CudaTile, check

#: Kernels of a log; those of all forms of a dtype are some hundred.
MOST_KERNELS = 4096

_KERNEL = "cuda kernel"

_COSTS = tuple(field.name for field in fields(BlockCost))

_TYPES: dict[str, type] = {"int": int, "bool": bool, "str": str}


@dataclass(frozen=True)
class Static:
    """What is known of a micro-kernel without running it.

    ``registers`` a thread as the assembler told them, None where they are only estimated.
    ``shared_bytes`` of a block. ``blocks`` fit a multiprocessor, by what ``limit`` says.
    """

    registers: int | None
    shared_bytes: int
    blocks: int
    limit: str


@dataclass(frozen=True)
class Kernel:
    """A micro-kernel of a log. ``measured``: false where its cost was computed."""

    form: Form
    tile: CudaTile
    static: Static
    cost: BlockCost
    measured: bool = False

    @property
    def name(self) -> str:
        """As `kernel_name` says."""
        return self.cost.name

    def to_entry(self) -> dict[str, Any]:
        """The entry of a log."""
        (cost, _) = CudaTable(1, 0, (self.cost,)).to_entries()
        return {
            **cost,
            "form": asdict(self.form),
            "tile": asdict(self.tile),
            "static": asdict(self.static),
            "measured": self.measured,
        }


@dataclass(frozen=True)
class Contents:
    """What a GPU's log holds; ``launch`` in picoseconds. ``faults``: kernels that were left out.

    ``measured_launch``: whether the launch was measured.
    """

    multiprocessors: int
    launch: int
    measured_launch: bool
    kernels: tuple[Kernel, ...]
    faults: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether all costs were measured."""
        return all(kernel.measured for kernel in self.kernels)

    @property
    def status(self) -> str:
        """In words: what was measured."""
        count = sum(kernel.measured for kernel in self.kernels)
        if not count:
            return "not measured"
        return "measured" if self.measured else f"{count} of {len(self.kernels)} measured"

    def of(self, form: Form) -> tuple[Kernel, ...]:
        """The micro-kernels of ``form``, the most useful first."""
        return tuple(kernel for kernel in self.kernels if kernel.form == form)

    def table(self, kernels: Sequence[Kernel]) -> CudaTable:
        """The costs of some of them."""
        return CudaTable(
            self.multiprocessors,
            self.launch,
            tuple(kernel.cost for kernel in kernels),
            measured=all(kernel.measured for kernel in kernels),
        )

    def to_entries(self) -> list[dict[str, Any]]:
        """All of it as the entries of a log."""
        first = self.kernels[0].cost
        gpu = CudaTable(self.multiprocessors, self.launch, (first,), self.measured).to_entries()[1]
        gpu["measured_launch"] = self.measured_launch
        return [gpu, *(kernel.to_entry() for kernel in self.kernels)]


def contents(entries: Iterable[Mapping[str, Any]], arch: str) -> Contents:
    """Inverse of `Contents.to_entries`, of a log for GPUs of ``arch``.

    Entries of other kinds are left to later versions. Raises ValueError when nothing can be used.
    """
    gpu: Mapping[str, Any] | None = None
    kernels: dict[str, Kernel] = {}
    faults = []
    for entry in entries:
        if entry.get("kind") == "gpu":
            gpu = entry
        elif entry.get("kind") == _KERNEL:
            try:
                read = kernel(entry, arch)
            except ValueError as error:
                faults.append(f"a kernel is skipped: {error}")
                continue
            if read.name in kernels:
                faults.append(f"a kernel is skipped: {read.name} is there twice")
            kernels.setdefault(read.name, read)
            if len(kernels) > MOST_KERNELS:
                raise ValueError(f"log: it holds more than {MOST_KERNELS} kernels")
    if gpu is None:
        raise ValueError("log: it does not tell the GPU's multiprocessors and launch")
    if not kernels:
        why = f": {faults[0]}" if faults else ""
        raise ValueError(f"log: it holds no kernels{why}")
    measured_launch = gpu.get("measured_launch", False)
    if type(measured_launch) is not bool:
        raise ValueError("log: measured_launch must be true or false")
    found = Contents(
        gpu.get("multiprocessors", 0),
        gpu.get("launch", 0),
        measured_launch,
        tuple(kernels.values()),
        tuple(faults),
    )
    found.table(found.kernels)  # which checks the rest
    return found


def kernel(entry: Any, arch: str) -> Kernel:
    """Inverse of `Kernel.to_entry`, for GPUs of ``arch``.

    Raises ValueError when a rule is broken.
    """
    shared_limit = architecture(arch).block_shared_bytes
    if not isinstance(entry, Mapping):
        raise ValueError("it is no JSON object")
    form = _made(Form, entry.get("form"), "form")
    tile = _made(CudaTile, entry.get("tile"), "tile")
    if tile.raster > 1 << 10:
        raise ValueError(f"raster: at most 1024, got {tile.raster}")
    check(tile, form, shared_limit)
    steps = entry.get("steps")
    costs: dict[str, Any] = {name: entry.get(name) for name in _COSTS}
    costs["steps"] = tuple(steps) if isinstance(steps, list) else steps
    cost = BlockCost(**costs)
    name = kernel_name(tile, form)
    if cost.name != name:
        raise ValueError(f"name: {cost.name!r} is not that of its tile and form, {name}")
    blocks = (cost.block_m, cost.block_n, cost.block_k)
    if blocks != (tile.block_m, tile.block_n, tile.block_k):
        raise ValueError(f"{name}: block_m, block_n, block_k: they are not those of its tile")
    measured = entry.get("measured")
    if type(measured) is not bool:
        raise ValueError(f"{name}: measured: must be true or false")
    return Kernel(form, tile, _static(entry.get("static"), name), cost, measured)


def _made(cls: Any, given: Any, what: str) -> Any:
    """A frozen dataclass of plain fields; raises ValueError unless all are there, and plain."""
    types = {field.name: _TYPES[str(field.type)] for field in fields(cls)}
    if not isinstance(given, Mapping) or given.keys() != types.keys():
        raise ValueError(f"{what}: needs the fields {', '.join(types)}")
    for name, wanted in types.items():
        if type(given[name]) is not wanted:
            raise ValueError(f"{what}: {name} must be of type {wanted.__name__}")
    return cls(**given)


def _static(given: Any, name: str) -> Static:
    if not isinstance(given, dict):
        raise ValueError(f"{name}: static: it tells nothing")
    registers, limit = given.get("registers"), given.get("limit")
    shared: Any = given.get("shared_bytes")
    blocks: Any = given.get("blocks")
    counts = (0 if registers is None else registers, shared, blocks)
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"{name}: static: registers, shared_bytes, blocks must be numbers")
    if not isinstance(limit, str) or len(limit) > 64:
        raise ValueError(f"{name}: static: limit must be a short text")
    return Static(registers, shared, blocks, limit)
