"""The worker process: prepares the candidates of one library for a layer and times them when told.

``python -m bench.conv.worker THREADS NAME,... DESCRIPTOR PARENT``, started by a crew of
`bench.gemm.threads`, whose protocol it speaks. With one thread it counts processor time, which
other users of the machine do not disturb.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import measure
from bench.conv.layer import Layer
from bench.conv.operands import Operands, Run, error_in, make_operands
from bench.conv.peers import PEAK, PLACES, Peer
from bench.gemm.peers import reason_of, versions_of
from bench.gemm.threads.link import connection_of
from bench.gemm.threads.protocol import Described

PEAK_STEPS = 200_000


class Candidates:
    """Some candidates of one library, and with ours the probe of the arithmetic."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        self.absent: dict[str, str] = {}
        self.peers: list[Peer] = []
        self._threads = threads
        self._probe: tuple[Run, int] | None = None
        self._operands: Operands | None = None
        for name in names:
            if name == PEAK:
                self._probe = peak(threads)
                continue
            try:
                self.peers.append(PLACES[name].make(threads))
            except Exception as reason:  # absent, whatever a library raises
                self.absent[name] = reason_of(reason)

    def describe(self) -> Described:
        """How the candidates are called, and what they rest on."""
        return Described(
            modes={peer.name: peer.mode for peer in self.peers},
            absent=dict(self.absent),
            versions=versions_of(peer.name for peer in self.peers),
            pools=tuple(measure.thread_pools()),
            flops=None if self._probe is None else self._probe[1],
        )

    def prepare(self, layer: Layer, seed: int) -> tuple[dict[str, Run], dict[str, str]]:
        """Calls that compute the layer, and why others are missing."""
        self._operands = make_operands(layer)
        runs: dict[str, Run] = {} if self._probe is None else {PEAK: self._probe[0]}
        absent: dict[str, str] = {}
        for peer in self.peers:
            reason = peer.refuses(layer)
            try:
                if reason is None:
                    run, result = peer.prepare(self._operands)
                    reason = error_in(result(run()), self._operands)
                    runs[peer.name] = run
            except Exception as error:  # whatever it raises, the others are still measured
                reason = reason_of(error)
            if reason is not None:
                absent[peer.name] = reason
                runs.pop(peer.name, None)
        return runs, absent

    def release(self) -> None:
        """Let go of the operands; calls made for them must not be made any more."""
        self._operands = None


def peak(threads: int) -> tuple[Run, int]:
    """Fused multiply-adds in registers, and how many operations a call does."""
    import tvm_moonpoly as mp
    from bench.gemm.peak import peak_runner
    from tvm_moonpoly.machine import Machine

    target = mp.detect_target(cores=threads)
    return peak_runner(target, Machine.from_target(target).lanes, threads, PEAK_STEPS)


def main(arguments: Sequence[str]) -> None:
    """Serve the candidates that the command line names."""
    from bench.gemm.threads.worker import serve

    threads, names, descriptor, parent = arguments
    connection = connection_of(descriptor, parent)
    holder = Candidates(names.split(","), int(threads))
    serve(connection, holder, measure.clock_for(int(threads))[0])


if __name__ == "__main__":
    main(sys.argv[1:])
