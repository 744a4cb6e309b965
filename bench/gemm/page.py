"""The README's table of the product bench, and the page of its losses, from its JSON documents.

``python -m bench.gemm.page bench/results/gemm-1-thread.json bench/results/gemm-2-threads.json``
writes both. Nothing in them is written by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.gemm.document import FORMAT
from bench.gemm.groups import Group
from bench.gemm.report import NOTHING, bounds, met, number, percent, target
from bench.gemm.summary import FLOOR, Row, losses

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
LOSSES = ROOT / "bench" / "results" / "gemm-losses.md"
BEGIN, END = "<!-- gemm: begin -->", "<!-- gemm: end -->"
LIBRARIES = {
    "openblas": "OpenBLAS",
    "mkl_packed": "MKL packed",
    "onednn_packed": "oneDNN packed",
    "onnxruntime": "onnxruntime",
}
WIDTH = 100
Document = dict[str, Any]


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


def losses_link(docs: Sequence[Document], what: str, losses_path: str) -> str:
    """The sentence under the tables that leads to the page of losses; ``what`` was measured."""
    slower = sum(len(losses(doc["rows"])) for doc in docs)
    total = sum(len(doc["rows"]) for doc in docs)
    last = f"[All {slower} of {total} {what} in which a library is faster]({losses_path}), the "
    return wrapped(last + "worst first; every figure is in the JSON beside it.")


def losses_of(
    doc: Document,
    what: str,
    titles: Sequence[str],
    line: Callable[[Row], list[str]],
    measured: str | None = None,
) -> list[str]:
    """The paragraphs of a document on the page of losses: for how many threads, what was
    ``measured``, how many rows are ``what``, and a line for each of them."""
    slower = losses(doc["rows"])
    counted = sum(row["loss"] for row in slower)
    parts = [f"## {threads_of(doc).capitalize()}"]
    parts += [] if measured is None else [wrapped(f"Measured were {measured}")]
    parts.append(f"{len(slower)} {what}, of which {counted} count.")
    return [*parts, *([markdown(titles, [line(row) for row in slower])] if slower else [])]


def numbers(found: Sequence[int]) -> str:
    """From the least to the most of them."""
    least, most = min(found), max(found)
    return f"{least} to {most}" if least < most else str(least)


def about(doc: Document) -> str:
    """How to read the tables: the machine, what is compared, and with which versions."""
    machine, versions = doc["machine"], doc["versions"]
    caches = ", ".join(f"{name} {size}" for name, size in machine.get("caches", {}).items())
    peak = doc["peak_gflops"]
    return (
        f"On a {machine['cores']}-core {machine['cpu']} ({caches}"
        + ("" if peak is None else f"; FMA peak {peak:.1f} GFLOP/s on one thread")
        + f"): time of the best library divided by ours, geometric means of medians of paired "
        f"ratios, above 1 ours is faster. The best of {library_names(versions)} is picked for each "
        "case on half of the rounds and compared on the other half. Libraries that write into "
        "memory of the caller are compared with our packed function called the same way, the "
        "others with the executable called through the virtual machine. A loss counts when even "
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


def same_machine(docs: Sequence[Document]) -> None:
    """Raises ValueError where documents are of several machines or states of the code."""
    for doc in docs[1:]:
        for name in ("cpu", "cores", "caches", "system"):
            if docs[0]["machine"].get(name) != doc["machine"].get(name):
                raise ValueError(f"the documents were measured on machines of another {name}")
        if docs[0].get("code") != doc.get("code"):
            raise ValueError("the documents were measured by another state of the code")


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


def threads_of(doc: Document) -> str:
    """``one thread``, ``2 threads``."""
    return "one thread" if doc["threads"] == 1 else f"{doc['threads']} threads"


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


def wrapped(text: str) -> str:
    """A paragraph in lines; links stay whole."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def strong(text: str) -> str:
    """Bold unless there is nothing."""
    return text if text == NOTHING else f"**{text}**"


def markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [titles, ["---"] * len(titles), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def replace_section(text: str, made: str, markers: tuple[str, str] = (BEGIN, END)) -> str:
    """``text`` with ``made`` between the markers; raises ValueError when they are not there."""
    before, begin, rest = text.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end:
        raise ValueError(f"no {markers[0]} ... {markers[1]} in the text")
    return f"{before}{begin}\n{made}\n{end}{after}"


def read_document(path: Path, expected: int = FORMAT) -> Document:
    """A document of this format; raises ValueError when it is of another."""
    found = json.loads(path.read_text())
    if found.get("format") != expected:
        raise ValueError(f"{path}: format {found.get('format')}, expected {expected}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write table and page; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gemm.page", description=__doc__)
    return write_pages(parser, arguments, LOSSES, FORMAT, section, losses_page)


def write_pages(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    losses_file: Path,
    expected: int,
    section: Callable[[Sequence[Document], str], str],
    losses_page: Callable[[Sequence[Document]], str],
    markers: tuple[str, str] = (BEGIN, END),
    text_file: Path = README,
) -> int:
    """Write the ``section`` between the markers of the README, or of another text, and the page of
    losses, of documents of the ``expected`` format; returns the exit code, or ends the program with
    a message."""
    parser.add_argument("documents", nargs="+", type=Path, metavar="JSON")
    parser.add_argument("--readme", type=Path, default=text_file)
    parser.add_argument("--losses", type=Path, default=losses_file)
    options = parser.parse_args(arguments)
    try:
        docs = [read_document(path, expected) for path in options.documents]
        docs.sort(key=lambda doc: doc["threads"])
        same_machine(docs)
        link = os.path.relpath(options.losses.resolve(), options.readme.resolve().parent)
        made = section(docs, Path(link).as_posix())
        text = replace_section(options.readme.read_text(), made, markers)
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    options.readme.write_text(text)
    options.losses.write_text(losses_page(docs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
