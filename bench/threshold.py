"""When a function is worth sharing among threads: ``python -m bench.threshold``.

``build FOLDER`` compiles each function twice, for one thread and to be shared whatever its size is.
``compare FOLDER`` times both, interleaved, by the wall clock, and says how much longer, in
microseconds, one thread takes: below 0 the function is better not shared. The difference leaves out
what calling it from Python takes. Set ``TVM_NUM_THREADS`` to the number of threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm

import relax_passes.parallel_rows as parallel_rows
import tvm_moonpoly as mp
from bench.measure import interleave
from bench.operators import NCHW, Operator, call_of, library, loaded

ROUNDS, MIN_SECONDS = 7, 0.002
COLUMNS, CHANNELS = 256, 64
SIZES = tuple(1 << power for power in range(12, 21))
ROWS = ("n", "m")
_BY_TWO = (("kernel_shape", [3, 3]), ("strides", [2, 2]), ("pads", [1] * 4))

#: By how they pass over memory, with cheap bodies and dear ones.
FUNCTIONS = {
    "negative": Operator("Neg", ROWS, ()),
    "gelu": Operator("Gelu", ROWS, ()),
    "row sums": Operator("ReduceSum", ROWS, ()),
    "softmax": Operator("Softmax", ROWS, (), (("axis", -1),)),
    "argmax": Operator("ArgMax", ROWS, (), (("axis", -1),), result=7),
    "transpose": Operator("Transpose", ROWS, (), (("perm", [1, 0]),)),
    "pooling": Operator("MaxPool", NCHW, (), _BY_TWO),
}


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, operator in FUNCTIONS.items():
        for cores in (1, 2):
            target = mp.detect_target(cores)
            mod = mp.import_onnx(operator.model())
            usual = parallel_rows.MIN_WORK
            parallel_rows.MIN_WORK = 0
            try:
                built = tvm.compile(mod, target, relax_pipeline=mp.pipeline(target))
            finally:
                parallel_rows.MIN_WORK = usual
            built.export_library(str(library(folder, f"{name} {cores}")))


def compare(folder: Path) -> None:
    print("microseconds on one thread, shared among several, and the difference")
    for name, operator in FUNCTIONS.items():
        runs = {cores: loaded(library(folder, f"{name} {cores}")) for cores in (1, 2)}
        for size in SIZES:
            plane = (1, CHANNELS, size // CHANNELS // 8, 8)
            shape = plane if operator.dims == NCHW else (size // COLUMNS, COLUMNS)
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            calls = {str(cores): call_of(main, x) for cores, main in runs.items()}
            clock = time.perf_counter
            times = interleave(calls, rounds=ROUNDS, min_seconds=MIN_SECONDS, clock=clock)
            one, two = (1e6 * statistics.median(times[each]) for each in ("1", "2"))
            print(f"{name:12} {size:8} {one:9.1f} {two:9.1f} {one - two:8.1f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.threshold", description=__doc__)
    parser.add_argument("what", choices=["build", "compare"])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    {"build": build, "compare": compare}[given.what](given.folder)


if __name__ == "__main__":
    main()
