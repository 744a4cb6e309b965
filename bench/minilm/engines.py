"""The ways to run the model that are compared."""

from __future__ import annotations

from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from bench import engines
from bench.engines import ORT, OURS, Engine, as_arrays, run_onnxruntime
from bench.hand_schedule import hand_scheduled_pipeline
from bench.minilm.graph import INPUTS

__all__ = ["ORT", "OURS", "Engine", "as_arrays", "run_onnxruntime"]

HAND = "TVM, hand schedule"
PADDED = "TVM, hand schedule, padded"
PLAIN = "TVM, plain"
PEERS = (ORT, HAND, PADDED, PLAIN)


def run_tvm(name: str, mod: tvm.IRModule, target: tvm.target.Target, pipeline: Any) -> Engine:
    """One TVM executable for all sizes; threads are those of ``TVM_NUM_THREADS``."""
    return engines.run_tvm(name, mod, target, pipeline, INPUTS)


def import_model(model: onnx.ModelProto) -> tvm.IRModule:
    """The Relax module of an ONNX model, its named dimensions symbolic."""
    # TVM's own importer, so that plain TVM is measured as it comes
    return from_onnx(model)


def pipelines(target: tvm.target.Target, threads: int) -> dict[str, Any]:
    """The Relax pipelines of TVM's own that ours is compared with, by the engine's name."""
    return {
        HAND: hand_scheduled_pipeline(target, threads=threads),
        PADDED: hand_scheduled_pipeline(target, padded=True, threads=threads),
        PLAIN: relax.get_default_pipeline(target),
    }
