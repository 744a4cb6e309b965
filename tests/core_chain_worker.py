"""Run as a process by test_core_chain: chains on operands against protected pages.

A read or write outside an operand kills the process. The last line before that names the case.
"""

from __future__ import annotations

import itertools

import numpy as np
from core_chain import check_chain, check_linear_chain, operand_values
from core_memory_worker import SMALL, Guarded
from core_testing import CANARY, EPS, Weight, tensor, values

import tvm_moonpoly
from tvm_moonpoly import operators
from tvm_moonpoly.operators import Activation, Chain, Step, encode_axes

CHAIN = Chain(
    (
        (Step.MULTIPLY, 0),
        (Activation.TANH, None),
        (Step.ADD, 1),
        (Activation.RELU, None),
        (Step.MAXIMUM, 2),
        (Step.REVERSE_SUBTRACT, 0),
    )
)


def main() -> None:
    library = operators.library(tvm_moonpoly.detect_target())
    rng = np.random.default_rng(37)
    names = ("x", "packed", "bias", "table", "e0", "e1", "e2", "out")
    memory = {name: Guarded(24) for name in names}
    shapes = itertools.cycle(itertools.product(((), (1,), ("n",), ("m", 1), ("m", "n")), repeat=3))
    for side, (m, n, k) in itertools.product(("begin", "end"), SMALL):
        sizes = {"m": m, "n": n, 1: 1}
        operands = [operand_values(rng, *(sizes[dim] for dim in shape)) for shape in next(shapes)]
        weight = Weight.of(library, values(rng, k, n), values(rng, n))
        x = values(rng, m, k)
        where = f"{m=} {n=} {k=} {side=} operands {[e.shape for e in operands]}"
        given = dict(zip(("e0", "e1", "e2"), operands, strict=True)) | {"x": x}
        constants = {"packed": weight.packed, "bias": weight.padded, "table": weight.table[: m + 1]}
        out = np.full((m, n), CANARY)
        placed = {
            name: memory[name].place(array, side)
            for name, array in {**given, **constants, "out": out}.items()
        }
        es = [tensor(placed[name]) for name in ("e0", "e1", "e2")]

        print(f"linear {where}", flush=True)
        library.module[operators.LINEAR_CHAIN](
            *(tensor(placed[name]) for name in ("x", "packed", "bias", "table")),
            *(None, CHAIN.encode(), *es, tensor(placed["out"])),
        )
        check_linear_chain(placed["out"], x, weight, CHAIN, operands)

        for axes in ((0, 1), (1, 0)):
            print(f"matmul {where} {axes=}", flush=True)
            b = memory["packed"].place(np.ascontiguousarray(weight.w.transpose(axes)), side)
            placed["out"][...] = CANARY
            library.module[operators.MATMUL_CHAIN](
                *(tensor(placed["x"]), tensor(b)),
                *(encode_axes(each) for each in ((0, 1), axes, (0, 1))),
                *(None, CHAIN.encode(), *es, tensor(placed["out"])),
            )
            x64, w64 = x.astype(np.float64), weight.w.astype(np.float64)
            bound = (k + 2) * EPS * (np.abs(x64) @ np.abs(w64))
            check_chain(placed["out"], x64 @ w64, bound, CHAIN, operands)
        for name, array in given.items():
            assert np.array_equal(placed[name], array), f"{name} was written: {where}"
    print("all cases ran", flush=True)


if __name__ == "__main__":
    main()
