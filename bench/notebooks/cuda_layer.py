"""A dynamic fp16 linear layer on a GPU: what is known without running it, and what was measured.

Ours is planned by the tuning log's costs, TVM's is what dlight makes of it. Nothing here needs a
GPU or a CUDA toolkit; what the compiler tells of dlight's kernel was written down, see ``main``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.gpu import baseline, page
from bench.gpu.cases import suited
from tvm_moonpoly.costmodel.cuda_log import Contents
from tvm_moonpoly.microkernels.cuda import (
    GPUS,
    CudaTile,
    Gpu,
    Occupancy,
    kernel_name,
    occupancy,
)
from tvm_moonpoly.operators.cuda import Assembly
from tvm_moonpoly.operators.cuda.assemblies import assemblies, log_in_use
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.planner.cuda.spec import Product
from tvm_moonpoly.planner.groups import ceil_div

#: The names of those that are compared.
OURS, DLIGHT, CUBLAS = "tvm_moonpoly", "TVM, dlight", "cuBLAS"

#: How results name them.
_MEASURED = {OURS: "ours", DLIGHT: "tvm", CUBLAS: "peer"}

DATA = Path(__file__).parent / "data" / "cuda_baseline.json"

#: The library of the layer in a bundle's results.
LIBRARY = "f16_f16_nt"


@dataclass(frozen=True)
class Launch:
    """One launch: ``blocks`` of ``block_m`` by ``block_n``, of which ``resident`` fit each of the
    ``multiprocessors``; ``rows`` by ``columns`` are asked for."""

    kernel: str
    rows: int
    columns: int
    block_m: int
    block_n: int
    resident: int
    multiprocessors: int

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        return ceil_div(self.rows, self.block_m) * ceil_div(self.columns, self.block_n)

    @property
    def waves(self) -> float:
        """Blocks by those that run together."""
        return self.blocks / (self.resident * self.multiprocessors)

    @property
    def useful(self) -> float:
        """The share of the multiprocessors' time that goes into elements that are asked for: the
        rest are elements beyond the result and multiprocessors that have no block left."""
        asked = self.rows * self.columns / (self.blocks * self.block_m * self.block_n)
        turns = ceil_div(self.blocks, self.multiprocessors)
        return asked * self.blocks / (turns * self.multiprocessors)


@dataclass(frozen=True)
class Planned:
    """A plan for some rows: its launches, the seconds that the costs predict, and those of each
    micro-kernel alone by its name."""

    rows: int
    launches: tuple[Launch, ...]
    seconds: float
    alone: dict[str, float]

    @property
    def useful(self) -> float:
        """As `Launch.useful`, of all launches by their work."""
        sizes = [launch.rows * launch.columns for launch in self.launches]
        parts = zip(sizes, self.launches, strict=True)
        return sum(sizes) / sum(size / launch.useful for size, launch in parts)


@dataclass(frozen=True)
class Layer:
    """``x (M, k) @ w (n, k).T`` in float16 on ``gpu``, and what there is for it."""

    gpu: Gpu
    n: int
    k: int
    assembly: Assembly
    log: Contents
    dlight: baseline.Kernel

    @classmethod
    def of(cls, gpu_name: str, n: int, k: int) -> Layer:
        """Raises LookupError without a tuning log or recorded facts of dlight's kernel."""
        gpu = GPUS[gpu_name]
        made = assemblies(gpu.target(), "float16", "float16", True)
        log = log_in_use(gpu.target(), "float16")[1]
        return cls(gpu, n, k, suited(made, Product(1, n, k)), log, recorded(gpu_name, n, k))

    @property
    def status(self) -> str:
        """Whether predictions rest on measured costs."""
        return "costs measured" if self.assembly.table.measured else "costs computed, not measured"

    def planned(self, rows: int) -> Planned:
        """The plan for some rows."""
        product = Product(rows, self.n, self.k)
        table = self.assembly.table
        best = spec.best(product, table)
        alone = {
            kernel.name: spec.single(i, product, table) * 1e-12
            for i, kernel in enumerate(table.kernels)
        }
        regions = spec.regions(best.plan, product)
        launches = tuple(self._launch(r.kernel, r.rows, r.columns) for r in regions)
        return Planned(rows, launches, best.picoseconds * 1e-12, alone)

    def _launch(self, which: int, rows: int, columns: int) -> Launch:
        kernel = self.assembly.table.kernels[which]
        fit, count = kernel.resident, self.gpu.multiprocessors
        return Launch(kernel.name, rows, columns, kernel.block_m, kernel.block_n, fit, count)

    def by_dlight(self, rows: int) -> Launch:
        """The launch of TVM's kernel."""
        each, count = self.dlight, self.gpu.multiprocessors
        fit = self.dlight_held.blocks
        return Launch(DLIGHT, rows, self.n, each.block_m, each.block_n, fit, count)

    @property
    def dlight_held(self) -> Occupancy:
        """Blocks of TVM's kernel that a multiprocessor holds."""
        each = self.dlight
        limits = self.gpu.architecture
        return occupancy(each.registers, each.shared_bytes, each.threads, limits)

    def held(self) -> dict[str, tuple[CudaTile, Occupancy, int, int]]:
        """Tile, occupancy, registers and shared memory of our micro-kernels, by short names."""
        static = {(kernel.tile, kernel.form): kernel.static for kernel in self.log.kernels}
        found = {}
        for tile in self.assembly.tiles:
            told = static[tile, self.assembly.form]
            registers = told.registers or 255
            held = occupancy(registers, told.shared_bytes, tile.threads, self.gpu.architecture)
            found[short(kernel_name(tile, self.assembly.form))] = (
                tile,
                held,
                registers,
                told.shared_bytes,
            )
        return found

    def bound(self, rows: int) -> float:
        """Seconds that the peaks of the data sheet allow at best: of the tensor cores, and of
        memory that is read and written once. Costs leave memory out, as operands may be in L2."""
        flops = 2 * rows * self.n * self.k
        moved = 2 * (rows * self.k + self.n * self.k + rows * self.n)
        return max(flops / (self.gpu.peak_tflops * 1e12), moved / (self.gpu.bandwidth_gbs * 1e9))

    def measured(self, results: dict[str, Any] | None) -> dict[int, dict[str, float]]:
        """Seconds with L2 warm by rows and candidate, as far as ``results`` have them."""
        found: dict[int, dict[str, float]] = {}
        for case in (results or {}).get("speed", ()):
            if (case["library"], case["n"], case["k"]) == (LIBRARY, self.n, self.k):
                warm = case["warm"]
                found[case["m"]] = {
                    name: warm[field] for name, field in _MEASURED.items() if field in warm
                }
        return dict(sorted(found.items()))


