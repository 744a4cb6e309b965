"""One run of the bench with one thread: everything put together."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console

import relax_passes
import tvm_moonpoly as mp
from bench import measure
from bench.console import progress_bar
from bench.gemm import environment, ours
from bench.gemm.bandwidth import compile_reader
from bench.gemm.document import rows_of
from bench.gemm.journal import Journal
from bench.gemm.peak import peak_runner
from bench.gemm.peers import DEFAULT, HAND_SCHEDULES, Peer, load_peers, reason_of, versions_of
from bench.gemm.run import Bench, Effort, measure_all, shares_in_caller
from bench.gemm.shapes import Shape
from bench.gemm.summary import in_doubt
from tvm_moonpoly import operators
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.operators.operator_library import cache_key

PROBE_FLOPS = 50_000_000
FIRST_SHARE = 0.75  # of the budget, for the first runs; second ones of cases in doubt get the rest


def header(
    effort: Effort,
    peer_names: Sequence[str],
    chosen: Mapping[str, Any],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """What must be the same for figures to be put together: machine, ``versions``, code, settings,
    and which cases were ``chosen``.

    Raises RuntimeError when this machine has no micro-kernels.
    """
    target = target_for_one()
    facts = measure.machine_facts()
    del facts["blas"]  # depends on what is loaded at the moment
    machine, _, table = operators.described(target)
    return {
        "machine": facts,
        "versions": dict(versions),
        "library": cache_key(target, machine, table),
        "code": sources_digest(),
        "target": str(target),
        "settings": {
            **chosen,
            "rounds": effort.rounds,
            "min_seconds": effort.min_seconds,
            "case_seconds": effort.case_seconds,
            "peers": list(peer_names),
        },
    }


def sources_digest() -> str:
    """A digest of what is measured by besides the operator library: the bench and the passes."""
    digest = hashlib.sha256()
    for folder in (Path(measure.__file__).parent, Path(relax_passes.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def target_for_one() -> tvm.target.Target:
    """The target of one thread; raises RuntimeError when there are no micro-kernels for it."""
    target = mp.detect_target(cores=1)
    unsupported = operators.supported(target)
    if unsupported is not None:
        raise RuntimeError(f"tvm_moonpoly has no micro-kernels for this machine: {unsupported}")
    return target


def run_one_thread(
    shapes: Sequence[Shape],
    peer_names: Sequence[str],
    effort: Effort,
    journal: Journal,
    console: Console,
) -> None:
    """Fill ``journal`` with ``shapes``, and with second runs of the cases that are in doubt."""
    start = time.monotonic()
    target = target_for_one()
    candidates, absent = load_candidates(target, peer_names, console)
    allocating = [peer.name for peer in candidates if peer.allocates]
    with console.status("compiling the probes"):
        lanes = Machine.from_target(target).lanes
        peak, peak_flops = peak_runner(target, lanes)
        reader = compile_reader(target, lanes)
    clock, about_clock = measure.clock_for(1)
    bench = Bench(candidates, peak, reader, clock)
    journal.note(
        1,
        {
            "machine": measure.machine_facts(),
            "versions": library_versions(candidates),
            "candidates": {peer.name: peer.mode for peer in candidates},
            "allocating": allocating,
            "absent": absent,
            "peak_flops": peak_flops,
            "clock": about_clock,
            "removed_environment": environment.removed_variables(),
            "share_in_calling_thread": caller_shares(bench, shapes),
        },
    )
    spent = time.monotonic() - start
    first = replace(effort, budget=effort.budget * FIRST_SHARE - spent)
    follow(console, "", shapes, bench, first, journal, 0)
    wanted = {shape.key for shape in shapes}
    doubt = wanted & set(in_doubt(rows_of(journal, 1)))
    suspects = [shape for shape in shapes if shape.key in doubt]
    again = effort.again(effort.budget - (time.monotonic() - start))
    follow(console, "again: ", suspects, bench, again, journal, 1)


def follow(
    console: Console,
    prefix: str,
    shapes: Sequence[Shape],
    bench: Bench,
    effort: Effort,
    journal: Journal,
    earlier: int,
) -> None:
    """``measure_all`` under a progress bar."""
    left = [shape for shape in shapes if len(journal.runs(shape.key, 1)) <= earlier]
    with progress_bar(console) as progress:
        task = progress.add_task(prefix, total=len(shapes), completed=len(shapes) - len(left))
        begun = 0

        def show(shape: Shape) -> None:
            nonlocal begun
            progress.update(task, advance=min(begun, 1), description=prefix + shape.key)
            begun += 1

        measure_all(shapes, bench, effort, journal, show, earlier)


def load_candidates(
    target: tvm.target.Target, peer_names: Sequence[str], console: Console
) -> tuple[list[Peer], dict[str, str]]:
    """Ours and the peers that can be had here, and why the others cannot."""
    with console.status("loading the libraries"):
        peers, absent = load_peers(peer_names)
    with console.status("compiling the operator library"):
        candidates = [ours.direct(target), ours.compiled(target)]
        if DEFAULT in peer_names:
            try:
                candidates.append(ours.default_kernels(target))
            except RuntimeError as reason:
                absent[DEFAULT] = str(reason)
        for name in HAND_SCHEDULES:
            if name in peer_names:
                try:
                    peers.append(ours.hand_scheduled(name, target))
                except Exception as reason:  # reported like any other peer that cannot be had
                    absent[name] = reason_of(reason)
    return candidates + peers, absent


def caller_shares(bench: Bench, shapes: Sequence[Shape]) -> dict[str, float]:
    """How much of each candidate's work the calling thread does, on a case of middling work."""
    linear = [shape for shape in shapes if shape.workload == "linear"] or shapes
    probe = min(linear, key=lambda shape: abs(shape.flops - PROBE_FLOPS))
    return shares_in_caller(bench.peers, bench.operands(probe))


def numpy_blas() -> str:
    """Name and version of numpy's BLAS."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"


def library_versions(peers: Sequence[Peer]) -> dict[str, str]:
    """Versions of the packages, of numpy's BLAS, and of what torch has inside if it is measured."""
    return {**versions_of(peer.name for peer in peers), "numpy_blas": numpy_blas()}
