"""A process that keeps one core busy: ``python -m bench.gemm.threads.busy CPU DESCRIPTOR PARENT``.

It is never stopped while it lives, and ends when the host closes its pipe or dies.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.gemm.threads.link import Link, connection_of

SPIN_SECONDS = 0.05  # between two looks at the pipe


def main(arguments: list[str]) -> None:
    """Spin on one CPU. Whatever is asked is answered with the seconds of processor time used."""
    cpu, descriptor, parent = arguments
    connection = connection_of(descriptor, parent)
    os.sched_setaffinity(0, {int(cpu)})
    while True:
        end = time.monotonic() + SPIN_SECONDS
        while time.monotonic() < end:
            pass
        if connection.poll():
            try:
                connection.recv()
            except EOFError:
                return
            connection.send(time.process_time())


@contextmanager
def busy_core(cpu: int, environment: Mapping[str, str]) -> Iterator[Link]:
    """Keep ``cpu`` busy within the ``with`` block; `Link.ask` tells the processor time it took."""
    link = Link([sys.executable, "-m", "bench.gemm.threads.busy", str(cpu)], environment)
    try:
        link.ask("are you there", 30)
        yield link
    finally:
        link.end(grace=1)


if __name__ == "__main__":
    main(sys.argv[1:])
