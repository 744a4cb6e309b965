"""Compile a small model with dynamic rows and save it as an executable that stands alone.

    python examples/export_model.py out/mlp.so

writes, next to `out/mlp.so`, an input and the output to expect: `out/mlp.npz` (arrays `x` and `y`)
for run_python.py, and the same two arrays as raw little-endian float32 in `out/mlp.x.f32` and
`out/mlp.y.f32` for run_cpp. A row of `y` depends on the same row of `x` alone, so the first m rows
of both are an example of size m, for every m.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax, tirx

import tvm_moonpoly as mp

INPUTS, HIDDEN, OUTPUTS = 64, 96, 10
EXAMPLE_ROWS = 300


class Weights(NamedTuple):
    """Parameters of relu(x @ w1 + b1) @ w2 + b2, float32."""

    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray


def random_weights(rng: np.random.Generator) -> Weights:
    """Return weights of a two-layer perceptron whose outputs are of order 1."""
    shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, OUTPUTS), (OUTPUTS,)]
    return Weights(*(rng.normal(0, shape[0] ** -0.5, shape).astype("float32") for shape in shapes))


def reference(x: np.ndarray, weights: Weights) -> np.ndarray:
    """Return what the model computes, (rows, OUTPUTS) float32, worked out in float64 by numpy."""
    w1, b1, w2, b2 = (w.astype("float64") for w in weights)
    return (np.maximum(x.astype("float64") @ w1 + b1, 0) @ w2 + b2).astype("float32")


def build_model(weights: Weights) -> tvm.IRModule:
    """Return the model as a Relax module: `main` maps (rows, INPUTS) to (rows, OUTPUTS)."""
    rows = tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, INPUTS), "float32"))
    w1, b1, w2, b2 = (relax.const(w) for w in weights)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.add(relax.op.matmul(x, w1), b1))
            hidden = builder.emit(relax.op.nn.relu(hidden))
            y = builder.emit_output(relax.op.add(relax.op.matmul(hidden, w2), b2))
        builder.emit_func_output(y)
    return builder.get()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile and save a small dynamic-shape model.")
    parser.add_argument("library", type=Path, help="file to write, such as out/mlp.so")
    library: Path = parser.parse_args().library
    library.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    weights = random_weights(rng)

    target = mp.detect_target()
    executable = tvm.compile(build_model(weights), target, relax_pipeline=mp.pipeline(target))
    executable.export_library(str(library))

    x = rng.normal(size=(EXAMPLE_ROWS, INPUTS)).astype("float32")
    y = reference(x, weights)
    np.savez(library.with_suffix(".npz"), x=x, y=y)
    x.astype("<f4").tofile(library.with_suffix(".x.f32"))
    y.astype("<f4").tofile(library.with_suffix(".y.f32"))
    print(f"wrote {library} and an example of {EXAMPLE_ROWS} rows")


if __name__ == "__main__":
    main()
