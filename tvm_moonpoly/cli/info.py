"""``moonpoly info``: what a report of a fault should say of the machine."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_moonpoly import versions
from tvm_moonpoly.cli import output
from tvm_moonpoly.cli.command import parser
from tvm_moonpoly.cli.targets import MOST_THREADS

EXAMPLES = """
moonpoly info
moonpoly info --json > machine.json
"""

DISTRIBUTIONS = ("tvm_moonpoly", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "xgboost")

THREADS = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")


def main(arguments: Sequence[str]) -> int:
    """Print it; returns 0 also where there are warnings."""
    description = "Versions, this CPU, the tuning log and the cache of compiled libraries in use."
    found = parser("info", description, EXAMPLES)
    found.add_argument("--json", action="store_true", help="print JSON")
    options = found.parse_args(arguments)
    document = collect()
    if options.json:
        output.print_json(document)
    else:
        show(document)
    return 0


def collect() -> dict[str, Any]:
    """All of it as plain data. Sizes are in bytes."""
    import tvm

    from tvm_moonpoly import machine

    installed = {name: versions.installed(name) for name in DISTRIBUTIONS}
    # on Linux the build without CUDA, a distribution of its own, is what this package asks for
    installed["xgboost"] = installed["xgboost"] or versions.installed("xgboost-cpu")
    target = machine.detect_target()
    llvm = int(tvm.get_global_func("target.llvm_version_major")())
    document = {
        "versions": {**installed, "llvm": str(llvm), "python": platform.python_version()},
        "cpu": _cpu_name(),
        "target": json.loads(str(target)),
        "threads": _threads(),
        **_use_of(target),
        "gpu_logs": _gpu_logs(),
        "cache": _cache(target),
        "cuda": _cuda(),
    }
    told = [versions.ffi_warning(installed["apache-tvm-ffi"]), _thread_warning()]
    return {**document, "warnings": [warning for warning in told if warning]}


def show(document: dict[str, Any]) -> None:
    """Print what `collect` found as two columns."""
    console = output.console()
    machine, log, cache = document["machine"], document["log"], document["cache"]
    rows: list[tuple[str, object]] = [
        (name, version or "not installed") for name, version in document["versions"].items()
    ]
    rows.append(("CPU", f"{document['cpu']}, {document['threads']['cores']} cores usable"))
    if machine is None:
        rows.append(("micro-kernels", f"none: {document['reason']}"))
    else:
        caches = " / ".join(output.size(machine[f"l{level}_bytes"]) for level in (1, 2, 3))
        rows += [
            ("known to LLVM as", machine["mcpu"]),
            ("vector unit", f"{machine['isa']}: {machine['lanes'] * 32} bits, "
             f"{machine['lanes']} float32, {machine['vector_registers']} registers"),
            ("caches L1 / L2 / L3", caches),
        ]  # fmt: skip
    threads = document["threads"]
    rows.append(("TVM's threads", f"{threads['tvm']} ({threads['from']})"))
    if log is not None:
        fit = "its own" if log["exact"] else f"the nearest, of {log['mcpu']}"
        rows.append(("tuning log", f"{log['origin']} ({fit}; {log['kernels']} micro-kernels)"))
    told: dict[str, list[str]] = {}
    for each in document["gpu_logs"]:
        told.setdefault(each["gpu"], []).append(f"{each['dtype']} {each['status']}")
    rows += [(f"log of {gpu}", ", ".join(statuses)) for gpu, statuses in told.items()]
    rows.append(("own logs go to", document["log_folders"][0]))
    there = ", ".join(cache["parts"])
    state = f"of this machine's library: {there}" if there else "this machine's is not there"
    rows.append(
        ("library cache", f"{cache['folder']} ({cache['files']} files, "
         f"{output.size(cache['bytes'])}; {state})")
    )  # fmt: skip
    rows.append(("CUDA", _cuda_in_words(document["cuda"])))
    output.print_pairs(console, rows)
    for warning in document["warnings"]:
        output.say(console, f"warning: {warning}", style="yellow")


def _cuda() -> dict[str, Any]:
    """What compiling for a GPU, and running there, finds here."""
    import tvm

    from tvm_moonpoly.operators.cuda import machine_code

    return {"compiler": machine_code.compiler(), "device": bool(tvm.cuda(0).exist)}


def _cuda_in_words(cuda: dict[str, Any]) -> str:
    made_by = f"kernels are compiled by {cuda['compiler']}" if cuda["compiler"] else (
        "no compiler (nvcc, or NVRTC of the package cuda-bindings): executables hold source"
    )  # fmt: skip
    return f"{made_by}; {'a device is there' if cuda['device'] else 'no device'}"


def _use_of(target: Any) -> dict[str, Any]:
    from tvm_moonpoly import logs, operators

    folders = [str(folder) for folder in logs.folders()]
    reason = operators.supported(target)
    if reason is not None:
        return {"machine": None, "log": None, "reason": reason, "log_folders": folders}
    machine, log, table = operators.described(target)
    described = dataclasses.asdict(machine)
    described["features"] = sorted(machine.features)
    used = {
        "origin": log.origin,
        "mcpu": log.machine["mcpu"],
        "isa": log.machine["isa"],
        "exact": logs.same_machine(log, machine),
        "kernels": len(table.tasks),
        "versions": dict(log.versions),
    }
    return {"machine": described, "log": used, "reason": None, "log_folders": folders}


def _gpu_logs() -> list[dict[str, Any]]:
    from tvm_moonpoly.cli import gpu_log_files

    return gpu_log_files.summary()


def _cache(target: Any) -> dict[str, Any]:
    from tvm_moonpoly.operators import cache, operator_library

    folder = cache.folder()
    sizes = []
    for path in folder.glob("[!.]*.bc"):  # others are being written
        try:
            sizes.append(path.stat().st_size)
        except OSError:  # removed by another process meanwhile
            continue
    parts = operator_library.cached_parts(target)
    return {"folder": str(folder), "files": len(sizes), "bytes": sum(sizes), "parts": parts}


def _threads() -> dict[str, Any]:
    import tvm

    from tvm_moonpoly.machine import available_cores

    source = next((name for name in THREADS if os.environ.get(name)), None)
    asked = _asked_threads()
    # asked for the number, TVM starts them
    count = asked if asked > MOST_THREADS else tvm.get_global_func("runtime.NumThreads")()
    return {
        "cores": available_cores(),
        "tvm": int(count),
        "from": f"{source}={os.environ[source]}" if source else "TVM's default",
    }


def _asked_threads() -> int:
    """The number in the variables that TVM reads, 0 where there is none."""
    text = next((os.environ[name] for name in THREADS if os.environ.get(name)), "")
    digits = re.match(r"\s*\+?(\d{1,18})", text)
    return int(digits[1]) if digits else 0


def _thread_warning() -> str | None:
    if (asked := _asked_threads()) > MOST_THREADS:
        return f"TVM starts {asked} threads at the first parallel call, which no system bears"
    if any(os.environ.get(name) for name in THREADS):
        return None
    return (
        f"{THREADS[0]} is not set: TVM uses half of the cores, and counts them anew at each "
        "parallel call"
    )


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
