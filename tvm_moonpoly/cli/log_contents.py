"""What a tuning log holds, in words and as rows of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_moonpoly.logs import TuningLog

#: The tasks whose costs are shown, of 384 steps.
TASKS = ("ps, all in L1", "ps, B from memory")


def in_words(log: TuningLog, size: str) -> str:
    """A log in a few words, ``size`` being how much it holds."""
    parts = [log.instructions, size]
    if log.of_gpu:
        from tvm_moonpoly.cli import gpu_log_files

        parts.append(gpu_log_files.status(log))
    return f"the log of {log.machine_name} ({', '.join(parts)})"


def header(log: TuningLog) -> dict[str, Any]:
    """What a log tells of itself and of its machine."""
    # the log's own account of its machine may have fields of any name
    shown = {"origin": log.origin, **log.machine}
    if log.of_gpu:
        from tvm_moonpoly.cli import gpu_log_files

        shown["costs"] = gpu_log_files.status(log)
        if isinstance(log.header.get("measured_on"), dict):
            shown["measured on"] = log.header["measured_on"]
    return shown | {
        "origin": log.origin,
        "needs": sorted(log.needs),
        "written by": dict(log.versions) or "unknown",
    }


def split(log: TuningLog) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """The kernels as rows of a table, and all other entries."""
    kernels, others = [], []
    for entry in log.entries:
        record = entry.get("record")
        if entry.get("kind") != "kernel" or not isinstance(record, dict):
            others.append(dict(entry))
            continue
        decisions = record.get("decisions") or {}
        kernels.append(
            [
                record.get("mr"),
                record.get("nv"),
                _operands(record),
                plain(decisions) or "-",
                *_costs(entry),
            ]
        )
    return kernels, others


def _operands(record: Any) -> str:
    if record.get("packed_a"):
        return "packed A"
    return "B in place" if record.get("in_place_b") else "plain"


def _costs(entry: Any) -> list[Any]:
    """The costs of `TASKS`; a dash where the entry, which may be anything, does not tell."""
    from tvm_moonpoly.costmodel.tasks import RESIDENCIES, TRIPS, Level, Residency

    at = TRIPS.index(384)
    places = [RESIDENCIES.index(Residency(Level.L1, b)) for b in (Level.L1, Level.MEMORY)]
    try:
        return [plain(entry["alone"][place][at]) for place in places]
    except (IndexError, KeyError, TypeError):
        return ["-", "-"]


def plain(value: Any) -> str:
    """Data of a log in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
