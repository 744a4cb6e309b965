"""The fp32 GEMM micro-kernel family for CPUs.

One micro-kernel owns an ``mr x (nv * lanes)`` tile of the output and runs over a reduction of any
length. Everything that differs between members is in a `Record`: the tile, the form of A, and the
decisions of the family's schedule. A kernel is only ever made by `build`, which applies a record's
decisions to that schedule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import PointerType, PrimType, Var
from tvm.script import tirx as T

from tvm_moonpoly.machine import Machine

FAMILY = "cpu_gemm_f32"

#: The decisions of the schedule and what each may be, in the order in which they are sampled.
DECISIONS: dict[str, tuple[Any, ...]] = {
    # which loop runs outside in the unrolled tile: rows ("A outer") or vectors of columns
    "order": ("rows", "columns"),
}


@dataclass(frozen=True)
class Record:
    """One member of the family.

    ``mr`` rows by ``nv`` vectors of columns; ``packed_a`` says that A comes as ``[k][mr]``
    instead of rows with a stride, ``in_place_b`` that rows of B are as far apart as it is told
    instead of one vector (a distance known when compiling saves registers). ``decisions`` names a
    choice for each entry of `DECISIONS` (missing ones take the first).
    """

    mr: int
    nv: int
    packed_a: bool = False
    in_place_b: bool = False
    decisions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mr < 1 or self.nv < 1:
            raise ValueError(f"record: tile {self.mr}x{self.nv} must be at least 1x1")
        for name, choice in self.decisions.items():
            if name not in DECISIONS:
                raise ValueError(f"decisions: {name!r} is none of {', '.join(DECISIONS)}")
            if choice not in DECISIONS[name]:
                raise ValueError(f"decisions: {name}={choice!r} is none of {DECISIONS[name]}")

    def __hash__(self) -> int:
        return hash(
            (
                self.mr,
                self.nv,
                self.packed_a,
                self.in_place_b,
                tuple(sorted(self.decisions.items())),
            )
        )

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        form = ("p" if self.packed_a else "") + ("d" if self.in_place_b else "")
        chosen = [
            str(choice)
            for name, choice in sorted(self.decisions.items())
            if choice != DECISIONS[name][0]
        ]
        return "_".join([f"moonpoly_gemm_{self.mr}x{self.nv}{form}", *chosen])

    def to_json(self) -> dict[str, Any]:
        return {
            "family": FAMILY,
            "mr": self.mr,
            "nv": self.nv,
            "packed_a": self.packed_a,
            "in_place_b": self.in_place_b,
            "decisions": dict(self.decisions),
        }

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """Inverse of `to_json`; raises ValueError on anything that is no record of this family."""
        if not isinstance(data, Mapping):
            raise ValueError(f"record: must be an object, not {data!r}")
        if data.get("family") != FAMILY:
            raise ValueError(f"record: family {data.get('family')!r} is not {FAMILY!r}")
        try:
            return cls(
                int(data["mr"]),
                int(data["nv"]),
                bool(data["packed_a"]),
                bool(data["in_place_b"]),
                dict(data["decisions"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"record: {error!r} in {dict(data)!r}") from error


#: tvm keeps smaller allocations on the stack, where LLVM turns them into registers.
_STACK_BYTES = 1024


def fits(record: Record, machine: Machine) -> bool:
    """The family's constraint: accumulators, one row of B and elements of A fit in registers.

    A member whose B vectors can be memory operands of the FMA (one row of A) needs no registers
    for them. With 32 registers LLVM loads A ahead, four rows to a register. The accumulators must
    also be allocated on the stack.
    """
    accumulators = record.mr * record.nv
    b_vectors = record.nv if record.mr > 1 else 0
    a_elements = 1 if machine.vector_registers <= 16 else -(-record.mr // 4)
    return (
        accumulators + b_vectors + a_elements <= machine.vector_registers
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
    return [r for r in [*records, *packed] if fits(r, machine)]


def reference(a: np.ndarray, b: np.ndarray, x: np.ndarray, z: np.ndarray, lo: float) -> np.ndarray:
    """What a micro-kernel computes, in float64: ``max(a @ b + x + z, lo)``, NaN kept.

    ``a`` (mr, k), ``b`` (nv, k, lanes), ``x`` (mr, nv * lanes) or one row, ``z`` (nv * lanes,).
    """
    nv, k, lanes = b.shape
    columns = b.astype(np.float64).transpose(1, 0, 2).reshape(k, nv * lanes)
    total = a.astype(np.float64) @ columns + x + z
    return np.where(total < lo, lo, total)


def semantics(record: Record, lanes: int) -> tirx.PrimFunc:
    """The unscheduled kernel on compact operands."""
    mr, nv = record.mr, record.nv
    nr = nv * lanes
    packed = record.packed_a

    @T.prim_func(s_tir=True)
    def tile(  # type: ignore[no-untyped-def]
        a: T.handle, b: T.handle, x: T.handle, z: T.handle, c: T.handle, lo: T.float32
    ):
        k_extent = T.int64()
        A = T.match_buffer(a, (k_extent, mr) if packed else (mr, k_extent), "float32", align=4)
        B = T.match_buffer(b, (nv, k_extent, lanes), "float32", align=4)
        X = T.match_buffer(x, (mr, nr), "float32", align=4)
        Z = T.match_buffer(z, (nr,), "float32", align=4)
        C = T.match_buffer(c, (mr, nr), "float32", align=4)
        acc = T.sblock_alloc_buffer((mr, nv, lanes), "float32")
        for i, v, s, k in T.grid(mr, nv, lanes, k_extent):
            with T.sblock("product"):
                vi, vv, vs, vk = T.axis.remap("SSSR", [i, v, s, k])
                with T.init():
                    acc[vi, vv, vs] = X[vi, vv * lanes + vs] + Z[vv * lanes + vs]
                acc[vi, vv, vs] = (
                    acc[vi, vv, vs] + (A[vk, vi] if packed else A[vi, vk]) * B[vv, vk, vs]
                )
        for i, v, s in T.grid(mr, nv, lanes):
            with T.sblock("store"):
                vi, vv, vs = T.axis.remap("SSS", [i, v, s])
                # written so that NaN passes: a comparison with NaN is false
                C[vi, vv * lanes + vs] = T.Select(acc[vi, vv, vs] < lo, lo, acc[vi, vv, vs])

    return tile


def schedule(sch: s_tir.Schedule, decisions: Mapping[str, Any]) -> None:
    """The family's schedule: the reduction outermost, the tile unrolled in vector registers."""
    order = _decide(sch, "order", decisions)
    product = sch.get_sblock("product")
    i, v, s, k = sch.get_loops(product)
    outer, inner = (i, v) if order == "rows" else (v, i)
    sch.reorder(k, outer, inner, s)
    _in_registers(sch, outer, inner, s)
    # the schedule refuses to vectorize what decomposing leaves, so that comes second
    init = sch.decompose_reduction(product, k)
    for block in (init, sch.get_sblock("store")):
        *_, rows, columns, lanes = sch.get_loops(block)
        _in_registers(sch, rows, columns, lanes)


