"""Correctness and speed on the GPU of this machine: ``python run.py`` in an unpacked bundle.

Needs a driver for CUDA 13, Python with numpy, and for the comparison with cuBLAS torch. Results
are written to ``results.json`` (and, line by line, to ``results.jsonl``, from which a second run
goes on). Exits with 0 when everything is right, 1 when a result is wrong, 2 when nothing can be
measured here.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.gpu.runner.bundled import Bundle

HERE = Path(__file__).resolve().parent

#: Minutes of all parts together.
MINUTES = 7.5


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    if importlib.util.find_spec("numpy") is None:
        print("numpy is missing: pip install numpy", file=sys.stderr)
        return 2
    from bench.gpu.runner.bundled import Bundle
    from bench.gpu.runner.device import NoGpu
    from bench.gpu.runner.parts import PARTS

    options = _parse(arguments, list(PARTS))
    names = list(PARTS) if options.part == "all" else [options.part]
    share = sum(PARTS[name].share for name in names)
    seconds = 60 * (MINUTES * share if options.minutes is None else options.minutes)
    try:
        bundle = Bundle.read(options.bundle)
        if options.worker:
            return _worker(bundle, options.out, names, seconds)
        return _supervisor(bundle, options, seconds)
    except NoGpu as error:
        print(f"nothing was measured: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def _parse(arguments: Sequence[str] | None, parts: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=[*parts, "all"], default="all")
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"for what --part asks for; {MINUTES} for all parts, a share of it for one",
    )
    parser.add_argument("--out", type=Path, default=Path("results.json"), help="the results' file")
    parser.add_argument("--bundle", type=Path, default=HERE, help="the bundle's folder")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes: more than 0 are needed, not {options.minutes}")
    if not options.out.resolve().parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.resolve().parent}")
    return options


def _supervisor(bundle: Bundle, options: argparse.Namespace, seconds: float) -> int:
    from bench.gpu.runner.document import document, summary, write
    from bench.gpu.runner.journal import Journal
    from bench.gpu.runner.supervise import DONE, IMPOSSIBLE, supervise

    # of this process nothing touches the GPU
    journal = Journal(options.out.with_suffix(".jsonl"), bundle.digest)

    def command(left: float) -> list[str]:
        return [
            *(sys.executable, str(options.bundle / "run.py"), "--worker", "--part", options.part),
            *("--minutes", str(max(left / 60, 1e-3)), "--out", str(options.out)),
            *("--bundle", str(options.bundle)),
        ]

    code = supervise(command, journal, seconds)
    if code == IMPOSSIBLE:
        return code
    journal.refresh()
    results = document(bundle, journal.records)
    write(options.out, results)
    print(*summary(results), sep="\n")
    print(f"written to {options.out}")
    if code != DONE:
        return 2
    return 1 if results["correct"]["wrong"] else 0


def _worker(bundle: Bundle, out: Path, names: Sequence[str], seconds: float) -> int:
    """Measure in this process."""
    from bench.gpu.runner.calls import Setting
    from bench.gpu.runner.device import DeviceLost, smi
    from bench.gpu.runner.journal import Journal
    from bench.gpu.runner.measure import measure
    from bench.gpu.runner.operands import Pool
    from bench.gpu.runner.peer import TorchPeer, find_torch
    from bench.gpu.runner.reference import NumpyReference, TorchReference
    from bench.gpu.runner.supervise import DONE, LOST
    from bench.gpu.runner.timing import Timer

    journal = Journal(out.with_suffix(".jsonl"), bundle.digest)
    device = bundle.open_device()
    functions = bundle.load()
    torch, no_peer = find_torch()
    peer = None if torch is None else TorchPeer(device, torch)
    reference = NumpyReference(device) if torch is None else TorchReference(device, torch)
    facts = asdict(device.facts)
    print(f"{facts['name']} ({facts['arch']}), driver {facts['driver']}; reference: "
          f"{reference.name}", flush=True)  # fmt: skip
    journal.note("gpu", facts)
    journal.note("reference", reference.name)
    journal.note("no_peer", no_peer)
    journal.note("versions", {"python there": platform.python_version(),
                              **(peer.versions if peer else {})})  # fmt: skip
    clocks = ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")
    before = smi(*clocks)
    setting = Setting(
        bundle, functions, device, Pool(device), Timer.of(device), reference, peer, no_peer
    )
    try:
        measure(setting, journal, names, seconds, say=lambda text: print(text, flush=True))
    except DeviceLost as error:
        print(f"the GPU reports an error that stays: {error}", flush=True)
        return LOST
    finally:
        journal.note("clocks", [f"{name}: {', '.join(clocks)}: {text}"
                                for name, text in (("before", before), ("after", smi(*clocks)))
                                if text])  # fmt: skip
    return DONE


if __name__ == "__main__":
    sys.exit(main())
