"""Reading the assembly of a function: its innermost loops and what they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Of each instruction set: a fused multiply-add on whole vectors with the accumulator it adds to, a
#: store, a reference to the stack, and a vector put on the stack.
PATTERNS = {
    "avx2": {
        "fma": r"^vfmadd\d+ps\s.*,\s*%(ymm\d+)$",
        "store": r"^v?mov\w*\s+%\w+,\s*\S*\(",
        "stack": r"\(%rsp",
        "spill": r"%ymm\d+,\s*-?\w*\(%rsp",
    },
    "avx512": {
        "fma": r"^vfmadd\d+ps\s.*,\s*%(zmm\d+)$",
        "store": r"^v?mov\w*\s+%\w+,\s*\S*\(",
        "stack": r"\(%rsp",
        "spill": r"%zmm\d+,\s*-?\w*\(%rsp",
    },
    "neon": {
        "fma": r"^fmla\s+(v\d+)\.4s,",
        "store": r"^st",
        "stack": r"\[sp",
        "spill": r"^st[rp]\s+q\d+.*\[sp",
    },
}

_JUMP = re.compile(r"^(?:j\w+|b(?:\.\w+)?|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s+(\.L\w+)")


@dataclass(frozen=True)
class Code:
    """Instructions of one function or loop, labels and comments removed."""

    lines: tuple[str, ...]
    isa: str

    def count(self, what: str) -> int:
        return sum(bool(re.search(PATTERNS[self.isa][what], line)) for line in self.lines)

    def accumulators(self) -> set[str]:
        """The registers that multiply-adds add to."""
        found = (re.search(PATTERNS[self.isa]["fma"], line) for line in self.lines)
        return {match.group(1) for match in found if match}


def function(assembly: str, name: str, isa: str) -> tuple[Code, list[Code]]:
    """The code of ``name`` and of its innermost loops that hold a multiply-add."""
    start = re.search(rf"^{re.escape(name)}:", assembly, re.MULTILINE)
    assert start, f"{name} is not in the assembly"
    end = re.search(r"^\.Lfunc_end", assembly[start.end() :], re.MULTILINE)
    assert end, f"{name} does not end"
    lines: list[str] = []
    labels: dict[str, int] = {}
    for raw in assembly[start.end() : start.end() + end.start()].splitlines():
        line = re.split(r"\s*(?:#|//)(?!\d)", raw)[0].strip()
        if label := re.match(r"^(\.L\w+):", line):
            labels[label.group(1)] = len(lines)
        elif line and not line.startswith("."):
            lines.append(line)
    found = [Code(tuple(lines[first:last]), isa) for first, last in _innermost(lines, labels)]
    return Code(tuple(lines), isa), [loop for loop in found if loop.count("fma")]


def _innermost(lines: list[str], labels: dict[str, int]) -> list[tuple[int, int]]:
    """The innermost loops as ranges of lines: from a label to the jump back to it."""
    follows: list[list[int]] = []
    backward: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        jump = _JUMP.match(line)
        target = labels.get(jump.group(1)) if jump else None
        leaves = re.match(r"^(jmp|ret\w*|b)\b(?!\.)", line)
        follows.append([t for t in (None if leaves else at + 1, target) if t is not None])
        if target is not None and target <= at:
            backward.append((target, at))
    loops = [(first, at + 1) for first, at in backward if at in _reached(first, follows)]
    return [
        (first, last)
        for first, last in loops
        if not any((f, e) != (first, last) and first <= f and e <= last for f, e in loops)
    ]


def _reached(start: int, follows: list[list[int]]) -> set[int]:
    seen, waiting = set(), [start]
    while waiting:
        at = waiting.pop()
        if at not in seen and at < len(follows):
            seen.add(at)
            waiting += follows[at]
    return seen
