"""Run as a process by test_relax_map_weights: loads an exported model, calls it, and prints, as
JSON, the most memory that this took, in bytes, and the largest result."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import relax


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def main(library: str, width: str) -> None:
    x = tvm.runtime.tensor(np.ones((3, int(width)), np.float32))
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    result = machine["main"](x).numpy()
    print(json.dumps({"peak": status("VmHWM") - before, "largest": float(result.max())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
