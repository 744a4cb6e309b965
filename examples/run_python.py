"""Run a saved executable with TVM's runtime library alone.

    python examples/run_python.py out/mlp.so

Neither the package `tvm` (the compiler) nor tvm_moonpoly is imported: only tvm_ffi, the small
library through which all languages call TVM, and numpy for the data.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tvm_ffi

SIZES = (1, 2, 7, 64, 300, 33, 1)  # growing and shrinking: one executable serves all of them
CPU, DEVICE_ID, POOLED_ALLOCATOR = 1, 0, 2


def load_runtime() -> ctypes.CDLL:
    """Load TVM's runtime library, which brings the virtual machine and the thread pool."""
    spec = importlib.util.find_spec("tvm")  # finds the package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("error: package apache-tvm, which holds libtvm_runtime.so, not found")
    folder = Path(spec.submodule_search_locations[0]) / "lib"
    return ctypes.CDLL(str(folder / "libtvm_runtime.so"), mode=ctypes.RTLD_GLOBAL)


def load_main(library: Path) -> Callable[..., tvm_ffi.Tensor]:
    """Return the function `main` of a saved executable, ready to be called on the CPU."""
    machine = tvm_ffi.load_module(str(library.resolve()))["vm_load_executable"]()
    machine["vm_initialization"](CPU, DEVICE_ID, POOLED_ALLOCATOR)
    return machine["main"]


def aligned(array: np.ndarray, alignment: int = 64) -> np.ndarray:
    """Copy `array` to memory that starts at a multiple of `alignment` bytes.

    TVM's own operators expect 64; numpy promises 16 only.
    """
    buffer = np.empty(array.nbytes + alignment, "uint8")
    start = -buffer.ctypes.data % alignment
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a saved executable and check its results.")
    parser.add_argument("library", type=Path, help="file written by export_model.py")
    library: Path = parser.parse_args().library
    example = np.load(library.with_suffix(".npz"))
    runtime = load_runtime()  # noqa: F841  (the name keeps it loaded)
    run = load_main(library)

    for rows in SIZES:
        y: np.ndarray = np.from_dlpack(run(tvm_ffi.from_dlpack(aligned(example["x"][:rows]))))
        expected = example["y"][:rows]
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        print(f"rows {rows:3}: largest error {np.abs(y - expected).max():.1e}")

    imported = {"tvm", "tvm_moonpoly"} & set(sys.modules)
    assert not imported, f"the compiler was imported: {sorted(imported)}"
    print("OK: neither tvm nor tvm_moonpoly was imported")


if __name__ == "__main__":
    main()
