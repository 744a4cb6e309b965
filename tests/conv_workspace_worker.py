"""Run as a process by test_conv_workspace: what convolutions ask of TVM's pool of workspaces.

The pool is replaced by one that notes sizes and has no memory, so that a call which asks ends
there: no layer is too large to be looked at.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

import tvm_moonpoly
from bench.conv.cases import listed_layers
from bench.conv.layer import Layer
from bench.conv.ours import spec_of
from tvm_moonpoly import operators
from tvm_moonpoly.operators import conv_constants
from tvm_moonpoly.operators.conv_constants import ConvSpec

BATCHES = (1, 2, 8)
#: Bytes of an im2col buffer from which on the workspace is bounded.
LARGE = 1 << 20


class NoMemory:
    """In the place of TVM's pool for the shared library at ``path``: has nothing, and notes what
    was asked for."""

    def __init__(self, path: Path) -> None:
        self.asked: list[int] = []
        library = ctypes.CDLL(str(path))
        self._raise = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi()).TVMFFIErrorSetRaisedFromCStr
        number, size, address = ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
        alloc = ctypes.CFUNCTYPE(address, number, number, size, number, number)(self._alloc)
        address.in_dll(library, "__TVMBackendAllocWorkspace").value = ctypes.cast(
            alloc, address
        ).value
        self._kept = library, alloc

    def _alloc(self, _device: int, _id: int, size: int, _code: int, _bits: int) -> None:
        self.asked.append(size)
        self._raise(b"MemoryError", b"noted")


def cases() -> Iterator[tuple[Layer, ConvSpec, str]]:
    """Each layer at each batch, with each algorithm and type that it can have."""
    layers = (replace(layer, n=n) for layer in listed_layers() for n in BATCHES)
    for layer in {layer.key: layer for layer in layers}.values():
        spec = spec_of(layer)
        for each in [spec, replace(spec, direct=True)] if spec.winograd else [spec]:
            for dtype in ("float32", "float16"):
                yield layer, each, dtype


def operands(layer: Layer, spec: ConvSpec, dtype: str, lanes: int) -> tuple[str, list[np.ndarray]]:
    """The packed function and its arguments; pages that nobody touches take no memory."""
    panels = spec.groups * -(-layer.k // spec.groups // lanes)
    if spec.depthwise:
        names = {"float32": conv_constants.DEPTHWISE, "float16": conv_constants.DEPTHWISE_F16}
        width = -(-layer.c // lanes) * lanes
        weight = (layer.kernel[0] * layer.kernel[1], width)
    else:
        names = {"float32": conv_constants.CONV2D, "float16": conv_constants.CONV2D_F16}
        steps = 16 * layer.c // layer.groups if spec.winograd else spec.depth
        weight, width = (panels, steps, lanes), panels * lanes
    arrays = [
        np.zeros((layer.n, layer.h, layer.w, layer.c), dtype),
        np.zeros(weight, np.float32),
        np.zeros(width, np.float32),
        spec.encode(),
        np.zeros((layer.n, *layer.output, layer.k), dtype),
    ]
    return names[dtype], arrays


def columns(layer: Layer) -> int:
    """Bytes of an im2col buffer in float32."""
    taps = layer.kernel[0] * layer.kernel[1]
    return 4 * taps * layer.c * layer.n * layer.output[0] * layer.output[1]


def main() -> None:
    library = operators.library(tvm_moonpoly.detect_target(int(sys.argv[1])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        library.module.export_library(["conv", "depthwise"], path)
        module: Any = tvm.runtime.load_module(str(path))
        pool = NoMemory(path)
    found = []
    for layer, spec, dtype in cases():
        if layer.kernel[0] * layer.kernel[1] < 4 or columns(layer) < LARGE:
            continue
        name, arrays = operands(layer, spec, dtype, library.machine.lanes)
        pool.asked.clear()
        try:
            module[name](*map(tvm_ffi.from_dlpack, arrays))
        except (MemoryError, RuntimeError) as error:  # the latter from several threads
            assert "noted" in str(error), error
        ratio = sum(pool.asked) / columns(layer)
        found.append([ratio, len(pool.asked), f"{layer.key} {dtype} winograd {spec.winograd}"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
