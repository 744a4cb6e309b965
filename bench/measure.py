"""The measuring protocol that every bench shares: interleaved rounds and medians of paired ratios.

A shared machine changes its speed from one second to the next. All candidates are therefore timed
in turn within each round, and only times of the same round are compared. A ratio is always
peer / ours: above 1 ours is faster.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

MAX_REPEATS = 1 << 20
WARM_SECONDS = 0.05
VERSIONED = (
    "tvm_moonpoly",
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "torch",
    "onnx",
    "onnxruntime",
)


@dataclass(frozen=True)
class Ratio:
    """How many times longer the peer takes than ours, from one ratio a round.

    ``low`` and ``high`` enclose the true median with a confidence of 95 %; with fewer than six
    rounds no order statistic reaches that and they are the smallest and the largest ratio.
    """

    median: float
    low: float
    high: float
    rounds: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def clock_for(threads: int) -> tuple[Callable[[], float], str]:
    """The clock, in seconds, that suits runs of ``threads`` threads, and a sentence about it.

    With one thread it is the processor time of the whole process, which other users of the machine
    do not disturb and which also counts a peer's helper threads. With more it is the wall clock.
    """
    if threads == 1:
        return time.process_time, "processor time of the process (one thread a candidate)"
    return time.perf_counter, f"wall clock ({threads} threads a candidate)"


def sample(
    run: Callable[[], object], repeats: int, min_seconds: float, clock: Callable[[], float]
) -> tuple[float, int]:
    """Time ``run`` until one sample lasts ``min_seconds``; returns (seconds a call, repeats used).

    Starts with ``repeats`` calls a sample and raises that until the sample is long enough. Shorter
    samples are thrown away, so that the first one serves as warm-up when it is too short.
    """
    while True:
        start = clock()
        for _ in range(repeats):
            run()
        elapsed = clock() - start
        if elapsed >= min_seconds or repeats >= MAX_REPEATS:
            return elapsed / repeats, repeats
        wanted = repeats * 1.2 * min_seconds / elapsed if elapsed > 0 else repeats * 10
        repeats = min(MAX_REPEATS, max(repeats + 1, min(repeats * 10, math.ceil(wanted))))


def interleave(
    runners: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    min_seconds: float,
    clock: Callable[[], float],
    max_seconds: float = math.inf,
    fewest: int = 1,
) -> dict[str, list[float]]:
    """Seconds a call of every runner, one entry a round.

    Each runner is called once before anything is timed. In each round every runner is timed once,
    over as many calls as take ``min_seconds``. The order rotates from round to round and every
    other round runs backwards, so that nobody always follows the same neighbour. A short call is
    made once more, untimed, ahead of its sample: it brings the operands back into the cache and
    lets the previous runner's threads go to sleep.
    After ``max_seconds`` no further pair of rounds begins, once ``fewest`` rounds are done: long
    calls get fewer rounds, and there are as many of them forwards as backwards.
    Raises ValueError for ``rounds`` < 1 or ``min_seconds`` < 0.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    if min_seconds < 0:
        raise ValueError(f"min_seconds must not be negative, got {min_seconds}")
    names = list(runners)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    repeats = dict.fromkeys(names, 1)
    for run in runners.values():
        run()
    start = clock()
    for turn in range(rounds):
        if turn % 2 == 0 and turn >= fewest and clock() - start > max_seconds:
            break
        for name in order_of(names, turn):
            if seconds[name] and seconds[name][-1] < WARM_SECONDS:
                runners[name]()
            # Calibrated anew each round: on a machine that got faster since, the count rises.
            each, repeats[name] = sample(runners[name], repeats[name], min_seconds, clock)
            seconds[name].append(each)
    return seconds


def order_of(names: Iterable[str], turn: int) -> list[str]:
    """The order of round ``turn``: it rotates, and every other round runs backwards."""
    found = list(names)
    shift = turn % len(found) if found else 0
    order = found[shift:] + found[:shift]
    return order[::-1] if turn % 2 else order


def paired_ratio(peer: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Median of the ratios peer / ours of equal rounds, with its 95 % bounds.

    Raises ValueError when the two lengths differ, are zero, or a time is not positive.
    """
    if len(peer) != len(ours) or not peer:
        raise ValueError(f"peer and ours need equally many rounds, got {len(peer)}, {len(ours)}")
    if min(*peer, *ours) <= 0:
        raise ValueError("peer and ours must hold positive times only")
    rounds = tuple(p / o for p, o in zip(peer, ours, strict=True))
    ordered = sorted(rounds)
    skip = median_rank(len(ordered))
    return Ratio(statistics.median(ordered), ordered[skip], ordered[-1 - skip], rounds)


def median_rank(count: int, confidence: float = 0.95) -> int:
    """How many of ``count`` sorted values may be cut at each end to still enclose the median.

    The order statistics x[r] and x[-1-r] miss the true median with the probability
    2 * P(Binomial(count, 1/2) <= r), whatever the distribution. Returns the largest such r, or 0.
    """
    tail, rank = 0.0, 0
    for r in range(count // 2):
        tail += math.comb(count, r) / 2.0**count
        if 2 * tail > 1 - confidence:
            break
        rank = r
    return rank


def geomean(values: Iterable[float]) -> float:
    """Geometric mean of positive values; NaN when there are none. Raises ValueError otherwise."""
    found = list(values)
    if any(value <= 0 for value in found):
        raise ValueError("values must be positive")
    return math.exp(math.fsum(map(math.log, found)) / len(found)) if found else math.nan


def losses(ratios: Mapping[str, Ratio]) -> list[str]:
    """The names of all ratios whose median is below 1 (the peer is faster), the worst first."""
    slower = [name for name, ratio in ratios.items() if ratio.median < 1]
    return sorted(slower, key=lambda name: ratios[name].median)


def machine_facts() -> dict[str, Any]:
    """What a reader needs in order to judge the numbers: processor, caches, versions, BLAS."""
    return {
        "cpu": cpu_model(),
        # of the machine, not those of them that this process was given
        "cores": os.cpu_count() or 1,
        "caches": cpu_caches(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": installed_versions(),
        "blas": thread_pools(),
    }


def thread_pools() -> list[dict[str, Any]]:
    """The libraries with pools of threads that this process has loaded, BLAS among them."""
    from threadpoolctl import threadpool_info

    facts = ("internal_api", "version", "architecture", "num_threads")
    return [{fact: pool[fact] for fact in facts if fact in pool} for pool in threadpool_info()]


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the system gives it."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    return platform.processor() or platform.machine()


def cpu_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str]:
    """Sizes of the first core's data caches, such as ``{"L1": "32K", "L2": "1024K"}``."""
    sizes = {}
    for entry in sorted(folder.glob("index*")):
        kind = (entry / "type").read_text().strip()
        if kind != "Instruction":
            level = (entry / "level").read_text().strip()
            sizes[f"L{level}"] = (entry / "size").read_text().strip()
    return sizes


def installed_versions(names: Iterable[str] = VERSIONED) -> dict[str, str]:
    """Versions of those of the distributions ``names`` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
