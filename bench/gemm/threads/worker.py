"""The worker process: prepares candidates of one library for a shape and times them when told.

``python -m bench.gemm.threads.worker THREADS NAME,... DESCRIPTOR PARENT``, started by `crew`. The
host asks one thing at a time; every question gets one answer.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from bench import measure
from bench.gemm.peers import Run, reason_of
from bench.gemm.threads.link import connection_of
from bench.gemm.threads.protocol import (
    Describe,
    Described,
    Failed,
    Prepare,
    Prepared,
    Release,
    Sample,
)

WARM_SECONDS = 0.002


class Holder(Protocol):
    """What a worker serves."""

    def describe(self) -> Described:
        """What there is."""

    def prepare(self, shape: Any, seed: int) -> tuple[dict[str, Run], dict[str, str]]:
        """Make operands of ``shape`` from ``seed``; returns the calls of those candidates that
        compute the product, and why the others are missing."""

    def release(self) -> None:
        """Drop what was made for the shape; its calls have been dropped before."""


def serve(
    connection: Connection, holder: Holder, clock: Callable[[], float] = time.perf_counter
) -> None:
    """Answer until the host closes the pipe; samples are timed by ``clock``."""
    gc.freeze()  # what the libraries made when they were loaded is not looked through each time
    runs: dict[str, Run] = {}
    repeats: dict[str, int] = {}
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        answer: object = None
        match request:
            case Describe():
                answer = holder.describe()
            case Prepare(shape, seed):
                runs, absent = holder.prepare(shape, seed)
                repeats = dict.fromkeys(runs, 1)
                answer = Prepared(tuple(runs), absent)
            case Sample(name, min_seconds, warm):
                try:
                    if warm:
                        warm_up(runs[name])
                    answer, repeats[name] = measure.sample(
                        runs[name], repeats[name], min_seconds, clock
                    )
                except Exception as reason:  # whatever a library raises, the others go on
                    answer = Failed(reason_of(reason))
            case Release():
                runs = {}
                holder.release()
                gc.collect()
        connection.send(answer)


def warm_up(run: Run) -> None:
    """Call ``run``, and again until the caches and the threads of its pool are there."""
    end = time.perf_counter() + WARM_SECONDS
    run()
    while time.perf_counter() < end:
        run()


def main(arguments: Sequence[str]) -> None:
    """Serve the candidates that the command line names."""
    threads, names, descriptor, parent = arguments
    connection = connection_of(descriptor, parent)
    from bench.gemm.run import PROBES
    from bench.gemm.threads.candidates import Candidates, Probes

    known = names.split(",")
    holder = Probes(int(threads)) if known == [*PROBES] else Candidates(known, int(threads))
    serve(connection, holder)


if __name__ == "__main__":
    main(sys.argv[1:])
