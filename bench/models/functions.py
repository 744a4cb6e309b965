"""Where the time of a network goes: by function in TVM, by operator in onnxruntime.

``python -m bench.models.functions GROUP SIZE [ENGINE]`` prints it for a network of the bench, such
as ``prefill 1x128x0``, from what the bench has compiled into ``out``.
"""

from __future__ import annotations

import collections
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from rich.table import Table
from tvm import relax

from bench.console import wide_console
from bench.engines import run_onnxruntime
from bench.measure import clock_for
from bench.models.build import ORT, OURS, Artifact
from bench.models.cases import Case
from bench.models.zoo import NETWORKS

Feed = Mapping[str, np.ndarray]
CALLS = 15
SECONDS = 3.0  # after so many no further call begins, once there have been two
MACHINE = "(virtual machine)"  # its own part of a call: shapes, memory, and calling functions
BUILTIN = "vm.builtin."


@dataclass(frozen=True)
class Part:
    """A function or a kind of operator: seconds in one call of the network, the least over calls,
    and how often it is called there."""

    name: str
    seconds: float
    count: int


def in_tvm(
    executable: Any, inputs: Sequence[str], feed: Feed, threads: int, calls: int = CALLS
) -> list[Part]:
    """By function, the slowest first; of an executable or of a library made of one.

    What the least function takes is the instrument's own time, and is taken off of all. The virtual
    machine's part is what a call without the instrument takes longer than all functions.
    """
    machine = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(feed[key]) for key in inputs]
    machine["main"](*tensors)
    clock, _ = clock_for(threads)
    spent: list[tuple[str, float]] = []
    begun = 0.0

    def instrument(_function: Any, name: str, before: bool, *_more: Any) -> None:
        nonlocal begun
        now = clock()
        if not before:
            spent.append((name, now - begun))
        begun = clock()

    whole = least_seconds(lambda: machine["main"](*tensors), calls, clock)
    machine.set_instrument(tvm.runtime.convert(instrument))
    runs: list[list[tuple[str, float]]] = []
    start = clock()
    while len(runs) < min(calls, 2) or (len(runs) < calls and clock() - start < SECONDS):
        spent.clear()
        machine["main"](*tensors)
        least = min(seconds for _, seconds in spent)
        runs.append([(name, seconds - least) for name, seconds in spent])
    parts = parts_of(runs)
    found = [part for part in parts if not part.name.startswith(BUILTIN)]
    left = max(whole - sum(part.seconds for part in found), 0.0)
    calls_of_it = sum(part.count for part in parts if part.name.startswith(BUILTIN))
    return slowest_first([*found, Part(MACHINE, left, calls_of_it)])


def least_seconds(run: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    """Of several calls, after one that does not count."""
    run()
    found: list[float] = []
    while len(found) < min(calls, 2) or (len(found) < calls and sum(found) < SECONDS):
        start = clock()
        run()
        found.append(clock() - start)
    return min(found)


def in_onnxruntime(
    model: onnx.ModelProto, threads: int, feed: Feed, calls: int = CALLS
) -> list[Part]:
    """By kind of operator after onnxruntime's own fusion, the slowest first.

    Its profile is in time of the wall: what is taken from it are shares, of a call without profile
    by the clock of `in_tvm`.
    """
    clock, _ = clock_for(threads)
    whole = least_seconds(run_onnxruntime(model, threads).prepare(feed), calls, clock)
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder, "run"))
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for _ in range(1 + calls):
            session.run(None, dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text())
    begins = [event["ts"] for event in events if event.get("name") == "model_run"]
    parts = parts_of(runs_of(events, begins)[1:])
    scale = whole / sum(part.seconds for part in parts)
    return [replace(part, seconds=scale * part.seconds) for part in parts]


def runs_of(
    events: Iterable[Mapping[str, Any]], begins: Sequence[int]
) -> list[list[tuple[str, float]]]:
    """Operators and seconds of each run, from onnxruntime's events and the runs' begins."""
    runs: list[list[tuple[str, float]]] = [[] for _ in begins]
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            at = sum(begin <= event["ts"] for begin in begins) - 1
            runs[at].append((event["args"]["op_name"], event["dur"] / 1e6))
    return runs


def parts_of(runs: Sequence[Sequence[tuple[str, float]]]) -> list[Part]:
    """Sums by name in each run, and the least of each."""
    sums: dict[str, list[float]] = collections.defaultdict(list)
    counts: dict[str, int] = {}
    for run in runs:
        for name in dict.fromkeys(name for name, _ in run):
            times = [seconds for other, seconds in run if other == name]
            sums[name].append(sum(times))
            counts[name] = len(times)
    return slowest_first(Part(name, min(times), counts[name]) for name, times in sums.items())


def slowest_first(parts: Iterable[Part]) -> list[Part]:
    """In order of their time."""
    return sorted(parts, key=lambda part: -part.seconds)


def table(title: str, parts: Sequence[Part], most: int = 25) -> Table:
    """The slowest functions, and what the others take together."""
    total = sum(part.seconds for part in parts)
    made = Table(title=f"{title}: {1e3 * total:.2f} ms")
    made.add_column("function")
    for name in ("calls", "ms", "share"):
        made.add_column(name, justify="right")
    rest = parts[most:]
    others = [Part("others", sum(p.seconds for p in rest), sum(p.count for p in rest))]
    for part in [*parts[:most], *(others if rest else [])]:
        share = f"{part.seconds / total:.1%}"
        made.add_row(part.name, str(part.count), f"{1e3 * part.seconds:.3f}", share)
    return made


def main(arguments: Sequence[str]) -> int:
    """Print both sides of a size of the bench, one thread; returns the exit code."""
    group, size, *more = arguments
    engine = more[0] if more else OURS
    case = Case(group, tuple(map(int, size.split("x"))))
    found = sorted(
        Path("out").glob(f"models-*/{engine}-{case.network}-1.so"), key=lambda p: p.stat().st_mtime
    )
    if not found:
        print(f"{case.network} is not compiled: run python -m bench.models --build-only first")
        return 1
    artifact = Artifact(found[-1].parent, engine, case.network, 1)
    model = onnx.load(artifact.model)
    feed = NETWORKS[case.network].feed(*case.size)
    inputs = [each.name for each in model.graph.input]
    console = wide_console(120)
    library = tvm.runtime.load_module(str(artifact.library))
    console.print(table(f"{engine}, {case.key}", in_tvm(library, inputs, feed, 1)))
    console.print(table(f"{ORT}, {case.key}", in_onnxruntime(model, 1, feed)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
