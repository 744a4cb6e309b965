"""Figures and tables of a dynamic linear layer on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from bench.gpu.page import NOT_MEASURED
from bench.notebooks import drawing
from bench.notebooks.cuda_layer import CUBLAS, DLIGHT, OURS, Layer, Planned, short

COLOUR = {OURS: drawing.BLUE, DLIGHT: drawing.SKY, CUBLAS: drawing.RED}

Measured = Mapping[int, Mapping[str, float]]


def time_figure(layer: Layer, plans: Sequence[Planned], measured: Measured) -> Figure:
    """Predicted time over M, of each micro-kernel alone and of the plan, and what was measured."""
    figure, axes = drawing.canvas(width=10.5, height=5.4)
    rows = [plan.rows for plan in plans]
    ends: dict[str, tuple[float, float, str]] = {}
    for name in plans[0].alone:
        times = [plan.alone[name] * 1e6 for plan in plans]
        axes.plot(rows, times, color="#bbbbbb", lw=0.9, zorder=2)
        ends[short(name)] = (rows[-1], times[-1], drawing.GREY)
    chosen = [plan.seconds * 1e6 for plan in plans]
    axes.plot(rows, chosen, color=COLOUR[OURS], lw=2.6, zorder=3)
    ends["the plan, predicted"] = (rows[-1], chosen[-1], COLOUR[OURS])
    least = [layer.bound(m) * 1e6 for m in rows]
    axes.plot(rows, least, color="black", lw=1, ls="--")
    ends["data sheet, from memory"] = (rows[-1], least[-1], "black")
    for name, colour in COLOUR.items():
        found = {m: times[name] * 1e6 for m, times in measured.items() if name in times}
        if found:
            axes.plot(list(found), list(found.values()), "o", ms=5, color=colour, zorder=4)
            ends[f"{name}, measured"] = (max(found), found[max(found)], colour)
    drawing.doubling(axes, 1, rows[-1])
    axes.set_yscale("log")
    axes.set(xlim=(0.93, rows[-1] * 1.05))
    axes.set(xlabel="M, rows of the input (known only when the layer is called)")
    axes.set_ylabel("microseconds (lower is better)")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    told = "points: measured" if measured else f"{NOT_MEASURED}: costs are computed"
    if measured and not layer.assembly.table.measured:
        told = "points: measured; lines: computed"
    axes.set_title(
        f"N = {layer.n}, K = {layer.k}, fp16, on an {layer.gpu.name}: the plan is the micro-kernel "
        "predicted fastest at each M,\nor two of them, one for the full waves and one for the rest "
        f"({told})",
        loc="left", fontsize=11,
    )  # fmt: skip
    drawing.label_lines(axes, ends, least=0.05)
    return figure


def useful_figure(layer: Layer, plans: Sequence[Planned]) -> Figure:
    """What share of the multiprocessors' time is spent on results that are asked for."""
    figure, axes = drawing.canvas(width=10.5, height=4.4)
    rows = [plan.rows for plan in plans]
    ours = [100 * plan.useful for plan in plans]
    theirs = [100 * layer.by_dlight(m).useful for m in rows]
    ends = {}
    for name, values in ((OURS, ours), (DLIGHT, theirs)):
        axes.plot(rows, values, color=COLOUR[name], lw=2.2)
        ends[name] = (rows[-1], values[-1], COLOUR[name])
    drawing.doubling(axes, 1, rows[-1])
    axes.set(xlim=(0.93, rows[-1] * 1.05), ylim=(0, 103))
    axes.set(xlabel="M, rows of the input")
    axes.set_ylabel("% of the multiprocessors' time")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    few = next(i for i, m in enumerate(rows) if m >= 16)
    axes.set_title(
        "The rest goes into rows and columns beyond the result, and multiprocessors without a "
        f"block.\nAt M = {rows[few]} TVM's blocks of {layer.dlight.block_m} rows leave "
        f"{100 - theirs[few]:.0f} % unused, the plan's {100 - ours[few]:.0f} % (counted, not "
        "measured)",
        loc="left", fontsize=11,
    )  # fmt: skip
    drawing.label_lines(axes, ends)
    return figure


