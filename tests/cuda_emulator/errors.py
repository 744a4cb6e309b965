"""What can go wrong: in translating a source, and in running a kernel."""

from __future__ import annotations

_QUOTED = 240  # characters


class TranslationError(ValueError):
    """The CUDA source uses something that is not modelled; the message quotes it."""


class Fault(RuntimeError):
    """A launch that a GPU must not be given: what went wrong, which thread, which line."""


def quoted(source: str, line: int) -> str:
    """The number of a line, from 1, and its text in backquotes, shortened.

    A statement that goes on, as `asm` does, is quoted with its next lines.
    """
    lines = [text.strip() for text in source.splitlines()]
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    following = iter(lines[line:])
    while text.endswith(("(", '"', "\\")) and len(text) < _QUOTED:
        text += " " + next(following, ";")
    return f"line {line}: `{text if len(text) <= _QUOTED else text[: _QUOTED - 3] + '...'}`"
