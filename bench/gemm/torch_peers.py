"""PyTorch's ways to multiply: MKL as it comes, MKL with a packed weight, oneDNN with a packed one.

Importing this module imports torch and puts the calling thread into inference mode for good, which
spares every call the bookkeeping of gradients. The packed operators are those that
``torch.compile`` emits for a frozen model; a weight is packed for the very number of rows that is
measured, which is the best that they offer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.gemm.operands import Operands
from bench.gemm.peers import Peer, Run

torch.inference_mode().__enter__()
tensor = torch.from_numpy  # shares the memory of the array
gelu_out = torch.ops.aten.gelu.out
FUSED = ("none", "bias_gelu", "bias_residual")


def mm(threads: int) -> Peer:
    """``torch.mm`` and ``torch.bmm`` into memory of the caller; bias by ``torch.addmm``."""
    torch.set_num_threads(threads)

    def prepare(operands: Operands) -> Run:
        a, out, b = tensor(operands.a), tensor(operands.out), tensor(operands.right)
        if operands.bias is None:
            product = torch.bmm if operands.shape.batch > 1 else torch.mm
            return lambda: product(a, b, out=out)
        bias, addmm, add = tensor(operands.bias), torch.addmm, torch.add
        if operands.residual is None:
            return lambda: gelu_out(addmm(bias, a, b, out=out), out=out)
        residual = tensor(operands.residual)
        return lambda: add(addmm(bias, a, b, out=out), residual, out=out)

    mode = "torch.mm / torch.bmm(a, b, out=out), torch.addmm with a bias, then gelu or add"
    return Peer("torch_mm", mode, prepare, products=True, strided=True, epilogues=FUSED)


def linear(threads: int) -> Peer:
    """``F.linear`` with the weight as PyTorch's layers store it."""
    torch.set_num_threads(threads)

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, weight, apply = tensor(operands.a), tensor(operands.bt), torch.nn.functional.linear
        bias = optional(operands.bias)
        return followed(lambda: apply(a, weight, bias), operands)

    mode = "F.linear(a, weight (n, k), bias), then gelu or add"
    return Peer("torch_linear", mode, prepare, allocates=True, epilogues=FUSED)


def mkl_packed(threads: int) -> Peer:
    """MKL's ``cblas_sgemm_compute`` with a weight packed once."""
    torch.set_num_threads(threads)
    if not torch.backends.mkl.is_available():
        raise RuntimeError("this build of torch has no MKL")
    pack = torch.ops.mkl._mkl_reorder_linear_weight.default
    apply = torch.ops.mkl._mkl_linear.default

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, weight, rows = tensor(operands.a), tensor(operands.bt), operands.shape.m
        packed, bias = pack(weight, rows), optional(operands.bias)
        return followed(lambda: apply(a, packed, weight, bias, rows), operands)

    mode = "mkl._mkl_linear, weight packed for m rows, then gelu or add"
    return Peer("mkl_packed", mode, prepare, allocates=True, epilogues=FUSED)


def onednn_packed(threads: int) -> Peer:
    """oneDNN's inner product with a weight reordered once into the layout that it asks for.

    Gelu and residual are post-operations of the product.
    """
    torch.set_num_threads(threads)
    plain, pack = onednn_operators()
    binary = torch.ops.mkldnn._linear_pointwise.binary

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, bias = tensor(operands.a), optional(operands.bias)
        packed = pack(tensor(operands.bt), operands.shape.m)
        if operands.residual is not None:
            residual = tensor(operands.residual)
            return lambda: binary(a, residual, packed, bias, "add")
        if bias is not None:
            return lambda: plain(a, packed, bias, "gelu", [], "none")
        return lambda: plain(a, packed, None, "none", [], "")

    mode = "mkldnn._linear_pointwise, weight packed for m rows, gelu or residual in the product"
    return Peer("onednn_packed", mode, prepare, allocates=True, epilogues=FUSED)


def onednn_separate(threads: int) -> Peer:
    """As ``onednn_packed``, gelu or residual by a call of its own."""
    torch.set_num_threads(threads)
    plain, pack = onednn_operators()

    def prepare(operands: Operands) -> Run:
        assert operands.bt is not None
        a, bias = tensor(operands.a), optional(operands.bias)
        packed = pack(tensor(operands.bt), operands.shape.m)
        return followed(lambda: plain(a, packed, bias, "none", [], ""), operands)

    mode = "as onednn_packed, then gelu or add"
    return Peer("onednn_separate", mode, prepare, allocates=True, epilogues=FUSED[1:])


def onednn_operators() -> tuple[Any, Any]:
    """The linear operator and what packs its weight; raises RuntimeError without oneDNN."""
    if not torch.backends.mkldnn.is_available():
        raise RuntimeError("this build of torch has no oneDNN")
    pack = torch.ops.mkldnn._reorder_linear_weight.default
    return torch.ops.mkldnn._linear_pointwise.default, pack


def optional(array: np.ndarray | None) -> torch.Tensor | None:
    """The tensor of an array that may not be there."""
    return None if array is None else tensor(array)


def followed(product: Callable[[], torch.Tensor], operands: Operands) -> Run:
    """``product``, which adds the bias, then gelu or the residual on its result in place."""
    if operands.bias is None:
        return product
    if operands.residual is None:

        def with_gelu() -> torch.Tensor:
            made = product()
            return gelu_out(made, out=made)

        return with_gelu
    residual = tensor(operands.residual)
    return lambda: product().add_(residual)


def versions() -> dict[str, str]:
    """Versions of the libraries inside torch and the instruction set that it says it uses."""
    config = torch.__config__.show()
    wanted = {"mkl": "Math Kernel Library", "onednn": "MKL-DNN", "torch_cpu": "CPU capability"}
    lines = [line.strip(" -") for line in config.splitlines()]
    return {key: line for key, text in wanted.items() for line in lines if text in line}
