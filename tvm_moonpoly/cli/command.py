"""What all commands share: finding the command, exit codes, and errors in one sentence.

Imports nothing heavy: help and version come at once. 0: done, 1: failed, 2: wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import TextIO

import tvm_moonpoly
from tvm_moonpoly import verbosity

#: Each command is the module of its name in this package, called with what follows the name.
COMMANDS = {
    "info": "versions, this CPU, and the tuning log in use",
    "tune": "measure this machine and write its tuning log",
    "explain": "how a product, a convolution or a whole model is computed, and why so",
    "compile": "compile an ONNX model to a shared library",
    "bench": "time this package against other libraries",
    "logs": "list, show, export, import or clear tuning logs",
}

EXAMPLES = """\
examples:
  moonpoly info
  moonpoly explain matmul 128 3072 768 --measure
  moonpoly compile model.onnx -o model.so

'moonpoly COMMAND --help' tells more. MOONPOLY_LOG=info prints what became of each operator,
MOONPOLY_LOG=debug also where an error comes from."""

INTERRUPTED = 130  # as shells report SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_characters(stream)
    try:
        code = _called(list(sys.argv[1:] if arguments is None else arguments))
        # what a full disk does not take is an error of the command, not of Python's end
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard_output()  # the reader has seen enough
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except Exception as error:
        if verbosity.level() == verbosity.LEVELS["debug"]:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        _complain(f"error: {sentence(error)}")
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        return 2 if isinstance(error, UsageError) else 1


def _called(given: list[str]) -> int:
    try:
        name, rest = _command(given)
        run: Callable[[list[str]], int] = importlib.import_module(f"tvm_moonpoly.cli.{name}").main
        return run(rest)
    except SystemExit as ended:  # argparse, after help or wrong usage
        return _exit_code(ended)


def parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """The parser of the command ``name``: a description, options, then examples."""
    return argparse.ArgumentParser(
        prog=f"moonpoly {name}",
        description=textwrap.fill(description, 79),
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return value


def sentence(error: BaseException) -> str:
    """What went wrong, in one line; errors that nobody foresaw with their type."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return printable(f"{error.filename}: {error.strerror}")
    if isinstance(error, UserError):
        return printable(str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    if said.endswith(":") and len(lines) > 1:  # a heading says nothing
        said = f"{said} {lines[1]}"
    foreseen = isinstance(error, (ValueError, OSError)) or type(error) is LookupError
    return printable(said if foreseen else f"{type(error).__name__}: {said}")


def printable(text: str) -> str:
    """``text`` in one line, and without what a terminal would obey: names of files and of what is
    in a model may hold anything."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class UserError(Exception):
    """What is to be said to the user as it is."""


class UsageError(UserError):
    """Options that do not fit what they are about: wrong usage, found out late."""


def _command(given: list[str]) -> tuple[str, list[str]]:
    commands = "\n".join(f"  {name:9} {summary}" for name, summary in COMMANDS.items())
    top = argparse.ArgumentParser(
        prog="moonpoly",
        usage="moonpoly [--help] [--version] COMMAND ...",
        description="Dynamic-shape operators for Apache TVM, assembled from tuned micro-kernels.",
        epilog=f"commands:\n{commands}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"moonpoly {tvm_moonpoly.__version__}")
    top.add_argument(
        "command", metavar="COMMAND", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS
    )
    at = next((i for i, text in enumerate(given) if not text.startswith("-")), len(given))
    name: str | None = top.parse_args(given[: at + 1]).command
    if name is None:
        top.error(f"COMMAND must be one of {', '.join(COMMANDS)}")
    return name, given[at + 1 :]


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    _complain(f"error: {ended.code}")
    return 1


def _complain(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens
        print(line, file=sys.stderr)


def _open_streams() -> None:
    """Let streams that the caller has closed (``>&-``) lead nowhere: else the next file that is
    opened takes their number, and gets what native code prints."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _discard_output() -> None:
    """Nothing can be written any more, neither now nor when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _never_fail_on_characters(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
