"""Run as a process by test_core_memory: packed functions on operands against protected pages.

A read or write outside an operand kills the process. The last line before that names the case.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvm_moonpoly.operators import OperatorLibrary

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Memory between two pages that can be neither read nor written."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.size = pages * PAGE
        self.start = self._bytes.ctypes.data + PAGE
        for page in (self.start - PAGE, self.start + self.size):
            if _libc.mprotect(page, PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, array: np.ndarray, side: str) -> np.ndarray:
        """A copy of ``array`` that begins right after the first page or ends right at the last."""
        if array.nbytes > self.size:
            raise ValueError(f"array of {array.nbytes} bytes, there is room for {self.size}")
        inner = self._bytes[PAGE : PAGE + self.size]
        at = {"begin": 0, "end": self.size - array.nbytes}[side]
        placed = inner[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        placed[...] = array
        return placed


class Workspace:
    """What the shared library at ``path`` takes as workspace, from the time that it is loaded: each
    piece alone between protected pages, by turns at the first and at the last one."""

    _ALIGNMENT = 64

    def __init__(self, path: Path) -> None:
        self.pieces = 0
        self._held: dict[int, Guarded] = {}
        library = ctypes.CDLL(str(path))
        number, size, address = ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
        alloc = ctypes.CFUNCTYPE(address, number, number, size, number, number)(self._alloc)
        free = ctypes.CFUNCTYPE(number, number, number, address)(self._free)
        self._kept = library, alloc, free
        for name, function in (("Alloc", alloc), ("Free", free)):
            slot = address.in_dll(library, f"__TVMBackend{name}Workspace")
            slot.value = ctypes.cast(function, address).value

    def _alloc(self, device: int, device_id: int, size: int, code: int, bits: int) -> int:
        memory = Guarded(max(1, -(-size // PAGE)))
        self.pieces += 1
        unused = memory.size - size
        start = memory.start + (unused - unused % self._ALIGNMENT if self.pieces % 2 else 0)
        self._held[start] = memory
        return start

    def _free(self, device: int, device_id: int, address: int) -> int:
        del self._held[address]
        return 0


def guarded_library(*parts: str) -> tuple[OperatorLibrary, Workspace]:
    """Parts of the operator library for this machine in one shared library, and its workspace."""
    import tvm

    import tvm_moonpoly
    from tvm_moonpoly import operators

    library = operators.library(tvm_moonpoly.detect_target())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        library.module.export_library(parts, path)
        # loaded before it is guarded: that fills in the functions which are replaced
        library = replace(library, module=tvm.runtime.load_module(str(path)))
        return library, Workspace(path)


#: (m, n, k) of linear layers: partial panels, tiles of every remainder, more than one block
SMALL = [
    (m, n, k)
    for m in (1, 2, 3, 5, 7, 8, 13, 31)
    for n in (1, 3, 7, 8, 9, 16, 17, 25, 33, 47)
    for k in (0, 1, 2, 7, 8, 9, 33)
]
LARGE = [(1, 121, 2050), (97, 43, 1030), (244, 51, 530), (251, 24, 2049), (1030, 19, 20)]


def main() -> None:
    from core_testing import (
        CANARY,
        CANARY_NUMBER,
        Weight,
        check_linear,
        linear,
        matmul,
        seen,
        stored,
        tensor,
        values,
    )

    from tvm_moonpoly import operators
    from tvm_moonpoly.operators import Activation, encode_axes
    from tvm_moonpoly.operators.linear import PACK
    from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
    from tvm_moonpoly.operators.plain import KINDS, Kind
    from tvm_moonpoly.planner import spec
    from tvm_moonpoly.planner.plan import READINGS, BMode, Plan

    F32 = Kind("f32", "float32", "float32")
    library, workspace = guarded_library("plans", "gemm", "plain")
    rng = np.random.default_rng(31)
    memory = {name: Guarded(640) for name in ("x", "packed", "bias", "residual", "table", "out")}

    def run_linear(m, n, k, side, activation, with_residual, plan=None):
        where = f"linear {m=} {n=} {k=} {side=} {activation=} {with_residual=} {plan=}"
        print(where, flush=True)
        weight = Weight.of(library, values(rng, k, n), values(rng, n), plan)
        arrays = {
            "x": values(rng, m, k),
            "packed": weight.packed,
            "bias": weight.padded,
            "residual": values(rng, m, n),
            "table": weight.table[: m + 1],
            "out": np.full((m, n), CANARY),
        }
        placed = {name: memory[name].place(array, side) for name, array in arrays.items()}
        placed_weight = Weight(
            weight.w, weight.bias, placed["packed"], placed["bias"], placed["table"]
        )
        residual = placed["residual"] if with_residual else None
        linear(library, placed["x"], placed_weight, activation, residual, placed["out"])
        check_linear(placed["out"], placed["x"], weight, activation, residual)
        for name in ("x", "packed", "bias", "residual", "table"):
            assert np.array_equal(placed[name], arrays[name]), f"{name} was written: {where}"

    activations = itertools.cycle(Activation)
    for side, shape in itertools.product(("begin", "end"), SMALL):
        activation = next(activations)
        run_linear(*shape, side, activation, with_residual=sum(shape) % 2 == 0)
    for side, shape in itertools.product(("begin", "end"), LARGE):
        run_linear(*shape, side, Activation.SILU, with_residual=True)
        # the cheapest plan of each blocking, and of each width, with A packed or not
        kinds: dict[object, Plan] = {}
        candidates = spec.candidates(spec.Product(*shape), library.machine, library.table)
        for choice in sorted(candidates, key=lambda c: c.picoseconds):
            p = choice.plan
            kinds.setdefault((p.kc, p.mc, p.pack_a, p.nv), p)
        if shape[0] < 1000:
            for plan in kinds.values():
                run_linear(*shape, side, Activation.NONE, with_residual=True, plan=plan)

    a_memory, b_memory, out_memory = (memory[name] for name in ("x", "packed", "out"))

    def run_matmul(a, b, a_axes, b_axes, out_axes, side, plan=None, kind=F32):
        """``a`` and ``b`` as the product sees them; they are laid out as the axes say."""
        shape = np.matmul(a, b).shape
        where = f"{kind.function} {a.shape=} {b.shape=} {a_axes=} {b_axes=} {out_axes=}"
        print(where, f"{side=} {plan=}", flush=True)
        a_stored, b_stored = (stored(x, axes).copy() for x, axes in ((a, a_axes), (b, b_axes)))
        empty = stored(np.full(shape, CANARY_NUMBER, kind.out), out_axes)
        placed_a, placed_b = a_memory.place(a_stored, side), b_memory.place(b_stored, side)
        out = out_memory.place(empty.copy(), side)
        name = kind.function if plan is None else MATMUL_PLANNED
        matmul(library, placed_a, placed_b, out, a_axes, b_axes, out_axes, name, plan)
        result = seen(out, out_axes)
        if kind.operand.startswith("int"):
            assert np.array_equal(result, a.astype(kind.out) @ b.astype(kind.out)), where
        else:
            eps = np.finfo(kind.out).eps
            bound = (a.shape[-1] + 2) * eps * (np.abs(a).astype(np.float64) @ np.abs(b))
            assert (np.abs(result - a.astype(np.float64) @ b) <= bound).all(), where
        assert np.array_equal(placed_a, a_stored) and np.array_equal(placed_b, b_stored), where

    as_is, turned = (0, 1, 2), (0, 2, 1)
    for side, b_axes in itertools.product(("begin", "end"), (as_is, turned)):
        for i, (m, n, k) in enumerate(SMALL):
            a, b = values(rng, 1 + i % 3, m, k), values(rng, 1 + i % 3, k, n)
            run_matmul(a, b, (as_is, turned)[i % 2], b_axes, as_is, side)
            # the cheapest plan for each way of reading B
            given = BMode.PACKED if b_axes == turned else BMode.DIRECT
            for mode in READINGS[given]:
                # past one row B is streamed, unless a plan of two rows is given
                product = spec.Product(2 if m == 1 else m, n, k, 1, given)
                choices = spec.candidates(product, library.machine, library.table)
                of_mode = [choice for choice in choices if choice.plan.b_mode == mode]
                cheapest = min(of_mode, key=lambda choice: choice.picoseconds)
                run_matmul(a[:1], b[:1], (turned, as_is)[i % 2], b_axes, as_is, side, cheapest.plan)
        for i, (m, n, k) in enumerate([*LARGE, (5, 300, 1100), (100, 130, 600)]):
            a, b = values(rng, 1, m, k), values(rng, 1, k, n)
            run_matmul(a, b, (as_is, turned)[i % 2], b_axes, as_is, side)

    def integers(kind, *shape):
        if not kind.wraps:
            return rng.standard_normal(shape).astype(kind.operand)
        return rng.integers(-100, 100, shape, kind.operand)

    # vectors, alone and as the row, column or number that they are of a product
    sides, kinds = ("begin", "end"), (F32, *KINDS)
    for side, kind, n, k in itertools.product(sides, kinds, (1, 7, 8, 33), (0, 1, 9, 33)):
        row, column = integers(kind, 1, k), integers(kind, k, 1)
        run_matmul(row, column, (None, 0), (0, None), (None, None), side, kind=kind)
        for axes in ((0, 1), (1, 0)):
            b, a = integers(kind, k, n), integers(kind, n, k)
            run_matmul(row, b, (None, 0), axes, (None, 0), side, kind=kind)
            run_matmul(a, column, axes, (0, None), (0, None), side, kind=kind)
    orders = list(itertools.product((as_is, turned), repeat=3))
    for side, kind, (i, (m, n, k)) in itertools.product(sides, KINDS, enumerate(SMALL[::5])):
        axes = orders[i % len(orders)]
        run_matmul(integers(kind, 2, m, k), integers(kind, 2, k, n), *axes, side, kind=kind)

    def run_pack(k, n, axes, side):
        print(f"pack {k=} {n=} {axes=} {side=}", flush=True)
        w, lanes = values(rng, k, n), library.machine.lanes
        placed = b_memory.place(stored(w, axes).copy(), side)
        out = out_memory.place(np.full((-(-n // lanes), k, lanes), CANARY), side)
        library.module[PACK](tensor(placed), encode_axes(axes), tensor(out))
        assert np.array_equal(out, operators.pack_weight(w, lanes))

    for side, axes, (_, n, k) in itertools.product(sides, ((0, 1), (1, 0)), SMALL[:70]):
        run_pack(k, n, axes, side)
    assert workspace.pieces > 100
    print("all cases ran", flush=True)


def overrun() -> None:
    """What the guards are for: dies of one element too many."""
    placed = Guarded(1).place(np.zeros(5, np.float32), sys.argv[1].removeprefix("overrun-"))
    index = 5 if sys.argv[1] == "overrun-end" else -1
    print("reading outside", flush=True)
    ctypes.c_float.from_address(placed.ctypes.data + 4 * index).value  # noqa: B018
    os._exit(0)


if __name__ == "__main__":
    overrun() if len(sys.argv) > 1 else main()
