"""A convolution whose image size is known at the call: what TVM offers for it, and ours.

All candidates take channels-last images, so that nobody converts a layout. Ours, plain TVM and
dlight are called through TVM's virtual machine, which makes their output; the hand schedule writes
into one that is there already.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from matplotlib.figure import Figure
from tvm import relax
from tvm.target import Target

import tvm_moonpoly as mp
from bench import measure
from bench.conv.layer import Layer
from bench.conv.operands import Operands, error_in, make_operands
from bench.conv.tvm_peers import hand_schedule, layer_module
from bench.gemm.tvm_models import dim, tensor
from bench.notebooks import curves, drawing
from bench.notebooks.candidates import DLIGHT, HAND, OURS, PLAIN, Candidate, Run, dlight_pipeline
from bench.notebooks.curves import PEAK, Point
from bench.notebooks.linear_figures import COLOUR, SLOW, duration
from tvm_moonpoly import operators


def dynamic_layer(layer: Layer, operands: Operands) -> tvm.IRModule:
    """The layer with constant weight and bias on images (n, h, w, c), n, h and w symbolic."""
    x = relax.Var("x", tensor(dim("n"), dim("h"), dim("w"), layer.c))
    weight = relax.const(np.ascontiguousarray(operands.weight.transpose(0, 2, 3, 1)))
    bias = relax.const(operands.bias)
    return layer_module(layer, [x], weight, bias, data_layout="NHWC", kernel_layout="OHWI")


def dynamic_candidates(layer: Layer, operands: Operands, target: Target) -> list[Candidate]:
    """Ours and TVM's, each compiled once for images of every size."""
    library = operators.library(target)
    for part in ("conv", "depthwise"):
        library.module.part(part)  # built once for a processor, and then kept
    pipelines = {
        OURS: mp.pipeline(target),
        PLAIN: relax.get_default_pipeline(target),
        DLIGHT: dlight_pipeline(target),
    }
    found = [compiled(name, layer, operands, target, each) for name, each in pipelines.items()]
    return [*found, by_hand(layer, operands, target, library.machine.lanes)]


def compiled(
    name: str, layer: Layer, operands: Operands, target: Target, pipeline: Any
) -> Candidate:
    """The dynamic function compiled by a Relax pipeline."""
    begin = time.process_time()
    module = dynamic_layer(layer, operands)
    executable = tvm.compile(module, target, relax_pipeline=pipeline)
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return Candidate(name, time.process_time() - begin, lambda x: lambda: function(x))


def by_hand(layer: Layer, operands: Operands, target: Target, lanes: int) -> Candidate:
    """A few lines of TensorIR, the same for every size."""
    begin = time.process_time()
    function = tvm.compile(hand_schedule(layer, lanes, 1), target).mod["main"]
    seconds = time.process_time() - begin
    weight = tvm.runtime.tensor(np.ascontiguousarray(operands.weight.transpose(2, 3, 1, 0)))
    bias = tvm.runtime.tensor(operands.bias)

    def prepare(x: Any) -> Run:
        n, h, w, _ = map(int, x.shape)
        rows, columns = replace(layer, n=n, h=h, w=w).output
        out = tvm.runtime.empty((n, rows, columns, layer.k), "float32")

        def run() -> object:
            function(x, weight, bias, out)
            return out

        return run

    return Candidate(HAND, seconds, prepare)


def timed(
    candidates: Sequence[Candidate],
    layer: Layer,
    constants: Operands,
    sizes: Iterable[int],
    *,
    rounds: int,
    peak: tuple[Run, int],
) -> list[Point]:
    """Time all on square images of each of ``sizes`` rows, and the ``peak`` among them.

    Each result is compared with float64 first. Raises AssertionError for a wrong one.
    """
    points = []
    for size in sizes:
        resized = replace(layer, h=size, w=size)
        operands = replace(make_operands(resized), weight=constants.weight, bias=constants.bias)
        x = tvm.runtime.tensor(operands.nhwc)
        runs = {each.name: each.prepare(x) for each in candidates}
        for name, run in runs.items():
            result: Any = run()
            wrong = error_in(np.from_dlpack(result), operands)
            if wrong is not None:
                raise AssertionError(f"{name}: images of {size} rows: {wrong}")
        seconds = measure.interleave(
            {**runs, PEAK: peak[0]},
            rounds=rounds,
            min_seconds=0.005,
            clock=measure.clock_for(1)[0],
        )
        kept = {name: tuple(each) for name, each in seconds.items()}
        points.append(Point(size, resized.flops, kept, peak[1]))
    return points


