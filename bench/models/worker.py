"""The worker process of one engine: loads networks, checks their results and times them when told.

``python -m bench.models.worker THREADS ENGINE FOLDER DESCRIPTOR PARENT``, started by a crew of
`bench.gemm.threads`, whose protocol it speaks. With one thread it counts processor time, which
other users of the machine do not disturb.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import measure
from bench.engines import Engine, as_arrays, load_tvm, relative_error, run_onnxruntime
from bench.gemm.peers import Run, reason_of
from bench.gemm.threads.link import connection_of
from bench.gemm.threads.protocol import Described
from bench.models.build import ORT, OURS, PLAIN, TORCH, Artifact
from bench.models.cases import Case
from bench.models.zoo import NETWORKS, Feed

TOLERANCE = 1e-4
MODES = {
    OURS: "relax.VirtualMachine, one executable for all sizes",
    ORT: "InferenceSession.run, default settings",
    PLAIN: "TVM's default pipeline, one executable for all sizes",
    TORCH: "torch.compile, dynamic shapes, frozen weights, scaled_dot_product_attention",
}


class Candidates:
    """One engine, with the network that it was asked for last."""

    def __init__(self, engine: str, threads: int, folder: Path) -> None:
        self._engine, self._threads, self._folder = engine, threads, folder
        self._network = ""
        self._loaded: Engine | None = None
        self._reference: Engine | None = None

    def describe(self) -> Described:
        """How the engine is called, and what it rests on."""
        return Described(
            modes={self._engine: MODES[self._engine]},
            versions=measure.installed_versions(),
            pools=tuple(measure.thread_pools()),
        )

    def prepare(self, case: Case, _seed: int) -> tuple[dict[str, Run], dict[str, str]]:
        """A call on the inputs of ``case``, or why there is none."""
        try:
            self._load(case.network)
        except Exception as error:  # the others go on
            self._network = ""
            return {}, {self._engine: reason_of(error)}
        assert self._loaded is not None and self._reference is not None
        feed = NETWORKS[case.network].feed(*case.size)
        run: Callable[[], Any] = self._loaded.prepare(feed)
        try:
            found = as_arrays(run())
        except Exception as error:  # this size is not measured
            return {}, {self._engine: reason_of(error)}
        difference = error_against(self._reference, feed, found)
        if not difference <= TOLERANCE:
            reason = f"error {difference:.1e} of the largest output is above {TOLERANCE:.0e}"
            return {}, {self._engine: reason}
        return {self._engine: run}, {}

    def release(self) -> None:
        """Nothing is kept of a case."""

    def _load(self, network: str) -> None:
        if network == self._network:
            return
        self._loaded = self._reference = None
        gc.collect()
        artifact = Artifact(self._folder, self._engine, network, self._threads)
        self._reference = run_onnxruntime(artifact.model, self._threads)
        self._loaded = self._reference if self._engine == ORT else load_artifact(artifact)
        self._network = network


def load_artifact(artifact: Artifact) -> Engine:
    """What was compiled for an engine; raises RuntimeError where that failed."""
    if not artifact.seconds.exists():
        failed = artifact.failure.exists()
        raise RuntimeError(artifact.failure.read_text() if failed else "it was not compiled")
    if artifact.engine == TORCH:
        from bench.models.torch_compiled import load

        return load(artifact)
    return load_tvm(artifact.engine, artifact.library, artifact.inputs)


def error_against(reference: Engine, feed: Feed, found: Sequence[np.ndarray]) -> float:
    """The largest error of all results, each relative to its largest value."""
    expected = as_arrays(reference.prepare(feed)())
    return max(relative_error(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def main(arguments: Sequence[str]) -> None:
    """Serve the engine that the command line names."""
    from bench.gemm.threads.worker import serve

    threads, engine, folder, descriptor, parent = arguments
    connection = connection_of(descriptor, parent)
    holder = Candidates(engine, int(threads), Path(folder))
    serve(connection, holder, measure.clock_for(int(threads))[0])


if __name__ == "__main__":
    main(sys.argv[1:])
