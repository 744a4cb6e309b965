"""The results as one JSON document, made of the journal."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.runner.bundled import Bundle
from bench.gpu.runner.journal import Record

FORMAT = 1

#: The fields of a task.
TASK = ("kernel", "form", "blocks", "steps", "m", "n", "k")

_SIZES = ("library", "batch", "m", "n", "k", "what")


def document(bundle: Bundle, records: Sequence[Record]) -> dict[str, Any]:
    """The results so far; what was not measured is missing or empty."""
    notes = {r["note"]: r["value"] for r in records if "note" in r}
    results, failed = _by_part(records, "result"), _by_part(records, "failed")
    failures = [
        {"part": r["part"], "key": r["key"], "reason": r["failed"]}
        for r in records
        if "failed" in r
    ]
    launch = results["tasks"].pop("launch", {})
    return {
        "format": FORMAT,
        "bundle": bundle.digest,
        "made_for": bundle.manifest["gpu"],
        "gpu": notes.get("gpu", {}),
        "versions": {**bundle.manifest["versions"], **notes.get("versions", {})},
        "clocks": notes.get("clocks", []),
        "launch_seconds": launch.get("seconds"),
        "correct": _correct(bundle, results["correct"], notes.get("reference", "")),
        "tasks": _tasks(bundle, results["tasks"], failed["tasks"]),
        "peak": {k.removeprefix("peak/"): v for k, v in results["speed"].items() if "peak/" in k},
        "no_peer": notes.get("no_peer", ""),
        "speed": _joined(bundle.cases["speed"], results["speed"]),
        "planner": _joined(bundle.cases["planner"], results["planner"]),
        "failures": failures,
    }


def _by_part(records: Sequence[Record], field: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {n: {} for n in ("correct", "tasks", "speed", "planner")}
    for record in records:
        if field in record:
            found[record["part"]][record["key"]] = record[field]
    return found


def _correct(bundle: Bundle, found: dict[str, Any], reference: str) -> dict[str, Any]:
    cases = bundle.cases["correct"]
    wrong = [
        {"key": case["key"], **_kernel(case), **_named(case), **found[case["key"]]}
        for case in cases
        if not found.get(case["key"], {"right": True})["right"]
    ]
    return {
        "reference": reference,
        "cases": len(cases),
        "checked": len(found),
        "wrong": wrong,
        "worst": max((r["worst"] for r in found.values() if r["right"]), default=None),
    }


def _kernel(case: Record) -> dict[str, Any]:
    """The micro-kernel that a case is of, if it is of one alone."""
    launches = case.get("launches", ())
    return {"kernel": launches[0][0]} if len(launches) == 1 else {}


def _named(case: Record) -> dict[str, Any]:
    return {field: case[field] for field in _SIZES if field in case}


def _tasks(bundle: Bundle, found: dict[str, Any], failed: dict[str, Any]) -> list[dict[str, Any]]:
    """The tasks with their times, or why they have none."""
    listed = []
    for task in bundle.tasks:
        key = task_key(task)
        fields = {name: task[name] for name in TASK}
        if key in found:
            listed.append({**fields, **found[key]})
        elif key in failed:
            listed.append({**fields, "error": failed[key]})
    return listed


def task_key(task: Record) -> str:
    """What a task is named by."""
    return "/".join(str(task[name]) for name in TASK)


def _joined(cases: Sequence[Record], found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**_named(case), **found[case["key"]]} for case in cases if case["key"] in found]


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the document at once or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)


def geomean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(results: dict[str, Any]) -> list[str]:
    """A few lines to print at the end: what is wrong comes first."""
    correct, lines = results["correct"], []
    wrong = correct["wrong"]
    lines.append(
        f"correct: {correct['checked'] - len(wrong)} of {correct['checked']} checked cases are "
        f"right, of {correct['cases']}"
    )
    lines += [f"  WRONG {case['key']}: {case['reason']}" for case in wrong]
    measured = sum("seconds" in task for task in results["tasks"])
    lines.append(f"tasks: {measured} measured")
    for state in ("cold", "warm"):
        ratios = [case[state]["ratio"] for case in results["speed"]]
        if ratios:
            wins = sum(r > 1 for r in ratios)
            lines.append(
                f"speed, L2 {state}: geomean {geomean(ratios):.2f} of cuBLAS, {wins} wins and "
                f"{len(ratios) - wins} losses"
            )
    if results["no_peer"]:
        lines.append(f"speed: not measured: {results['no_peer']}")
    shares = [best_share(case) for case in results["planner"]]
    if shares:
        lines.append(
            f"planner: geomean {geomean(shares):.3f} of the best measured plan, on "
            f"{len(shares)} shapes"
        )
    lines += [f"failed: {f['part']} {f['key']}: {f['reason']}" for f in results["failures"][:20]]
    return lines


def best_share(case: dict[str, Any]) -> float:
    """The best plan's time by that of the planner's choice, at most 1."""
    chosen = next((p["seconds"] for p in case["plans"] if p.get("chosen")), case["operator"])
    return min(1.0, min(plan["seconds"] for plan in case["plans"]) / chosen)