@dataclass(frozen=True)
class Found:
    """What was timed of a layer: ``points`` of those that are fast, ``slow`` of those in `SLOW`."""

    candidates: Sequence[Candidate]
    points: Sequence[Point]
    slow: Sequence[Point]


def measured(
    layer: Layer,
    target: Target,
    sizes: Iterable[int],
    small: Iterable[int],
    peak: tuple[Run, int],
    rounds: int = 6,
) -> Found:
    """All candidates on images of ``small`` sizes, the fast ones on those of ``sizes``."""
    constants = make_operands(layer)
    candidates = dynamic_candidates(layer, constants, target)
    fast = [each for each in candidates if each.name not in SLOW]
    slow = [each for each in candidates if each.name in (OURS, *SLOW)]
    points = timed(fast, layer, constants, sizes, rounds=rounds, peak=peak)
    few = timed(slow, layer, constants, small, rounds=max(1, rounds // 3), peak=peak)
    return Found(candidates, points, few)


def speed_figure(points: Sequence[Point], slow: Sequence[Point], what: str) -> Figure:
    """GFLOP/s over the size of the image."""
    figure, axes = drawing.canvas(width=10.5, height=5.0)
    ends = {}
    parts = [(n, points) for n in curves.names(points)]
    parts += [(n, slow) for n in curves.names(slow) if n != OURS]
    for name, found in parts:
        sizes, speed = curves.line(found, name)
        width = 2.6 if name == OURS else 1.4
        axes.plot(sizes, speed, color=COLOUR[name], lw=width, marker=".", ms=5)
        ends[name] = (sizes[-1], speed[-1], COLOUR[name])
    peak = measure.geomean(point.gflops(PEAK) for point in points)
    axes.axhline(peak, color="black", lw=1, ls="--")
    first, last = points[0].rows, points[-1].rows
    ends[f"FMA peak of one core: {peak:.0f}"] = (last, peak, "black")
    drawing.doubling(axes, first, last)
    fastest = max(point.gflops(OURS) for point in points)
    axes.set(xlim=(first / 1.07, last * 1.07), ylim=(0, max(peak, fastest) * 1.06))
    axes.set(xlabel="rows and columns of the image (known only when the layer is called)")
    axes.set_ylabel("GFLOP/s of a direct convolution, one thread")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.set_title(
        f"{what}: the hand schedule takes {curves.mean_slowdown(points, HAND):.1f} times as long\n"
        f"as tvm_moonpoly, plain TVM {curves.mean_slowdown(slow, PLAIN):.0f} times, dlight "
        f"{curves.mean_slowdown(slow, DLIGHT):.0f} times (geometric means over the sizes)",
        loc="left",
        fontsize=11,
    )
    drawing.label_lines(axes, ends)
    return figure


def table(found: Found) -> Any:
    """One line a candidate: its time against ours, and what is spent before its first call."""
    lines = []
    for each in found.candidates:
        points = found.slow if each.name in SLOW else found.points
        sizes, ratios = curves.slowdowns(points, each.name)
        mean = f"{measure.geomean(ratios):.2f}"
        extent = f"{len(sizes)} of {sizes[0]}..{sizes[-1]}"
        spent = duration(each.seconds)
        lines.append((each.name, mean, f"{min(ratios):.2f}", f"{max(ratios):.2f}", extent, spent))
    header = ("candidate", "time / ours, mean", "least", "most", "image sizes measured")
    return drawing.table((*header, "processor time before the first call"), lines)
