"""The comparison with the libraries, from the JSON documents of ``bench.gemm``.

A row's ``vs_best`` is the time of the fastest library for that case over ours: above 1 ours is
faster. Groups of rows and their means are those of the documents, which the README's table shows
as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.figure import Figure

from bench import measure
from bench.gemm import page
from bench.gemm.document import FORMAT
from bench.gemm.groups import WORKLOADS, Group, work
from bench.gemm.journal import QUIET
from bench.gemm.peers import HAND_SCHEDULES
from bench.gemm.summary import FLOOR, Row, losses
from bench.notebooks import drawing
from bench.pages import Document, read_document, threads_of

RESULTS = Path(__file__).parents[1] / "results"
FILES = ("gemm-1-thread.json", "gemm-2-threads.json")

WIN, EVEN, LOSS = drawing.BLUE, drawing.ORANGE, drawing.RED


def documents(folder: Path = RESULTS) -> dict[str, Document]:
    """The documents that there are, by the number of their threads in words.

    Raises ValueError for one of another format.
    """
    files = [folder / name for name in FILES if (folder / name).is_file()]
    found = [read_document(path, FORMAT) for path in files]
    return {threads_of(each): each for each in found}


def listed(document: Document) -> list[Row]:
    """The cases of the list, with nothing else at work, that have a library to compare with."""
    return [
        row
        for row in document["rows"]
        if row["source"] == "list" and row["mode"] == QUIET and row["vs_best"] is not None
    ]


def members(document: Document) -> list[tuple[Group, list[Row]]]:
    """The groups of the list, as `bench.gemm.groups` sums them up, and the rows of each.

    A row may be in several groups: large layers are layers.
    """
    sums = {group["name"]: group for group in document["groups"]}
    rows = listed(document)
    found = [
        (sums[each.name], [row for row in rows if each.holds(row)])
        for each in WORKLOADS
        if each.name in sums
    ]
    return [(group, own) for group, own in found if own]


def colour(row: Row) -> str:
    """Of a dot: a win, even, or a loss that counts."""
    if row["vs_best"] >= 1:
        return WIN
    return LOSS if row["loss"] else EVEN


def size(row: Row) -> str:
    """A row's size in a few characters."""
    batch = f"{row['batch']} x " if row["batch"] > 1 else ""
    return f"{batch}{row['m']} x {row['n']} x {row['k']}"


def workload(row: Row) -> str:
    """A row's workload, and what is special about the row."""
    notes = [row["source"]] * (row["source"] != "list") + [row["mode"]] * (row["mode"] != QUIET)
    return ", ".join([row["workload"], *notes])


