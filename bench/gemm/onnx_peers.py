"""onnxruntime, with all its graph optimisation, and with each operator of an epilogue on its own.

A constant weight is an initializer, which the session packs when it is made. All memory is bound
beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort

from bench.gemm.onnx_model import case_model
from bench.gemm.operands import Operands
from bench.gemm.peers import Peer, Run

FUSED = ("none", "bias_gelu", "bias_residual")


def fused(threads: int) -> Peer:
    """All optimisation: what its optimiser fuses is fused."""
    mode = "one session, weights as initializers, all memory bound, graph optimisation ALL"
    prepare = session_of(ort.GraphOptimizationLevel.ORT_ENABLE_ALL, threads)
    return Peer("onnxruntime", mode, prepare, products=True, epilogues=FUSED, chains=True)


def separate(threads: int) -> Peer:
    """No graph optimisation: product, bias and gelu or residual one after the other."""
    mode = "as onnxruntime, graph optimisation off"
    prepare = session_of(ort.GraphOptimizationLevel.ORT_DISABLE_ALL, threads)
    return Peer("onnxruntime_separate", mode, prepare, epilogues=FUSED[1:])


def session_of(level: ort.GraphOptimizationLevel, threads: int) -> Callable[[Operands], Run]:
    """What binds operands to a session of a graph that is optimised at ``level``."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = level
    options.log_severity_level = 3

    def prepare(operands: Operands) -> Run:
        model = case_model(operands)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        arrays = {"a": operands.a, "residual": operands.residual, "y": operands.out}
        if operands.shape.dynamic:
            arrays["b"] = operands.stored
        for name, array in arrays.items():
            if array is not None:
                bind = binding.bind_output if name == "y" else binding.bind_input
                bind(name, "cpu", 0, np.float32, list(array.shape), array.ctypes.data)

        def run() -> None:
            session.run_with_iobinding(binding)

        return run

    return prepare
