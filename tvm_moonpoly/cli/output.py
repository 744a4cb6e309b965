"""Tables for people, JSON for programs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tvm_moonpoly.cli.command import printable

#: Wide enough that nothing is cut where there is no terminal to fit into.
_PIPE_WIDTH = 1000


def console(to_stderr: bool = False) -> Console:
    """Prints to the terminal, or plain lines of any length to a pipe or file."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    # nothing that is printed is markup: it may come from a file
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def working(what: str) -> contextlib.AbstractContextManager[object]:
    """Says on a terminal, and only there, what takes so long."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    return console(to_stderr=True).status(what)


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose cells are folded, never cut; columns of numbers are set to the right."""
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    result = Table(title_justify="left")
    for i, name in enumerate(columns):
        numbers = bool(texts) and all(_is_number(row[i]) for row in texts)
        result.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in texts:
        result.add_row(*row)
    return result


def print_pairs(console: Console, rows: Sequence[tuple[str, object]]) -> None:
    """Names and what they stand for, in two columns."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(console, f"{name:{width}}  {value}")


def say(console: Console, line: str, style: str | None = None) -> None:
    """A line of any length, whatever the names in it hold."""
    console.print(printable(line), style=style, soft_wrap=True)


def say_lines(console: Console, text: str) -> None:
    """Each of the lines of ``text``."""
    for line in text.split("\n"):
        say(console, line)


def size(count: int) -> str:
    """Bytes as people write them: 32 KiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return f"{count} bytes"


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix("%") or "0")
    except ValueError:
        return text == "-"
    return True
