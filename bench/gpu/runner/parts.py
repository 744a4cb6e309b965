"""The four parts: each a list of items and what is measured of one.

``correct`` compares results with float32, ``tasks`` are what the tuning log needs, ``speed`` is the
comparison with cuBLAS, and ``planner`` that of the planner's choice with other plans.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.gpu.runner.calls import Setting, alone, bind, bind_baseline
from bench.gpu.runner.document import task_key
from bench.gpu.runner.timing import paired_ratio

Item = dict[str, Any]

#: Rounds of a comparison, and samples of a task.
ROUNDS, SAMPLES = 7, 5

#: Side of the square product that tells the peak.
PEAK_SIDE = 8192


@dataclass(frozen=True)
class Part:
    """``items(setting)`` have a ``key`` each; ``measure(setting, item)`` returns what is kept.

    ``share`` of the time, if all parts are asked for.
    """

    name: str
    share: float
    items: Callable[[Setting], list[Item]]
    measure: Callable[[Setting, Item], dict[str, Any]]


def _correct_items(setting: Setting) -> list[Item]:
    return list(setting.bundle.cases["correct"])


def correct(setting: Setting, item: Item) -> dict[str, Any]:
    """Whether a case's result is right."""
    library = setting.bundle.library(item["library"])
    operands = setting.pool.operands(item, library)
    bind(setting, item, operands)()
    setting.device.synchronize()
    verdict = setting.reference.judge(operands, library)
    found = {"right": verdict.right, "worst": round(min(verdict.worst, 1e9), 4)}
    return found if verdict.right else {**found, "reason": verdict.reason}


def _task_items(setting: Setting) -> list[Item]:
    launch = {"key": "launch"}
    return [launch] + [{"key": task_key(task), **task} for task in setting.bundle.tasks]


def tasks(setting: Setting, item: Item) -> dict[str, Any]:
    """Seconds of a kernel alone on a task's product, L2 warm.

    The item "launch" is the smallest launch that there is: one block with nothing to sum up.
    """
    if item["key"] == "launch":
        library = setting.bundle.manifest["libraries"][0]
        kernel = min(library["kernels"], key=lambda k: k["block_m"] * k["block_n"])
        sizes = {"m": 8, "n": 8, "k": 0}
    else:
        library, kernel = _kernel(setting, item["kernel"])
        sizes = {name: item[name] for name in ("m", "n", "k")}
    case = {"library": library["name"], "batch": 1, **sizes}
    case["launches"] = alone(kernel, case["m"], case["n"])
    call = bind(setting, case, setting.pool.operands(case, library))
    samples = setting.timer.warm_samples(call, SAMPLES)
    return {"seconds": statistics.median(samples), "samples": samples}


def _kernel(setting: Setting, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    for library in setting.bundle.manifest["libraries"]:
        for kernel in library["kernels"]:
            if kernel["name"] == name:
                return library, kernel
    raise ValueError(f"tasks: the bundle has no kernel {name}")


def _speed_items(setting: Setting) -> list[Item]:
    """The peak first; without a peer there is nothing to compare."""
    if setting.peer is None:
        return []
    cases = list(setting.bundle.cases["speed"])
    libraries = dict.fromkeys(case["library"] for case in cases)
    side = {"batch": 1, "m": PEAK_SIDE, "n": PEAK_SIDE, "k": PEAK_SIDE}
    peaks = [{"key": f"peak/{name}", "library": name, "peak": True, **side} for name in libraries]
    return [*peaks, *cases]


def speed(setting: Setting, item: Item) -> dict[str, Any]:
    """Our call, the peer's, and TVM's own where there is one for the case: on the same memory, cold
    and warm, and the host's time for each."""
    library = setting.bundle.library(item["library"])
    operands = setting.pool.operands(item, library)
    calls = {
        "ours": bind(setting, item, operands),
        "peer": setting.peer.bind(operands, library),
    }
    if "baseline" in item:
        calls["tvm"] = bind_baseline(setting, item, operands)
    for call in calls.values():
        call()
    setting.device.synchronize()
    samples = setting.timer.rounds(calls, ROUNDS)
    found: dict[str, Any] = {}
    for state in ("cold", "warm"):
        found[state] = {name: statistics.median(each[state]) for name, each in samples.items()}
        found[state]["ratio"] = paired_ratio(samples["ours"][state], samples["peer"][state])
    found["host"] = {name: setting.timer.host(call) for name, call in calls.items()}
    return found


def _planner_items(setting: Setting) -> list[Item]:
    return list(setting.bundle.cases["planner"])


def planner(setting: Setting, item: Item) -> dict[str, Any]:
    """The operator and each plan that was told, in interleaved rounds, L2 warm."""
    library = setting.bundle.library(item["library"])
    operands = setting.pool.operands(item, library)
    base = {name: item[name] for name in ("library", "batch", "m", "n", "k")}
    calls = {"operator": bind(setting, base, operands)}
    for number, plan in enumerate(item["plans"]):
        calls[str(number)] = bind(setting, {**base, "launches": plan["launches"]}, operands)
    for call in calls.values():
        call()
    setting.device.synchronize()
    samples = setting.timer.rounds(calls, SAMPLES, cold=False)
    seconds = {name: statistics.median(each["warm"]) for name, each in samples.items()}
    plans = [{**plan, "seconds": seconds[str(number)]} for number, plan in enumerate(item["plans"])]
    return {"operator": seconds["operator"], "plans": plans}


PARTS = {
    part.name: part
    for part in (
        Part("correct", 0.27, _correct_items, correct),
        Part("tasks", 0.26, _task_items, tasks),
        Part("speed", 0.34, _speed_items, speed),
        Part("planner", 0.13, _planner_items, planner),
    )
}
