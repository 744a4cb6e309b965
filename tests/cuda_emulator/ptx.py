"""`asm` statements: their PTX is parsed and becomes calls of the emulator's runtime."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cuda_emulator.errors import TranslationError
from cuda_emulator.scan import split_top

_TOKEN = re.compile(r"\s*(%\d+|\.\w+|[A-Za-z_]\w*(?:\.\w+(?:::\w+)?)*|0x[0-9a-fA-F]+|\d+|\S)")
_OPERAND = re.compile(r'\s*"([^"]*)"\s*\((.*)\)\s*$', re.DOTALL)
_STRING = re.compile(r'\s*"((?:[^"\\]|\\.)*)"')
_REGISTER_TYPES = {
    ".pred": "bool",
    ".b16": "unsigned short",
    ".u16": "unsigned short",
    ".s32": "int",
    ".b32": "unsigned int",
    ".u32": "unsigned int",
    ".s64": "long long",
    ".b64": "unsigned long long",
    ".u64": "unsigned long long",
    ".f32": "float",
}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@dataclass(frozen=True)
class Operand:
    """One operand as C++, or the members of a `{...}` list."""

    code: str
    members: tuple[str, ...] | None = None

    def each(self) -> tuple[str, ...]:
        """The members of a list; a single operand is a list of one."""
        return (self.code,) if self.members is None else self.members


def translate_asm(body: str) -> str:
    """C++ for what stands between the parentheses of an `asm` statement.

    Raises:
        TranslationError: for PTX or operands that are not modelled; it quotes them.
    """
    sections = split_top(body, ":")
    text, rest = "", sections[0]
    while match := _STRING.match(rest):
        text += match.group(1)
        rest = rest[match.end() :]
    if rest.strip():
        raise TranslationError(f"asm text that is no string: `{rest.strip()}`")
    operands = [_operand(o) for part in sections[1:3] for o in split_top(part, ",") if o.strip()]
    ptx = re.sub(r"\\[nrt]", " ", text)
    return _Parser(ptx, operands).block(end="")


def _operand(text: str) -> str:
    match = _OPERAND.match(text)
    if match is None or not re.fullmatch(r"[=+]?[hrlfn]", match.group(1)):
        raise TranslationError(f"asm operand `{text.strip()}`")
    return f"({match.group(2).strip()})"


class _Parser:
    def __init__(self, ptx: str, operands: list[str]) -> None:
        self.ptx = ptx
        self.operands = operands
        self.tokens = _TOKEN.findall(ptx)
        self.next = 0
        self.registers: set[str] = set()

    def error(self, what: str) -> TranslationError:
        return TranslationError(f"{what} in the PTX `{' '.join(self.ptx.split())}`")

    def peek(self) -> str:
        return self.tokens[self.next] if self.next < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if expected and token != expected:
            raise self.error(f"`{token}` where `{expected}` was expected")
        self.next += 1
        return token

    def block(self, end: str) -> str:
        statements = []
        while self.peek() != end:
            if not self.peek():
                raise self.error("a missing `}`")
            statements.append(self.statement())
        return "{ " + " ".join(s for s in statements if s) + " }"

    def statement(self) -> str:
        token = self.take()
        if token == ";":
            return ""
        if token == "{":
            code = self.block(end="}")
            self.take("}")
            return code
        if token == ".reg":
            return self.declaration()
        if token == "@":
            negated = self.peek() == "!"
            if negated:
                self.take()
            condition = self.register(self.take())
            return f"if ({'!' if negated else ''}{condition}) {{ {self.statement()} }}"
        return self.instruction(token)

    def declaration(self) -> str:
        kind = self.take()
        if kind not in _REGISTER_TYPES:
            raise self.error(f"registers of type `{kind}`")
        names = [self.take()]
        while self.peek() == ",":
            self.take()
            names.append(self.take())
        self.take(";")
        self.registers.update(names)
        return f"{_REGISTER_TYPES[kind]} {', '.join('ptx_' + name for name in names)};"

    def register(self, name: str) -> str:
        if name not in self.registers:
            raise self.error(f"the undeclared register `{name}`")
        return f"ptx_{name}"

    def instruction(self, opcode: str) -> str:
        operands: list[Operand] = []
        while self.peek() != ";":
            if operands:
                self.take(",")
            operands.append(self.operand())
        self.take(";")
        for pattern, write in _INSTRUCTIONS:
            match = re.fullmatch(pattern, opcode)
            if match:
                code = write(match, operands)
                if code is not None:
                    return code
        raise self.error(f"the instruction `{opcode}` with {len(operands)} operands")

    def operand(self) -> Operand:
        token = self.take()
        if token == "{":
            members = [self.operand().code]
            while self.peek() == ",":
                self.take()
                members.append(self.operand().code)
            self.take("}")
            return Operand("", tuple(members))
        if token == "[":
            code = self.operand().code
            if self.peek() == "+":
                self.take()
                code = f"({code} + {self.operand().code})"
            self.take("]")
            return Operand(code)
        if re.fullmatch(r"%\d+", token):
            number = int(token[1:])
            if number >= len(self.operands):
                raise self.error(f"no operand `{token}`")
            return Operand(self.operands[number])
        if re.fullmatch(r"0x[0-9a-fA-F]+|\d+", token):
            return Operand(token)
        return Operand(self.register(token))


_Writer = Callable[[re.Match[str], list[Operand]], str | None]


def _ldmatrix(match: re.Match[str], operands: list[Operand]) -> str | None:
    if len(operands) != 2:
        return None
    transposed = "true" if match.group(2) else "false"
    out, address = operands[0].each(), operands[1].code
    return f"emu::ldmatrix<{match.group(1)}, {transposed}>({', '.join((address, *out))});"


def _mma(match: re.Match[str], operands: list[Operand]) -> str | None:
    counts = [len(operand.each()) for operand in operands]
    if counts != [4, 4, 2, 4]:
        return None
    everything = ", ".join(code for operand in operands for code in operand.each())
    return f"emu::mma_m16n8k16<emu::Format::{match.group(1)}>({everything});"


def _cp_async(match: re.Match[str], operands: list[Operand]) -> str | None:
    if len(operands) not in (3, 4):
        return None
    to, source, size = (operand.code for operand in operands[:3])
    filled = operands[3].code if len(operands) == 4 else size
    whole_lines = "true" if match.group(1) == "cg" else "false"
    return f"emu::cp_async<{whole_lines}>({to}, {source}, {size}, {filled});"


def _setp(match: re.Match[str], operands: list[Operand]) -> str | None:
    if len(operands) != 3:
        return None
    kind = _REGISTER_TYPES["." + match.group(2)]
    result, a, b = (operand.code for operand in operands)
    return f"{result} = ({kind}){a} {_COMPARISONS[match.group(1)]} ({kind}){b};"


def _st_shared(match: re.Match[str], operands: list[Operand]) -> str | None:
    words = operands[1].each() if len(operands) == 2 else ()
    if len(words) != int(match.group(1) or 1):
        return None
    return f"emu::st_shared({', '.join((operands[0].code, *words))});"


def _with(count: int, code: str) -> _Writer:
    def write(_: re.Match[str], operands: list[Operand]) -> str | None:
        if len(operands) != count or any(operand.members is not None for operand in operands):
            return None
        return code.format(*(operand.code for operand in operands))

    return write


# Opcode -> C++; a writer answers None when the operands are not those of the form it knows.
_INSTRUCTIONS: list[tuple[str, _Writer]] = [
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16|bf16)\.\1\.f32", _mma),
    (r"cp\.async\.(ca|cg)\.shared(?:::cta)?\.global(?:\.L2::(?:64|128|256)B)?", _cp_async),
    (r"cp\.async\.commit_group", _with(0, "emu::commit_copies();")),
    (r"cp\.async\.wait_group", _with(1, "emu::wait_copies({0});")),
    (r"cp\.async\.wait_all", _with(0, "emu::wait_all_copies();")),
    (r"st\.shared(?:::cta)?(?:\.v([24]))?\.[bu]32", _st_shared),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.([bsu]32|[bsu]64)", _setp),
    (r"cvta\.to\.shared\.u64", _with(2, "{0} = emu::to_shared({1});")),
    (r"cvt\.u32\.u64", _with(2, "{0} = (unsigned int)({1});")),
    (r"mov\.[bsu](?:32|64)", _with(2, "{0} = {1};")),
]
