"""Peers that were measured beside ours, in words and cells: on how many cases, and in which of them
they are faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.beside import Part
from bench.cells import NOTHING, bounds, number
from bench.gemm.summary import mean
from bench.pages import Document, numbers


def columns(docs: Sequence[Document]) -> dict[str, str]:
    """The peers that any of ``docs`` has, each with its title."""
    return {part["engine"]: part["title"] for doc in docs for part in doc.get("beside", [])}


def cell(doc: Document, engine: str, group: str) -> str:
    """The mean ratio of a group's cases to a peer, and of how many: ``1.85 (3)``."""
    found = [
        row["ratio"]
        for part in doc.get("beside", [])
        for row in part["rows"]
        if part["engine"] == engine and row["group"] == group and row["ratio"] is not None
    ]
    return f"{number(mean(found))} ({len(found)})" if found else NOTHING


def sentence(part: Part, what: str) -> str:
    """On how many of ``what``, such as "size", a peer was timed, and in which of them it is faster,
    the worst first; and where it could not be timed."""
    timed = [row for row in part["rows"] if row["ratio"] is not None]
    slower = [
        f"{row['key']} ({number(row['ratio'])}, {bounds(row['bounds'])})"
        for row in sorted(timed, key=lambda row: row["ratio"])
        if row["ratio"] < 1
    ]
    title = part["title"]
    if "." not in title.partition(" ")[0]:  # torch.compile keeps its spelling
        title = f"{title[:1].upper()}{title[1:]}"
    text = f"{title} {part['version']}, with dynamic shapes as ours, "
    text += "was timed beside ours "
    text += f"on {len(timed)} {what}{'s' * (len(timed) != 1)}, {part['where']}, "
    if timed:
        text += f"in {numbers([row['rounds'] for row in timed])} rounds each, "
    text += f"and is faster in {len(slower)} of them"
    text += f": {', '.join(slower)}." if slower else "."
    reasons = Counter(row["absent"] for row in part["rows"] if row["ratio"] is None)
    text += "".join(f" Not timed on {count}: {why}." for why, count in reasons.items())
    return f"{text} {part['remark']}" if part.get("remark") else text