def short(name: str) -> str:
    """A kernel's tile and pipeline out of its name."""
    words = name.removeprefix("moonpoly_").split("_")
    tile = next(i for i, word in enumerate(words) if word.count("x") == 2)
    return " ".join(words[tile:-1])


def results_of(gpu: Gpu) -> dict[str, Any] | None:
    """What was measured on the GPU and lies in this repository, or None."""
    path = page.find(gpu.name)
    return None if path is None else page.read(path)


def recorded(gpu_name: str, n: int, k: int) -> baseline.Kernel:
    """What was written down of dlight's kernel.

    Raises LookupError where nothing was.
    """
    for each in baseline.read(DATA):
        if (each.gpu, each.n, each.k) == (gpu_name, n, k):
            return each
    raise LookupError(f"{DATA.name}: nothing is recorded of {n} x {k} on {gpu_name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write down what the compiler tells of dlight's kernels: needs nvcc, takes a minute."""
    parser = argparse.ArgumentParser(prog="python -m bench.notebooks.cuda_layer",
                                     description=main.__doc__)  # fmt: skip
    parser.add_argument("--size", type=int, nargs=2, default=(4096, 4096), metavar=("N", "K"))
    parser.add_argument("gpu", nargs="*", default=["nvidia-h200", "nvidia-a100"])
    options = parser.parse_args(arguments)
    versions = f"apache-tvm {metadata.version('apache-tvm')}"
    n, k = options.size
    kernels = [baseline.facts(n, k, GPUS[name], versions) for name in options.gpu]
    baseline.write(DATA, kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
