"""``moonpoly explain conv2d N H W C OC``: how a convolution is assembled."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import output, targets
from tvm_moonpoly.cli.command import parser, positive

if TYPE_CHECKING:
    from tvm_moonpoly.cli.measure_conv import ConvMeasurement
    from tvm_moonpoly.explanation_conv import ConvExplanation

EXAMPLES = """
moonpoly explain conv2d 1 56 56 64 64 --kernel 3 3 --padding 1 1 1 1
moonpoly explain conv2d 1 224 224 3 64 --kernel 7 7 --strides 2 2 --padding 3 3 3 3 --threads 1
moonpoly explain conv2d 1 56 56 64 64 --kernel 3 3 --padding 1 1 1 1 --measure
moonpoly explain conv2d 8 14 14 256 1024 --json
"""


def main(arguments: Sequence[str]) -> int:
    """Print the plan of one convolution; returns the exit code."""
    usage = _parser()
    options = usage.parse_args(arguments)
    # TVM reads it when its thread pool starts
    if options.threads is not None:
        os.environ.setdefault("TVM_NUM_THREADS", str(options.threads))
    from tvm_moonpoly import explanation_conv
    from tvm_moonpoly.operators.conv_constants import ConvSpec

    try:
        spec = ConvSpec(
            kernel=tuple(options.kernel),
            in_channels=options.c,
            out_channels=options.oc,
            strides=tuple(options.strides),
            padding=tuple(options.padding),
            dilation=tuple(options.dilation),
            groups=options.groups,
            direct=options.direct,
        )
        spec.output_size(options.h, options.w)
    except ValueError as error:
        usage.error(str(error))
    target = targets.parsed(options.target)
    half = options.dtype == "float16"
    found = explanation_conv.explained_conv2d(
        options.n, options.h, options.w, spec, target, options.threads, half
    )
    measured = _measured(found, target) if options.measure else None
    if options.json:
        document = {"dtype": options.dtype, **found.to_json()}
        output.print_json(document if measured is None else {**document, **measured.to_json()})
    else:
        console = output.console()
        output.say_lines(console, explanation_conv.text(found))
        for line in [] if measured is None else measured.verdict():
            output.say(console, line)
    return 0


def _measured(found: ConvExplanation, target: Any) -> ConvMeasurement:
    from tvm_moonpoly.cli import measure_conv

    return measure_conv.measured(found, target)


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _parser() -> argparse.ArgumentParser:
    found = parser(
        "explain conv2d",
        "How a convolution of x[N, H, W, C] with constant weights is assembled: its form, blocks, "
        "micro-kernels, workspace and predicted time.",
        EXAMPLES,
    )
    sizes = {"n": "images", "h": "rows", "w": "columns", "c": "channels", "oc": "output channels"}
    for name, what in sizes.items():
        found.add_argument(name, metavar=name.upper(), type=positive, help=what)
    for name, count, default, kind, what in (
        ("kernel", 2, [1, 1], positive, "rows and columns of the kernel"),
        ("strides", 2, [1, 1], positive, "from one output to the next"),
        ("padding", 4, [0] * 4, _not_negative, "zeros on top, left, bottom and right"),
        ("dilation", 2, [1, 1], positive, "from one element of the kernel to the next"),
    ):
        words = " ".join(map(str, default))
        found.add_argument(
            f"--{name}", nargs=count, type=kind, default=default, metavar="SIZE",
            help=f"{what} (default: {words})",
        )  # fmt: skip
    found.add_argument("--groups", type=positive, default=1, help="groups (default: 1)")
    found.add_argument(
        "--direct", action="store_true", help="never by Winograd's algorithm (default: if it suits)"
    )
    found.add_argument(
        "--dtype",
        choices=["float32", "float16"],
        default="float32",
        help="type of the operands (default: float32)",
    )
    found.add_argument("--threads", type=targets.threads, help="threads (default: all cores)")
    targets.add_option(found, gpus=False)
    found.add_argument(
        "--measure",
        action="store_true",
        help="time it here, where it is by Winograd's algorithm also without",
    )
    found.add_argument("--json", action="store_true", help="print JSON; times in picoseconds")
    return found
