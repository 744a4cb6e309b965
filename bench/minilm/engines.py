"""The four ways to run the model that are compared, behind one small interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from bench.hand_schedule import hand_scheduled_pipeline
from bench.minilm.graph import INPUTS
from bench.minilm.sentences import Feed

OURS = "tvm_moonpoly"
ORT = "onnxruntime"
HAND = "TVM, hand schedule"
PADDED = "TVM, hand schedule, padded"
PLAIN = "TVM, plain"
PEERS = (ORT, HAND, PADDED, PLAIN)


@dataclass(frozen=True)
class Engine:
    """One compiled model: ``prepare`` takes a feed and returns a call that runs the model on it.

    What the call returns is a list of the engine's own tensors, for ``as_arrays``.
    """

    name: str
    prepare: Callable[[Feed], Callable[[], Sequence[Any]]]
    build_seconds: float


def as_arrays(results: Sequence[Any]) -> list[np.ndarray]:
    """The results of a prepared call as numpy arrays."""
    return [each if isinstance(each, np.ndarray) else each.numpy() for each in results]


def run_onnxruntime(model: onnx.ModelProto, threads: int) -> Engine:
    """onnxruntime's CPU provider with ``threads`` threads inside an operator, one between them."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its idle workers would spin on, on the cores of the engine that is measured next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    seconds = time.perf_counter() - start

    def prepare(feed: Feed) -> Callable[[], Sequence[Any]]:
        return lambda: session.run(None, feed)

    return Engine(ORT, prepare, seconds)


def run_tvm(name: str, mod: tvm.IRModule, target: tvm.target.Target, pipeline: Any) -> Engine:
    """One TVM executable for all sizes; threads are those of ``TVM_NUM_THREADS``."""
    start = time.perf_counter()
    executable = tvm.compile(mod, target, relax_pipeline=pipeline)
    seconds = time.perf_counter() - start
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def prepare(feed: Feed) -> Callable[[], Sequence[Any]]:
        tensors = [tvm.runtime.tensor(feed[key]) for key in INPUTS]
        return lambda: main(*tensors)

    return Engine(name, prepare, seconds)


def import_model(model: onnx.ModelProto) -> tvm.IRModule:
    """The Relax module of an ONNX model, its named dimensions symbolic."""
    return from_onnx(model)


def pipelines(target: tvm.target.Target, threads: int) -> dict[str, Any]:
    """The Relax pipelines of TVM's own that ours is compared with, by the engine's name."""
    return {
        HAND: hand_scheduled_pipeline(target, threads=threads),
        PADDED: hand_scheduled_pipeline(target, padded=True, threads=threads),
        PLAIN: relax.get_default_pipeline(target),
    }
