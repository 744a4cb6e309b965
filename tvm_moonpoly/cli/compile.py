"""``moonpoly compile model.onnx -o model.so``: a model compiled, and what was rewritten in it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import output, targets
from tvm_moonpoly.cli.command import UsageError, UserError, parser, positive

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.target import Target

    from relax_passes import Range, Report
    from tvm_moonpoly.onnx_import.load import Loaded

EXAMPLES = """
moonpoly compile model.onnx -o model.so
moonpoly compile model.onnx -o model.so --dim batch=1 --dim height=224
moonpoly compile model.onnx -o model.so --target x86-64-v3
"""


def main(arguments: Sequence[str]) -> int:
    """Compile, write, report; returns the exit code."""
    found = _parser()
    options = found.parse_args(arguments)
    path: Path = options.output
    if path.suffix != ".so":
        found.error(f"-o: must end in .so, not {path.name!r}")
    folder = path.resolve().parent
    if not folder.is_dir():
        found.error(f"-o: there is no folder {path.parent}")
    # before minutes of compiling
    if path.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"-o: {path} cannot be written")
    start = time.monotonic()
    dims = dict(options.dim)
    if len(dims) < len(options.dim):
        found.error("--dim: a dimension is named twice")
    model = loaded(options.model, dims)
    target = targets.parsed(options.target)
    with output.working(f"compiling {options.model}"):
        report = compiled(model.module, target, path, options.static)
    document = {
        "model": str(options.model),
        "output": str(path),
        "bytes": path.stat().st_size,
        "seconds": round(time.monotonic() - start, 1),
        "inputs": inputs(model),
        "rewritten": len(report.rewritten),
        "left": len(report.left),
        "operators": [dataclasses.asdict(entry) for entry in report],
    }
    if options.json:
        output.print_json(document)
    else:
        _show(document)
    return 0


def _parser() -> argparse.ArgumentParser:
    found = parser(
        "compile",
        "Compile an ONNX model to a shared library that runs with TVM's runtime alone, and report "
        "what became of its matrix products. Dimensions without a size stay dynamic.",
        EXAMPLES,
    )
    found.add_argument("model", type=Path, help="the ONNX model")
    found.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.so", help="the library to write"
    )
    add_dim(found)
    targets.add_option(found)
    found.add_argument(
        "--static", action="store_true", help="rewrite products of static shape as well"
    )
    found.add_argument("--json", action="store_true", help="print the report as JSON")
    return found


def add_dim(found: argparse.ArgumentParser) -> None:
    """Add the option `--dim`."""
    found.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="fix a dynamic dimension, by its name or as INPUT:AXIS; NAME=A:B promises sizes from "
        "A to B, NAME=A:B:STEP multiples of STEP among them, NAME=A:B:STEP:LIKELY tells a likely "
        "one, NAME=OTHER gives it another name; may be repeated",
    )


def dimension(text: str) -> tuple[str, int | str | Range]:
    """A value of `--dim`."""
    name, equals, size = text.rpartition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=SIZE, not {text!r}")
    if size.isidentifier():
        return name, size
    numbers = [positive(each) for each in size.split(":")]
    if len(numbers) > 4:
        raise argparse.ArgumentTypeError(
            f"must be NAME=A:B, NAME=A:B:STEP or NAME=A:B:STEP:LIKELY, not {text!r}"
        )
    if len(numbers) == 1:
        return name, numbers[0]
    return name, _range(numbers)


def _range(numbers: list[int]) -> Range:
    from relax_passes import Range

    try:
        smallest, largest, *more = numbers
        return Range(smallest, largest, more[0] if more else 1, tuple(more[1:]))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("Range: ")) from error


def loaded(path: Path, dims: Mapping[str, int | str | Range]) -> Loaded:
    """The model in the file; raises UserError, UsageError where ``dims``
    does not fit it, or OSError when the file cannot be read."""
    from tvm_moonpoly.onnx_import import OnnxImportError
    from tvm_moonpoly.onnx_import.load import load

    try:
        return load(path, dims)
    except OnnxImportError as error:
        raise UserError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"--dim: {str(error).removeprefix('dims: ')}") from error


def compiled(mod: IRModule, target: Target, path: Path, static: bool) -> Report:
    """Compile ``mod`` and write it to ``path`` in one step; what became of its operators."""
    import tvm

    from relax_passes import Report, pipeline

    report = Report()
    executable = tvm.compile(
        mod, target, relax_pipeline=pipeline(target, report=report, static=static)
    )
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}{path.suffix}")
    try:
        executable.export_library(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return report


def inputs(model: Loaded) -> list[dict[str, Any]]:
    """The inputs that the compiled function takes: name, type, and shape with names of dynamic
    dimensions."""
    from relax_passes.shapes import show_dim

    return [
        {
            "name": name,
            "dtype": dtype,
            "shape": [size if isinstance(size, int) else show_dim(size) for size in sizes],
        }
        for name, dtype, sizes in model.inputs
    ]


def _show(document: dict[str, Any]) -> None:
    console = output.console()
    counted: dict[tuple[str, ...], int] = {}
    for entry in document["operators"]:
        key = tuple(entry[name] for name in ("action", "function", "operator", "shapes", "detail"))
        counted[key] = counted.get(key, 0) + 1
    if counted:
        columns = ["number", "became", "function", "operator", "shapes", "detail"]
        console.print(output.table(columns, [(count, *key) for key, count in counted.items()]))
    for value in document["inputs"]:
        shape = ", ".join(str(size) for size in value["shape"])
        output.say(console, f"input {value['name']}: {value['dtype']} ({shape})")
    output.say(
        console,
        f"{document['rewritten']} rewritten, {document['left']} left as they were; wrote "
        f"{document['output']} ({output.size(document['bytes'])}) in {document['seconds']} s",
    )
