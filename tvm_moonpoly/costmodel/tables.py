"""The cost table of a machine: integers in picoseconds.

A plan's cost is a sum of counts times entries of the table, so that the planner in Python and the
native one agree to the bit. A task of a micro-kernel over ``k`` steps costs
``g(k) = start + step * k``; the other entries are what is added where operands are not in the
first-level cache, and what packing, the partial panel and a parallel launch cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tvm_moonpoly.microkernels.cpu_gemm import Record


@dataclass(frozen=True)
class TaskCost:
    """``start + step * k`` picoseconds for one task over ``k`` steps."""

    start: int
    step: int


@dataclass(frozen=True)
class Traffic:
    """Picoseconds for what happens around the tasks."""

    #: one vector of B read again from the second-level cache
    b_l2: int
    #: one vector of B read for the first time, from the third-level cache or from memory
    b_l3: int
    b_memory: int
    #: one vector of B read in place rather than from packed panels
    b_direct: int
    #: one element of A read again from the second- or third-level cache
    a_l2: int
    a_l3: int
    #: one vector of C read and added to, for each block of the reduction after the first
    c_block: int
    #: one element of A packed
    pack_a: int
    #: one vector of B packed, from rows or from columns
    pack_rows: int
    pack_columns: int
    #: one row of the partial panel
    edge_row: int
    #: one row of outputs from rows of B in place, and each vector of B
    axpy_start: int
    axpy_step: int
    #: one dot product, and each of its vectors
    dot_start: int
    dot_step: int
    #: handing work to the thread pool
    launch: int


@dataclass(frozen=True)
class BlockSizes:
    """One choice of blocking: ``kc`` and ``mc`` (0: all), and whether A is packed."""

    pack_a: bool
    kc: int
    mc: int


#: The blockings that the planner weighs, the plain one first.
BLOCKINGS = (
    BlockSizes(False, 0, 0),
    BlockSizes(False, 2048, 0),
    BlockSizes(False, 1024, 0),
    BlockSizes(False, 1024, 96),
    BlockSizes(True, 1024, 96),
    BlockSizes(True, 512, 240),
)


@dataclass(frozen=True)
class CostTable:
    """The costs of a machine: of each micro-kernel's tasks, and of the traffic around them."""

    tasks: Mapping[Record, TaskCost]
    traffic: Traffic

    def heights(self, nv: int, packed_a: bool) -> list[int]:
        """The rows that micro-kernels of ``nv`` vectors come in."""
        return sorted(r.mr for r in self.tasks if r.nv == nv and r.packed_a == packed_a)

    def widths(self, packed_a: bool) -> list[int]:
        """The vectors of columns that micro-kernels come in."""
        return sorted({r.nv for r in self.tasks if r.packed_a == packed_a})

    def task(self, mr: int, nv: int, packed_a: bool) -> TaskCost:
        """The cost of the micro-kernel of this tile."""
        for record, cost in self.tasks.items():
            if (record.mr, record.nv, record.packed_a) == (mr, nv, packed_a):
                return cost
        raise KeyError(f"no micro-kernel of {mr} rows and {nv} vectors, packed_a={packed_a}")

    def to_entries(self) -> list[dict[str, Any]]:
        """The table as entries of a tuning log."""
        return [
            {"kind": "kernel", "record": record.to_json(), **asdict(cost)}
            for record, cost in self.tasks.items()
        ] + [{"kind": "traffic", **asdict(self.traffic)}]

    @classmethod
    def from_entries(cls, entries: list[dict[str, Any]]) -> CostTable:
        """Inverse of `to_entries`; raises ValueError when something is missing or malformed."""
        tasks, traffic = {}, None
        for entry in entries:
            if entry.get("kind") == "kernel":
                record = Record.from_json(entry.get("record"))
                tasks[record] = TaskCost(_count(entry, "start"), _count(entry, "step"))
            elif entry.get("kind") == "traffic":
                traffic = Traffic(**{f.name: _count(entry, f.name) for f in fields(Traffic)})
        if not tasks or traffic is None:
            raise ValueError("log: it holds no kernels or no traffic costs")
        table = cls(tasks, traffic)
        widths = table.widths(False)
        if widths != list(range(1, len(widths) + 1)) or not table.widths(True):
            raise ValueError(
                f"log: its kernels are {widths} vectors wide, and {table.widths(True)} on packed A;"
                " all widths from 1 up are needed, and one on packed A"
            )
        for packed in (False, True):
            for nv in table.widths(packed):
                heights = table.heights(nv, packed)
                if heights != list(range(1, len(heights) + 1)):
                    raise ValueError(f"log: tiles of {nv} vectors lack heights, only {heights}")
        return table


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"log: {name} must be picoseconds, not {value!r}")
    return value
