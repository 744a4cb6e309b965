"""CUDA modules that hold machine code, so that loading an executable compiles nothing.

Where no CUDA driver is found, TVM's code generator makes modules of CUDA source, which are compiled
when they are loaded. Here the source is replaced in the bytes that such a module is exported as,
which are those of TVM's CUDA runtime: the format's name, a table of the functions, the code.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tvm_ffi
from tvm.runtime import Module
from tvm_ffi import libinfo

from tvm_moonpoly import logs, versions
from tvm_moonpoly.operators import cache
from tvm_moonpoly.operators.cuda import machine_code

KIND = "cuda"

_FORMAT = "cubin"
_LOADER = "ffi.Module.load_from_bytes.cuda"
_FORCE_SOURCE = "TVM_COMPILE_FORCE_FALLBACK"
_PLACEHOLDER = Path(__file__).with_name("kernels.cc")


@contextlib.contextmanager
def as_source() -> Iterator[None]:
    """Within it, TVM's code generator makes modules of CUDA source, driver or not."""
    before = os.environ.get(_FORCE_SOURCE)
    os.environ[_FORCE_SOURCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FORCE_SOURCE]
        else:
            os.environ[_FORCE_SOURCE] = before


def with_machine_code(
    modules: Sequence[Module], arch: str, done: Callable[[], None] = lambda: None
) -> list[Module] | None:
    """CUDA modules of source (`as_source`), compiled for ``arch``; None where that is not possible,
    and why is told to the log once. ``done`` is called after each."""
    sources = [str(module.inspect_source("cuda")) for module in modules]
    try:
        codes = machine_code.compiled(sources, arch, done)
    except RuntimeError as error:
        logs.say_once(
            logging.WARNING,
            f"executables hold CUDA source, which is compiled when they are loaded: {error}",
        )
        return None
    if codes is None:
        logs.say_once(
            logging.WARNING,
            f"{machine_code.MISSING}: executables hold CUDA source, which is compiled when they "
            "are loaded",
        )
        return None
    parts = zip(modules, sources, codes, strict=True)
    saved = [exported(saved_bytes(module), source, code) for module, source, code in parts]
    return made(saved, sources)


def made(saved: Sequence[bytes], sources: Sequence[str]) -> list[Module] | None:
    """CUDA modules of the bytes that they are exported as, and their sources for those who look.

    None, and told to the log once, where there is neither a CUDA driver nor a C++ compiler.
    """
    load = tvm_ffi.get_global_func(_LOADER, allow_missing=True)
    if load is not None:
        return [load(data) for data in saved]
    try:
        create = _placeholder()["moonpoly_compiled_kernels"]
    except (OSError, subprocess.CalledProcessError) as error:
        logs.say_once(
            logging.WARNING,
            f"executables hold CUDA source, which is compiled when they are loaded: g++ cannot "
            f"build what holds machine code where there is no CUDA driver ({error})",
        )
        return None
    return [create(data, source) for data, source in zip(saved, sources, strict=True)]


def exported(saved: bytes, source: str, code: bytes) -> bytes:
    """The bytes of a module, ``saved`` with CUDA ``source``, with machine ``code`` in its place.

    Raises ValueError where they are not what TVM 0.27 writes.
    """
    head, tail = _text(KIND), _text(source)
    if not (saved.startswith(head) and saved.endswith(tail)):
        raise ValueError("saved: these are not the bytes of a CUDA module of this source")
    table = saved[len(head) : -len(tail)]
    return _text(_FORMAT) + table + struct.pack("<Q", len(code)) + code


def saved_bytes(module: Module) -> bytes:
    """The bytes that a CUDA module is exported as.

    Raises ValueError where TVM does not write what version 0.27 does.
    """
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    packed = pack(module).numpy().tobytes()
    head = _text(KIND)
    at = packed.find(head) + len(head)
    (size,) = struct.unpack_from("<Q", packed, at)
    if at < len(head) or at + 8 + size != len(packed):
        raise ValueError("module: it is not exported as TVM 0.27 does")
    return packed[at + 8 :]


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


@functools.cache
def _placeholder() -> Module:
    """The library that holds machine code where TVM's CUDA runtime does not load."""
    key = cache.key_of([_PLACEHOLDER.read_text("utf-8"), versions.installed("apache-tvm-ffi")])
    path = cache.load(key, ".so") or cache.store(key, _compile, ".so")
    if path is not None:
        return tvm_ffi.load_module(str(path))
    with tempfile.TemporaryDirectory(prefix="moonpoly-") as folder:
        path = Path(folder, "kernels.so")
        _compile(path)
        return tvm_ffi.load_module(str(path))


def _compile(library: Path) -> None:
    include = [f"-I{path}" for path in libinfo.include_paths()]
    ffi = Path(libinfo.find_libtvm_ffi())
    options = ["-std=c++17", "-O1", "-fPIC", "-shared", *include]
    # the symbols are those of the library that this process has loaded
    command = [
        "g++",
        *options,
        str(_PLACEHOLDER),
        "-o",
        str(library),
        f"-L{ffi.parent}",
        "-ltvm_ffi",
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
