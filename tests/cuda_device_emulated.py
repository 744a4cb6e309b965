"""A process with an emulated GPU that does some jobs of the stage's worker.

Its argument is a folder with a request, which names the jobs, and the source of its kernel. What it
times is told by a clock that counts, see `counting`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tvm
from cuda_emulator import emulate
from cuda_emulator.machine import Machine

from tvm_moonpoly.tuning.cuda.device_worker import Bench


def main(folder: Path) -> None:
    request = json.loads((folder / "request.json").read_text())
    machine = Machine(emulate((folder / "kernel.cu").read_text()))
    for name in ("tensor", "empty"):
        setattr(tvm.runtime, name, known_to(machine, getattr(tvm.runtime, name)))
    tvm.runtime.Module.time_evaluator = counting(machine, tvm.runtime.Module.time_evaluator)
    bench = Bench()
    print(json.dumps([getattr(bench, job)(request) for job in request["jobs"]]), flush=True)
    # tvm's threads, which filled operands, spin for long on a busy machine before they end
    os._exit(0)


def known_to(machine: Machine, make: Any) -> Any:
    """What makes a tensor, so that kernels may touch it."""

    def making(*arguments: Any, **options: Any) -> Any:
        made = make(*arguments, **options)
        machine.may_touch(made)
        return made

    return making


def counting(machine: Machine, time_evaluator: Any) -> Any:
    """`time_evaluator` by a clock that does not depend on how busy this machine is: a launch takes
    a second, and one more for each instruction of its tensor cores."""

    def counted(module: Any, name: str, *arguments: Any, **options: Any) -> Any:
        evaluator = time_evaluator(module, name, *arguments, **options)

        def evaluate(*given: Any) -> Any:
            machine.launches()  # those of before
            told = evaluator(*given)
            assert min(told.results) > 0
            seconds = [1.0 + launch.report.mma for launch in machine.launches()]
            assert len(seconds) > len(told.results) == options["repeat"]  # one to warm up
            return SimpleNamespace(results=seconds)

        return evaluate

    return counted


if __name__ == "__main__":
    main(Path(sys.argv[1]))
