"""The table of the networks in their page, and the page of losses, from the bench's documents.

``python -m bench.models.page bench/results/models-1-thread.json`` writes both. Nothing in them is
written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from bench.beside import Part
from bench.beside_text import cell, columns, sentence
from bench.cells import bounds, number
from bench.gemm.summary import Row
from bench.models.build import ORT, OURS, graphs_of
from bench.models.cases import GROUPS, all_cases
from bench.models.report import build_seconds, goal, mebibytes, milliseconds
from bench.models.summary import FORMAT
from bench.pages import (
    ROOT,
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

PAGE = ROOT / "docs" / "models.md"


def section(docs: Sequence[Document], losses_path: str) -> str:
    """What stands between the markers: what is compared, and the table of each document."""
    parts = [wrapped(about(docs[0]))]
    beside = columns(docs)
    if beside:
        parts.append(f"In brackets: at how many sizes {' and '.join(beside.values())} were timed.")
    for doc in docs:
        parts.append(wrapped(f"{threads_of(doc).capitalize()}, {extent(doc)}"))
        parts.append(groups_table(doc, beside))
        parts += [wrapped(sentence(part, "size") + compiled(part)) for part in doc["beside"]]
    parts.append(losses_link(docs, "sizes", losses_path))
    return "\n\n".join(parts)


def about(doc: Document) -> str:
    """How to read the tables: what is compared, and with which versions."""
    versions = doc["versions"]
    return (
        f"Whole networks on {machine_of(doc)}: time of onnxruntime {versions.get('onnxruntime')} "
        "divided by ours, geometric means of medians of paired ratios over sizes, all of them "
        "through one executable each. Results are compared before they are timed: they differ by "
        "at most 1e-4 of the largest output. MiniLM and PP-OCR have trained weights, the others "
        "random ones. A loss counts when even the upper 95 % bound of its ratio is below the "
        "floor; sizes in doubt are measured again with three times the rounds, as far as the time "
        "allows; means are of first runs. Build: seconds of the processor to import and compile a "
        "network, the operator library being in its cache. Memory: the most that a process that "
        "runs all sizes holds, without what it held before the network was loaded."
    )


def compiled(part: Part) -> str:
    """In which time a peer compiled each network, and into how many graphs, or why it did not."""
    names = {one.network: one.title.partition(",")[0] for one in GROUPS.values()}
    told = []
    for network, built in part["built"].items():
        graphs = f" s ({graphs_of(built)})" if "graphs" in built else " s"
        took = built["failed"] if "failed" in built else f"{built['processor']:.0f}{graphs}"
        told.append(f"{names[network]} {took}")
    return f" To compile, of the processor: {'; '.join(told)}." if told else ""


def extent(doc: Document) -> str:
    """How much of the list was measured, with how many rounds, and beside what."""
    return extent_of(doc, "size", len(all_cases()))


def groups_table(doc: Document, beside: Mapping[str, str]) -> str:
    """One line a network: what was to be reached, what was, and against those of ``beside``."""
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
            *(cell(doc, engine, one["name"]) for engine in beside),
            build_seconds(one),
            *(mebibytes(one, engine) for engine in (OURS, ORT)),
        ]
        for one in doc["groups"]
    ]
    titles = ["network", "sizes", "vs onnxruntime", "target", "met", "slower", "losses that count"]
    titles += ["worst", *(f"vs {title}" for title in beside.values())]
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
    titles = ["counts", "network and size", "ratio", "95 % bounds", "rounds", "ms"]
    titles.append("onnxruntime's ms")
    for doc in docs:
        parts += losses_of(doc, "sizes are slower", titles, loss_line, extent(doc))
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
    return write_pages("models", arguments, FORMAT, section, losses_page, PAGE)


if __name__ == "__main__":
    sys.exit(main())
