"""Run as a process by test_bench_gemm_threads: a worker whose candidates misbehave, or a host.

``worker.py KIND DESCRIPTOR PARENT``: a worker with the candidates "plain" and "other".
``worker.py host``: a host of two workers that prints their ids and waits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass

from bench.gemm.peers import Run
from bench.gemm.shapes import Shape
from bench.gemm.threads.busy import busy_core
from bench.gemm.threads.crew import Crew, Library
from bench.gemm.threads.link import connection_of
from bench.gemm.threads.protocol import Described
from bench.gemm.threads.worker import serve


def plain() -> None:
    """A call that takes a little time."""
    time.sleep(1e-4)


def dies() -> None:
    """A call that kills the process."""
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    """A call that does not return."""
    time.sleep(3600)


def raises() -> None:
    """A call that fails."""
    raise ValueError("no such luck")


@dataclass
class Fake:
    """What a worker of this file holds: "other" misbehaves when m is 13."""

    kind: str

    def describe(self) -> Described:
        return Described({"plain": "sleeps", "other": self.kind})

    def prepare(self, shape: Shape, seed: int) -> tuple[dict[str, Run], dict[str, str]]:
        bad = {"dies": dies, "hangs": hangs, "raises": raises}.get(self.kind, plain)
        return {"plain": plain, "other": bad if shape.m == 13 else plain}, {}

    def release(self) -> None:
        pass


def fake(kind: str) -> Library:
    """A library whose worker is this file; its candidates carry the kind as their suffix."""
    return Library(
        kind, ("plain", "other"), suffix=f"_{kind}", command=(sys.executable, __file__, kind)
    )


def host() -> None:
    """Start two workers, leave one running, and wait to be ended."""
    # a shell's background jobs ignore it, and so would their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = dict(os.environ)
    with Crew([fake("dies"), fake("hangs")], environment, 1) as crew, busy_core(0, environment):
        print(crew.pids["dies"], crew.pids["hangs"], flush=True)
        time.sleep(3600)


def main(arguments: list[str]) -> None:
    if arguments == ["host"]:
        host()
        return
    kind, descriptor, parent = arguments
    connection = connection_of(descriptor, parent)
    if kind == "broken":
        raise ImportError("no such library")
    serve(connection, Fake(kind))


if __name__ == "__main__":
    main(sys.argv[1:])
