"""CUDA source as TVM prints it -> C++ that runs on the emulator's runtime.

Line breaks stay where they are, so that a line number means the same in both texts. TVM's preamble
(includes, helpers on values) is C++ already and stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cuda_emulator.errors import TranslationError, quoted
from cuda_emulator.ptx import translate_asm
from cuda_emulator.scan import closing, line_of, split_top, without_comments
from cuda_emulator.statements import mark_statements

# The last lines of the preamble that TVM puts before the first function of its own.
_PREAMBLE_END = "#define ushort unsigned short\n#endif\n"
_KNOWN_HEADERS = re.compile(
    r"#\s*include\s*<(?:cuda\.h|cuda_fp16\.h|cuda_bf16\.h|mma\.h|math_constants\.h)>"
)
_SAFE_HEADERS = re.compile(r"<(?:cuda/std/)?(?:cstdint|type_traits|cmath|cstring)>")
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\((\d+)[^)]*\)\s+)?(\w+)\s*(\()'
)
_ASM = re.compile(r"\b(?:__asm__|asm)\s*(?:__volatile__|volatile)?\s*(\()")
_SCALARS = (
    "unsigned long long",
    "unsigned int",
    "unsigned short",
    "unsigned char",
    "signed char",
    "long long",
    "unsigned",
    "nv_bfloat162",
    "nv_bfloat16",
    "__nv_bfloat16",
    *(f"{sign}int{bits}_t" for sign in ("u", "") for bits in (8, 16, 32, 64)),
    "ushort",
    "uchar",
    "uint",
    "double",
    "float",
    "short",
    "half2",
    "half",
    "__half",
    "char",
    "bool",
    "void",
    "int",
)
_TYPE = "(?:" + "|".join(_SCALARS) + r"|(?:u?(?:char|short|int|longlong)|float|double)[234])"
_POINTER = re.compile(
    rf"(?:\b(?:const|volatile)\s+)?\b({_TYPE})\s*(?:\bconst\b\s*)?\*\s*(?:const\b\s*)?(?:__restrict__\b\s*)?"
)
# `(name*)` can only be a cast.
_CAST = re.compile(r"\(\s*(?:(?:const|volatile)\s+)?([A-Za-z_]\w*)\s*\*\s*\)")
_ALIGN = r"(?:(?:alignas|__align__)\(\d+\)\s*)?"
_DYNAMIC_SHARED = re.compile(rf"extern\s+__shared__\s+{_ALIGN}(\w[\w ]*?)\s+(\w+)\s*\[\s*\]\s*;")
_STATIC_SHARED = re.compile(rf"__shared__\s+{_ALIGN}(\w[\w ]*?)\s+(\w+)\s*\[\s*(\d+)\s*\]\s*;")
_LOCAL = re.compile(rf"(?<=[;{{}}\s]){_ALIGN}({_TYPE}|\w+[248])\s+(\w+)\s*\[\s*(\d+)\s*\]\s*;")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: `type` is the element's type where it is a pointer."""

    name: str
    type: str
    pointer: bool


@dataclass(frozen=True)
class Kernel:
    """A kernel's name, parameters and the threads that `__launch_bounds__` allows (or None)."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None


@dataclass(frozen=True)
class Translation:
    """C++ text and the kernels that it defines."""

    cpp: str
    kernels: tuple[Kernel, ...]


def translate(source: str) -> Translation:
    """Translates a CUDA source.

    Raises:
        TranslationError: for a construct that is not modelled; it quotes the line.
    """
    split = source.find(_PREAMBLE_END)
    split = 0 if split < 0 else split + len(_PREAMBLE_END)
    preamble, code = _includes(source[:split]), _includes(source[split:])
    first_line = line_of(source, split)
    try:
        code = without_comments(code)
        kernels = _kernels(code)
        if not kernels:
            raise TranslationError('no `extern "C" __global__` kernel in the source')
        code = mark_statements(code, _bodies(code), first_line)
        code = _replace_asm(code, source, first_line)
    except ValueError as error:
        if isinstance(error, TranslationError):
            raise
        raise TranslationError(str(error)) from None
    code = _pointers(_arrays(code))
    if match := re.search(r"\b(?:__shared__|__constant__|texture)\b.*", code):
        line = first_line + line_of(code, match.start()) - 1
        raise TranslationError(f"not modelled: {quoted(source, line)}")
    cpp = (
        f'#include "device.h"\n#line 1 "kernel.cu"\n{preamble}{code}\n'
        + "".join(map(_entry, kernels))
        # The host makes the device current before it launches; there is nothing to do.
        + _export("__tvm_set_device", "")
    )
    return Translation(cpp, kernels)


def _includes(code: str) -> str:
    """Drops CUDA's headers, which the runtime stands for."""
    code = _KNOWN_HEADERS.sub("", code)
    for match in re.finditer(r"#\s*include\s*(\S+)", code):
        if not _SAFE_HEADERS.fullmatch(match.group(1)):
            raise TranslationError(f"the header {match.group(1)} is not modelled")
    return code


