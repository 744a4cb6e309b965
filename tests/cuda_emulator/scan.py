"""Reading C++ text without parsing it: comments, strings, brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def without_comments(code: str) -> str:
    """The code with each comment replaced by spaces; line breaks stay."""

    def blank(match: re.Match[str]) -> str:
        text = match.group(0)
        return text if text.startswith('"') else re.sub(r"[^\n]", " ", text)

    return _STRING_OR_COMMENT.sub(blank, code)


def closing(code: str, opening: int) -> int:
    """The index of the bracket that closes the one at `opening`.

    Raises:
        ValueError: if nothing closes it.
    """
    for i, char, depth in _outside_strings(code, opening):
        if depth == 0 and char in ")]}":
            return i
    raise ValueError(f"nothing closes `{code[opening : opening + 40]}`")


def split_top(code: str, separator: str) -> list[str]:
    """The parts between separators that stand outside all brackets and strings."""
    parts, begin = [], 0
    for i, char, depth in _outside_strings(code, 0):
        if char == separator and depth == 0:
            parts.append(code[begin:i])
            begin = i + 1
    return [*parts, code[begin:]]


def line_of(code: str, index: int) -> int:
    """The number of the line that holds `index`, from 1."""
    return code.count("\n", 0, index) + 1


def _outside_strings(code: str, begin: int) -> Iterator[tuple[int, str, int]]:
    """Each character outside strings: its index, itself, and the open brackets after it."""
    depth, i = 0, begin
    while i < len(code):
        char = code[i]
        if char == '"':
            i = _end_of_string(code, i)
        else:
            depth += (char in "([{") - (char in ")]}")
            yield i, char, depth
        i += 1


def _end_of_string(code: str, quote: int) -> int:
    match = _STRING_OR_COMMENT.match(code, quote)
    if match is None:
        raise ValueError(f"a string never ends: `{code[quote : quote + 40]}`")
    return match.end() - 1
