"""One run of the bench: everything put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import tvm_moonpoly as mp
from bench import measure
from bench.gemm import environment, ours
from bench.gemm.operands import make_operands
from bench.gemm.peak import peak_runner
from bench.gemm.peers import DEFAULT, HAND_SCHEDULES, Peer, load_peers, reason_of
from bench.gemm.run import Effort, Measured, measure_all, shares_in_caller, weights_of
from bench.gemm.shapes import Shape
from bench.gemm.summary import document
from tvm_moonpoly import operators
from tvm_moonpoly.machine import Machine

PROBE_FLOPS = 50_000_000


def run_bench(
    shapes: Sequence[Shape],
    peer_names: Sequence[str],
    effort: Effort,
    threads: int,
    console: Console,
) -> dict[str, Any]:
    """Measure ``shapes`` against ``peer_names`` and return the document of ``summary.document``."""
    start = time.monotonic()
    target = mp.detect_target(cores=1)
    unsupported = operators.supported(target)
    if unsupported is not None:
        raise RuntimeError(f"tvm_moonpoly has no micro-kernels for this machine: {unsupported}")
    weights = weights_of(shapes)
    with console.status("loading the libraries"):
        peers, absent = load_peers(peer_names)
    with console.status("compiling the layers with tvm_moonpoly"):
        candidates = [ours.direct(target), ours.compiled(target, weights, shapes)]
        try:
            candidates.append(ours.default_kernels(target))
        except RuntimeError as reason:
            absent[DEFAULT] = str(reason)
    with console.status("compiling the layers with the schedule written by hand"):
        for name in HAND_SCHEDULES:
            if name in peer_names:
                try:
                    peers.append(ours.hand_scheduled(name, target, weights, shapes))
                except Exception as reason:  # reported like any other peer that cannot be had
                    absent[name] = reason_of(reason)
        peak, peak_flops = peak_runner(target, Machine.from_target(target).lanes)
    candidates += peers
    clock, about_clock = measure.clock_for(threads)
    prepared = time.monotonic() - start
    measured: list[Measured] = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(shapes))

        def show(done: int, shape: Shape) -> None:
            size = f"{shape.layer} {shape.batch}x{shape.m}x{shape.n}x{shape.k}"
            progress.update(task, completed=done, description=size)

        measured = measure_all(shapes, weights, candidates, peak, effort, clock, show)
    return document(
        measured,
        facts=measure.machine_facts(),
        versions=library_versions(peers),
        modes={peer.name: peer.mode for peer in candidates},
        allocating=[peer.name for peer in candidates if peer.allocates],
        absent=absent,
        peak_flops=peak_flops,
        threads=threads,
        extra={
            "target": str(target),
            "clock": about_clock,
            "seconds_to_prepare": prepared,
            "removed_environment": environment.removed_variables(),
            "share_in_calling_thread": caller_shares(candidates, shapes, weights),
        },
    )


def caller_shares(
    candidates: Sequence[Peer], shapes: Sequence[Shape], weights: ours.Weights
) -> dict[str, float]:
    """How much of each candidate's work the calling thread does, on a shape of middling work."""
    linear = [shape for shape in shapes if not shape.dynamic] or shapes
    probe = min(linear, key=lambda shape: abs(shape.flops - PROBE_FLOPS))
    weight = weights.get((probe.n, probe.k))
    return shares_in_caller(candidates, make_operands(probe, seed=0, weight=weight))


def library_versions(peers: Sequence[Peer]) -> dict[str, str]:
    """Versions of the packages, of numpy's BLAS, and of what torch has inside if it is measured."""
    versions = measure.installed_versions()
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    versions["numpy_blas"] = f"{blas['name']} {blas['version']}"
    if any(peer.name.startswith(("torch", "mkl", "onednn")) for peer in peers):
        from bench.gemm import torch_peers

        versions.update(torch_peers.versions())
    return versions


def progress_bar(console: Console) -> Progress:
    """A bar with the shape in hand, how many are done, and an estimate of the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
