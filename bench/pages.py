"""What the pages that are written from the benches' documents have in common.

A page is text between two markers, with a table for each document, and a page of losses beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.cells import NOTHING
from bench.gemm.summary import Row, losses

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
WIDTH = 100
Document = dict[str, Any]


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


def met(one: dict[str, Any]) -> str:
    """Whether the goal of a group is met, and if not, what is missed."""
    if one["met"]:
        return "yes"
    below = one["vs_best"] is None or one["vs_best"] < one["target"]
    missed = ["ratio"] * below + ["floor"] * (one["losses_that_count"] > 0)
    return f"no: {', '.join(missed)}"


def extent_of(doc: Document, what: str, total: int, sample: str = "") -> str:
    """How many of the ``total`` cases of a list were measured, with how many rounds, and beside
    what else; ``sample`` says how a part of them was chosen."""
    rounds = [row["rounds"] for row in doc["rows"]]
    text = f"{len(rounds)} of the {total} {what}s of the list"
    text += sample * (len(rounds) < total) + f", {numbers(rounds)} rounds a {what}"
    return f"{text}. {doc['remark']}" if doc.get("remark") else f"{text}."


def numbers(found: Sequence[int]) -> str:
    """From the least to the most of them."""
    least, most = min(found), max(found)
    return f"{least} to {most}" if least < most else str(least)


def threads_of(doc: Document) -> str:
    """``one thread``, ``2 threads``."""
    return "one thread" if doc["threads"] == 1 else f"{doc['threads']} threads"


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


def markers(bench: str) -> tuple[str, str]:
    """What encloses the section of a bench."""
    return f"<!-- {bench}: begin -->", f"<!-- {bench}: end -->"


def replace_section(text: str, made: str, bench: str) -> str:
    """``text`` with ``made`` between the markers; raises ValueError when they are not there."""
    first, last = markers(bench)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"no {first} ... {last} in the text")
    return f"{before}{begin}\n{made}\n{end}{after}"


def read_documents(paths: Sequence[Path], expected: int) -> list[Document]:
    """A document for each number of threads, the fewest first; raises ValueError where one is of
    another format than ``expected``, or they are of several machines or states of the code."""
    docs = [read_document(path, expected) for path in paths]
    same_machine(docs)
    threads = sorted({doc["threads"] for doc in docs})
    return [together([doc for doc in docs if doc["threads"] == one]) for one in threads]


def together(docs: Sequence[Document]) -> Document:
    """One document of those of a number of threads: that which has rows, with what all have of
    peers that were measured beside ours. Raises ValueError unless there is one such document."""
    whole = [doc for doc in docs if doc["rows"]]
    if len(whole) != 1:
        raise ValueError(f"{len(whole)} documents of {threads_of(docs[0])} have rows, not one")
    beside = [
        part if doc is whole[0] else part | {"remark": doc.get("remark", "")}
        for doc in docs
        for part in doc.get("beside", [])
    ]
    return {**whole[0], "beside": beside}


def read_document(path: Path, expected: int) -> Document:
    """A document of this format; raises ValueError when it is of another."""
    found: Document = json.loads(path.read_text())
    if found.get("format") != expected:
        raise ValueError(f"{path}: format {found.get('format')}, expected {expected}")
    return found


def machine_of(doc: Document, more: str = "") -> str:
    """The machine that a document is of: cores, CPU, caches, and what ``more`` is said of it."""
    machine = doc["machine"]
    caches = ", ".join(f"{name} {size}" for name, size in machine.get("caches", {}).items())
    described = "; ".join(part for part in (caches, more) if part)
    return f"a {machine['cores']}-core {machine['cpu']}" + (f" ({described})" if described else "")


def same_machine(docs: Sequence[Document]) -> None:
    """Raises ValueError where documents are of several machines, states of the code or operator
    libraries, which tuning logs are a part of."""
    for doc in docs[1:]:
        for name in ("cpu", "cores", "caches", "system"):
            if docs[0]["machine"].get(name) != doc["machine"].get(name):
                raise ValueError(f"the documents were measured on machines of another {name}")
        if docs[0].get("code") != doc.get("code"):
            raise ValueError("the documents were measured by another state of the code")
        if docs[0].get("library") != doc.get("library"):
            raise ValueError("the documents were measured with another operator library")


def write_pages(
    bench: str,
    arguments: Sequence[str] | None,
    expected: int,
    section: Callable[[Sequence[Document], str], str],
    losses_page: Callable[[Sequence[Document]], str],
    text_file: Path = README,
) -> int:
    """The command line of a bench's pages: write the ``section`` between its markers in
    ``text_file``, and the page of losses, of documents of the ``expected`` format; returns the exit
    code, or ends the program with a message."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{bench}.page",
        description=f"Write the tables of bench.{bench}, and its page of losses, of its JSON.",
    )
    parser.add_argument("documents", nargs="+", type=Path, metavar="JSON")
    parser.add_argument("--readme", type=Path, default=text_file)
    parser.add_argument("--losses", type=Path, default=RESULTS / f"{bench}-losses.md")
    options = parser.parse_args(arguments)
    try:
        docs = read_documents(options.documents, expected)
        link = os.path.relpath(options.losses.resolve(), options.readme.resolve().parent)
        made = section(docs, Path(link).as_posix())
        text = replace_section(options.readme.read_text(), made, bench)
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    options.readme.write_text(text)
    options.losses.write_text(losses_page(docs))
    return 0
