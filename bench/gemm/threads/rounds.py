"""Measuring one case with a crew: the same rounds as within one process, one worker at a time."""

from __future__ import annotations

import math
import time
import zlib
from typing import Any

from bench.gemm.run import FEWEST_ROUNDS
from bench.gemm.threads.crew import Crew
from bench.gemm.threads.link import WorkerLost
from bench.measure import WARM_SECONDS, order_of

SLOWEST = 1e9  # FLOP/s; a candidate that is slower than this hangs
PATIENCE = 30.0  # seconds granted on top of that


def seed_of(shape: Any) -> int:
    """The seed of a case's operands, the same in every process and every run."""
    return zlib.crc32(shape.key.encode())


def measure_case(
    crew: Crew,
    shape: Any,
    rounds: int,
    min_seconds: float,
    max_seconds: float = math.inf,
    patience: float = PATIENCE,
    fewest: int = FEWEST_ROUNDS,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds a call of every candidate, one entry a round, and why others are missing.

    As in `bench.measure.interleave` the order rotates from round to round, every other round runs
    backwards, and after ``max_seconds``
    and ``fewest`` rounds no further pair of them begins. A candidate that fails in
    any round is missing, and with a lost worker all of its candidates.
    """
    limit = patience + shape.flops / SLOWEST
    ready, absent = crew.prepare(shape, seed_of(shape), 4 * limit)
    seconds: dict[str, list[float]] = {name: [] for name in ready}
    start = time.monotonic()
    for turn in range(rounds):
        late = time.monotonic() - start > max_seconds
        if late and turn % 2 == 0 and turn >= fewest:
            break
        for name in order_of(ready, turn):
            if name not in seconds:
                continue
            # A sample of a long call needs no warm-up: cold caches and sleeping threads are little.
            warm = not seconds[name] or seconds[name][-1] < WARM_SECONDS
            try:
                each = crew.sample(ready[name], name, min_seconds, warm, limit + 20 * min_seconds)
            except WorkerLost as reason:
                lost = [other for other in seconds if ready[other] == ready[name]]
                absent.update(dict.fromkeys(lost, str(reason)))
                seconds = {other: seconds[other] for other in seconds if other not in lost}
            except RuntimeError as reason:
                absent[name] = str(reason)
                del seconds[name]
            else:
                seconds[name].append(each)
    crew.release()
    return seconds, absent
