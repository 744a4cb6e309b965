"""``moonpoly explain model.onnx``: what a model is compiled to, and where its time goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_moonpoly.cli import output, targets
from tvm_moonpoly.cli.command import UsageError, UserError, parser, positive

if TYPE_CHECKING:
    from tvm.target import Target

    from tvm_moonpoly.model_explanation import ModelExplanation
    from tvm_moonpoly.onnx_import.load import Loaded

EXAMPLES = """
moonpoly explain model.onnx
moonpoly explain model.onnx --dims batch=1,seq=128
moonpoly explain model.onnx --dims batch=1,seq=128 --without ScheduleMemoryBound
moonpoly explain model.onnx --dim seq=1:512:8 --dims batch=1,seq=128 --json
"""

#: Functions in the table of times; the rest is a line of its own.
MOST_ROWS = 25


def main(arguments: Sequence[str]) -> int:
    """Compile, measure, print; returns the exit code."""
    from tvm_moonpoly.cli import compile as compile_command

    usage = _parser()
    options = usage.parse_args(arguments)
    promises = dict(options.dim)
    if len(promises) < len(options.dim):
        usage.error("--dim: a dimension is named twice")
    model = compile_command.loaded(options.model, promises)
    target = targets.parsed(options.target)
    _require_cpu(target)
    found = _explained(model, target, options)
    if options.json:
        from tvm_moonpoly.model_explanation.as_data import to_json

        document = {"model": str(options.model), "inputs": compile_command.inputs(model)}
        output.print_json({**document, **to_json(found)})
    else:
        from tvm_moonpoly.cli import explain_model_tables

        explain_model_tables.show(found, compile_command.inputs(model), MOST_ROWS)
    return 0


def _explained(model: Loaded, target: Target, options: argparse.Namespace) -> ModelExplanation:
    from tvm_moonpoly.machine import Machine
    from tvm_moonpoly.model_explanation import SizeError, explained_model
    from tvm_moonpoly.operators.operator_library import runs_here

    runs = runs_here(Machine.from_target(target))
    try:
        with output.working(f"compiling and measuring {options.model}"):
            return explained_model(
                model.module,
                model.inputs,
                target,
                sizes=options.dims,
                without=options.without,
                compare=not options.no_plain,
                measure=runs and not options.no_measure,
            )
    except SizeError as error:
        raise UsageError(f"--dims: {error}") from error
    except ValueError as error:
        if not str(error).startswith("without: "):
            raise
        raise UsageError(f"--{error}") from error


def _require_cpu(target: Target) -> None:
    if target.kind.name != "llvm":
        raise UserError(f"--target: models are explained for CPUs, not for {target.kind.name}")


def _parser() -> argparse.ArgumentParser:
    from tvm_moonpoly.cli import compile as compile_command

    found = parser(
        "explain",
        "What an ONNX model is compiled to: what each pass changed, what is known of its sizes, "
        "the memory of a call, and the time of each function, in plain TVM and here. Times and "
        "bytes need the sizes of a call (--dims), unless the model has no dynamic dimensions, or a "
        "likely size of each is told (--dim).",
        EXAMPLES,
    )
    found.add_argument("model", type=Path, help="the ONNX model")
    found.add_argument(
        "--dims",
        type=_sizes,
        metavar="NAME=SIZE,...",
        help="the size of each dynamic dimension in the call that is measured, by its name or as "
        "INPUT:AXIS, where it is not the likely one; they stay dynamic",
    )
    compile_command.add_dim(found)
    found.add_argument(
        "--without",
        type=lambda text: [name for name in text.split(",") if name],
        action="extend",
        default=[],
        metavar="PASS,...",
        help="leave passes out, to see what they bring about; may be repeated",
    )
    targets.add_option(found, gpus=False)
    found.add_argument("--no-plain", action="store_true", help="do not compile it by plain TVM")
    found.add_argument("--no-measure", action="store_true", help="do not run it")
    found.add_argument("--json", action="store_true", help="print JSON; times in seconds")
    return found


def _sizes(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.strip().rpartition("=")
        if not equals or not name:
            raise argparse.ArgumentTypeError(f"must be NAME=SIZE,..., not {text!r}")
        if name in found:
            raise argparse.ArgumentTypeError(f"{name!r} is named twice")
        found[name] = positive(size)
    return found
