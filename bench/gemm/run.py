"""Measuring: case by case, every candidate checked and then timed in the same rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench import measure
from bench.gemm.bandwidth import Reader
from bench.gemm.journal import Journal, Record
from bench.gemm.operands import Operands, make_operands, make_weight
from bench.gemm.peers import OURS, Peer, Run, reason_of
from bench.gemm.reference import Reference, as_array, error_in, reference
from bench.gemm.shapes import Shape

PEAK = "fma_peak"
READ = "read_probe"
PROBES = (PEAK, READ)
FEWEST_ROUNDS = 6
READ_ROWS = 4  # up to so many rows the reading of the right operand may be what takes the time
AGAIN = 3  # how many times the rounds of its first run a case in doubt gets in its second


@dataclass(frozen=True)
class Effort:
    """How long is measured: ``rounds`` rounds of ``min_seconds`` a candidate.

    A case whose calls are long gets fewer rounds, as many as begin within ``case_seconds`` and at
    least ``fewest``. Once a run would take longer than ``budget`` seconds, the rounds of the cases
    that are left are cut, down to ``fewest``.
    """

    rounds: int
    min_seconds: float
    case_seconds: float
    budget: float
    fewest: int = FEWEST_ROUNDS

    def rounds_left(self, spent: float, done: float, left: float) -> int:
        """Rounds for the next case after ``done`` of the work took ``spent`` seconds.

        When they are cut they are even: as many pick the best peer as are compared with it.

        ``done`` and ``left`` are amounts of work in one unit, such as seconds as estimated.
        """
        if math.isinf(self.budget) or spent <= 0 or done <= 0 or left <= 0:
            return self.rounds
        needed = spent / done * left
        share = (self.budget - spent) / needed
        rounds = min(self.rounds, int(self.rounds * share) // 2 * 2)
        return max(min(self.rounds, self.fewest), rounds)

    def again(self, budget: float) -> Effort:
        """The effort of second runs that have ``budget`` seconds."""
        return replace(
            self,
            rounds=AGAIN * self.rounds,
            case_seconds=AGAIN * self.case_seconds,
            budget=budget,
            fewest=AGAIN * self.fewest,
        )


@dataclass(frozen=True)
class Bench:
    """What is timed: candidates, and the probes of arithmetic and of memory."""

    peers: Sequence[Peer]
    peak: Run
    reader: Reader | None
    clock: Callable[[], float]
    weights: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def measure(self, shape: Shape, effort: Effort, rounds: int) -> Record:
        """Check and time every candidate on one case."""
        operands = self.operands(shape)
        runs, absent = prepare_all(self.peers, operands)
        probes = {PEAK: self.peak}
        if self.reader is not None and shape.m <= READ_ROWS and not shape.products > 1:
            probes[READ] = self.reader.fastest(shape.right_bytes // 4)[0]
        seconds = measure.interleave(
            {**probes, **runs},
            rounds=rounds,
            min_seconds=effort.min_seconds,
            clock=self.clock,
            max_seconds=effort.case_seconds,
            fewest=effort.fewest,
        )
        return Record(shape, 1, seconds, absent)

    def operands(self, shape: Shape) -> Operands:
        """Operands of the case; the weight of the last case is kept for the next of its size."""
        plain = shape.constant and shape.products == 1 and shape.epilogue == "none"
        size = (shape.n, shape.k)
        if size not in self.weights or not plain:
            self.weights.clear()
        if plain:
            weight = self.weights.get(size)
            if weight is None:
                weight = self.weights[size] = make_weight(*size, seed=size[0] * 65_537 + size[1])
            return make_operands(shape, seed=shape.m, weight=weight)
        return make_operands(shape, seed=shape.m)


def expected_seconds(shape: Shape, effort: Effort, candidates: int) -> float:
    """A rough share of the time that ``shape`` will take, to divide a budget by.

    Making and checking the operands counts as well: about as much as ten calls.
    """
    once = shape.flops / 50e9 + shape.right_bytes / 10e9
    timed = min(candidates * effort.rounds * max(effort.min_seconds, once), effort.case_seconds)
    return max(timed, candidates * effort.fewest * once) + 10 * once + 0.2


def in_order(shapes: Iterable[Shape]) -> list[Shape]:
    """Cases of a workload together, within it those of one weight, which is kept that long."""
    shapes = list(shapes)
    order = {name: at for at, name in enumerate(dict.fromkeys(s.workload for s in shapes))}
    return sorted(shapes, key=lambda s: (order[s.workload], s.n, s.k, s.epilogue, s.m))


def measure_all(
    shapes: Iterable[Shape],
    bench: Bench,
    effort: Effort,
    journal: Journal,
    progress: Callable[[Shape], None] = lambda shape: None,
    earlier: int = 0,
) -> None:
    """Give each case that has ``earlier`` runs in the journal one more.

    So a run that was interrupted goes on, and a second one of the cases in doubt is made once.
    ``progress`` is told each case before it is measured.
    """
    left = [shape for shape in in_order(shapes) if len(journal.runs(shape.key, 1)) == earlier]
    work = [expected_seconds(shape, effort, len(bench.peers)) for shape in left]
    start = time.monotonic()
    for at, shape in enumerate(left):
        progress(shape)
        rounds = effort.rounds_left(time.monotonic() - start, sum(work[:at]), sum(work[at:]))
        journal.add(bench.measure(shape, effort, rounds))


def checked_run(peer: Peer, operands: Operands, expected: Reference) -> Run:
    """The call of ``peer``; raises ValueError when its result is wrong."""
    run = peer.prepare(operands)
    operands.out.fill(np.nan)
    wrong = error_in(as_array(run(), operands.out), expected)
    if wrong is not None:
        raise ValueError(wrong)
    return run


def prepare_all(peers: Iterable[Peer], operands: Operands) -> tuple[dict[str, Run], dict[str, str]]:
    """Calls of all candidates that compute the case, and why others fail.

    Those whose mode does not exist for such a case are in neither. Raises RuntimeError when ours
    fails: without ours there is nothing to compare.
    """
    expected = reference(operands)
    runs: dict[str, Run] = {}
    absent: dict[str, str] = {}
    for peer in peers:
        if peer.refuses(operands.shape) is not None:
            continue
        try:
            runs[peer.name] = checked_run(peer, operands, expected)
        except Exception as reason:  # whatever a library raises, the others are still measured
            if peer.name in OURS:
                raise RuntimeError(f"{peer.name} failed at {operands.shape}: {reason}") from reason
            absent[peer.name] = reason_of(reason)
    return runs, absent


def share_in_caller(run: Run, at_least: float = 0.02) -> float:
    """Part of the processor time of ``run`` that is spent in the calling thread, 1.0 for all.

    Calls it until ``at_least`` seconds are counted. Clear of other processes on the machine.
    """
    run()
    process, thread = time.process_time(), time.thread_time()
    while time.process_time() - process < at_least:
        run()
    spent = time.process_time() - process
    return min(1.0, (time.thread_time() - thread) / spent)


def shares_in_caller(peers: Iterable[Peer], operands: Operands) -> dict[str, float]:
    """``share_in_caller`` of every candidate that runs on ``operands``."""
    runs, _ = prepare_all(peers, operands)
    return {name: share_in_caller(run) for name, run in runs.items()}
