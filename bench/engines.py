"""Ways to run a model, behind one small interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from tvm import relax

OURS = "tvm_moonpoly"
ORT = "onnxruntime"

CACHE_LINE = 64  # bytes

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Engine:
    """One compiled model: ``prepare`` takes a feed and returns a call that runs the model on it.

    What the call returns are the engine's own tensors, for ``as_arrays``.
    """

    name: str
    prepare: Callable[[Feed], Callable[[], Any]]
    build_seconds: float


def as_arrays(results: Any) -> list[np.ndarray]:
    """The results of a prepared call, or its only one, as numpy arrays."""
    if isinstance(results, tvm.runtime.Tensor):
        results = [results]
    return [each if isinstance(each, np.ndarray) else each.numpy() for each in results]


def run_onnxruntime(model: onnx.ModelProto | Path, threads: int) -> Engine:
    """onnxruntime's CPU provider with ``threads`` threads inside an operator, one between them."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its idle workers would spin on, on the cores of the engine that is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - start

    def prepare(feed: Feed) -> Callable[[], Any]:
        return lambda: session.run(None, feed)

    return Engine(ORT, prepare, seconds)


def run_tvm(
    name: str,
    mod: tvm.IRModule,
    target: tvm.target.Target,
    pipeline: Any,
    inputs: Sequence[str],
) -> Engine:
    """One TVM executable for all sizes; threads are those of ``TVM_NUM_THREADS``.

    ``inputs`` are the names of its inputs in their order.
    """
    start = time.perf_counter()
    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    return _tvm_engine(name, executable, inputs, time.perf_counter() - start)


def load_tvm(name: str, path: Path, inputs: Sequence[str]) -> Engine:
    """The same of an executable that was exported as a library, with the seconds to load it."""
    start = time.perf_counter()
    module = tvm.runtime.load_module(str(path))
    return _tvm_engine(name, module, inputs, time.perf_counter() - start)


def _tvm_engine(name: str, executable: Any, inputs: Sequence[str], seconds: float) -> Engine:
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def prepare(feed: Feed) -> Callable[[], Any]:
        tensors = [as_tensor(feed[key]) for key in inputs]
        return lambda: main(*tensors)

    return Engine(name, prepare, seconds)


def as_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """A tensor in the memory of ``array`` where TVM can read it there, which takes whole rows from
    the begin of a cache line on; otherwise a copy."""
    flags = array.flags
    # numpy gives an array without elements strides that TVM takes for gaps
    plain = flags.c_contiguous and flags.writeable and array.size > 0
    if plain and array.ctypes.data % CACHE_LINE == 0:
        return tvm.runtime.from_dlpack(array)
    return tvm.runtime.tensor(array)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins with a cache line."""
    memory: np.ndarray = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest output; infinite where a shape differs or NaN is."""
    if found.shape != expected.shape:
        return float("inf")
    error = float(np.abs(found - expected).max(initial=0.0))
    error /= float(np.abs(expected).max(initial=0.0)) or 1.0
    return error if np.isfinite(error) else float("inf")
