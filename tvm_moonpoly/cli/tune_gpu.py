"""``moonpoly tune --gpu``: the offline stage for a GPU, so far without its measuring."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import command, output
from tvm_moonpoly.cli.command import UserError

if TYPE_CHECKING:
    from tvm_moonpoly.microkernels.cuda import Form
    from tvm_moonpoly.tuning.cuda.dry_run import Candidate

OPTION = "--gpu"

#: Known without loading tvm; a test compares them with the facts about GPUs.
NAMES = ("nvidia-a100", "nvidia-h100", "nvidia-h200", "nvidia-rtx3090", "nvidia-rtx4090")

EXAMPLES = """
moonpoly tune --gpu nvidia-a100 --dry-run
moonpoly tune --gpu nvidia-h100 --dry-run --form f16_f16_nt --count 4 --json
"""

_NO_GPU = (
    "no CUDA device was found, and measuring needs one: --dry-run (make: DRY_RUN=1) compiles and "
    "lists what would be measured"
)
_NOT_YET = (
    "measuring on a GPU is not there yet: --dry-run (make: DRY_RUN=1) compiles and lists what "
    "would be measured"
)


def main(arguments: Sequence[str]) -> int:
    """Print what the compiler tells of a GPU's micro-kernels."""
    told = _parser().parse_args(arguments)
    if not told.dry_run:
        import tvm

        raise UserError(_NOT_YET if tvm.cuda(0).exist else _NO_GPU)
    from tvm_moonpoly.microkernels.cuda import GPUS, find_nvcc
    from tvm_moonpoly.tuning.cuda import dry_run

    if find_nvcc() is None:
        raise UserError(
            "nvcc was not found on PATH, nor below CUDA_HOME or CUDA_PATH: install a CUDA toolkit"
        )
    forms = {form.name: form for form in dry_run.FORMS}
    unknown = [name for name in told.form if name not in forms]
    if unknown:
        raise UserError(f"--form must be one of {', '.join(forms)}, not {unknown[0]!r}")
    gpu, found = GPUS[told.gpu], {}
    for name in told.form:
        with output.working(f"compiling micro-kernels, {name}, for {gpu.arch}"):
            tiles = dry_run.shortlist(forms[name], gpu, told.count)
            found[name] = list(dry_run.compiled(forms[name], tiles, gpu))
    if told.json:
        output.print_json(
            {
                "gpu": asdict(gpu),
                "measured": False,
                "kernels": [_described(each) for group in found.values() for each in group],
            }
        )
        return 0
    console = output.console()
    for name, group in found.items():
        _print(console, forms[name], group)
    output.say(console, f"{gpu.name} ({gpu.arch}): costs are computed, nothing was measured")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tune --gpu",
        "List the micro-kernels that would be measured on a GPU: what the compiler tells of each, "
        "how many blocks a multiprocessor holds, and what share of the peak is computed from that.",
        EXAMPLES,
    )
    parser.add_argument(OPTION, required=True, choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--dry-run", action="store_true", help="do everything but the measuring")
    parser.add_argument(
        "--form",
        nargs="+",
        default=["f16_f16_nn", "f16_f16_nt", "f16_f16_nn_any"],
        metavar="FORM",
        help="dtypes of operands and result, layout of B (nn or nt), and _any for operands that "
        "are not aligned (default: %(default)s)",
    )
    parser.add_argument(
        "--count", type=command.positive, default=8, help="kernels of each form (default: 8)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _print(console: Any, form: Form, group: Sequence[Candidate]) -> None:
    columns = (
        "tile", "warps", "stages", "store", "registers", "shared", "blocks", "limited by",
        "of peak, computed", "",
    )  # fmt: skip
    rows = [
        (
            f"{c.tile.block_m}x{c.tile.block_n}x{c.tile.block_k}",
            f"{c.tile.warps_m}x{c.tile.warps_n}",
            c.tile.stages,
            c.tile.epilogue,
            c.resources.registers,
            output.size(c.shared_bytes),
            c.occupancy.blocks,
            c.occupancy.limit,
            "-" if c.of_peak is None else f"{c.of_peak:.0%}",
            f"rejected: {c.reason}" if c.reason else "",
        )
        for c in group
    ]
    table = output.table(columns, rows)
    table.title = form.name
    console.print(table)


def _described(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "tile": asdict(candidate.tile),
        "form": asdict(candidate.form),
        "resources": asdict(candidate.resources),
        "shared_bytes": candidate.shared_bytes,
        "blocks": candidate.occupancy.blocks,
        "limited_by": candidate.occupancy.limit,
        "of_peak_computed": candidate.of_peak,
        "rejected": candidate.reason or None,
    }
