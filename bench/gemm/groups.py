"""Workloads and classes, what is to be reached in each, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.gemm.journal import QUIET
from bench.gemm.shapes import CLASSES
from bench.gemm.summary import Row, losses, mean

Group = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A line of the table: which rows of the list belong to it, and what is to be reached.

    ``target`` is of the geometric mean against the best peer, the others are fractions of what the
    probes measure. None where nothing was set.
    """

    name: str
    title: str
    holds: Callable[[Row], bool]
    target: float | None = None
    of_peak: float | None = None
    of_bandwidth: float | None = None


def is_linear(row: Row) -> bool:
    """A linear layer with a constant weight."""
    return row["workload"] == "linear"


def work(row: Row) -> int:
    """Floating-point operations of a single product."""
    return 2 * row["m"] * row["n"] * row["k"]


def of_workload(name: str) -> Callable[[Row], bool]:
    """Rows of that workload."""
    return lambda row: row["workload"] == name


WORKLOADS = (
    Workload("linear", "constant weights, all", is_linear, 1.25),
    Workload(
        "linear, 10 MFLOP",
        "of these, 10 MFLOP and more",
        lambda row: is_linear(row) and work(row) >= 10_000_000,
        1.12,
    ),
    Workload(
        "linear, 1 GFLOP",
        "of these, 1 GFLOP and more",
        lambda row: is_linear(row) and work(row) >= 1_000_000_000,
        1.05,
        of_peak=0.85,
    ),
    Workload("dynamic", "dynamic B, M >= 2", of_workload("dynamic"), 1.15),
    Workload(
        "one row",
        "M = 1, constant and dynamic B",
        lambda row: row["workload"] == "row" or (is_linear(row) and row["m"] == 1),
        1.15,
    ),
    Workload("attention", "attention, both products", of_workload("attention"), 1.25),
    Workload("fused", "bias + gelu, bias + residual", of_workload("fused"), 1.30),
    Workload("stream", "weights larger than the cache", of_workload("stream"), of_bandwidth=0.85),
    Workload("chain", "32 chained products, one executable", of_workload("chain")),
)


def summarise_groups(rows: Sequence[Row]) -> list[Group]:
    """Every workload that occurs, then the random cases, then each mode but the quiet one."""
    listed = [row for row in rows if row["source"] == "list" and row["mode"] == QUIET]
    random = [row for row in rows if row["source"] == "random" and row["mode"] == QUIET]
    parts = [(each, [row for row in listed if each.holds(row)]) for each in WORKLOADS]
    parts.append((Workload("random", "random cases, not in the list", lambda row: True), random))
    for mode in dict.fromkeys(row["mode"] for row in rows if row["mode"] != QUIET):
        members = [row for row in rows if row["mode"] == mode]
        parts.append((Workload(mode, mode, lambda row: True), members))
    return [summarise_group(workload, members) for workload, members in parts if members]


def summarise_classes(rows: Sequence[Row]) -> list[Group]:
    """The linear layers of the list by their number of rows."""
    linear = [row for row in rows if is_linear(row) and row["source"] == "list"]
    linear = [row for row in linear if row["mode"] == QUIET]
    groups = []
    for name in CLASSES:
        members = [row for row in linear if row["class"] == name]
        if members:
            groups.append(summarise_group(Workload(name, name, lambda row: True), members))
    return groups


def summarise_group(workload: Workload, rows: Sequence[Row]) -> Group:
    """Geometric means over ``rows``, their losses, and whether the targets are met."""
    compared = [row for row in rows if row["vs_best"] is not None]
    names = dict.fromkeys(name for row in rows for name in row["vs"])
    worst = min(compared, key=lambda row: row["vs_best"], default=None)
    group: Group = {
        "name": workload.name,
        "title": workload.title,
        "cases": len(rows),
        "vs_best": mean(row["vs_best_first"] for row in compared),
        "target": workload.target,
        "losses": len(losses(compared)),
        "losses_that_count": sum(row["loss"] for row in compared),
        "worst": None if worst is None else {"key": worst["key"], "vs_best": worst["vs_best"]},
        "vs_best_vm": mean(row["vs_best_vm"] for row in compared),
        "vs_default": mean(row["vs_default"] for row in rows),
        "of_peak": mean(row["of_peak"] for row in rows),
        "of_peak_target": workload.of_peak,
        "of_bandwidth": mean(row["of_bandwidth"] for row in rows),
        "of_bandwidth_target": workload.of_bandwidth,
        "limit": mean(row["limit"] for row in rows),
        "vs": {name: mean(row["vs"].get(name) for row in rows) for name in names},
    }
    return {**group, "missed": missed(group)}


def missed(group: Group) -> list[str] | None:
    """Which targets the group misses, None when it has none.

    A loss that counts is one of them, but not where only a fraction of the bandwidth is wanted.
    """
    wanted = {
        "ratio": (group["vs_best"], group["target"]),
        "peak": (group["of_peak"], group["of_peak_target"]),
        "bandwidth": (group["of_bandwidth"], group["of_bandwidth_target"]),
    }
    wanted = {name: pair for name, pair in wanted.items() if pair[1] is not None}
    if not wanted:
        return None
    found = [name for name, (got, target) in wanted.items() if got is None or got < target]
    if group["target"] is not None and group["losses_that_count"]:
        found.append("floor")
    return found
