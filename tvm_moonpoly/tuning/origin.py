"""What measurements depend on: of another origin they are not comparable, and are made anew.

The programs that are timed count as they are compiled, not the files that they are written in:
a change of a comment makes no measurement worthless.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import tvm

from tvm_moonpoly.emit import Functions
from tvm_moonpoly.machine import VECTOR_UNITS, Machine, default_triple
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.operators import activation, gemm_region, gemm_tiles, packing, stream
from tvm_moonpoly.tuning.measuring import kernel_loop, lab, plan_lab, regions, robust, trials

#: To be raised when something else changes in how things are timed.
PROTOCOL = 1

_FORMS: tuple[Record, ...] = (
    Record(2, 1),
    Record(2, 1, packed_a=True),
    Record(2, 1, in_place_b=True),
)

#: Kernels whose programs stand for all: each form, without decisions and with all of them.
_KERNELS = tuple(
    replace(form, decisions=decisions)
    for form in _FORMS
    for decisions in (
        {},
        {"row_block": 2, "unroll": 2, "sums": 2, "prefetch_b": 16, "prefetch_c": 1},
    )
)

#: Tasks whose operands' places stand for all.
_PLACES = tuple(
    (Record(4, 3, in_place_b=in_place), k, busy)
    for in_place in (False, True)
    for k in (3, 96, 1536)
    for busy in (1, 2)
)


def origin(machine: Machine) -> dict[str, Any]:
    """The machine, the version of tvm, and a digest of the programs of tasks: JSON."""
    described = asdict(machine)
    return {
        **{name: described[name] for name in ("mcpu", "isa", "cores")},
        **{name: described[name] for name in ("l1_bytes", "l2_bytes", "l3_bytes")},
        "features": sorted(machine.features),
        "tvm": tvm.__version__,
        "tasks": _tasks(machine),
    }


def machine_of(described: Mapping[str, Any]) -> Machine:
    """The machine that an `origin` describes; its triple is this system's, which nothing that is
    learned depends on.

    Raises ValueError when it describes none.
    """
    sizes = ("cores", "l1_bytes", "l2_bytes", "l3_bytes")
    isa, mcpu, features = (described.get(name) for name in ("isa", "mcpu", "features"))
    if (
        isa not in VECTOR_UNITS
        or not isinstance(mcpu, str)
        or not isinstance(features, list)
        or not all(isinstance(feature, str) for feature in features)
        or not all(type(described.get(name)) is int and described[name] > 0 for name in sizes)
    ):
        raise ValueError("journal: its header describes no machine")
    _, lanes, registers = VECTOR_UNITS[isa]
    return Machine(
        triple=default_triple(),
        mcpu=mcpu,
        features=frozenset(features),
        isa=isa,
        lanes=lanes,
        vector_registers=registers,
        **{name: described[name] for name in sizes},
    )


@functools.lru_cache(maxsize=4)
def _tasks(machine: Machine) -> str:
    parts = [kernel_loop.task_program(record, machine) for record in _KERNELS]
    parts.append(kernel_loop.probe_program(machine))
    for record, k, busy in _PLACES:
        for placement in regions.PLACEMENTS.values():
            loop = regions.place(record, k, placement, machine, busy)
            parts.append(json.dumps(loop and loop.to_json()))
    how = (lab.NANOSECONDS, lab.REPEATS, lab.PROBE_STEPS, robust.SLOW, robust.ENOUGH)
    return _digest([*parts, repr((PROTOCOL, trials.SITUATIONS, how))])


def library(records: Sequence[Record], machine: Machine) -> str:
    """A short name for the library of ``records``, in whatever order, as far as it is timed."""
    lines = sorted(json.dumps(record.to_json(), sort_keys=True) for record in records)
    return _digest([*lines, _loops(machine)])


@functools.lru_cache(maxsize=4)
def _loops(machine: Machine) -> str:
    """A digest of the loops that the library has around its micro-kernels, and of what packs."""
    defined = Functions()
    heights = range(1, 3)
    records = [replace(form, mr=mr) for form in _FORMS for mr in heights]
    activation.emit(defined, machine.lanes)
    packing.emit(defined, list(heights), machine.lanes)
    stream.emit(defined, machine.lanes)
    gemm_tiles.emit(defined, records, machine)
    gemm_region.emit(defined, machine.lanes)
    how = (plan_lab.REPEATS, plan_lab.MOST, plan_lab.PROBES, lab.NANOSECONDS, lab.PROBE_STEPS)
    return _digest([str(defined.module().script()), repr((PROTOCOL, how))])


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
