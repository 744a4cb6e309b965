"""Run as a process by test_compile_memory: compiles a model of large weights and prints, as JSON,
the memory that this took and the size of the exported executable, in multiples of the weights."""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax, tirx

MIB = 2**20
# (layers, K, N), 64 MiB each
MODELS = {"many": (4, 2048, 2048), "one": (1, 4096, 4096), "small": (1, 8, 8)}


def build(name):
    """Linear layers one after the other, with relu; every second weight is stored transposed."""
    layers, k, n = MODELS[name]
    rng = np.random.default_rng(1)
    builder = relax.BlockBuilder()
    hidden = relax.Var("x", relax.TensorType([tirx.Var("m", "int64"), k], "float32"))
    with builder.function("main", [hidden]):
        with builder.dataflow():
            for layer in range(layers):
                shape = (n, k) if layer % 2 else (k, n)
                weight = relax.const(rng.standard_normal(shape, dtype="float32"))
                if layer % 2:
                    weight = builder.emit(relax.op.permute_dims(weight))
                product = builder.emit(relax.op.matmul(hidden, weight))
                hidden = builder.emit(relax.op.nn.relu(product))
            output = builder.emit_output(hidden)
        builder.emit_func_output(output)
    return builder.get()


def weights_mib(name):
    layers, k, n = MODELS[name]
    return 4 * layers * k * n / MIB


def mib(field):
    """A field of this process's status: VmRSS is what it uses, VmHWM the most since `reset`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def reset():
    ctypes.CDLL(None).malloc_trim(0)  # what is free already shall not count
    Path("/proc/self/clear_refs").write_text("5")


def measure(name, compiled, exported):
    """The most memory while compiling, the module included, and while exporting, without it."""
    weights, base = weights_mib(name), mib("VmRSS")
    mod = build(name)
    reset()
    executable = compiled(mod)
    result = {"compile": (mib("VmHWM") - base) / weights}
    if not exported:
        return result
    del mod
    reset()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        executable.export_library(str(path))
        result["export"] = (mib("VmHWM") - base) / weights
        result["size"] = (path.stat().st_size / MIB - weights) / weights
    return result


def main():
    import tvm_moonpoly
    from relax_passes import pipeline

    name, whose, exported = sys.argv[1:]
    target = tvm_moonpoly.detect_target()

    def compiled(mod):
        ours = whose == "ours"
        chosen = pipeline(target) if ours else relax.get_default_pipeline(target)
        return tvm.compile(mod, target, relax_pipeline=chosen)

    measure("small", compiled, exported=True)  # loads all that is ever loaded
    print(json.dumps(measure(name, compiled, exported == "exported")))


if __name__ == "__main__":
    main()
