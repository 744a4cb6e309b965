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
from tvm_moonpoly.cli.command import UserError, parser, positive

if TYPE_CHECKING:
    import onnx
    from tvm.target import Target

    from relax_passes import Report

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
    model = load(options.model)
    sizes = dict(options.dim)
    if len(sizes) < len(options.dim):
        found.error("--dim: a dimension is named twice")
    fix_dimensions(model, sizes)
    target = targets.parsed(options.target)
    with output.working(f"compiling {options.model}"):
        report = compiled(model, target, path, options.static)
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
    found.add_argument(
        "--dim",
        type=_dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="fix a dynamic dimension; may be repeated",
    )
    targets.add_option(found)
    found.add_argument(
        "--static", action="store_true", help="rewrite products of static shape as well"
    )
    found.add_argument("--json", action="store_true", help="print the report as JSON")
    return found


def _dimension(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=SIZE, not {text!r}")
    return name, positive(size)


def load(path: Path) -> onnx.ModelProto:
    """The model in the file; raises UserError, or OSError when the file cannot be read."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path)
    except DecodeError as error:
        raise UserError(f"{path}: this is no ONNX model ({error})") from error
    if not model.graph.node:
        raise UserError(f"{path}: this is no ONNX model, or it has no operators")
    return model


def fix_dimensions(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    """Give the dynamic dimensions named in ``sizes`` their size, in place.

    Dynamic dimensions without a name get one, ``INPUT_AXIS``: TVM would take them all for equal.
    So do those that some exporters write as -1: TVM would take that for their size.
    Raises UserError for a name that no input has.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    free = [value for value in graph.input if value.name not in constants]
    for value in free:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.WhichOneof("value") or dim.dim_value < 0:
                dim.dim_param = f"{value.name}_{axis}"
    names = sorted({dim.dim_param for value in free for dim in _dims(value) if dim.dim_param})
    unknown = sorted(set(sizes) - set(names))
    if unknown:
        known = ", ".join(names) if names else "none"
        raise UserError(f"--dim: no input has a dimension {unknown[0]!r}; dynamic are: {known}")
    for value in [*graph.input, *graph.output, *graph.value_info]:
        for dim in _dims(value):
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]


def compiled(model: onnx.ModelProto, target: Target, path: Path, static: bool) -> Report:
    """Compile ``model`` and write it to ``path`` in one step; what became of its operators."""
    import tvm
    from tvm.relax.frontend.onnx import from_onnx

    from relax_passes import Report, pipeline

    report = Report()
    executable = tvm.compile(
        from_onnx(model), target, relax_pipeline=pipeline(target, report=report, static=static)
    )
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}{path.suffix}")
    try:
        executable.export_library(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return report


def inputs(model: onnx.ModelProto) -> list[dict[str, Any]]:
    """The inputs that the compiled function takes: name, type, and shape with names of dynamic
    dimensions."""
    import onnx

    constants = {tensor.name for tensor in model.graph.initializer}
    return [
        {
            "name": value.name,
            "dtype": str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
            "shape": [dim.dim_param or dim.dim_value for dim in _dims(value)],
        }
        for value in model.graph.input
        if value.name not in constants
    ]


def _dims(value: onnx.ValueInfoProto) -> Any:
    return value.type.tensor_type.shape.dim


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
