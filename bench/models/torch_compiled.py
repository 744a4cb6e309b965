"""torch.compile with dynamic shapes as an engine: compiled at build time for the sizes that are
measured, and loaded from Inductor's cache by the worker.

Dynamic shapes are those of torch: a graph for all sizes, but sizes of 0 and 1 are compiled for
apart, which is what makes more than one graph of a network.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from bench.engines import Engine, Feed
from bench.models.build import Artifact, write_model
from bench.models.zoo import NETWORKS

FROZEN: dict[str, Any] = {"freezing": True}  # weights are constants, packed once


def build(artifact: Artifact, sizes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Compile for ``sizes``; seconds of the wall clock and of the processor, the compiler's
    included, and how many graphs there are. Raises where a graph would be broken into several."""
    wall, processor = time.perf_counter(), processor_seconds()
    engine = load(artifact)
    for size in sizes:
        engine.prepare(NETWORKS[artifact.network].feed(*size))()
    from torch._dynamo.utils import counters

    return {
        "wall": time.perf_counter() - wall,
        "processor": processor_seconds() - processor,
        "graphs": counters["stats"]["unique_graphs"],
        "sizes": len(sizes),
    }


def processor_seconds() -> float:
    """Of this process, and of those it started that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def load(artifact: Artifact) -> Engine:
    """The engine; its first call of a kind of sizes compiles, or reads what was compiled."""
    cache = artifact.library.with_suffix(".inductor")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # processes of the compiler beside this one
    start = time.perf_counter()
    model = onnx.load(write_model(artifact))
    return engine_of(model, artifact.threads, start)


def engine_of(model: onnx.ModelProto, threads: int, start: float) -> Engine:
    """``model`` under torch.compile, on ``threads`` threads of this whole process."""
    import torch

    from bench.models.torch_convert import convert, inputs_of

    torch.set_num_threads(threads)
    names = inputs_of(model.graph)
    compiled = torch.compile(convert(model), fullgraph=True, dynamic=True, options=FROZEN)

    def prepare(feed: Feed) -> Callable[[], Any]:
        tensors = [torch.from_numpy(np.ascontiguousarray(feed[name])) for name in names]

        def run() -> Any:
            with torch.inference_mode():
                return compiled(*tensors)

        return run

    return Engine("torch_compile", prepare, time.perf_counter() - start)
