"""Where the time of a whole network goes in plain TVM, in onnxruntime and here, and what each pass
is worth: the pipeline with one of them switched off after the other."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from matplotlib.figure import Figure
from tvm import relax
from tvm.target import Target

import tvm_moonpoly as mp
from bench import measure
from bench.engines import ORT, OURS, as_arrays, relative_error, run_onnxruntime
from bench.models.functions import MACHINE, Part, in_onnxruntime, in_tvm
from bench.models.zoo import Network
from bench.notebooks import drawing

PLAIN = "plain TVM"
TOLERANCE = 1e-4

HEAVY, AROUND, SHAPES = "convolutions and products", "what is around them", "shapes, memory, calls"
KINDS = {HEAVY: drawing.BLUE, AROUND: drawing.ORANGE, SHAPES: drawing.GREY}
HEAVY_WORDS = ("moonpoly", "conv", "matmul", "gemm", "attention")


@dataclass(frozen=True)
class Variant:
    """The pipeline with some options: seconds of the processor to compile with it, and of a call;
    the ratio of its time to that of all passes."""

    name: str
    compile_seconds: float
    seconds: float
    ratio: measure.Ratio


def kind_of(name: str) -> str:
    """What a function of TVM's virtual machine or an operator of onnxruntime is for."""
    if name in (MACHINE, "shape_func", "Reshape", "Shape", "Unsqueeze"):
        return SHAPES
    return HEAVY if any(word in name.lower() for word in HEAVY_WORDS) else AROUND


def switches() -> list[str]:
    """The options of `mp.pipeline` that are on unless they are switched off."""
    found = inspect.signature(mp.pipeline).parameters.values()
    return [each.name for each in found if each.default is True]


def functions(network: Network, size: Sequence[int], target: Target) -> dict[str, list[Part]]:
    """The time of one call by function, in each engine."""
    model, feed = network.model(), network.feed(*size)
    mod = mp.import_onnx(model, dict(network.dims))
    inputs = [each.name for each in model.graph.input]
    pipelines = {OURS: mp.pipeline(target), PLAIN: relax.get_default_pipeline(target)}
    found = {
        name: in_tvm(tvm.compile(mod, target, relax_pipeline=each), inputs, feed, 1)
        for name, each in pipelines.items()
    }
    return {**found, ORT: in_onnxruntime(model, 1, feed)}


def ablation(
    network: Network, size: Sequence[int], target: Target, names: Sequence[str], rounds: int = 8
) -> list[Variant]:
    """All passes, then without each of the options ``names``, and onnxruntime last.

    Raises AssertionError for a wrong result.
    """
    model, feed = network.model(), network.feed(*size)
    mod = mp.import_onnx(model, dict(network.dims))
    inputs = [each.name for each in model.graph.input]
    reference = run_onnxruntime(model, 1)
    expected = as_arrays(reference.prepare(feed)())
    tensors = [tvm.runtime.tensor(feed[key]) for key in inputs]
    runs, compiled = {}, {}
    options: dict[str, dict[str, Any]] = {"all passes": {}}
    options |= {f"without {name}": {name: False} for name in names}
    for title, chosen in options.items():
        begin = time.process_time()
        executable = tvm.compile(mod, target, relax_pipeline=mp.pipeline(target, **chosen))
        compiled[title] = time.process_time() - begin
        runs[title] = caller(executable, tensors)
        for found, wanted in zip(as_arrays(runs[title]()), expected, strict=True):
            error = relative_error(found, wanted)
            if not error <= TOLERANCE:
                raise AssertionError(f"{title}: an error of {error:.1e} of the largest output")
    runs[ORT], compiled[ORT] = reference.prepare(feed), reference.build_seconds
    clock, _ = measure.clock_for(1)
    seconds = measure.interleave(runs, rounds=rounds, min_seconds=0.01, clock=clock)
    return [
        Variant(
            title,
            compiled[title],
            statistics.median(times),
            measure.paired_ratio(times, seconds["all passes"]),
        )
        for title, times in seconds.items()
    ]


