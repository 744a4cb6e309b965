"""``moonpoly explain matmul M N K``: how a product is assembled; measured with ``--measure``.

``moonpoly explain conv2d ...`` and ``moonpoly explain model.onnx`` are modules of their own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import output, targets
from tvm_moonpoly.cli.command import UserError, parser, positive

if TYPE_CHECKING:
    from tvm_moonpoly.cli.measure import Measurement
    from tvm_moonpoly.explanation import Explanation

EXAMPLES = """
moonpoly explain matmul 128 3072 768
moonpoly explain matmul 128 3072 768 --measure
moonpoly explain matmul 64 64 32 --batch 12 --threads 2
moonpoly explain matmul 1 4096 4096 --target x86-64-v3 --json
moonpoly explain matmul 300 4096 4096 --target nvidia-a100 --transposed
"""

OPERATOR, CONVOLUTION = "matmul", "conv2d"

#: Types whose products are computed in float32, after a conversion; and those in plain loops.
CONVERTED = ("float16", "bfloat16")
PLAIN = ("int8", "int32", "int64", "float64")

#: Of each size: what is larger fits no memory.
LARGEST = (1 << 31) - 1


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one shape; returns the exit code."""
    if CONVOLUTION in arguments:
        from tvm_moonpoly.cli import explain_conv

        at = arguments.index(CONVOLUTION)
        return explain_conv.main([*arguments[:at], *arguments[at + 1 :]])
    if any(each.lower().endswith(".onnx") for each in arguments):
        from tvm_moonpoly.cli import explain_model

        return explain_model.main(arguments)
    usage = _parser()
    options = usage.parse_args(arguments)
    for name in ("m", "n", "k", "batch"):
        if getattr(options, name) > LARGEST:
            usage.error(f"argument {name.upper()}: must be at most {LARGEST}")
    if targets.is_gpu(options.target):
        from tvm_moonpoly.cli import explain_gpu

        return explain_gpu.show(options)
    options.dtype = options.dtype or "float32"
    if options.transposed:
        usage.error("argument --transposed: this is for GPUs")
    if options.dtype in PLAIN:
        return _say_plain(options)
    # TVM reads it when its thread pool starts
    if options.threads is not None:
        os.environ.setdefault("TVM_NUM_THREADS", str(options.threads))
    from tvm_moonpoly import explanation

    target = targets.parsed(options.target)
    found = explanation.explained(
        options.m,
        options.n,
        options.k,
        target,
        options.batch,
        options.threads,
        constant_weights=not options.dynamic and options.batch == 1,
    )
    measured = _measured(found, target) if options.measure else None
    if options.json:
        document = {"dtype": options.dtype, "planned": True, **found.to_json()}
        output.print_json(document if measured is None else {**document, **measured.to_json()})
    else:
        _show(found, measured, options.dtype)
    return 0


def _parser() -> argparse.ArgumentParser:
    found = parser(
        "explain",
        "How C[M, N] = A[M, K] @ B[K, N] is assembled: regions, micro-kernels, block sizes, the "
        "predicted time, the runners-up, and why the plan was chosen.",
        EXAMPLES,
    )
    found.add_argument(
        "operator",
        type=_operator,
        metavar="OPERATOR",
        help="matmul; or conv2d, see explain conv2d -h; or a model, see explain x.onnx -h",
    )
    for name, what in (("m", "rows of A"), ("n", "columns of B"), ("k", "columns of A")):
        found.add_argument(name, metavar=name.upper(), type=positive, help=what)
    found.add_argument(
        "--dtype",
        choices=["float32", *CONVERTED, *PLAIN],
        help="type of the operands (default: float32, on a GPU float16)",
    )
    found.add_argument(
        "--batch",
        type=positive,
        default=1,
        help="products in one call; more than 1 means two operands that change (default: 1)",
    )
    found.add_argument("--threads", type=targets.threads, help="threads (default: all cores)")
    found.add_argument(
        "--dynamic",
        action="store_true",
        help="B changes from call to call (default: constant weights, packed when compiling)",
    )
    found.add_argument("--transposed", action="store_true", help="B is stored as (N, K), for GPUs")
    targets.add_option(found)
    found.add_argument(
        "--measure",
        action="store_true",
        help="time the plan and its runners-up here, and name the best plan found",
    )
    found.add_argument("--json", action="store_true", help="print JSON; times in picoseconds")
    return found


def _operator(text: str) -> str:
    if text != OPERATOR:
        raise argparse.ArgumentTypeError(
            f"must be {OPERATOR}, {CONVOLUTION} or a model (a file that ends in "
            f".onnx), not {text!r}"
        )
    return text


def _say_plain(options: argparse.Namespace) -> int:
    reason = f"{options.dtype} products are computed by plain loops, without a plan"
    if options.measure:
        raise UserError(f"--measure: {reason}")
    if options.json:
        shape = {name: getattr(options, name) for name in ("dtype", "m", "n", "k", "batch")}
        output.print_json({**shape, "planned": False, "why": reason})
    else:
        output.console().print(reason)
    return 0


def _measured(found: Explanation, target: Any) -> Measurement:
    from tvm_moonpoly.cli import measure

    return measure.measured(found, target)


def _show(found: Explanation, measured: Measurement | None, dtype: str) -> None:
    from tvm_moonpoly import explanation_text

    console = output.console()
    if dtype in CONVERTED:
        console.print(f"{dtype} operands are converted first; the product is one of float32:")
    output.say_lines(console, explanation_text.text(found, runners_up=measured is None))
    if measured is not None:
        console.print(measured.table())
        for line in measured.verdict():
            output.say(console, line)
