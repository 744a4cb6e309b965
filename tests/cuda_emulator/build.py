"""The translated sources, compiled by g++. What was compiled once is found by its content."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cuda_emulator.errors import TranslationError, quoted

_RUNTIME = Path(__file__).parent / "runtime"
#: Names a folder that processes which inherit it share: compiled libraries, and `TALLY`.
SHARED = "MOONPOLY_EMULATOR_FOLDER"
#: A file in it that gets one line a compilation: the library, and the test that needed it.
TALLY = "tally"
_FLAGS = ("-std=c++17", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing")


def missing_compiler() -> str | None:
    """Why kernels cannot be emulated here, or None when they can."""
    return None if shutil.which("g++") else "the emulator of CUDA kernels needs g++"


@cache
def runtime_library(workdir: Path) -> Path:
    """The shared library of the runtime, built into `workdir` unless it is there."""
    sources = sorted(_RUNTIME.glob("*.cc"))
    text = "".join(path.read_text() for path in sorted(_RUNTIME.iterdir()))
    library = workdir / f"runtime-{_digest(text)}.so"
    with _only_one(library):
        if not library.exists():
            _compile([*map(str, sources), "-O3", f"-Wl,-soname,{library.name}"], library)
    return library


def kernel_library(cpp: str, source: str, workdir: Path) -> Path:
    """The shared library of a translated source, built into `workdir` unless it is there.

    Raises:
        TranslationError: where g++ does not accept it; it quotes the CUDA line.
    """
    runtime = runtime_library(workdir)
    library = workdir / f"kernels-{_digest(runtime.name + cpp)}.so"
    with _only_one(library):
        if not library.exists():
            text = library.with_suffix(".cc")
            text.write_text(cpp)
            link = ("-L", str(workdir), f"-l:{runtime.name}", "-Wl,-rpath,$ORIGIN")
            try:
                _compile(["-O1", "-w", "-I", str(_RUNTIME), str(text), *link], library)
            except subprocess.CalledProcessError as error:
                raise TranslationError(_first_error(error.stderr, source)) from None
    return library


@contextlib.contextmanager
def _only_one(library: Path) -> Iterator[None]:
    """Within it, no other process makes the same library: it waits, and then finds it."""
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(text: str) -> str:
    return hashlib.sha256("\0".join((text, *_FLAGS)).encode()).hexdigest()[:16]


def _compile(arguments: list[str], library: Path) -> None:
    """Into a file of another name first: a library that is there is whole."""
    if shared := os.environ.get(SHARED):
        with Path(shared, TALLY).open("a", encoding="utf-8") as lines:
            test = os.environ.get("PYTEST_CURRENT_TEST", "no test").partition(" (")[0]
            lines.write(f"{library.name} {test}\n")  # short: lines of several processes do not mix
    handle, name = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        command = ["g++", *_FLAGS, *arguments, "-o", name]
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(name, library)
    finally:
        Path(name).unlink(missing_ok=True)


def _first_error(messages: str, source: str) -> str:
    match = re.search(r"kernel\.cu:(\d+):\d+: error: (.*)", messages)
    if match is None:
        return f"g++ does not accept the translated source: {messages[:2000]}"
    return f"not modelled, {quoted(source, int(match.group(1)))}: {match.group(2)}"