def _in_registers(sch: s_tir.Schedule, first: Any, second: Any, lanes: Any) -> None:
    sch.unroll(first)
    sch.unroll(second)
    sch.vectorize(lanes)


def build(record: Record, machine: Machine) -> tirx.PrimFunc:
    """The micro-kernel as a private function over pointers.

    Parameters, in order: pointers ``a, b, x, z, c``; int64 ``lda``, ``b_vector`` and ``b_row``
    (floats from one vector of columns, and from one row of B, to the next), ``ldx``, ``ldc``, the
    trip count ``k``; float32 ``lo``.

    Raises ValueError when the record does not fit the machine.
    """
    if not fits(record, machine):
        raise ValueError(
            f"record: tile {record.mr}x{record.nv} needs more than {machine.vector_registers} "
            f"vector registers of {machine.lanes} lanes"
        )
    sch = s_tir.Schedule(semantics(record, machine.lanes))
    schedule(sch, record.decisions)
    return _over_pointers(sch.mod["main"], record, machine.lanes)


def _decide(sch: s_tir.Schedule, name: str, decisions: Mapping[str, Any]) -> Any:
    choices = DECISIONS[name]
    index = choices.index(decisions.get(name, choices[0]))
    probabilities = [1.0 / len(choices)] * len(choices)
    sampled = sch.sample_categorical(list(range(len(choices))), probabilities, decision=index)
    return choices[int(sch.get(sampled))]


def _over_pointers(function: tirx.PrimFunc, record: Record, lanes: int) -> tirx.PrimFunc:
    """Swap the compact buffers for strided ones over pointer parameters.

    Scheduling happens on compact buffers because ``cache_write`` and allocation copy strides.
    """
    one = tirx.const(1, "int64")
    stride = {name: tirx.Var(name, "int64") for name in ("lda", "b_vector", "b_row", "ldx", "ldc")}
    strides = {
        "A": [tirx.const(record.mr, "int64"), one] if record.packed_a else [stride["lda"], one],
        "B": [
            stride["b_vector"],
            stride["b_row"] if record.in_place_b else tirx.const(lanes, "int64"),
            one,
        ],
        "X": [stride["ldx"], one],
        "Z": [one],
        "C": [stride["ldc"], one],
    }
    buffers = [p for p in function.params if tirx.is_buffer_var(p)]
    scalars = [p for p in function.params if not tirx.is_buffer_var(p)]
    (extent,) = {b.shape[1] for b in buffers if b.name == "B"}
    replaced, pointers, declarations = {}, [], []
    for buffer in buffers:
        # align=4: operands are views at any element
        strided = tirx.decl_buffer(
            list(buffer.shape),
            str(buffer.dtype),
            buffer.name,
            strides=strides[buffer.name],
            data_alignment=4,
        )
        pointer_type = PointerType(PrimType(str(buffer.dtype)), "global")
        pointer = tirx.Var(buffer.name.lower(), pointer_type)
        replaced[buffer] = strided
        pointers.append(pointer)
        declarations.append(tirx.DeclBuffer(strided, data=pointer))
    root = tvm_ffi.structural_map(function.body, (Var, lambda v: replaced.get(v, v)), order="post")
    block = root.block
    inner = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        tirx.SeqStmt([*declarations, block.body]),
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    body = s_tir.SBlockRealize(root.iter_values, root.predicate, inner)
    parameters = [*pointers, *stride.values(), extent, *scalars]
    return tirx.PrimFunc(parameters, body).with_attr({"s_tir": True, "calling_conv": -1})
