"""Planners that are told something wrong about the machine: what that costs.

They have the same costs of tasks as the planner itself; the machine decides where operands are
expected to be, how much of B is packed at a time, and over how many cores a plan is shared out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.planner.variants import Variant, planner
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.machine import Machine

_CACHES = {"L1": "l1_bytes", "L2": "l2_bytes", "L3": "l3_bytes"}

#: How many cores are told where there are so many.
_CORES = {1: (2,), 2: (1, 4)}


def mistaken(machine: Machine, table: CostTable) -> list[Variant]:
    """The planner of ``table``, told of caches of half the size or twice of it, or of more or fewer
    cores than ``machine`` has. ``table`` holds the costs for any number of cores."""
    return [
        replace(planner(name, about, told, table.for_cores(told.cores)), priced=None)
        for name, about, told in mistakes(machine)
    ]


def mistakes(machine: Machine) -> Iterator[tuple[str, str, Machine]]:
    """What is told in place of ``machine``: its name, in words, and the description."""
    for cache, field in _CACHES.items():
        real = getattr(machine, field)
        for name, told in (("half", real // 2), ("twice", real * 2)):
            about = f"{cache} of {told >> 10} KiB told, {real >> 10} KiB there"
            yield f"{name} the {cache}", about, replace(machine, **{field: told})
    for told in _CORES.get(machine.cores, (1, 2 * machine.cores)):
        cores = "1 core" if told == 1 else f"{told} cores"
        yield cores, f"{cores} told, {machine.cores} there", replace(machine, cores=told)
