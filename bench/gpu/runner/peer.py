"""What we are compared with: cuBLAS as ``torch.matmul`` calls it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.gpu.runner.device import Device
from bench.gpu.runner.operands import Operands


def find_torch() -> tuple[Any, str]:
    """torch, or None and why it cannot be used."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return None, f"torch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return None, f"torch {torch.__version__} finds no GPU that it can use"
    return torch, ""


class TorchPeer:
    """``torch.matmul`` with the output given, on the same memory as ours."""

    def __init__(self, device: Device, torch: Any) -> None:
        self._device, self._torch = device, torch
        self.name = "cuBLAS (torch.matmul)"

    def bind(self, operands: Operands, library: Mapping[str, Any]) -> Callable[[], object]:
        """The call for operands without an epilogue; a single product is one of matrices."""
        torch, given = self._torch, operands.tensors(self._device)
        a, b, c = (torch.from_dlpack(tensor) for tensor in given)
        b = b.transpose(1, 2) if library["b_transposed"] else b
        if operands.c.batch == 1:
            a, b, c = a[0], b[0], c[0]

        def multiply(_kept: object) -> None:
            torch.matmul(a, b, out=c)

        # the tensors read what was given, which is kept as long as the call
        return partial(multiply, given)

    @property
    def versions(self) -> dict[str, str]:
        """torch's, and that of the CUDA it was made with."""
        return {"torch": self._torch.__version__, "torch cuda": str(self._torch.version.cuda)}
