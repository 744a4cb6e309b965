"""A process with an emulated GPU: loads an executable, runs it, writes what it computed.

Its argument is a folder, see `cuda_models.run`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tvm
from cuda_emulator import emulate
from cuda_emulator.machine import Machine
from cuda_models import load, save


def main(folder: Path) -> None:
    sources = [path.read_text() for path in sorted(folder.glob("kernels_*.cu"))]
    machine = Machine(*(emulate(source) for source in sources))
    vm = machine.virtual_machine(tvm.runtime.load_module(str(folder / "model.so")))
    kernels = []
    for i in range(len(list(folder.glob("input_*.npy")))):
        result, launches = machine.run(vm, "main", load(folder / f"input_{i}"))
        save(folder / f"output_{i}", result)
        kernels.append([launch.kernel.removesuffix("_kernel") for launch in launches])
    print(json.dumps({"formats": machine.formats, "kernels": kernels}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