def occupancy_figure(layer: Layer) -> Figure:
    """How many blocks, and so warps, a multiprocessor holds, and what sets the number."""
    held = {name: (each, tile.warps) for name, (tile, each, *_) in layer.held().items()}
    held[DLIGHT] = (layer.dlight_held, layer.dlight.threads // 32)
    figure, axes = drawing.canvas(width=10.5, height=0.42 * len(held) + 1.6)
    limits = {
        "registers": drawing.ORANGE,
        "shared memory": drawing.GREEN,
        "threads": drawing.PINK,
        "blocks": drawing.GREY,
    }
    for place, (_, (each, warps)) in enumerate(reversed(list(held.items()))):
        axes.barh(place, each.blocks * warps, color=limits[each.limit], height=0.62)
        blocks = "1 block" if each.blocks == 1 else f"{each.blocks} blocks"
        text = f" {blocks} of {warps} warps, set by {each.limit}"
        axes.text(each.blocks * warps, place, text, va="center", fontsize=9)
    axes.set_yticks(range(len(held)), list(reversed(held)), fontsize=9)
    most = layer.gpu.architecture.threads // 32
    axes.set(xlim=(0, most * 1.02), xlabel=f"warps on a multiprocessor, of at most {most}")
    used = [limits[each.limit] for each, _ in held.values()]
    for name, colour in limits.items():
        if colour in used:
            axes.barh([0], [0], color=colour, label=f"set by {name}")
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    axes.set_title(
        f"What fits a multiprocessor of an {layer.gpu.name} at once (from what the compiler tells)",
        loc="left", fontsize=11,
    )  # fmt: skip
    return figure


def kernels_table(layer: Layer) -> Any:
    """Each micro-kernel, and TVM's: what is known of it without running it."""
    rows: list[tuple[object, ...]] = [
        (
            f"{tile.block_m} x {tile.block_n} x {tile.block_k}",
            tile.warps,
            tile.stages,
            registers,
            f"{shared / 1024:.0f}",
            held.blocks,
            held.limit,
        )
        for tile, held, registers, shared in layer.held().values()
    ]
    each, held = layer.dlight, layer.dlight_held
    rows.append(
        (
            f"{DLIGHT}: {each.block_m} x {each.block_n}",
            each.threads // 32,
            "-",
            each.registers,
            f"{each.shared_bytes / 1024:.0f}",
            held.blocks,
            held.limit,
        )
    )
    header = (
        "a block's rows x columns x depth", "warps", "stages", "registers a thread",
        "shared memory, KiB", "blocks a multiprocessor", "set by",
    )  # fmt: skip
    return drawing.table(header, rows)


def rows_table(layer: Layer, plans: Sequence[Planned], measured: Measured) -> Any:
    """At some M: the plan, waves, predicted and measured times."""
    rows = []
    for plan in plans:
        theirs = layer.by_dlight(plan.rows)
        times = measured.get(plan.rows, {})
        rows.append(
            (
                plan.rows,
                " + ".join(short(launch.kernel) for launch in plan.launches),
                " + ".join(f"{launch.waves:.2f}" for launch in plan.launches),
                f"{plan.useful:.0%}",
                f"{theirs.waves:.2f}",
                f"{theirs.useful:.0%}",
                f"{plan.seconds * 1e6:.1f}",
                *(
                    f"{times[name] * 1e6:.1f}" if name in times else NOT_MEASURED
                    for name in (OURS, DLIGHT, CUBLAS)
                ),
            )
        )
    header = (
        "M", "plan", "waves", "useful", "TVM: waves", "TVM: useful",
        f"predicted ({layer.status}), us", f"{OURS}, us", f"{DLIGHT}, us", f"{CUBLAS}, us",
    )  # fmt: skip
    return drawing.table(header, rows)
