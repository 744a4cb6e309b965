"""The cost table of a machine: integers in picoseconds.

What the tasks of each micro-kernel cost (`tasks`), and what packing, the partial panel, later
blocks of the reduction, streaming and a parallel launch add.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from tvm_moonpoly.costmodel.tasks import TaskCost
from tvm_moonpoly.microkernels.records import Form, Record, edge_height

#: Steps that are written out in tiles that a log does not tell: fewer prefetches for each of them.
_UNROLLED = 4

#: Their cost where B is not in the first-level cache is by one in so many larger: measured, 256
#: inputs and 256 outputs take 1.02 times as long by 3x4 as by 4x3 and a narrower rest.
_FARTHER = 64


@dataclass(frozen=True)
class Traffic:
    """Picoseconds for what happens around the tasks."""

    #: one vector of B read in place, besides what the task costs
    b_direct: int
    #: one vector of C read and added to, for each block of the reduction after the first
    c_block: int
    #: one element of A packed
    pack_a: int
    #: one vector of B packed, from rows or from columns
    pack_rows: int
    pack_columns: int
    #: one row of the partial panel
    edge_row: int
    #: one task, and one group of panels over the rows of a block, besides the tasks themselves
    tile: int
    group: int
    #: one row of B in place added to a row of outputs, each of its vectors, and each element beyond
    #: them
    axpy_start: int
    axpy_step: int
    axpy_rest: int
    #: one dot product, each of its vectors, and each element beyond them
    dot_start: int
    dot_step: int
    dot_rest: int
    #: handing work to the thread pool
    launch: int
    #: one vector of A that comes from memory again, with a block of rows that no cache holds; older
    #: logs do not tell it
    a_memory: int = 0


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
    BlockSizes(False, 0, 240),
)


@dataclass(frozen=True)
class CostTable:
    """The costs of a machine: of each micro-kernel's tasks, and of what is around them.

    ``tasks`` are the costs on a machine that does nothing else, ``busy`` those with every core
    doing the same, where they are known. Where there are no micro-kernels on B in place at all,
    those on packed B are taken for it, with their schedules and costs.
    """

    tasks: Mapping[Record, TaskCost]
    traffic: Traffic
    busy: Mapping[Record, TaskCost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tasks", "busy"):
            object.__setattr__(self, name, _with_in_place(getattr(self, name)))

    def for_cores(self, cores: int) -> CostTable:
        """The one set of costs that plans for ``cores`` cores are made by.

        Products that are large enough for the difference to count are computed by all cores.
        """
        return CostTable(self.busy if cores > 1 and self.busy else self.tasks, self.traffic)

    @functools.cached_property
    def of_convolutions(self) -> CostTable:
        """The table by which convolutions are planned: with tiles on packed B that the log does not
        tell, of one row more than it has of their width, where it tells them turned round.

        Turned round, a tile has as many accumulators, loads and multiply-adds in a step, and is
        taken to cost as much; for each multiply-add no more than the tiles that are a row or a
        vector smaller, which load more; and a little more where B is not in the first-level cache,
        of which it reads more. So 3x4 is had from 4x3: it covers 32 channels at once.
        """
        return CostTable(_with_turned(self.tasks), self.traffic, _with_turned(self.busy))

    def heights(self, nv: int, form: Form) -> list[int]:
        """The rows that micro-kernels of ``nv`` vectors come in."""
        return self._columns.get((nv, form), [])

    def widths(self, form: Form) -> list[int]:
        """The vectors of columns that micro-kernels come in."""
        return [nv for nv, each in self._columns if each == form]

    def task(self, mr: int, nv: int, form: Form) -> TaskCost:
        """The cost of the micro-kernel of this tile."""
        found = self._by_tile.get((mr, nv, form))
        if found is None:
            raise KeyError(f"no micro-kernel of {mr} rows and {nv} vectors, {form.value}")
        return found

    def edge_height(self, lanes: int) -> int:
        """Rows of the tiles that the partial panel is computed in."""
        return edge_height(self.tasks, lanes)

    @functools.cached_property
    def _columns(self) -> Mapping[tuple[int, Form], list[int]]:
        """The heights of the micro-kernels of each width and form, in order."""
        found: dict[tuple[int, Form], list[int]] = {}
        for record in sorted(self.tasks, key=lambda r: (r.nv, r.mr)):
            found.setdefault((record.nv, record.form), []).append(record.mr)
        return found

    @functools.cached_property
    def _by_tile(self) -> Mapping[tuple[int, int, Form], TaskCost]:
        return {(r.mr, r.nv, r.form): cost for r, cost in self.tasks.items()}

    def to_entries(self) -> list[dict[str, Any]]:
        """The table as entries of a tuning log."""
        kernels = []
        for record, cost in self.tasks.items():
            entry = {"kind": "kernel", "record": record.to_json(), "alone": cost.to_lists()}
            if record in self.busy:
                entry["busy"] = self.busy[record].to_lists()
            kernels.append(entry)
        return [*kernels, {"kind": "traffic", **asdict(self.traffic)}]

    @classmethod
    def from_entries(cls, entries: list[dict[str, Any]]) -> CostTable:
        """Inverse of `to_entries`; raises ValueError when something is missing or malformed."""
        tasks, busy, traffic = {}, {}, None
        for entry in entries:
            if entry.get("kind") == "kernel":
                record = Record.from_json(entry.get("record"))
                tasks[record] = TaskCost.from_lists(entry.get("alone"), "alone")
                if "busy" in entry:
                    busy[record] = TaskCost.from_lists(entry["busy"], "busy")
            elif entry.get("kind") == "traffic":
                told = [f.name for f in fields(Traffic) if f.default is MISSING or f.name in entry]
                traffic = Traffic(**{name: _count(entry, name) for name in told})
        if not tasks or traffic is None:
            raise ValueError("log: it holds no kernels or no traffic costs")
        if busy and busy.keys() != tasks.keys():
            raise ValueError("log: it tells costs with every core busy for some kernels only")
        table = cls(tasks, traffic, busy)
        table.check()
        return table

    def check(self) -> None:
        """Raise ValueError unless every shape can be tiled: all widths from 1 up are needed, one on
        packed A, and of each width all heights from 1 up."""
        widths = {form: self.widths(form) for form in Form}
        complete = all(widths[f] == _from_one(widths[f]) for f in (Form.PLAIN, Form.IN_PLACE_B))
        if not complete or not all(widths.values()):
            listed = ", ".join(f"{each} on {form.value}" for form, each in widths.items())
            raise ValueError(
                f"log: its kernels are as many vectors wide: {listed}; all widths from 1 up are "
                "needed, and one on packed A"
            )
        widest, plain = max(widths[Form.PACKED_A]), len(widths[Form.PLAIN])
        if widest > plain + 1:
            raise ValueError(
                f"log: kernels of {widest} vectors on packed A leave columns for which those on "
                f"plain A, of up to {plain}, are too narrow"
            )
        for form in Form:
            for nv in self.widths(form):
                heights = self.heights(nv, form)
                if heights != _from_one(heights):
                    raise ValueError(f"log: tiles of {nv} vectors lack heights, only {heights}")


def _from_one(numbers: list[int]) -> list[int]:
    return list(range(1, len(numbers) + 1))


def _with_in_place(tasks: Mapping[Record, TaskCost]) -> dict[Record, TaskCost]:
    """All tasks, and those on B in place if there are none."""
    if any(r.form == Form.IN_PLACE_B for r in tasks):
        return dict(tasks)
    plain = {r: cost for r, cost in tasks.items() if r.form == Form.PLAIN}
    return {**tasks, **{replace(r, in_place_b=True): cost for r, cost in plain.items()}}


def _with_turned(tasks: Mapping[Record, TaskCost]) -> dict[Record, TaskCost]:
    """All tasks, and those of `CostTable.of_convolutions`, which go column by column."""
    plain = {(r.mr, r.nv): cost for r, cost in tasks.items() if r.form == Form.PLAIN}
    found = dict(tasks)
    for mr, nv in plain:
        turned = nv, mr
        next_one = turned not in plain and {(nv - 1, mr), (nv, mr - 1)} <= plain.keys()
        if nv > 2 and next_one:
            record = Record(*turned, decisions={"row_block": nv, "unroll": _UNROLLED})
            smaller = (plain[nv - 1, mr].times(nv, nv - 1), plain[nv, mr - 1].times(mr, mr - 1))
            found[record] = plain[mr, nv].at_most(*smaller).with_farther_b(_FARTHER)
    return found


def _count(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 40:
        raise ValueError(f"log: {name} must be picoseconds, not {value!r}")
    return value