def _kernels(code: str) -> tuple[Kernel, ...]:
    found = {}
    for match in _KERNEL.finditer(code):
        threads, name = match.group(1), match.group(2)
        inside = code[match.end() : closing(code, match.start(3))]
        parameters = tuple(_parameter(p) for p in split_top(inside, ",") if p.strip())
        found[name] = Kernel(name, parameters, int(threads) if threads else None)
    return tuple(found.values())


def _parameter(text: str) -> Parameter:
    words = re.sub(r"__restrict__|\bconst\b", " ", text).replace("*", " * ").split()
    *kind, name = words
    pointer = "*" in kind
    kind = " ".join(word for word in kind if word != "*")
    if not re.fullmatch(_TYPE, kind) or words.count("*") > 1:
        raise TranslationError(f"the kernel parameter `{text.strip()}` has an unknown type")
    return Parameter(name, kind, pointer)


def _bodies(code: str) -> list[tuple[int, int]]:
    """Where the bodies of the kernels begin and end. Device functions take their caller's line."""
    bodies = []
    for match in _KERNEL.finditer(code):
        after = closing(code, match.start(3)) + 1
        begin = after + len(code[after:]) - len(code[after:].lstrip())
        if code[begin] == "{":
            bodies.append((begin, closing(code, begin)))
    return bodies


def _replace_asm(code: str, source: str, first_line: int) -> str:
    parts, end = [], 0
    for match in _ASM.finditer(code):
        if match.start() < end:
            continue
        last = closing(code, match.start(1))
        inside = code[match.end() : last]
        try:
            statement = translate_asm(inside)
        except TranslationError as error:
            line = first_line + line_of(code, match.start()) - 1
            raise TranslationError(f"{error}; {quoted(source, line)}") from None
        parts += [code[end : match.start()], " ".join(statement.split()), "\n" * inside.count("\n")]
        end = last + 1
    return "".join([*parts, code[end:]])


def _arrays(code: str) -> str:
    """Arrays in shared memory of the kernels, and arrays of single threads."""
    parts, end = [], 0
    for begin, last in _bodies(code):
        parts += [code[end:begin], _shared_arrays(code[begin:last])]
        end = last
    return _LOCAL.sub(r'emu::Local<\1, \3> \2("\2");', "".join([*parts, code[end:]]))


def _shared_arrays(body: str) -> str:
    """Places the static arrays of one kernel one after the other."""
    before = "0"

    def place(match: re.Match[str]) -> str:
        nonlocal before
        kind, name, count = match.groups()
        at = f"emu_at_{name}_{match.start()}"
        offset = f"constexpr int {at} = ({before} + 127) / 128 * 128;"
        before = f"({at} + int(sizeof({kind})) * {count})"
        return f'{offset} const emu::Shared<{kind}, {count}, {at}> {name}("{name}");'

    dynamic = r"const emu::ptr<\1> \2(emu::dynamic_shared.begin, &emu::dynamic_shared);"
    return _STATIC_SHARED.sub(place, _DYNAMIC_SHARED.sub(dynamic, body))


def _pointers(code: str) -> str:
    return _CAST.sub(r"(emu::ptr<\1>)", _POINTER.sub(r"emu::ptr<\1> ", code))


def _entry(kernel: Kernel) -> str:
    types = (f"emu::ptr<{p.type}>" if p.pointer else p.type for p in kernel.parameters)
    arguments = ", ".join(f"emu::Argument<{t}>::get({i})" for i, t in enumerate(types))
    return (
        f'extern "C" void emu_enter_{kernel.name}() {{ {kernel.name}({arguments}); }}\n'
        + _export(kernel.name, f'emu_host_launch("{kernel.name}", arguments, count);')
    )


def _export(name: str, call: str) -> str:
    """A packed function by which a host module finds `name` among its imports."""
    return (
        f'extern "C" int __tvm_ffi_{name}(void*, const void* arguments, int count, void*) '
        f"{{ {call} return 0; }}\n"
    )
