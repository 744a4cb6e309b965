"""The libraries that we are measured against, each in its best documented mode.

A peer turns operands into a call without arguments. Whatever can be done once for a constant weight
(transposing, packing, building a session) is done before that call is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from bench.gemm.operands import Operands

Run = Callable[[], object]

DIRECT = "moonpoly"
VM = "moonpoly_vm"
DEFAULT = "moonpoly_default"
OURS = (DIRECT, VM, DEFAULT)  # not peers: none of them counts as the best one
HAND_SCHEDULES = {"tvm_hand": False, "tvm_hand_padded": True}  # whether rows are padded


@dataclass(frozen=True)
class Peer:
    """A candidate to be timed.

    ``prepare`` returns the call to be timed; that returns its result, or None when the result is in
    ``operands.out``. ``allocates`` says that the call allocates its output. ``products`` says that
    it also takes two dynamic operands; without it only constant weights are measured.
    """

    name: str
    mode: str
    prepare: Callable[[Operands], Run]
    allocates: bool = False
    products: bool = False

    def takes(self, operands: Operands) -> bool:
        """Whether this mode exists for such operands at all."""
        return self.products or not operands.shape.dynamic


def openblas() -> Peer:
    """numpy's product with the right operand as the model stores it (weights row-major)."""

    def prepare(operands: Operands) -> Run:
        a, b, out = operands.a, operands.right, operands.out
        return lambda: np.matmul(a, b, out=out)

    return Peer("openblas", "np.matmul(a, b, out=out)", prepare, products=True)


def openblas_bt() -> Peer:
    """numpy's product with the weight stored as (n, k), as PyTorch stores it."""

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, b, out = operands.a, operands.bt.T, operands.out
        return lambda: np.matmul(a, b, out=out)

    return Peer("openblas_bt", "np.matmul(a, bt.T, out=out), bt contiguous (n, k)", prepare)


def onnxruntime() -> Peer:
    """onnxruntime's MatMul: a constant weight is an initializer, which it packs when it loads."""
    import onnxruntime as ort

    from bench.gemm.onnx_model import product_model

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3

    def prepare(operands: Operands) -> Run:
        session = ort.InferenceSession(
            product_model(operands), options, providers=["CPUExecutionProvider"]
        )
        binding = session.io_binding()

        def bind(method: Callable[..., None], name: str, array: np.ndarray) -> None:
            method(name, "cpu", 0, np.float32, list(array.shape), array.ctypes.data)

        bind(binding.bind_input, "a", operands.a)
        if operands.shape.dynamic:
            stored = operands.b if operands.b is not None else operands.bt
            assert stored is not None
            bind(binding.bind_input, "b", stored)
        bind(binding.bind_output, "y", operands.out)

        def run() -> None:
            session.run_with_iobinding(binding)

        return run

    mode = "MatMul, constant weight as initializer, all memory bound by io_binding"
    return Peer("onnxruntime", mode, prepare, products=True)


def torch_mm() -> Peer:
    """See ``torch_peers.mm``; loaded only when asked for, as torch may be absent."""
    from bench.gemm import torch_peers

    return torch_peers.mm()


def torch_linear() -> Peer:
    """See ``torch_peers.linear``."""
    from bench.gemm import torch_peers

    return torch_peers.linear()


def mkl_packed() -> Peer:
    """See ``torch_peers.mkl_packed``."""
    from bench.gemm import torch_peers

    return torch_peers.mkl_packed()


def onednn_packed() -> Peer:
    """See ``torch_peers.onednn_packed``."""
    from bench.gemm import torch_peers

    return torch_peers.onednn_packed()


LOADERS: dict[str, Callable[[], Peer]] = {
    "openblas": openblas,
    "openblas_bt": openblas_bt,
    "torch_mm": torch_mm,
    "torch_linear": torch_linear,
    "mkl_packed": mkl_packed,
    "onednn_packed": onednn_packed,
    "onnxruntime": onnxruntime,
}
PEER_NAMES = (*LOADERS, *HAND_SCHEDULES)


def load_peers(names: Iterable[str]) -> tuple[list[Peer], dict[str, str]]:
    """The peers of ``LOADERS`` among ``names`` that can be had here, and why the others cannot."""
    found: list[Peer] = []
    absent: dict[str, str] = {}
    for name in names:
        if name not in LOADERS:
            continue
        try:
            found.append(LOADERS[name]())
        except Exception as reason:  # an absent or broken library is reported, whatever it raises
            absent[name] = reason_of(reason)
    return found, absent


def reason_of(error: Exception) -> str:
    """The first line of an error, for a table."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
