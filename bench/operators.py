"""Operators that move memory, one by one, against onnxruntime's: ``python -m bench.operators``.

``build FOLDER`` compiles each of them once, all dimensions but channels dynamic, and exports it.
``compare FOLDER [BEFORE]`` times them next to onnxruntime, and next to the libraries of the folder
BEFORE, which another version of the package built: interleaved, medians of paired ratios. Above 1
is faster. ``--only NAMES`` takes those whose names contain one of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper
from tvm import relax

import tvm_moonpoly as mp
from bench.measure import clock_for, interleave, paired_ratio

OPSET = 20
CHANNELS = 64
ROUNDS, MIN_SECONDS = 9, 0.01
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """One ONNX node of a tensor ``x`` with ``dims``, and the sizes that it is measured at."""

    kind: str
    dims: tuple[str | int, ...]
    sizes: tuple[Shape, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    result: int = TensorProto.FLOAT

    def model(self) -> onnx.ModelProto:
        inputs, constants = ["x"], []
        if self.kind in ("ReduceMax", "ReduceSum"):
            constants = [helper.make_tensor("axes", TensorProto.INT64, [1], [1])]
            inputs = ["x", "axes"]
        if self.kind == "Resize":
            constants = [helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 2, 2])]
            inputs = ["x", "", "scales"]
        node = helper.make_node(self.kind, inputs, ["y"], **dict(self.attributes))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(self.dims))
        y = helper.make_tensor_value_info("y", self.result, None)
        graph = helper.make_graph([node], self.kind, [x], [y], constants)
        opset = [helper.make_opsetid("", OPSET)]
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opset))


LENGTHS = ((4096,), (65536,), (1 << 20,), (1 << 22,))
ROWS = ((4096, 64), (64, 1000), (512, 512), (64, 4096), (8, 32000), (2, 200000))
SCORES = ((1, 32000), (8, 32000), (40, 6625), (512, 97), (4096, 10))
PLANES = tuple((2, CHANNELS, size, size) for size in (7, 13, 14, 20, 28, 40, 56, 112))
NCHW = ("n", CHANNELS, "h", "w")
MAPS = ((1, 21, 64, 64), (1, 21, 256, 256), (2, 150, 128, 128))


def _pool(window: int, pad: int) -> tuple[tuple[str, Any], ...]:
    both = [window, window], [2, 2], [pad] * 4
    return tuple(zip(("kernel_shape", "strides", "pads"), both, strict=True))


def _nearest(**others: str) -> tuple[tuple[str, Any], ...]:
    return (("mode", "nearest"), ("coordinate_transformation_mode", "asymmetric"), *others.items())


OPERATORS = {
    "softmax": Operator("Softmax", ("n", "m"), ROWS, (("axis", -1),)),
    "log softmax": Operator("LogSoftmax", ("n", "m"), ROWS, (("axis", -1),)),
    "argmax": Operator("ArgMax", ("n", "m"), SCORES, (("axis", -1),), TensorProto.INT64),
    "argmax of channels": Operator(
        "ArgMax", ("n", "c", "h", "w"), MAPS, (("axis", 1),), TensorProto.INT64
    ),
    "largest": Operator("ReduceMax", ("n", "m"), SCORES, (("keepdims", 0),)),
    "gelu": Operator("Gelu", ("n",), LENGTHS),
    "gelu by tanh": Operator("Gelu", ("n",), LENGTHS, (("approximate", "tanh"),)),
    "tanh": Operator("Tanh", ("n",), LENGTHS),
    "erf": Operator("Erf", ("n",), LENGTHS),
    "sigmoid": Operator("Sigmoid", ("n",), LENGTHS),
    "exp": Operator("Exp", ("n",), LENGTHS),
    "relu": Operator("Relu", ("n",), LENGTHS),
    "nearest": Operator("Resize", NCHW, PLANES[:-1], _nearest(nearest_mode="floor")),
    "average 3x3 by 2": Operator("AveragePool", NCHW, PLANES, _pool(3, 1)),
    "average 2x2 by 2": Operator("AveragePool", NCHW, PLANES, _pool(2, 0)),
    "max 3x3 by 2": Operator("MaxPool", NCHW, PLANES, _pool(3, 1)),
}


def chosen(only: str) -> Iterator[tuple[str, Operator]]:
    parts = [part.strip() for part in only.split(",")]
    return ((name, each) for name, each in OPERATORS.items() if any(p in name for p in parts))


def build(folder: Path, only: str, cores: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = mp.detect_target(cores)
    for name, operator in chosen(only):
        mod = mp.import_onnx(operator.model())
        tvm.compile(mod, target, relax_pipeline=mp.pipeline(target)).export_library(
            str(library(folder, name))
        )


def compare(folder: Path, before: Path | None, only: str, threads: int) -> None:
    clock, said = clock_for(threads)
    print(said, "ratios: onnxruntime / ours, before / now", sep="\n")
    for name, operator in chosen(only):
        runs = {"now": loaded(library(folder, name))}
        if before is not None:
            runs["before"] = loaded(library(before, name))
        session = _session(operator.model(), threads)
        for shape in operator.sizes:
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            calls = {each: call_of(main, x) for each, main in runs.items()}
            calls["onnxruntime"] = _bound(session, x)
            times = interleave(calls, rounds=ROUNDS, min_seconds=MIN_SECONDS, clock=clock)
            ratios = [
                str(paired_ratio(times[peer], times["now"]))
                for peer in ("onnxruntime", "before")
                if peer in times
            ]
            micro = 1e6 * float(np.median(times["now"]))
            size = "x".join(map(str, shape))
            print(f"{name:20} {size:16} {micro:10.1f} us  {'  '.join(ratios)}", flush=True)


def library(folder: Path, name: str) -> Path:
    """Where the executable of that name is kept."""
    return folder / f"{name.replace(' ', '_')}.so"


def loaded(path: Path) -> Callable[[Any], Any]:
    """The function of a library that was built here."""
    module = tvm.runtime.load_module(str(path))
    return relax.VirtualMachine(module, tvm.cpu())["main"]


def call_of(main: Callable[[Any], Any], x: np.ndarray) -> Callable[[], Any]:
    tensor = tvm.runtime.tensor(x)
    return lambda: main(tensor)


def _session(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _bound(session: onnxruntime.InferenceSession, x: np.ndarray) -> Callable[[], Any]:
    """A call without copies of the input, whose result onnxruntime allocates, as ours is."""
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))

    def call() -> None:
        binding.bind_output("y")
        session.run_with_iobinding(binding)

    return call


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.operators", description=__doc__)
    parser.add_argument("what", choices=["build", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.what == "build":
        build(given.folder, given.only, given.threads)
    else:
        compare(given.folder, given.before, given.only, given.threads)


if __name__ == "__main__":
    main()
