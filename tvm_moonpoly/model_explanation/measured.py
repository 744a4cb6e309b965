"""The time of each function that a model calls, measured in TVM's virtual machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import tvm
from tvm import relax

from relax_passes.storage_sizes import PREFIX
from tvm_moonpoly.operators import mapped_weights
from tvm_moonpoly.operators.check import CHECK

#: Seconds that the calls of one model should take, and how many there are at the least and most.
BUDGET, FEWEST, MOST = 2.0, 3, 50

# allocation, checks and arithmetic of shapes, views, addresses of weights, sizes of memory
MACHINE = ("vm.builtin.", "shape_func", CHECK, mapped_weights.NAME, PREFIX)

Key = tuple[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Timed:
    """`calls` of one function on tensors of the same shapes, and their seconds, all together."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    seconds: float

    @property
    def key(self) -> Key:
        return self.name, self.shapes


@dataclass(frozen=True)
class Profile:
    """Seconds of a whole call (`total`, measured without a look at its parts), and its parts. The
    calls of the virtual machine itself (`machine`) are those that allocate, check and reshape."""

    total: float
    functions: tuple[Timed, ...]
    machine: Timed


def profile(executable: tvm.runtime.Executable, operands: Sequence[np.ndarray]) -> Profile:
    """Call the function `main` of `executable` some times, with and without a look at its parts.

    Times are medians. The look takes a microsecond a call: the shortest call's, which does nothing,
    is taken for that and subtracted.
    """
    machine = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(each) for each in operands]
    main = machine["main"]
    runs = _repeated(lambda: main(*tensors))
    looked: list[list[tuple[Key, int]]] = []
    started = [0]

    def look(_func: Any, name: str, before: bool, _result: Any, *arguments: Any) -> int:
        if before:
            started[0] = time.perf_counter_ns()
        else:
            nanoseconds = time.perf_counter_ns() - started[0]
            looked[-1].append(((name, _shapes(arguments)), nanoseconds))
        return 0

    machine.set_instrument(look)

    def watched() -> None:
        looked.append([])
        main(*tensors)

    _repeated(watched)
    return Profile(median(runs), *_parts(looked))


def _repeated(call: Any) -> list[float]:
    call()  # what is done once is no part of it
    found: list[float] = []
    while len(found) < FEWEST or (sum(found) < BUDGET and len(found) < MOST):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def _shapes(arguments: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(int(size) for size in each.shape)
        for each in arguments
        if isinstance(each, tvm.runtime.Tensor)
    )


def _parts(looked: Sequence[Sequence[tuple[Key, int]]]) -> tuple[tuple[Timed, ...], Timed]:
    """What the calls took, by function and shapes, the most first; and the virtual machine."""
    runs = [run for run in looked if len(run) == len(looked[-1])]
    keys = [key for key, _ in runs[-1]]
    medians = [median(run[i][1] for run in runs) for i in range(len(keys))]
    nothing = min(medians, default=0)
    counted: dict[Key, list[float]] = {}
    own: list[float] = []
    for key, nanoseconds in zip(keys, medians, strict=True):
        seconds = (nanoseconds - nothing) * 1e-9
        if key[0].startswith(MACHINE):
            own.append(seconds)
        else:
            counted.setdefault(key, []).append(seconds)
    functions = [Timed(*key, len(each), sum(each)) for key, each in counted.items()]
    functions.sort(key=lambda each: -each.seconds)
    return tuple(functions), Timed("virtual machine", (), len(own), sum(own))
