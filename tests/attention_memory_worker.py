"""Run as a process by test_attention_core: attention on operands against protected pages.

A read or write outside an operand or of the workspace kills the process. The last line before that
names the case.
"""

from __future__ import annotations

import itertools

import numpy as np
from attention_testing import call, check
from core_memory_worker import Guarded, guarded_library
from core_testing import CANARY, values

from tvm_moonpoly.operators.attention_constants import AttentionSpec, Causal, Place

ROWS, KEYS, ELEMENTS = (1, 2, 5, 33, 70), (1, 3, 8, 13, 17, 50), (1, 5, 8, 13, 32)


def main() -> None:
    library, workspace = guarded_library("attention")
    rng = np.random.default_rng(5)
    memory = {name: Guarded(100) for name in ("q", "k", "v", "mask", "out")}
    numbers = itertools.count()
    for rows, keys, size in itertools.product(ROWS, KEYS, ELEMENTS):
        i = next(numbers)
        heads, value_size = 2, ELEMENTS[i % 4]
        merged = i % 2 == 0
        causal = list(Causal)[i % 3]
        shapes = {"q": (rows, size), "k": (keys, size), "v": (keys, value_size)}
        whole = {name: values(rng, 1, heads, *shape) for name, shape in shapes.items()}
        place = Place.columns() if merged else Place()
        turned = i % 4 == 1
        of_k = Place((0, 1, 3, 2)) if turned else place
        masked = [(None, None, None, 0), (None, None, 0, 1)][i % 2]
        mask = values(rng, *((keys,), (rows, keys))[i % 2]) if i % 5 else None
        spec = AttentionSpec(
            heads, size, value_size, 0.4, causal=causal, q=place, k=of_k, v=place, out=place,
            mask=masked,
        )  # fmt: skip
        for side in ("begin", "end"):
            print(spec, rows, keys, side, flush=True)
            given = {}
            for name, array in whole.items():
                if merged:
                    array = array.transpose(0, 2, 1, 3).reshape(1, array.shape[2], -1)
                elif name == "k" and turned:
                    array = array.swapaxes(2, 3)
                given[name] = memory[name].place(array, side)
            shape = (1, rows, heads * value_size) if merged else (1, heads, rows, value_size)
            out = memory["out"].place(np.full(shape, CANARY), side)
            placed = None if mask is None else memory["mask"].place(mask, side)
            call(library, spec, given["q"], given["k"], given["v"], out, placed)
            if merged:
                out = out.reshape(1, rows, heads, value_size).transpose(0, 2, 1, 3)
            check(out, *whole.values(), mask, 0.4, causal)
    assert workspace.pieces > 100
    print("all cases ran", flush=True)


if __name__ == "__main__":
    main()
