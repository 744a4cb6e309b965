"""The fp32 GEMM micro-kernel family for CPUs.

One micro-kernel owns an ``mr x (nv * lanes)`` tile of the output and runs over a reduction of any
length. Everything that differs between members is in a `Record`: the tile, the form of A, and the
decisions of the family's schedule. A kernel is only ever made by `build`, which replays a record's
decisions as a trace of that schedule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tvm import s_tir, tirx

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.gemm_lowering import lower
from tvm_moonpoly.microkernels.gemm_schedule import schedule, semantics
from tvm_moonpoly.microkernels.records import DECISIONS, FAMILY, Record, choices

__all__ = ["DECISIONS", "FAMILY", "Record", "build", "family", "fits", "reference", "space"]

#: tvm keeps smaller allocations on the stack, where LLVM turns them into registers.
_STACK_BYTES = 1024


def fits(record: Record, machine: Machine) -> bool:
    """The family's constraint: accumulators and what is multiplied in a step fit in registers: one
    row of B and elements of A, or where it goes column by column, an element of A for each row.

    A member whose B vectors can be memory operands of the FMA (one row of A) needs no registers
    for them. With 32 registers LLVM loads A ahead, four rows to a register. The accumulators must
    also be allocated on the stack. Each partial sum has accumulators of its own.
    """
    accumulators = record.mr * record.nv * record.decision("sums")
    a_elements = 1 if machine.vector_registers <= 16 else -(-record.mr // 4)
    operands = (record.nv if record.mr > 1 else 0) + a_elements
    if record.decision("row_block") == record.mr:
        # column by column: an element of each row, and one vector of B
        operands = min(operands, record.mr + 1)
    return (
        accumulators + operands <= machine.vector_registers
        and accumulators * machine.lanes * 4 < _STACK_BYTES
    )


def family(machine: Machine) -> list[Record]:
    """All members that fit the machine's registers: the candidates.

    Heights are complete from 1 up, since balanced tiles come in every height. Rows beyond what
    hides the FMA latency only cost code, so tiles stop at 8 rows on 16 registers and at 12 on 32.
    """
    rows = 8 if machine.vector_registers <= 16 else 12
    records = [Record(mr, nv) for nv in range(1, 7) for mr in range(1, rows + 1)]
    packed = [Record(r.mr, r.nv, packed_a=True) for r in records if r.nv in (2, 3)]
    in_place = [Record(r.mr, r.nv, in_place_b=True) for r in records]
    return [r for r in [*records, *packed, *in_place] if fits(r, machine)]


def space(record: Record, machine: Machine) -> dict[str, tuple[int, ...]]:
    """What each decision may be for the record's tile, and fits the machine's registers."""
    return {
        name: tuple(c for c in options if fits(replace(record, decisions={name: c}), machine))
        for name, options in choices(record.mr).items()
    }


def reference(a: np.ndarray, b: np.ndarray, x: np.ndarray, z: np.ndarray, lo: float) -> np.ndarray:
    """What a micro-kernel computes, in float64: ``max(a @ b + x + z, lo)``, NaN kept.

    ``a`` (mr, k), ``b`` (nv, k, lanes), ``x`` (mr, nv * lanes) or one row, ``z`` (nv * lanes,).
    """
    nv, k, lanes = b.shape
    columns = b.astype(np.float64).transpose(1, 0, 2).reshape(k, nv * lanes)
    total = a.astype(np.float64) @ columns + x + z
    return np.where(total < lo, lo, total)


def build(record: Record, machine: Machine, ahead: bool = False) -> tirx.PrimFunc:
    """The micro-kernel as a private function over pointers.

    Parameters, in order: pointers ``a, b, x, z, c``; int64 ``lda``, ``b_vector`` and ``b_row``
    (floats from one vector of columns, and from one row of B, to the next), ``ldx``, ``ldc``, the
    trip count ``k``; float32 ``lo``. With ``ahead`` one more pointer after ``c``: to a panel of B
    that a later kernel reads, which this one prefetches row by row.

    Raises ValueError when the record does not fit the machine.
    """
    if not fits(record, machine):
        sums = record.decision("sums")
        raise ValueError(
            f"record: tile {record.mr}x{record.nv} needs more than {machine.vector_registers} "
            f"vector registers of {machine.lanes} lanes"
            + (f" with {sums} partial sums" if sums > 1 else "")
        )
    sch = s_tir.Schedule(semantics(record, machine.lanes))
    schedule(sch, choices(record.mr), record.decisions)
    return lower(sch.mod["main"], record, machine.lanes, ahead)