def ratio_figure(document: Document) -> Figure:
    """Each case of the list as a dot: its ratio to the best library, by groups."""
    found, rows = members(document), listed(document)
    figure, axes = drawing.canvas(width=10.5, height=1.8 + 0.5 * len(found))
    for place, (group, own) in enumerate(found):
        ordered = sorted(own, key=lambda row: row["vs_best"])
        count = len(ordered)
        for i, row in enumerate(ordered):
            shift = 0.3 * (2 * ((i * 7) % count) / max(count - 1, 1) - 1) if count > 1 else 0.0
            axes.plot(
                row["vs_best"], place + shift, "o", ms=5, color=colour(row), alpha=0.75, mew=0
            )
        axes.plot([group["vs_best"]] * 2, [place - 0.38, place + 0.38], color="black", lw=2.2)
        slower = f", slower on {group['losses']}" if group["losses"] else ""
        axes.annotate(
            f"{group['vs_best']:.2f}  ({group['cases']} cases{slower})", (1.02, place),
            xycoords=("axes fraction", "data"), va="center", fontsize=9,
            color="black",
        )  # fmt: skip
    axes.axvline(1, color="black", lw=1)
    ratios = [row["vs_best"] for row in rows]
    ratio_axis(axes, min(*ratios, FLOOR) / 1.05, max(ratios) * 1.05)
    axes.set_yticks(range(len(found)), [group["title"] for group, _ in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("time of the fastest library for the case / ours (above 1: ours is faster)")
    axes.set_title(ratio_title(document), loc="left", fontsize=11)
    for x, label, mark in (
        (0, "\u25cf faster", WIN),
        (55, "\u25cf slower", EVEN),
        (112, "\u25cf a loss", LOSS),
        (165, "black bar: geometric mean", "black"),
    ):
        axes.annotate(label, (0, 0), (x, -42), xycoords="axes fraction",
                      textcoords="offset points", color=mark, fontsize=9, va="top")  # fmt: skip
    return figure


def ratio_title(document: Document) -> str:
    """The mean of the first group, as in the README's table, and the losses of the whole list."""
    (first, _), *_ = members(document)
    rows = listed(document)
    return (
        f"On {threads_of(document)} {first['vs_best']:.2f} times as fast as the best library "
        f"of each case\n({first['title']}: geometric mean of {first['cases']}). "
        f"Of all {len(rows)} cases of the list\nslower on {len(losses(rows))}, of them "
        f"{sum(row['loss'] for row in rows)} beyond doubt and by more than {1 - FLOOR:.0%}; "
        f"{min(row['vs_best'] for row in rows):.2f} at worst"
    )


def ratio_axis(axes: Any, low: float, high: float) -> None:
    """A logarithmic x axis for ratios around 1."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [t for t in (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 8, 12) if low <= t <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(axis="x", color="#dddddd", lw=0.6)


def library_means(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric means of the ratios to single libraries, the nearest first.

    Only of libraries that were run on all of ``rows``: means over different cases do not compare.
    A schedule written by hand is no library.
    """
    names = dict.fromkeys(name for row in rows for name in row["vs"] if name not in HAND_SCHEDULES)
    means = {
        name: measure.geomean(row["vs"][name] for row in rows)
        for name in names
        if all(name in row["vs"] for row in rows)
    }
    return dict(sorted(means.items(), key=lambda item: item[1]))


def library_figure(document: Document) -> Figure:
    """Each library alone on the first group, constant weights: the geometric mean of its ratios,
    and how often it is the faster one.

    Raises ValueError when no library was run on all of them.
    """
    (group, rows), *_ = members(document)
    means = library_means(rows)
    if not means:
        raise ValueError(f"{group['title']}: no library was run on all {len(rows)} cases")
    figure, axes = drawing.canvas(width=10.5, height=1.6 + 0.34 * len(means))
    for place, (name, mean) in enumerate(means.items()):
        axes.plot([1, mean], [place] * 2, color="#bbbbbb", lw=2, zorder=1)
        axes.plot(mean, place, "o", ms=9, color=WIN if mean >= 1 else LOSS)
        faster = sum(row["vs"][name] < 1 for row in rows)
        axes.annotate(f"{mean:.2f}   faster than ours on {faster} of {len(rows)}",
                      (mean, place), (10, 0), textcoords="offset points", va="center",
                      fontsize=9)  # fmt: skip
    axes.axvline(1, color="black", lw=1)
    ratio_axis(axes, min(0.95, *means.values()), max(means.values()) * 1.9)
    axes.set_yticks(range(len(means)), [name.replace("_", " ") for name in means])
    axes.set_ylim(len(means) - 0.5, -0.5)
    axes.set_xlabel(f"time of the library / ours, geometric mean ({group['title']})")
    nearest, mean = next(iter(means.items()))
    axes.set_title(
        f"On {threads_of(document)}, {group['title']}: the nearest single library, "
        f"{nearest.replace('_', ' ')}, takes {mean:.2f} times our time", loc="left", fontsize=11,
    )  # fmt: skip
    return figure


def nearest_table(document: Document) -> Any:
    """The nearest single library of each group, of those that were run on all of its cases."""
    lines = []
    for group, rows in members(document):
        means = library_means(rows)
        name = next(iter(means), "-")
        ratio = f"{means[name]:.2f}" if means else "-"
        best = f"{group['vs_best']:.2f}"
        lines.append((group["title"], len(rows), name.replace("_", " "), ratio, best))
    header = ("cases of", "cases", "nearest single library", "its time / ours",
              "best library of each case / ours")  # fmt: skip
    return drawing.table(header, lines)


def parts_of_peak(row: Row) -> tuple[float, float]:
    """Ours, and that of the best library by its own speed: the call of ours may be another one than
    ``vs_best`` compares it with, where the library allocates its output."""
    ours = row["of_peak"]
    return ours, ours * row["peer_gflops"][row["best"]] / row["gflops"]


def peak_figure(document: Document) -> Figure:
    """The part of the FMA peak over the work of a case, ours and the best library's.

    Chains are left out: a call of one is many products.
    """
    known = [row for row in listed(document) if row["of_peak"] and row["workload"] != "chain"]
    figure, axes = drawing.canvas(width=10.5, height=4.8)
    flops = [work(row) * row["batch"] for row in known]
    parts = [(100 * ours, 100 * best) for ours, best in map(parts_of_peak, known)]
    for row, x, ends in zip(known, flops, parts, strict=True):
        axes.plot([x, x], ends, color=WIN if row["vs_best"] >= 1 else LOSS, lw=0.8, alpha=0.45)
    axes.plot(flops, [best for _, best in parts], "o", ms=4, mfc="white", color=drawing.GREY)
    axes.plot(flops, [ours for ours, _ in parts], "o", ms=4.5, color=WIN, mew=0)
    axes.axhline(100, color="black", lw=1, ls="--")
    axes.set(xscale="log", ylim=(0, 108), xlabel="work of the case, floating-point operations")
    axes.set_ylabel("part of the measured FMA peak, %")
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    means = [
        f"{group['title']}: {group['of_peak']:.0%}"
        for group, _ in members(document)
        if group["name"].startswith("linear") and group["of_peak"]
    ]
    axes.set_title(
        f"On {threads_of(document)}, geometric means of the part of the peak:\n"
        + "; ".join(means), loc="left", fontsize=11,
    )  # fmt: skip
    axes.text(1.01, 0.60, "\u25cf tvm_moonpoly", color=WIN, transform=axes.transAxes, fontsize=9)
    axes.text(1.01, 0.54, "\u25cb best library", color=drawing.GREY, transform=axes.transAxes,
              fontsize=9)  # fmt: skip
    axes.text(1.01, 0.48, "red line: it is faster,\nboth called alike", color=LOSS,
              transform=axes.transAxes, fontsize=9, va="top")  # fmt: skip
    return figure


def losses_table(rows: Iterable[Row]) -> Any:
    """Every case on which a library is faster, the worst first."""
    lines = []
    for row in losses(rows):
        low, high = row["vs_best_bounds"]
        lines.append((f"{row['vs_best']:.2f}", f"{low:.2f} to {high:.2f}",
                      "yes" if row["loss"] else "no", str(row["best"]).replace("_", " "),
                      workload(row), row["layer"], size(row)))  # fmt: skip
    header = ("ratio", "95 % bounds", f"below {FLOOR} beyond doubt", "faster library", "workload",
              "layer", "M x N x K")  # fmt: skip
    return drawing.table(header, lines)


def groups_table(document: Document) -> Any:
    """The README's table: one line a group, also of random cases and beside a busy core."""
    from IPython.display import Markdown

    return Markdown(page.groups_table(document["groups"]))


def setting_of(document: Document) -> str:
    """On what, and with which versions, a document was measured."""
    machine = document["machine"]
    caches = ", ".join(f"{level} {size}" for level, size in machine["caches"].items())
    return "\n".join(
        [
            f"{machine['cpu']}, {machine['cores']} cores, {caches}",
            "; ".join(f"{name} {version}" for name, version in document["versions"].items()),
            f"clock: {document['clock']}",
            f"the run took {document['seconds_measured'] / 60:.0f} minutes",
        ]
    )
