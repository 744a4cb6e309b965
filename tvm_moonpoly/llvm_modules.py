"""LLVM modules in the form of text or bitcode, as TVM loads them."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import tvm

#: All but printable ASCII, and of that the quote and the backslash.
_SPECIAL = re.compile(rb"[^ !#-\[\]-~]")


def load_text(text: str) -> Any:
    """The LLVM runtime module that ``text``, LLVM's assembly language, describes; it can be called,
    exported and written to a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.ll"
        path.write_text(text, encoding="utf-8")
        return _load(path, "ll")


def load_bitcode(path: Path) -> Any:
    """The LLVM runtime module in a file of bitcode."""
    return _load(path, "bc")


def escaped(text: str) -> str:
    """``text`` as it stands between the quotes of LLVM's strings."""
    return _SPECIAL.sub(lambda found: b"\\%02X" % found[0][0], text.encode()).decode()


def _load(path: Path, form: str) -> Any:
    return tvm.get_global_func("ffi.Module.load_from_file.ll")(str(path), form)
