"""The candidates by name, and in which process each of them runs.

A candidate turns operands into a call without arguments, and into what gives its result as an array
(n, oh, ow, k). Whatever can be done once for a constant weight is done before the call is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from bench.conv.layer import Layer
from bench.conv.operands import Operands, Run

OURS = "moonpoly"
PEAK = "fma_peak"

Prepare = Callable[[Operands], tuple[Run, Callable[[object], np.ndarray]]]


@dataclass(frozen=True)
class Peer:
    """A candidate. ``refuses`` says why it is not measured on a layer, None when it is."""

    name: str
    mode: str
    prepare: Prepare
    refuses: Callable[[Layer], str | None] = lambda layer: None


@dataclass(frozen=True)
class Place:
    """Where a candidate is made: a function of the module, given the number of threads."""

    module: str
    maker: str
    process: str

    def make(self, threads: int) -> Peer:
        """The candidate; raises whatever a library raises that cannot be had."""
        found: Peer = getattr(importlib.import_module(f"bench.conv.{self.module}"), self.maker)(
            threads
        )
        return found


PLACES: Mapping[str, Place] = {
    OURS: Place("ours", "direct", "tvm_moonpoly"),
    "torch_nchw": Place("torch_peers", "contiguous", "torch"),
    "torch_nhwc": Place("torch_peers", "channels_last", "torch"),
    "onednn_packed": Place("torch_peers", "packed", "torch"),
    "onnxruntime": Place("onnx_peers", "converting", "onnxruntime"),
    "onnxruntime_blocked": Place("onnx_peers", "blocked", "onnxruntime"),
    "tvm_plain": Place("tvm_peers", "plain", "tvm"),
    "tvm_hand": Place("tvm_peers", "by_hand", "tvm"),
}
PEER_NAMES = tuple(name for name in PLACES if name != OURS)

#: Those that are timed on all layers; the others are no libraries, and measured beside ours.
LIBRARIES = tuple(name for name in PEER_NAMES if PLACES[name].process != "tvm")


def processes(names: Collection[str]) -> dict[str, list[str]]:
    """The candidates of each process that is needed for ``names`` and ours."""
    found: dict[str, list[str]] = {}
    for name, place in PLACES.items():
        if name == OURS or name in names:
            found.setdefault(place.process, []).append(name)
    return found
