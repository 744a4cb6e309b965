"""PyTorch's ways to multiply: MKL as it comes, MKL with a packed weight, oneDNN with a packed one.

Importing this module imports torch, sets it to one thread and puts the calling thread into
inference mode for good, which spares every call the bookkeeping of gradients. The packed operators
are those that ``torch.compile`` emits for a frozen model; a weight is packed for the very number of
rows that is measured, which is the best that they offer.
"""

from __future__ import annotations

import torch

from bench.gemm.operands import Operands
from bench.gemm.peers import Peer, Run

torch.set_num_threads(1)
torch.inference_mode().__enter__()
tensor = torch.from_numpy  # shares the memory of the array


def mm() -> Peer:
    """``torch.mm`` and ``torch.bmm`` into memory of the caller."""

    def prepare(operands: Operands) -> Run:
        a, out = tensor(operands.a), tensor(operands.out)
        b = tensor(operands.right)
        product = torch.bmm if operands.shape.dynamic else torch.mm
        return lambda: product(a, b, out=out)

    return Peer("torch_mm", "torch.mm / torch.bmm(a, b, out=out)", prepare, products=True)


def linear() -> Peer:
    """``F.linear`` with the weight as PyTorch's layers store it."""

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, weight = tensor(operands.a), tensor(operands.bt)
        apply = torch.nn.functional.linear
        return lambda: apply(a, weight)

    return Peer("torch_linear", "F.linear(a, weight (n, k))", prepare, allocates=True)


def mkl_packed() -> Peer:
    """MKL's ``cblas_sgemm_compute`` with a weight packed once."""
    if not torch.backends.mkl.is_available():
        raise RuntimeError("this build of torch has no MKL")
    pack = torch.ops.mkl._mkl_reorder_linear_weight.default
    apply = torch.ops.mkl._mkl_linear.default

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, weight, rows = tensor(operands.a), tensor(operands.bt), operands.shape.m
        packed = pack(weight, rows)
        return lambda: apply(a, packed, weight, None, rows)

    return Peer("mkl_packed", "mkl._mkl_linear, weight packed for m rows", prepare, allocates=True)


def onednn_packed() -> Peer:
    """oneDNN's inner product with a weight reordered once into the layout that it asks for."""
    if not torch.backends.mkldnn.is_available():
        raise RuntimeError("this build of torch has no oneDNN")
    pack = torch.ops.mkldnn._reorder_linear_weight.default
    apply = torch.ops.mkldnn._linear_pointwise.default

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a = tensor(operands.a)
        packed = pack(tensor(operands.bt), operands.shape.m)
        return lambda: apply(a, packed, None, "none", [], "")

    mode = "mkldnn._linear_pointwise, weight packed for m rows"
    return Peer("onednn_packed", mode, prepare, allocates=True)


def versions() -> dict[str, str]:
    """Versions of the libraries inside torch and the instruction set that it says it uses."""
    config = torch.__config__.show()
    wanted = {"mkl": "Math Kernel Library", "onednn": "MKL-DNN", "torch_cpu": "CPU capability"}
    lines = [line.strip(" -") for line in config.splitlines()]
    return {key: line for key, text in wanted.items() for line in lines if text in line}
