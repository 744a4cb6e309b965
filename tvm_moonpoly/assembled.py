"""LLVM modules whose machine code is there already, as assembly text.

An LLVM module, as TVM loads it from a file, is intermediate code: LLVM generates machine code anew
in each process that calls it and for each library that is exported with it, which takes seconds for
the operator library. Here the code is generated once, and a module is made that holds it as
assembly. To assemble that takes a thirtieth of the time.

Two things stay intermediate code, as TVM looks them up by name: the packed functions, each of which
jumps to its code, and the pointers through which TVM tells a module where its runtime is.
"""

from __future__ import annotations

import re
from typing import Any

from tvm_moonpoly.llvm_modules import escaped, load_text

#: What TVM puts before the names of packed functions.
_PACKED = "__tvm_ffi_"

#: What is put before the names of their code.
_CODE = "_code_of_"

_LINKAGES = "(?:(?:dllexport|weak|weak_odr|linkonce|linkonce_odr|external|dso_local) )*"

_WRAPPER = """\
declare hidden i32 @{code}(ptr, ptr, i32, ptr)
define dllexport i32 @{name}(ptr %self, ptr %arguments, i32 %count, ptr %result) {{
  %status = tail call i32 @{code}(ptr %self, ptr %arguments, i32 %count, ptr %result)
  ret i32 %status
}}"""


def assembled(module: Any) -> Any:
    """The LLVM runtime module ``module`` with its code as assembly: it has the same packed
    functions, and can be called, exported and written to a file.

    What debuggers need to show TVM's intermediate form line by line is left out; functions keep
    their names. Raises RuntimeError when others could see more of ``module`` than packed functions
    and pointers to the runtime.
    """
    text = _without_debug_info(str(module.inspect_source("ll")))
    slots = re.findall(r"^@__TVM\w+ = .*$", text, re.MULTILINE)
    text = _replaced(r"^@(__TVM\w+) = .*\bglobal ptr null\b", r"@\1 = external global ptr", text)
    names = re.findall(rf"^define .*?@({_PACKED}\w+)\(", text, re.MULTILINE)
    text = _replaced(rf"@{_PACKED}(\w+)", rf"@{_CODE}\1", text)
    text = _replaced(rf"^define {_LINKAGES}(?!private|internal)", "define internal ", text)
    # private, or an empty list
    unseen = r"private|internal|external|appending global \[0 x"
    seen = re.findall(rf"^@.* = (?!{unseen}).*|^\$.*", text, re.MULTILINE)
    if seen:
        raise RuntimeError(f"a module with {seen[0]} cannot become assembly")
    assembly = load_text(text).inspect_source("s")
    return load_text("\n".join(_lines(text, str(assembly), slots, names)))


def _without_debug_info(text: str) -> str:
    text = _replaced(r"^\s*#dbg_\w+\(.*\n", "", text)
    text = _replaced(r",? !dbg !\d+", "", text)
    return _replaced(r"^!llvm\.dbg\.cu = .*\n", "", text)


def _replaced(pattern: str, new: str, text: str) -> str:
    return re.sub(pattern, new, text, flags=re.MULTILINE)


def _lines(text: str, assembly: str, slots: list[str], names: list[str]) -> list[str]:
    """The module in LLVM's assembly language, out of ``text``, which is the module's before."""
    lines = re.findall(r"^target .*$", text, re.MULTILINE)
    for line in assembly.splitlines():
        # comments, and what only an assembly file has
        if line.strip() and not line.lstrip().startswith(("#", ".file", ".ident")):
            lines.append(f'module asm "{escaped(line)}"')
    lines += slots
    lines += [_WRAPPER.format(name=name, code=name.replace(_PACKED, _CODE, 1)) for name in names]
    flags = re.findall(r"^!llvm\.module\.flags = .*$", text, re.MULTILINE)
    described = [
        re.findall(rf"^!{i} = .*$", text, re.MULTILINE) for i in re.findall(r"\d+", flags[0])
    ]
    return [*lines, *flags, *(line for each in described for line in each), ""]
