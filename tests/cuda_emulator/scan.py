"""Reading C++ text without parsing it: comments, strings, brackets."""

from __future__ import annotations

import re

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
    depth = 0
    i = opening
    while i < len(code):
        char = code[i]
        if char == '"':
            i = _end_of_string(code, i)
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise ValueError(f"nothing closes `{code[opening : opening + 40]}`")


def split_top(code: str, separator: str) -> list[str]:
    """The parts between separators that stand outside all brackets and strings."""
    parts, depth, begin, i = [], 0, 0, 0
    while i < len(code):
        char = code[i]
        if char == '"':
            i = _end_of_string(code, i)
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(code[begin:i])
            begin = i + 1
        i += 1
    return [*parts, code[begin:]]


def line_of(code: str, index: int) -> int:
    """The number of the line that holds `index`, from 1."""
    return code.count("\n", 0, index) + 1


def _end_of_string(code: str, quote: int) -> int:
    match = _STRING_OR_COMMENT.match(code, quote)
    if match is None:
        raise ValueError(f"a string never ends: `{code[quote : quote + 40]}`")
    return match.end() - 1
