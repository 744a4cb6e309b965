"""Run as a process by test_core_memory: packed functions on operands against protected pages.

A read or write outside an operand kills the process. The last line before that names the case.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys

import numpy as np

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Memory between two pages that can be neither read nor written."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.size = pages * PAGE
        start = self._bytes.ctypes.data
        for page in (start, start + PAGE + self.size):
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


#: (m, n, k) of linear layers: partial panels, tiles of every remainder, more than one block
SMALL = [
    (m, n, k)
    for m in (1, 2, 3, 5, 7, 8, 13, 31)
    for n in (1, 3, 7, 8, 9, 16, 17, 25, 33, 47)
    for k in (0, 1, 2, 7, 8, 9, 33)
]
LARGE = [(1, 121, 2050), (97, 43, 1030), (244, 51, 530), (251, 24, 2049), (1030, 19, 20)]


def main() -> None:
    from core_testing import CANARY, Weight, check_linear, linear, tensor, values

    import tvm_moonpoly
    from tvm_moonpoly import operators
    from tvm_moonpoly.operators import Activation, encode_perm
    from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
    from tvm_moonpoly.planner import spec
    from tvm_moonpoly.planner.plan import READINGS, BMode, Plan

    library = operators.library(tvm_moonpoly.detect_target())
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

    def run_matmul(batch, m, n, k, side, by_columns, plan=None):
        where = f"matmul {batch=} {m=} {n=} {k=} {side=} {by_columns=} {plan=}"
        print(where, flush=True)
        a, b = values(rng, batch, m, k), values(rng, batch, k, n)
        compact = np.ascontiguousarray(b.transpose(0, 2, 1)) if by_columns else b
        placed_a, placed_b = a_memory.place(a, side), b_memory.place(compact, side)
        out = out_memory.place(np.full((batch, m, n), CANARY), side)
        axes = [0, 2, 1] if by_columns else [0, 1, 2]
        identity = encode_perm([0, 1, 2])
        library.module[operators.MATMUL if plan is None else MATMUL_PLANNED](
            tensor(placed_a),
            tensor(placed_b),
            identity,
            encode_perm(axes),
            identity,
            *([] if plan is None else [plan.encode()]),
            tensor(out),
        )
        bound = (k + 2) * 1.2e-7 * (np.abs(a).astype(np.float64) @ np.abs(b))
        assert (np.abs(out - a.astype(np.float64) @ b) <= bound).all(), where
        assert np.array_equal(placed_a, a) and np.array_equal(placed_b, compact), where

    for side, by_columns in itertools.product(("begin", "end"), (False, True)):
        for i, (m, n, k) in enumerate(SMALL):
            run_matmul(1 + i % 3, m, n, k, side, by_columns)
            # the cheapest plan for each way of reading B
            given = BMode.PACKED if by_columns else BMode.DIRECT
            for mode in READINGS[given]:
                product = spec.Product(m, n, k, 1, given)
                choices = spec.candidates(product, library.machine, library.table)
                of_mode = [choice for choice in choices if choice.plan.b_mode == mode]
                cheapest = min(of_mode, key=lambda choice: choice.picoseconds)
                run_matmul(1, m, n, k, side, by_columns, cheapest.plan)
        for m, n, k in [*LARGE, (5, 300, 1100), (100, 130, 600)]:
            run_matmul(1, m, n, k, side, by_columns)
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
