"""The table of the networks in their page, and the page of losses, from the bench's documents.

``python -m bench.models.page bench/results/models-1-thread.json`` writes both. Nothing in them is
written by hand.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

from bench.conv.page import met
from bench.gemm.page import (
    ROOT,
    Document,
    losses_link,
    losses_of,
    markdown,
    numbers,
    strong,
    threads_of,
    wrapped,
    write_pages,
)
from bench.gemm.report import bounds, number
from bench.gemm.summary import Row
from bench.models.beside import BESIDE, Beside
from bench.models.build import ORT, OURS
from bench.models.cases import GROUPS, all_cases
from bench.models.report import build_seconds, goal, mebibytes, milliseconds
from bench.models.summary import FORMAT

PAGE = ROOT / "docs" / "models.md"
LOSSES = ROOT / "bench" / "results" / "models-losses.md"
MARKERS = "<!-- models: begin -->", "<!-- models: end -->"


def section(docs: Sequence[Document], losses_path: str) -> str:
    """What stands between the markers: what is compared, and the table of each document."""
    parts = [wrapped(about(docs[0]))]
    extra = wrapped(about_beside(docs))
    parts += [extra] if extra else []
    for doc in docs:
        parts.append(wrapped(f"{threads_of(doc).capitalize()}, {extent_of(doc)}"))
        parts.append(groups_table(doc["groups"], measured_in(docs)))
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
        "allows; means are of first runs. Build: seconds of the processor to import and compile a "
        "network, the operator library being in its cache. Memory: the most that a process that "
        "runs all sizes holds, without what it held before the network was loaded."
    )


def measured_in(docs: Sequence[Document]) -> list[Beside]:
    """The peers besides onnxruntime that any of ``docs`` has."""
    found = {name for doc in docs for group in doc["groups"] for name in group["vs"]}
    return [peer for peer in BESIDE if peer.engine in found]


def about_beside(docs: Sequence[Document]) -> str:
    """On which sizes these were measured."""
    versions = docs[0]["versions"]
    return " ".join(
        f"{peer.title} {versions.get(peer.package, '')} has dynamic shapes too, and was timed on "
        f"{peer.where}."
        for peer in measured_in(docs)
    )


def extent_of(doc: Document) -> str:
    """How much of the list was measured, with how many rounds, and beside what."""
    rounds = [row["rounds"] for row in doc["rows"]]
    text = f"{len(doc['rows'])} of the {len(all_cases())} sizes of the list"
    text += f", {numbers(rounds)} rounds a size"
    return f"{text}. {doc['remark']}" if doc.get("remark") else f"{text}."


def groups_table(groups: Sequence[dict[str, Any]], peers: Sequence[Beside]) -> str:
    """One line a network: what was to be reached, and what was; ``peers`` have columns too."""
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
            *(number(one["vs"].get(peer.engine)) for peer in peers),
            build_seconds(one),
            *(mebibytes(one, engine) for engine in (OURS, ORT)),
        ]
        for one in groups
    ]
    titles = ["network", "sizes", "vs onnxruntime", "target", "met", "slower", "losses that count"]
    titles += ["worst", *(f"vs {peer.title}" for peer in peers)]
    titles += ["build, s", "memory, MiB", "onnxruntime's"]
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
        titles = ["counts", "network and size", "ratio", "95 % bounds", "rounds", "ms"]
        peers = measured_in([doc])
        titles += ["onnxruntime's ms", *(f"vs {peer.title}" for peer in peers)]
        line = functools.partial(loss_line, peers=peers)
        parts += losses_of(doc, "sizes are slower", titles, line, extent_of(doc))
        parts += [wrapped(faster(doc, peer)) for peer in peers]
    return "\n\n".join(parts) + "\n"


def loss_line(row: Row, peers: Sequence[Beside]) -> list[str]:
    """The cells of one loss; ``peers`` have one each."""
    return [
        "yes" if row["loss"] else "",
        row["key"],
        number(row["vs_best"]),
        bounds(row["vs_best_bounds"]),
        str(row["rounds"]),
        *(milliseconds(row, engine) for engine in (OURS, ORT)),
        *(number(row["vs"].get(peer.engine)) for peer in peers),
    ]


def faster(doc: Document, peer: Beside) -> str:
    """At which of the sizes that it was measured on a peer other than onnxruntime is faster."""
    ratios = {row["key"]: row["vs"][peer.engine] for row in doc["rows"] if peer.engine in row["vs"]}
    slower = [f"{key} ({number(ratio)})" for key, ratio in ratios.items() if ratio < 1]
    start = f"{peer.title} was measured on {len(ratios)} sizes, and is faster at "
    return start + (", ".join(slower) or "none") + "."


def main(arguments: Sequence[str] | None = None) -> int:
    """Write table and page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.models.page", description=__doc__)
    return write_pages(parser, arguments, LOSSES, FORMAT, section, losses_page, MARKERS, PAGE)


if __name__ == "__main__":
    sys.exit(main())
