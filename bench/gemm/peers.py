"""The libraries that we are measured against, each in its best documented mode.

A peer turns operands into a call without arguments. Whatever can be done once for a constant weight
(transposing, packing, building a session) is done before that call is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from bench import measure
from bench.gemm.operands import Operands
from bench.gemm.shapes import Shape

Run = Callable[[], object]

DIRECT = "moonpoly"
VM = "moonpoly_vm"
DEFAULT = "moonpoly_default"
STATIC = "moonpoly_static"  # with several threads: the work split once
OURS = (DIRECT, VM, DEFAULT, STATIC)  # not peers: none of them counts as the best one
HAND_SCHEDULES = {"tvm_hand": False, "tvm_hand_padded": True}  # whether rows are padded


@dataclass(frozen=True)
class Peer:
    """A candidate to be timed.

    ``prepare`` returns the call to be timed; that returns its result, or None when the result is in
    ``operands.out``. ``allocates`` says that the call allocates its output. ``products`` says that
    it also takes two operands that change; without it only constant weights are measured.
    ``strided``: of these, also a right operand whose rows are not adjacent. ``epilogues`` are those
    that it computes. ``chains`` says whether it makes one call of a chain.
    """

    name: str
    mode: str
    prepare: Callable[[Operands], Run]
    allocates: bool = False
    products: bool = False
    strided: bool = False
    epilogues: tuple[str, ...] = ("none",)
    chains: bool = False

    def refuses(self, shape: Shape) -> str | None:
        """Why this mode does not exist for such a case, None when it does."""
        if shape.dynamic and not self.products:
            return "takes no dynamic right operand"
        if shape.row_stride is not None and not self.strided:
            return "takes no row stride"
        if shape.epilogue not in self.epilogues:
            return f"computes no {shape.epilogue}"
        if shape.workload == "chain" and not self.chains:
            return "makes no single call of a chain"
        return None

    def takes(self, operands: Operands) -> bool:
        """Whether this mode exists for such operands at all."""
        return self.refuses(operands.shape) is None


def openblas(threads: int) -> Peer:
    """numpy's product with the right operand as the model stores it (weights row-major).

    Its threads are those of the environment.
    """

    def prepare(operands: Operands) -> Run:
        return numpy_run(operands, operands.right)

    mode = "np.matmul(a, b, out=out), additions by np.add"
    return Peer(
        "openblas", mode, prepare, products=True, strided=True, epilogues=("none", "bias_residual")
    )


def openblas_bt(threads: int) -> Peer:
    """numpy's product with the weight stored as (n, k), as PyTorch stores it."""

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        return numpy_run(operands, operands.bt.T)

    mode = "np.matmul(a, bt.T, out=out), bt contiguous (n, k)"
    return Peer("openblas_bt", mode, prepare, epilogues=("none", "bias_residual"))


def numpy_run(operands: Operands, b: np.ndarray) -> Run:
    """The product, and where the case has them bias and residual added to it in place."""
    a, out, bias, residual = operands.a, operands.out, operands.bias, operands.residual
    if bias is None or residual is None:
        return lambda: np.matmul(a, b, out=out)

    def run() -> None:
        np.matmul(a, b, out=out)
        np.add(out, bias, out=out)
        np.add(out, residual, out=out)

    return run


def from_module(module: str, maker: str) -> Callable[[int], Peer]:
    """The peer that a function of a module of this package makes.

    The module is imported when the peer is asked for, as the library that it needs may be absent.
    """
    return lambda threads: getattr(importlib.import_module(f"bench.gemm.{module}"), maker)(threads)


LOADERS: dict[str, Callable[[int], Peer]] = {
    "openblas": openblas,
    "openblas_bt": openblas_bt,
    "torch_mm": from_module("torch_peers", "mm"),
    "torch_linear": from_module("torch_peers", "linear"),
    "mkl_packed": from_module("torch_peers", "mkl_packed"),
    "onednn_packed": from_module("torch_peers", "onednn_packed"),
    "onednn_separate": from_module("torch_peers", "onednn_separate"),
    "onnxruntime": from_module("onnx_peers", "fused"),
    "onnxruntime_separate": from_module("onnx_peers", "separate"),
}
DEFAULT_NAMES = tuple(LOADERS)
PEER_NAMES = (*LOADERS, *HAND_SCHEDULES, DEFAULT)


def load_peers(names: Iterable[str], threads: int = 1) -> tuple[list[Peer], dict[str, str]]:
    """The peers of ``LOADERS`` among ``names`` that can be had here, and why the others cannot."""
    found: list[Peer] = []
    absent: dict[str, str] = {}
    for name in names:
        if name not in LOADERS:
            continue
        try:
            found.append(LOADERS[name](threads))
        except Exception as reason:  # an absent or broken library is reported, whatever it raises
            absent[name] = reason_of(reason)
    return found, absent


def reason_of(error: Exception) -> str:
    """The first line of an error, for a table."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Versions of the packages, and of what torch has inside if one of the candidates is of it."""
    versions = measure.installed_versions()
    if any(name.startswith(("torch", "mkl", "onednn")) for name in names):
        from bench.gemm import torch_peers

        versions.update(torch_peers.versions())
    return versions
