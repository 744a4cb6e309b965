"""``moonpoly explain matmul M N K --target GPU``: how a product is assembled on a GPU."""

from __future__ import annotations

import argparse

from tvm_moonpoly.cli import output, targets
from tvm_moonpoly.cli.command import UserError

DTYPES = ("float16", "bfloat16")


def show(options: argparse.Namespace) -> int:
    """Print the plan of one shape; returns the exit code. Raises UserError."""
    dtype = options.dtype or DTYPES[0]
    if dtype not in DTYPES:
        raise UserError(f"--dtype: on a GPU it must be one of {', '.join(DTYPES)}, not {dtype}")
    for name in ("measure", "threads"):
        if getattr(options, name):
            raise UserError(f"--{name}: this is for CPUs")
    from tvm_moonpoly import explanation_cuda

    target = targets.parsed(options.target)
    try:
        found = explanation_cuda.explained(
            options.m, options.n, options.k, target, options.batch, dtype, options.transposed
        )
    except ValueError as error:
        raise UserError(f"--target: {str(error).removeprefix('target: ')}") from None
    if options.json:
        output.print_json({"planned": True, **found.to_json()})
        return 0
    output.say_lines(output.console(), explanation_cuda.text(found))
    return 0
