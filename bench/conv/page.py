"""The README's table of the convolution bench, and the page of its losses, from its documents.

``python -m bench.conv.page bench/results/conv-1-thread.json`` writes both. Nothing in them is
written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from bench.beside_text import cell, columns, sentence
from bench.cells import NOTHING, bounds, number, percent
from bench.conv.cases import all_cases
from bench.conv.summary import FORMAT
from bench.gemm.summary import Row
from bench.pages import (
    Document,
    extent_of,
    losses_link,
    losses_of,
    machine_of,
    markdown,
    met,
    strong,
    threads_of,
    wrapped,
    write_pages,
)

CANDIDATES = {
    "torch_nchw": "torch NCHW",
    "torch_nhwc": "torch channels last",
    "onednn_packed": "oneDNN packed",
    "onnxruntime": "onnxruntime",
    "onnxruntime_blocked": "onnxruntime, its blocks",
}
LIBRARIES_TITLE = "Against each of them, where it was timed"
BESIDE_TITLE = f"{LIBRARIES_TITLE}; in brackets on how many layers, where a sample was"


def section(docs: Sequence[Document], losses_path: str) -> str:
    """What stands between the markers: what is compared, and the tables of each document."""
    parts = [wrapped(about(docs[0]))]
    for doc in docs:
        parts.append(wrapped(f"{threads_of(doc).capitalize()}, {extent(doc)}"))
        parts.append(goals_table(doc["classes"]))
        parts.append(f"{BESIDE_TITLE if doc['beside'] else LIBRARIES_TITLE}:")
        parts.append(candidates_table(doc))
        parts += [wrapped(sentence(part, "layer")) for part in doc["beside"]]
    parts.append(losses_link(docs, "layers", losses_path))
    return "\n\n".join(parts)


def about(doc: Document) -> str:
    """How to read the tables: what is compared, and with which versions."""
    return (
        f"Convolutions with bias on {machine_of(doc)}: time of the best library divided by ours, "
        f"geometric means of medians of paired ratios. The best of {library_names(doc)} is picked "
        "for each layer on half of the rounds and compared on the other half. Each has its input "
        "and leaves its output in the layout that it works with inside a network, so that no "
        "layout is converted; in first layers all are given NCHW images. "
        "Weights are packed beforehand where a library can. A loss counts when even the "
        "upper 95 % bound of its ratio is below the floor of the class; layers in doubt are "
        "measured again with three times the rounds, as far as the time allows; means are of first "
        "runs. Ours and onnxruntime write into memory of the caller, torch makes its result. "
        '"Of peak" is the arithmetic of a direct convolution over that of the FMA peak: '
        "Winograd's algorithm does with less."
    )


def library_names(doc: Document) -> str:
    """The libraries with their versions."""
    versions = doc["versions"]
    found = re.search(r"v([\d.]+)", versions.get("onednn", ""))
    names = [f"torch {versions['torch']}"] if "torch" in versions else []
    if found:
        names[-1:] = [f"{name} with oneDNN {found[1]}" for name in names[-1:]]
    if "onnxruntime" in versions:
        names.append(f"onnxruntime {versions['onnxruntime']}")
    return " and ".join(names)


def extent(doc: Document) -> str:
    """How much of the list was measured, with how many rounds, and beside what."""
    return extent_of(doc, "layer", len(all_cases()), ", spread evenly over classes and work")


def goals_table(classes: Sequence[dict[str, Any]]) -> str:
    """One line a class: what was to be reached, and what was."""
    lines = [
        [
            one["title"],
            str(one["layers"]),
            strong(number(one["vs_best"])),
            f"{one['target']:.2f}, none < {one['floor']:.2f}",
            met(one),
            str(one["slower"]),
            str(one["losses_that_count"]),
            number(one["worst"]),
            percent(one["of_peak"]),
        ]
        for one in classes
    ]
    titles = ["layers of", "layers", "vs best", "target", "met", "slower", "losses that count"]
    return markdown([*titles, "worst", "of peak"], lines)


def candidates_table(doc: Document) -> str:
    """One line a class: the mean ratio to each library and to TVM."""
    classes, beside = doc["classes"], columns([doc])
    names = [name for name in CANDIDATES if any(name in one["vs"] for one in classes)]
    lines = [
        [
            one["title"],
            *(number(one["vs"].get(name)) for name in names),
            *(cell(doc, engine, one["name"]) for engine in beside),
        ]
        for one in classes
    ]
    titles = ["layers of", *(CANDIDATES[name] for name in names), *beside.values()]
    return markdown(titles, lines)


def losses_page(docs: Sequence[Document]) -> str:
    """The page of losses: every layer whose median is below 1, by document."""
    how = (
        "Written by `python -m bench.conv.page`. A loss counts when even the upper 95 % bound is "
        "below the floor of its class. A layer is written as N x C x H x W of its input, k output "
        "channels, kernel, s stride, p padding, d dilation, g groups. The last two columns are "
        "the arithmetic of a direct convolution over that of the FMA peak, for ours and for the "
        "best library: above 100 % fewer products are made (Winograd's algorithm)."
    )
    parts = ["# Layers in which a library is faster", wrapped(how)]
    titles = ["counts", "layer", "network", "class", "vs best", "95 % bounds", "best", "rounds"]
    titles += ["us", "ours of peak", "best of peak"]
    for doc in docs:
        parts += losses_of(doc, "layers are slower", titles, loss_line, extent(doc))
    return "\n\n".join(parts) + "\n"


def loss_line(row: Row) -> list[str]:
    """The cells of one loss."""
    peak, ratio = row["of_peak"], row["vs_best"]
    return [
        "yes" if row["loss"] else "",
        row["key"],
        row["network"] or NOTHING,
        row["class"],
        number(ratio),
        bounds(row["vs_best_bounds"]),
        row["best"],
        str(row["rounds"]),
        f"{row['seconds'] * 1e6:.0f}",
        percent(peak),
        percent(None if peak is None else peak / ratio),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write table and page; returns the exit code."""
    return write_pages("conv", arguments, FORMAT, section, losses_page)


if __name__ == "__main__":
    sys.exit(main())