def caller(executable: Any, tensors: Sequence[Any]) -> Any:
    """A call of the executable without arguments."""
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    return lambda: main(*tensors)


def by_kind(parts: Sequence[Part]) -> dict[str, float]:
    """Seconds of each kind."""
    return {
        kind: sum(part.seconds for part in parts if kind_of(part.name) == kind) for kind in KINDS
    }


def kinds_figure(found: Mapping[str, Sequence[Part]], what: str) -> Figure:
    """A bar an engine, on a logarithmic scale: plain TVM takes so much longer."""
    figure, axes = drawing.canvas(width=10, height=3.6)
    names = [name for name in (PLAIN, ORT, OURS) if name in found]
    for row, name in enumerate(names):
        for at, (kind, seconds) in enumerate(by_kind(found[name]).items()):
            place = row + 0.26 * (1 - at)
            axes.barh(place, 1e3 * seconds, 0.24, color=KINDS[kind], label=kind if not row else "")
            axes.text(1.05e3 * seconds, place, f"{1e3 * seconds:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    axes.set_xlim(left=0.01)
    axes.set_xlabel("milliseconds of one call, one thread")
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    totals = {name: sum(by_kind(found[name]).values()) for name in names}
    others = ", ".join(
        f"{name} {totals[name] / totals[OURS]:.1f} times" for name in names if name != OURS
    )
    axes.set_title(f"{what}: {others} as long as tvm_moonpoly", loc="left", fontsize=11)
    return figure


def functions_figure(found: Mapping[str, Sequence[Part]], most: int = 12) -> Figure:
    """The slowest functions of each engine."""
    names = [name for name in (PLAIN, ORT, OURS) if name in found]
    figure, all_axes = drawing.canvas(width=13, height=4.6, columns=len(names))
    for axes, name in zip(all_axes[0], names, strict=True):
        parts = found[name][:most][::-1]
        colours = [KINDS[kind_of(part.name)] for part in parts]
        axes.barh(range(len(parts)), [1e3 * part.seconds for part in parts], color=colours)
        axes.set_yticks(range(len(parts)), [label(part) for part in parts], fontsize=7)
        axes.set_xlabel("milliseconds a call")
        axes.set_title(name, loc="left", fontsize=11)
    return figure


def label(part: Part, longest: int = 34) -> str:
    """The name of a function, and how often it is called."""
    name = part.name.removeprefix("fused_")
    return f"{name if len(name) <= longest else name[: longest - 3] + '...'} ({part.count})"


def ablation_figure(variants: Sequence[Variant], what: str) -> Figure:
    """How much longer a call takes without each pass."""
    figure, axes = drawing.canvas(width=10, height=0.8 + 0.42 * len(variants))
    rows = list(variants)[::-1]
    for row, each in enumerate(rows):
        colour = drawing.GREY if each.name == ORT else drawing.BLUE
        axes.barh(row, each.ratio.median, color=colour)
        axes.text(each.ratio.median, row, f" {each.ratio.median:.2f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [each.name for each in rows])
    axes.axvline(1, color="black", lw=1)
    axes.set_xlabel("time / time with all passes")
    axes.set_title(f"{what}: what each pass is worth", loc="left", fontsize=11)
    return figure


def ablation_table(variants: Sequence[Variant]) -> Any:
    """One line a variant."""
    lines = [
        (
            each.name,
            f"{1e3 * each.seconds:.2f}",
            f"{each.ratio.median:.2f}",
            f"{each.ratio.low:.2f} to {each.ratio.high:.2f}",
            f"{each.compile_seconds:.1f}",
        )
        for each in variants
    ]
    header = ("passes", "ms a call", "time / all passes", "95 % bounds", "seconds to compile")
    return drawing.table(header, lines)


def functions_table(parts: Sequence[Part], most: int = 15) -> Any:
    """The slowest functions of an engine."""
    total = sum(part.seconds for part in parts)
    lines = [
        (f"`{part.name}`", part.count, f"{1e3 * part.seconds:.3f}", f"{part.seconds / total:.1%}")
        for part in parts[:most]
    ]
    return drawing.table(("function", "calls", "ms", "share"), lines)
