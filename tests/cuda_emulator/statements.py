"""Marks of where a kernel is: a call before each statement that notes its line."""

from __future__ import annotations

import re

_NO_STATEMENT = re.compile(r"else\b|case\b|default\b|[{}#]|extern\b|__shared__\b")


def mark_statements(code: str, bodies: list[tuple[int, int]], first_line: int) -> str:
    """The code with `emu::at(line);` before each statement inside the bodies.

    Args:
        code: C++ without comments.
        bodies: the indices of the braces around each function to mark.
        first_line: the number of the first line of `code`.
    """
    marks = [mark for begin, end in bodies for mark in _starts(code, begin, end)]
    parts, last, line = [], 0, first_line
    for index in marks:
        line += code.count("\n", last, index)
        parts += [code[last:index], f"emu::at({line}); "]
        last = index
    return "".join([*parts, code[last:]])


def _starts(code: str, begin: int, end: int) -> list[int]:
    """The indices at which a statement starts."""
    starts: list[int] = []
    depth = 0  # of parentheses and of initialisers, which hold no statements
    braces: list[bool] = []  # is this brace a block?
    fresh = False  # has a statement just ended?
    before = ")"
    i = begin
    while i < end:
        char = code[i]
        if char == "#" and fresh:  # a pragma takes its line
            i = code.index("\n", i)
            continue
        if char.isspace():
            i += 1
            continue
        if fresh and depth == 0:
            if not _NO_STATEMENT.match(code, i):
                starts.append(i)
            fresh = False
        if char == '"':
            i = code.index('"', i + 1)
        elif char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == "{":
            block = depth == 0 and (before in ");{}" or code[:i].rstrip().endswith(("else", "do")))
            braces.append(block)
            depth += 0 if block else 1
            fresh = block
        elif char == "}":
            block = braces.pop()
            depth -= 0 if block else 1
            fresh = block
        elif char == ";" and depth == 0:
            fresh = True
        before = char
        i += 1
    return starts
