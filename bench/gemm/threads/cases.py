"""Which cases of the list are also measured with several threads, and which with a busy core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.gemm.shapes import Shape

# How many cases of each workload. A chain is a measure of the caller, with one thread.
FULL = {"linear": 56, "dynamic": 18, "row": 12, "attention": 16, "fused": 14, "stream": 2}
QUICK = {"linear": 5, "dynamic": 1, "row": 1, "attention": 2, "fused": 1}
BUSY = {"linear": 8, "dynamic": 3, "attention": 3, "fused": 2}
BUSY_QUICK = {"linear": 2, "attention": 1}
SHARED_FLOPS = 4_000_000  # less work is hardly worth a second thread


def quiet_cases(listed: Sequence[Shape], quick: bool) -> list[Shape]:
    """Some cases of ``listed``, small and large ones of every workload."""
    return spread(listed, QUICK if quick else FULL)


def busy_cases(listed: Sequence[Shape], quick: bool) -> list[Shape]:
    """Some of `quiet_cases` whose work is enough to be shared between threads."""
    large = [shape for shape in quiet_cases(listed, quick) if shape.flops >= SHARED_FLOPS]
    return spread(large, BUSY_QUICK if quick else BUSY)


def spread(listed: Sequence[Shape], counts: Mapping[str, int]) -> list[Shape]:
    """``counts`` cases of each workload, spread evenly over its cases sorted by their work.

    Cases drawn at random are left out. The order is that of ``listed``.
    """
    chosen: set[str] = set()
    for workload, count in counts.items():
        members = [one for one in listed if one.workload == workload and one.source == "list"]
        members.sort(key=lambda one: (one.flops, one.key))
        chosen.update(members[at].key for at in positions(len(members), count))
    return [shape for shape in listed if shape.key in chosen]


def positions(total: int, count: int) -> list[int]:
    """``count`` different places among ``total``, evenly spaced; all of them if there are fewer."""
    if count >= total:
        return list(range(total))
    return [(2 * at + 1) * total // (2 * count) for at in range(count)]
