"""What a worker holds: the candidates of one library, or the probes of the machine.

A library is loaded only by the worker that measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench import measure
from bench.gemm.operands import Operands, make_operands
from bench.gemm.peers import DIRECT, OURS, STATIC, VM, Peer, Run, load_peers, reason_of, versions_of
from bench.gemm.reference import reference
from bench.gemm.run import PEAK, READ, READ_ROWS, checked_run
from bench.gemm.shapes import Shape
from bench.gemm.threads.protocol import Described

Make = Callable[[Operands], Peer]
EXAMPLE = Shape(5, 16, 24)
PEAK_STEPS = 1_000_000  # some 2 ms: the launch of the pool, about 5 us, does not count


class Candidates:
    """The candidates ``names``, made anew for each shape, so that no operand outlives its shape."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        self.absent: dict[str, str] = {}
        self._operands: Operands | None = None
        self._makers: dict[str, Make] = {}
        own = [name for name in names if name in OURS]
        if own:
            self._makers.update(makers_of_ours(own, threads))
        for name in names:
            if name not in own:
                found, missing = load_peers([name], threads)
                self.absent.update(missing)
                if found:
                    self._makers[name] = always(found[0])

    def describe(self) -> Described:
        """How the candidates are called, and what they rest on."""
        example = make_operands(EXAMPLE, seed=0)
        peers: dict[str, Peer] = {}
        for name, make in self._makers.items():
            try:
                peers[name] = make(example)
            except Exception as reason:  # absent, whatever a library raises
                self.absent[name] = reason_of(reason)
        self._makers = {name: self._makers[name] for name in peers}
        return Described(
            modes={name: peer.mode for name, peer in peers.items()},
            allocating=tuple(name for name, peer in peers.items() if peer.allocates),
            absent=dict(self.absent),
            versions=versions_of(peers),
            pools=tuple(measure.thread_pools()),
        )

    def prepare(self, shape: Shape, seed: int) -> tuple[dict[str, Run], dict[str, str]]:
        """Calls that compute the product on operands from ``seed``, and why others are missing."""
        # Held here, as a call that was bound to an array's address does not hold the array.
        self._operands = make_operands(shape, seed)
        return checked_runs(self._makers, self._operands)

    def release(self) -> None:
        """Let go of the operands; calls made for them must not be made any more."""
        self._operands = None


class Probes:
    """What all threads reach together: multiply-adds, and reading where a product does little
    else."""

    def __init__(self, threads: int) -> None:
        import tvm_moonpoly as mp
        from bench.gemm.bandwidth import compile_reader
        from bench.gemm.peak import peak_runner
        from tvm_moonpoly.machine import Machine

        target = mp.detect_target(cores=threads)
        lanes = Machine.from_target(target).lanes
        self._peak, self._flops = peak_runner(target, lanes, threads, PEAK_STEPS)
        self._reader = compile_reader(target, lanes, threads)

    def describe(self) -> Described:
        """How many operations a call does."""
        return Described(modes={}, flops=self._flops)

    def prepare(self, shape: Shape, seed: int) -> tuple[dict[str, Run], dict[str, str]]:
        """The calls, which take no operands."""
        runs: dict[str, Run] = {PEAK: self._peak}
        if shape.m <= READ_ROWS and shape.products == 1:
            runs[READ] = self._reader.fastest(shape.right_bytes // 4)[0]
        return runs, {}

    def release(self) -> None:
        """What is read belongs to its call."""


def checked_runs(
    makers: Mapping[str, Make], operands: Operands
) -> tuple[dict[str, Run], dict[str, str]]:
    """The calls that give what float64 gives, and why others fail.

    Those whose mode does not exist for such a case are in neither.
    """
    expected = reference(operands)
    runs: dict[str, Run] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            peer = make(operands)
            if peer.refuses(operands.shape) is None:
                runs[name] = checked_run(peer, operands, expected)
        except Exception as reason:  # whatever it raises, the others are still measured
            absent[name] = reason_of(reason)
    return runs, absent


def always(peer: Peer) -> Make:
    """What makes ``peer``, whatever the operands."""
    return lambda operands: peer


def makers_of_ours(names: Sequence[str], threads: int) -> dict[str, Make]:
    """What makes our candidates ``names`` for given operands.

    Raises RuntimeError when there are no micro-kernels for this machine.
    """
    import tvm_moonpoly as mp
    from bench.gemm import ours
    from bench.gemm.threads.static import static
    from tvm_moonpoly import operators

    target = mp.detect_target(cores=threads)
    unsupported = operators.supported(target)
    if unsupported is not None:
        raise RuntimeError(f"tvm_moonpoly has no micro-kernels for this machine: {unsupported}")

    known: dict[str, Make] = {
        DIRECT: lambda operands: ours.direct(target),
        VM: lambda operands: ours.compiled(target),
        STATIC: lambda operands: static(target),
    }
    return {name: known[name] for name in names}
