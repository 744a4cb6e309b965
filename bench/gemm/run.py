"""Measuring: shape by shape, every candidate checked and then timed in the same rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench import measure
from bench.gemm.operands import (
    Operands,
    Reference,
    as_array,
    error_in,
    make_operands,
    make_weight,
    reference,
)
from bench.gemm.peers import OURS, Peer, Run, reason_of
from bench.gemm.shapes import Shape

PEAK = "fma_peak"
FEWEST_ROUNDS = 4


@dataclass(frozen=True)
class Measured:
    """Seconds a call of every candidate for one shape, one entry a round.

    ``absent`` tells of candidates that could not be timed for this shape why not.
    """

    shape: Shape
    seconds: dict[str, list[float]]
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Effort:
    """How long is measured: ``rounds`` rounds of ``min_seconds`` a candidate.

    Once a run would take longer than ``budget`` seconds, the rounds of the shapes that are left are
    cut, down to ``FEWEST_ROUNDS``.
    """

    rounds: int
    min_seconds: float
    budget: float

    def rounds_left(self, spent: float, done: float, left: float) -> int:
        """Rounds for the next shape after ``done`` of the work took ``spent`` seconds.

        ``done`` and ``left`` are amounts of work in one unit, such as seconds as estimated.
        """
        if spent <= 0 or done <= 0 or left <= 0:
            return self.rounds
        needed = spent / done * left
        share = (self.budget - spent) / needed
        rounds = min(self.rounds, int(self.rounds * share))
        return max(min(self.rounds, FEWEST_ROUNDS), rounds)


def expected_seconds(shape: Shape, effort: Effort, candidates: int) -> float:
    """A rough share of the time that ``shape`` will take, to divide a budget by."""
    once = max(effort.min_seconds, 2 * shape.flops / 50e9)
    return candidates * once


def weights_of(shapes: Iterable[Shape]) -> dict[tuple[int, int], np.ndarray]:
    """The constant weights of all linear layers among ``shapes``, (k, n) under (n, k)."""
    sizes = dict.fromkeys((shape.n, shape.k) for shape in shapes if not shape.dynamic)
    return {(n, k): make_weight(n, k, seed=n * 65_537 + k) for n, k in sizes}


def checked_run(peer: Peer, operands: Operands, expected: Reference) -> Run:
    """The call of ``peer``; raises ValueError when its result is not the product."""
    run = peer.prepare(operands)
    operands.out.fill(np.nan)
    wrong = error_in(as_array(run(), operands.out), expected)
    if wrong is not None:
        raise ValueError(wrong)
    return run


def prepare_all(peers: Iterable[Peer], operands: Operands) -> tuple[dict[str, Run], dict[str, str]]:
    """Calls of all candidates that compute the product, and why the others are missing.

    Raises RuntimeError when ours fails: without ours there is nothing to compare.
    """
    expected = reference(operands)
    runs: dict[str, Run] = {}
    absent: dict[str, str] = {}
    for peer in peers:
        if not peer.takes(operands):
            absent[peer.name] = "takes no dynamic right operand"
            continue
        try:
            runs[peer.name] = checked_run(peer, operands, expected)
        except Exception as reason:  # whatever a library raises, the others are still measured
            if peer.name in OURS:
                raise RuntimeError(f"{peer.name} failed at {operands.shape}: {reason}") from reason
            absent[peer.name] = reason_of(reason)
    return runs, absent


def measure_all(
    shapes: Sequence[Shape],
    weights: Mapping[tuple[int, int], np.ndarray],
    peers: Sequence[Peer],
    peak: Run,
    effort: Effort,
    clock: Callable[[], float],
    progress: Callable[[int, Shape], None] = lambda done, shape: None,
) -> list[Measured]:
    """Check and time every candidate at every shape.

    ``progress`` is told, before each shape, how many are done and which comes next.
    """
    measured = []
    work = [expected_seconds(shape, effort, len(peers)) for shape in shapes]
    start = time.monotonic()
    for at, shape in enumerate(shapes):
        progress(at, shape)
        rounds = effort.rounds_left(time.monotonic() - start, sum(work[:at]), sum(work[at:]))
        operands = make_operands(shape, seed=at, weight=weights.get((shape.n, shape.k)))
        runs, absent = prepare_all(peers, operands)
        seconds = measure.interleave(
            {PEAK: peak, **runs}, rounds=rounds, min_seconds=effort.min_seconds, clock=clock
        )
        measured.append(Measured(shape, seconds, absent))
    return measured


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
