"""The README's table of the product bench, and the page of its losses, from its JSON documents.

``python -m bench.gemm.page bench/results/gemm-1-thread.json bench/results/gemm-2-threads.json``
writes both. Nothing in them is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from bench.cells import NOTHING, bounds, number, percent
from bench.gemm.document import FORMAT
from bench.gemm.groups import Group
from bench.gemm.report import met, target
from bench.gemm.summary import FLOOR, Row
from bench.pages import (
    Document,
    losses_link,
    losses_of,
    machine_of,
    markdown,
    numbers,
    strong,
    threads_of,
    wrapped,
    write_pages,
)

LIBRARIES = {
    "openblas": "OpenBLAS",
    "mkl_packed": "MKL packed",
    "onednn_packed": "oneDNN packed",
    "onnxruntime": "onnxruntime",
}


def section(docs: Sequence[Document], losses_path: str) -> str:
    """What stands between the markers: machine, versions, and the tables of each document."""
    parts = [wrapped(about(docs[0]))]
    for doc in docs:
        parts.append(wrapped(f"{threads_of(doc).capitalize()}{settings_of(doc)}:"))
        parts.append(groups_table(doc["groups"]))
        if doc["classes"] and doc["threads"] == 1:
            parts.append("The constant weights of the list by their rows, against each library:")
            parts.append(classes_table(doc["classes"]))
        if "busy" in doc:
            parts.append(wrapped(about_busy(doc["busy"])))
    parts.append(losses_link(docs, "cases", losses_path))
    return "\n\n".join(parts)


def about(doc: Document) -> str:
    """How to read the tables: the machine, what is compared, and with which versions."""
    versions, peak = doc["versions"], doc["peak_gflops"]
    more = "" if peak is None else f"FMA peak {peak:.1f} GFLOP/s on one thread"
    return (
        f"On {machine_of(doc, more)}: time of the best library divided by ours, geometric means of "
        "medians of paired ratios, above 1 ours is faster. The best of "
        f"{library_names(versions)} is picked for each case on half of the rounds and compared on "
        "the other half. Libraries that write into memory of the caller are compared with our "
        "packed function called the same way, the others with the executable called through the "
        "virtual machine. A loss counts when even "
        f"the upper 95 % bound of its ratio is below {FLOOR}; cases in doubt were measured again "
        "with three times the rounds, and all runs decide whether they are losses; means are of "
        'first runs. "Limit" is an upper bound of the ratio on this machine: the best library\'s '
        "time over that of the arithmetic at the FMA peak, or with up to 4 rows of reading B at "
        "the measured bandwidth where that takes longer. Writing the result is not in it."
    )


def settings_of(doc: Document) -> str:
    """Rounds and seed, and with several threads which part of the list it is."""
    rounds = [row["rounds"] for row in doc["rows"]]
    text = f", {numbers(rounds)} rounds a case, random cases by seed "
    text += str(doc["settings"]["seed"])
    if doc["threads"] > 1:
        text = f", {numbers(rounds)} rounds a case, a part of the list, evenly by work"
        text += "; each library in a process of its own, those that wait stopped"
    return text


def about_busy(busy: dict[str, Any]) -> str:
    """What a core that is kept busy costs each library, and a static split of the work."""
    times = ", ".join(f"{name} {each:.1f}" for name, each in busy["slowdown"].items())
    text = f"With one core kept busy by another process, calls take so many times longer: {times}."
    if busy.get("static") is not None:
        text += (
            f" The same work split once, a chunk a thread, takes {busy['static']:.2f} times as "
            f"long as chunks that are handed out ({busy['static_cases']} cases)."
        )
    return text


def library_names(versions: dict[str, str]) -> str:
    """The libraries with their versions."""
    names = [f"OpenBLAS ({versions.get('numpy_blas', 'unknown')})"]
    for key, name in (("mkl", "MKL"), ("onednn", "oneDNN")):
        found = re.search(r"(?:Version |v)([\d.]+)", versions.get(key, ""))
        if found:
            names.append(f"{name} {found[1]}")
    if "onnxruntime" in versions:
        names.append(f"onnxruntime {versions['onnxruntime']}")
    return ", ".join(names)


def groups_table(groups: Sequence[Group]) -> str:
    """One line a workload."""
    lines = [
        [
            group["title"],
            str(group["cases"]),
            strong(number(group["vs_best"])),
            target(group),
            met(group),
            str(group["losses_that_count"]),
            NOTHING if group["worst"] is None else number(group["worst"]["vs_best"]),
            percent(group["of_peak"]),
            percent(group["of_bandwidth"]),
            number(group["limit"]),
        ]
        for group in groups
    ]
    titles = ["cases of", "cases", "vs best", "target", "met", "losses that count", "worst"]
    return markdown([*titles, "of peak", "of bandwidth", "limit"], lines)


def classes_table(groups: Sequence[Group]) -> str:
    """One line a class of rows."""
    lines = [
        [
            group["title"],
            str(group["cases"]),
            strong(number(group["vs_best"])),
            percent(group["of_peak"]),
            number(group["limit"]),
            *(number(group["vs"].get(name)) for name in LIBRARIES),
        ]
        for group in groups
    ]
    titles = ["rows", "cases", "vs best", "of peak", "limit", *LIBRARIES.values()]
    return markdown(titles, lines)


def losses_page(docs: Sequence[Document]) -> str:
    """The page of losses: every case whose median is below 1, by document."""
    parts = ["# Cases in which a library is faster"]
    how = (
        "Written by `python -m bench.gemm.page`. A loss counts when even the upper 95 % bound is "
        f"below {FLOOR}. The sizes are batch x M x N x K; B is a constant weight, or new at each "
        'call by rows or by columns, "+" its row stride. "Limit" is what the machine allows.'
    )
    parts.append(wrapped(how))
    for doc in docs:
        titles = ["counts", "case", "layer", "vs best", "95 % bounds", "limit", "best", "rounds"]
        parts += losses_of(doc, f"of {len(doc['rows'])} cases", titles, loss_line)
    return "\n\n".join(parts) + "\n"


def loss_line(row: Row) -> list[str]:
    """The cells of one loss."""
    mode = "" if row["mode"] == "quiet" else f" ({row['mode']})"
    limit, rounds = number(row["limit"]), str(row["rounds"])
    ratio, limits = number(row["vs_best"]), bounds(row["vs_best_bounds"])
    counts = "yes" if row["loss"] else ""
    return [counts, row["key"] + mode, row["layer"], ratio, limits, limit, row["best"], rounds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write table and page; returns the exit code."""
    return write_pages("gemm", arguments, FORMAT, section, losses_page)


if __name__ == "__main__":
    sys.exit(main())
