"""The table of the networks in their page, and the page of losses, from the bench's documents.

``python -m bench.models.page bench/results/models-1-thread.json`` writes both. Nothing in them is
written by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from bench.conv.page import met
from bench.gemm.page import (
    ROOT,
    Document,
    losses_link,
    markdown,
    strong,
    threads_of,
    wrapped,
    write_pages,
)
from bench.gemm.report import bounds, number
from bench.gemm.summary import Row, losses
from bench.models.build import ORT, OURS, PLAIN
from bench.models.cases import GROUPS, all_cases
from bench.models.report import build_seconds, goal, mebibytes, milliseconds
from bench.models.summary import FORMAT

PAGE = ROOT / "docs" / "models.md"
LOSSES = ROOT / "bench" / "results" / "models-losses.md"
MARKERS = "<!-- models: begin -->", "<!-- models: end -->"


def section(docs: Sequence[Document], losses_path: str) -> str:
    """What stands between the markers: what is compared, and the table of each document."""
    parts = [wrapped(about(docs[0]))]
    for doc in docs:
        parts.append(wrapped(f"{threads_of(doc).capitalize()}, {extent_of(doc)}"))
        parts.append(groups_table(doc["groups"]))
    parts.append(losses_link(docs, "sizes", losses_path))
    return "\n\n".join(parts)


def about(doc: Document) -> str:
    """How to read the tables: what is compared, and with which versions."""
    versions = doc["versions"]
    return (
        f"Whole networks on the same machine: time of onnxruntime {versions.get('onnxruntime')} "
        "divided by ours, geometric means of medians of paired ratios over sizes, all of them "
        "through one executable each. Results are compared before they are timed: they differ by "
        "at most 1e-4 of the largest output. MiniLM and PP-OCR have trained weights, the others "
        "random ones. A loss counts when even the upper 95 % bound of its ratio is below the "
        "floor; sizes in doubt are measured again with three times the rounds, as far as the time "
        "allows; means are of first runs. Plain TVM has dynamic shapes too and was timed on the "
        "smallest size. Build: seconds of the processor to import and compile a network, the "
        "operator library being in its cache. Memory: the most that a process that runs all sizes "
        "holds, without what it held before the network was loaded."
    )


def extent_of(doc: Document) -> str:
    """How much of the list was measured, with how many rounds, and beside what."""
    rounds = [row["rounds"] for row in doc["rows"]]
    text = f"{len(doc['rows'])} of the {len(all_cases())} sizes of the list"
    text += f", {min(rounds)} to {max(rounds)} rounds a size"
    return f"{text}. {doc['remark']}" if doc.get("remark") else f"{text}."


def groups_table(groups: Sequence[dict[str, Any]]) -> str:
    """One line a network: what was to be reached, and what was."""
    lines = [
        [
            one["title"],
            str(one["sizes"]),
            strong(number(one["vs_best"])),
            goal(one),
            met(one) if one["target"] is not None else "",
            str(one["slower"]),
            str(one["losses_that_count"]),
            number(one["worst"]),
            number(one["vs"].get(PLAIN)),
            build_seconds(one),
            *(mebibytes(one, engine) for engine in (OURS, ORT)),
        ]
        for one in groups
    ]
    titles = ["network", "sizes", "vs onnxruntime", "target", "met", "slower", "losses that count"]
    titles += ["worst", "vs plain TVM", "build, s", "memory, MiB", "onnxruntime's"]
    return markdown(titles, lines)


def losses_page(docs: Sequence[Document]) -> str:
    """The page of losses: every size whose median is below 1, by document."""
    how = (
        "Written by `python -m bench.models.page`. A loss counts when even the upper 95 % bound is "
        "below the floor of its network. What the sizes are: "
        + "; ".join(f"{one.title}: {one.axes}" for one in GROUPS.values())
        + "."
    )
    parts = ["# Sizes at which onnxruntime is faster", wrapped(how)]
    for doc in docs:
        slower = losses(doc["rows"])
        counted = sum(row["loss"] for row in slower)
        parts.append(f"## {threads_of(doc).capitalize()}")
        parts.append(wrapped(f"Measured were {extent_of(doc)}"))
        parts.append(f"{len(slower)} sizes are slower, of which {counted} count.")
        titles = ["counts", "network and size", "ratio", "95 % bounds", "rounds", "ms"]
        if slower:
            lines = [loss_line(row) for row in slower]
            parts.append(markdown([*titles, "onnxruntime's ms"], lines))
    return "\n\n".join(parts) + "\n"


def loss_line(row: Row) -> list[str]:
    """The cells of one loss."""
    return [
        "yes" if row["loss"] else "",
        row["key"],
        number(row["vs_best"]),
        bounds(row["vs_best_bounds"]),
        str(row["rounds"]),
        *(milliseconds(row, engine) for engine in (OURS, ORT)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write table and page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.models.page", description=__doc__)
    return write_pages(parser, arguments, LOSSES, FORMAT, section, losses_page, MARKERS, PAGE)


if __name__ == "__main__":
    sys.exit(main())
