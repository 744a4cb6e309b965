"""Timing whole products with the operator library, in this process and thread.

Requests and answers are JSON, as in `timing`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm

from tvm_moonpoly import native
from tvm_moonpoly.emit import LINE
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.operators import encode_axes
from tvm_moonpoly.operators.linear import LINEAR
from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
from tvm_moonpoly.operators.parts import functions
from tvm_moonpoly.planner.groups import Product
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.tuning.measuring.plans import PlanTask, placeholder
from tvm_moonpoly.tuning.measuring.timing import Bench, affordable, timed, timer

Request = Mapping[str, Any]
Call = Callable[[], object]

#: Lines between two operands, so that not all of them begin with a page.
_BETWEEN = 37

#: One plan is timed at least so often, however long it takes.
_AT_LEAST = 5


class PlanBench:
    """Builds a library from records, and times the plans that it is given."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._module: Any = None
        self._name: str | None = None
        self._inputs, self._outputs = _Arena(0.5), _Arena(0.0)

    def library(self, request: Request) -> dict[str, Any]:
        """Build the library of ``records``, to be asked for by ``name``; unless it is there."""
        if self._name != request["name"]:
            machine = self._bench.machine
            table = placeholder(Record.from_json(each) for each in request["records"])
            defined = functions(machine, table)
            self._module = native.build(defined.module(), self._bench.target, defined.marks)
            self._name = request["name"]
        return {}

    def plan(self, request: Request) -> dict[str, Any]:
        """Time ``plan``, a `PlanTask`, with the library ``name``: as `Bench.time` does tasks.

        ``most``: nanoseconds that all timings together may take, where a few are enough.
        """
        if self._name != request["name"]:
            return {"missing": True}
        return self._timed(self._call(PlanTask.from_json(request["plan"])), request)

    def overhead(self, request: Request) -> dict[str, Any]:
        """Time an empty call of each function that takes plans: timings by `function_of`."""
        if self._name != request["name"]:
            return {"missing": True}
        plan = Plan(1, 1, 0, 0, False, BMode.PREPACKED)
        answer = {}
        for stored in (BMode.PREPACKED, BMode.DIRECT):
            product = Product(0, self._bench.machine.lanes, 8, b_mode=stored)
            answer[function_of(stored)] = self._timed(self._call(PlanTask(product, plan)), request)
        return answer

    def launch(self, request: Request) -> dict[str, Any]:
        """Nanoseconds of a tiny product that one thread computes, and of the same by two: each in
        ``rounds`` turns, by the wall clock, after a pause.

        A thread pool answers faster when it is called again at once than it does in a model.
        """
        if self._name != request["name"]:
            return {"missing": True}
        # read when the pool is started, which nothing here has done before
        os.environ.setdefault("TVM_NUM_THREADS", str(self._bench.machine.cores))
        product = Product(1, 2 * self._bench.machine.lanes, 1)
        calls = []
        for workers in (1, 2):
            plan = Plan(1, 1, 0, 0, False, BMode.PREPACKED, splits_n=workers, workers=workers)
            calls.append(self._call(PlanTask(product, plan)))
            calls[-1]()
        times: list[list[int]] = [[], []]
        for _ in range(int(request["rounds"])):
            for call, taken in zip(calls, times, strict=True):
                time.sleep(0.0002)
                start = time.perf_counter_ns()
                call()
                taken.append(time.perf_counter_ns() - start)
        return {"one": times[0], "two": times[1]}

    def _timed(self, call: Call, request: Request) -> dict[str, Any]:
        def run(count: int) -> None:
            for _ in range(count):
                call()

        length, probe_steps = float(request["nanoseconds"]), int(request["probe_steps"])
        count = affordable(lambda n: timed(run, n), length)
        task, step = timer(run, count), self._bench.probing(probe_steps)

        def probe() -> float:
            # plans take long enough for something to come between a probe and the next
            return min(step() for _ in range(int(request["probes"])))

        tasks, probes, spent = [], [probe()], 0.0
        for done in range(int(request["repeats"])):
            if done >= _AT_LEAST and spent > float(request["most"]):
                break
            tasks.append(task())
            probes.append(probe())
            spent += tasks[-1] * count
        return {"task": tasks, "probe": probes}

    def _call(self, task: PlanTask) -> Call:
        """A call that computes the product by the plan."""
        product, lanes = task.product, self._bench.machine.lanes
        m, n, k, word = product.m, product.n, product.k, task.plan.encode()
        panels = -(-n // lanes)
        (out,) = self._outputs.tensors((m, n))
        if function_of(product.b_mode) == MATMUL_PLANNED:
            by_rows = product.b_mode == BMode.DIRECT
            x, b = self._inputs.tensors((m, k), (k, n) if by_rows else (n, k))
            as_is, b_axes = encode_axes((0, 1)), encode_axes((0, 1) if by_rows else (1, 0))
            matmul = self._module[MATMUL_PLANNED]
            return lambda: matmul(x, b, as_is, b_axes, as_is, None, word, out)
        x, packed, bias = self._inputs.tensors((m, k), (panels, k, lanes), (panels * lanes,))
        table = tvm.runtime.tensor(np.full(m + 1, word, np.int64))
        linear = self._module[LINEAR]
        return lambda: linear(x, packed, bias, table, None, 0, out)


def function_of(stored: BMode) -> str:
    """The packed function that computes products whose B is stored so."""
    return LINEAR if stored == BMode.PREPACKED else MATMUL_PLANNED


class _Arena:
    """Memory that the operands of one product after the other lie in."""

    def __init__(self, value: float) -> None:
        self._value, self._floats = value, np.empty(0, np.float32)

    def tensors(self, *shapes: tuple[int, ...]) -> list[Any]:
        """Tensors of ``shapes``, one behind the other."""
        sizes = [int(np.prod(shape)) for shape in shapes]
        begins, end = [], _BETWEEN * LINE
        for size in sizes:
            begins.append(end)
            end += (-(-size // LINE) + _BETWEEN) * LINE
        if end > self._floats.size:
            self._floats = np.full(end + LINE, self._value, np.float32)
            first = -self._floats.ctypes.data // 4 % LINE
            self._floats = self._floats[first : first + end]
        return [
            tvm.runtime.from_dlpack(self._floats[at : at + size].reshape(shape))
            for at, size, shape in zip(begins, sizes, shapes, strict=True)
        ]
