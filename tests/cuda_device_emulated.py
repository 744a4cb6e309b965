"""A process with an emulated GPU that does some jobs of the stage's worker.

Its argument is a folder with a request, which names the jobs, and the source of its kernel.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
