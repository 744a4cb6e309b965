"""The worker process that runs micro-kernels on a GPU: this machine's, or one behind a tracker.

Kernels come as shared libraries with machine code. What breaks a GPU's context, or a connection,
ends this process; `device` starts another.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import rpc

from tvm_moonpoly.microkernels.cuda import CudaTile, Form
from tvm_moonpoly.planner.groups import ceil_div
from tvm_moonpoly.tuning.measuring.worker import Request, Requests, serve

#: Timings of a task, and the milliseconds that each of them takes at least.
REPEATS, MILLISECONDS = 5, 1

#: Seconds after which a server ends a session.
SESSION_SECONDS = 600

#: Rounding of a result, relative to its largest element.
ROUNDING = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}

_FILL = "tvm.contrib.random.random_fill_for_measure"

_NUMPY = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}


class Bench:
    """Answers requests on the device ``cuda(0)`` of this process, or of a session."""

    def __init__(self, session: Any = None) -> None:
        self._session = session
        self._device = tvm.cuda(0) if session is None else session.cuda(0)
        self._sent = 0

    def describe(self, request: Request) -> dict[str, Any]:
        """The GPU as its driver tells it."""
        device = self._device
        if not device.exist:
            return {"exists": False}
        major, minor = str(device.compute_version).split(".")[:2]
        return {
            "exists": True,
            "name": str(device.device_name),
            "arch": f"sm_{major}{minor}",
            "multiprocessors": int(device.multi_processor_count),
            "clock_mhz": int(device.max_clock_rate) // 1000,
        }

    def launch(self, request: Request) -> dict[str, Any]:
        """Seconds of a launch of one block that has nothing to sum up."""
        form, tile, module = self._kernel(request)
        return {"seconds": self._seconds(module, request, form, tile, (8, 8, 0))}

    def measure(self, request: Request) -> dict[str, Any]:
        """Whether the kernel is right, and the seconds of each task; none where it is wrong."""
        form, tile, module = self._kernel(request)
        if not self._right(module, request, form, tile):
            return {"right": False, "seconds": [None] * len(request["tasks"])}
        seconds = [
            self._seconds(module, request, form, tile, (task["m"], task["n"], task["k"]))
            for task in request["tasks"]
        ]
        return {"right": True, "seconds": seconds}

    def _kernel(self, request: Request) -> tuple[Form, CudaTile, Any]:
        form, tile = Form(**request["form"]), CudaTile(**request["tile"])
        path = Path(request["library"])
        if self._session is None:
            return form, tile, tvm.runtime.load_module(str(path))
        self._sent += 1
        name = f"moonpoly_{self._sent}{path.suffix}"
        self._session.upload(bytearray(path.read_bytes()), target=name)
        try:
            return form, tile, self._session.load_module(name)
        finally:
            self._session.remove(name)

    def _right(self, module: Any, request: Request, form: Form, tile: CudaTile) -> bool:
        """Two tiles each way and a bit, against float32."""
        odd = 8 if form.aligned else 3
        m, n, k = tile.block_m + 5, tile.block_n + odd, 3 * tile.block_k + odd
        draw = np.random.default_rng(0)
        a = draw.standard_normal((1, m, k)).astype(_NUMPY[form.dtype_in])
        b_shape = (1, n, k) if form.b_transposed else (1, k, n)
        b = draw.standard_normal(b_shape).astype(_NUMPY[form.dtype_in])
        left, right = a.astype(np.float32), b.astype(np.float32)
        expected = left @ (right.swapaxes(1, 2) if form.b_transposed else right)
        empty = np.full((1, m, n), np.nan, np.float32).astype(_NUMPY[form.dtype_out])
        given = [tvm.runtime.tensor(each, device=self._device) for each in (a, b, empty)]
        module[request["kernel"]](*given, *_region(tile, m, n))
        got = given[2].numpy().astype(np.float32)
        tolerance = ROUNDING[form.dtype_out] * max(1.0, float(np.abs(expected).max()))
        return bool(np.abs(got - expected).max() <= tolerance)  # NaN is not

    def _seconds(
        self, module: Any, request: Request, form: Form, tile: CudaTile, sizes: tuple[int, ...]
    ) -> float:
        m, n, k = sizes
        b_shape = (1, n, k) if form.b_transposed else (1, k, n)
        empty = functools.partial(tvm.runtime.empty, device=self._device)
        operands = [empty((1, m, k), form.dtype_in), empty(b_shape, form.dtype_in)]
        result = empty((1, m, n), form.dtype_out)
        fill = self._function(_FILL)
        # what is multiplied decides how much power is taken, and so the clock
        for operand in operands if k else ():
            fill(operand)
        evaluator = module.time_evaluator(
            request["kernel"],
            self._device,
            number=1,
            repeat=REPEATS,
            min_repeat_ms=MILLISECONDS,
        )
        return float(median(evaluator(*operands, result, *_region(tile, m, n)).results))

    def _function(self, name: str) -> Any:
        if self._session is None:
            return tvm.get_global_func(name)
        return self._session.get_function(name)


def _region(tile: CudaTile, m: int, n: int) -> tuple[int, int, int, int]:
    """The launch's arguments for the whole result."""
    return 0, 0, ceil_div(m, tile.block_m), ceil_div(n, tile.block_n)


def main(described: Mapping[str, Any]) -> None:
    session = None
    if described.get("address"):
        host, port = described["address"]
        tracker = rpc.connect_tracker(host, int(port))
        session = tracker.request(described["key"], session_timeout=SESSION_SECONDS)
    if described.get("folder"):
        os.chdir(described["folder"])
    bench = Bench(session)
    jobs = {name: getattr(bench, name) for name in ("describe", "launch", "measure")}
    serve(jobs, Requests())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
