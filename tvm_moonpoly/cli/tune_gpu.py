"""``moonpoly tune --gpu``: options of the offline stage for a GPU, and it without measuring."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import command, output, tune_gpu_import, tune_gpu_stage
from tvm_moonpoly.cli.command import UserError
from tvm_moonpoly.tuning import options

if TYPE_CHECKING:
    from tvm_moonpoly.microkernels.cuda import Form
    from tvm_moonpoly.tuning.cuda.dry_run import Candidate

OPTION = "--gpu"

#: The other option that tells that a stage for a GPU is meant: its file tells which.
IMPORT = "--import"

#: Known without loading tvm; a test compares them with the facts about GPUs.
NAMES = ("nvidia-a100", "nvidia-h100", "nvidia-h200", "nvidia-rtx3090", "nvidia-rtx4090")

EXAMPLES = """
moonpoly tune --gpu nvidia-a100 --dry-run
moonpoly tune --gpu nvidia-h100 --dry-run --form f16_f16_nt --count 4 --json
moonpoly tune --gpu nvidia-h200 --dry-run --write
moonpoly tune --import results.json
moonpoly tune --gpu nvidia-a100 --minutes 30
moonpoly tune --gpu nvidia-a100 --propose wanted.json
moonpoly tune --gpu nvidia-a100 --replay results.json --propose wanted.json
"""

#: The forms that are listed by default.
_USUAL = ("f16_f16_nn", "f16_f16_nt", "f16_f16_nn_any")


def main(arguments: Sequence[str]) -> int:
    """Print what the compiler tells of a GPU's micro-kernels, or write a log of it."""
    told = _parsed(arguments)
    if told.import_ is not None:
        return tune_gpu_import.run(told)
    if not told.dry_run:
        return tune_gpu_stage.run(told)
    tune_gpu_stage.need_nvcc()
    return _write(told) if told.write else _list(told)


def _list(told: argparse.Namespace) -> int:
    from tvm_moonpoly.microkernels.cuda import GPUS
    from tvm_moonpoly.tuning.cuda import computed, dry_run

    gpu, found = GPUS[told.gpu], {}
    compile = functools.partial(dry_run.compiled, gpu=gpu)
    for form in tune_gpu_stage.forms(told.form):
        with output.working(f"compiling micro-kernels, {form.name}, for {gpu.arch}"):
            chosen, rejected = computed.shortlist(form, gpu, told.count, compile)
            found[form] = [*chosen, *rejected]
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
    for form, group in found.items():
        _print(console, form, group)
    output.say(console, f"{gpu.name} ({gpu.arch}): costs are computed, nothing was measured")
    return 0


def _write(told: argparse.Namespace) -> int:
    """The log of what is known without measuring, one file a dtype."""
    from tvm_moonpoly.microkernels.cuda import GPUS
    from tvm_moonpoly.operators.cuda import machine_code
    from tvm_moonpoly.tuning.cuda import computed, dry_run, gpu_logs

    gpu = GPUS[told.gpu]
    paths = {dtype: gpu_logs.path_of(gpu, dtype, told.output) for dtype in gpu_logs.DTYPES}
    for path in paths.values():
        if gpu_logs.is_measured(path, gpu):
            raise UserError(f"{path} was measured, and is not replaced by what is computed")
    counts = computed.Counts(elite=told.count)
    compile = functools.partial(dry_run.compiled, gpu=gpu)
    compiler = machine_code.compiler()
    console = output.console()
    for dtype, path in paths.items():
        with output.working(f"compiling micro-kernels, {dtype}, for {gpu.arch}"):
            found = computed.log_of(gpu, dtype, compile, counts)
        if not gpu_logs.write(path, gpu, found, {"compiler": compiler}):
            return 1  # and has said why
        output.say(console, f"wrote {path}: {len(found.kernels)} micro-kernels, {found.status}")
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    told = parser.parse_args(arguments)
    if told.gpu is None and told.import_ is None:
        parser.error(f"{OPTION}: which GPU? One of {', '.join(NAMES)}")
    if told.write and not told.dry_run:
        parser.error("--write goes with --dry-run: it writes what is known without measuring")
    if told.write and (told.json or told.form is not None):
        parser.error("--write takes all forms and prints no JSON: not with --form or --json")
    if told.output is not None and told.dry_run and not told.write:
        parser.error("--output goes with --write where nothing is measured")
    if told.import_ is not None and (told.dry_run or told.form is not None):
        parser.error("--import takes what was measured: not with --dry-run or --form")
    if (told.rpc is None) != (not told.key):
        parser.error("--rpc and --key go together: which tracker, and which of its servers")
    by_files = told.propose is not None or told.replay is not None
    if by_files and (told.rpc is not None or told.dry_run or told.import_ is not None):
        parser.error("--propose and --replay go without --rpc, --dry-run and --import")
    if told.count is not None and not told.dry_run:
        parser.error("--count goes with --dry-run")
    told.count = told.count or 8
    if told.dry_run:
        told.form = told.form or list(_USUAL)
    return told


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tune --gpu",
        "Search the micro-kernels of a GPU, measure them, and write its tuning log. A stage that "
        "was stopped goes on where it was: run the same command again. --dry-run does all but the "
        "measuring, and lists what the compiler tells of each kernel. --propose and --replay let "
        "search here and measuring elsewhere alternate.",
        EXAMPLES,
    )
    parser.add_argument(
        OPTION,
        choices=NAMES,
        metavar="NAME",
        help=f"{', '.join(NAMES)} (with {IMPORT} by default that of the file)",
    )
    parser.add_argument("--dry-run", action="store_true", help="do everything but the measuring")
    parser.add_argument(
        "--form",
        nargs="+",
        metavar="FORM",
        help="dtypes of operands and result, layout of B (nn or nt), and _any for operands that "
        f"are not aligned (default: all; with --dry-run {' '.join(_USUAL)})",
    )
    parser.add_argument(
        "--count",
        type=command.positive,
        help="with --dry-run: kernels of each form (default: 8)",
    )
    parser.add_argument(
        "--trials",
        type=command.positive,
        default=16,
        help="tiles that are measured of each form and size of blocks (default: 16)",
    )
    parser.add_argument(
        "--minutes",
        type=command.positive,
        default=60,
        help="time for all sessions together (default: 60)",
    )
    parser.add_argument("--seed", type=options.seed, default=0, help="of the search")
    parser.add_argument(
        "--rpc",
        type=options.address,
        metavar="HOST:PORT",
        help="measure on a GPU behind this TVM RPC tracker: read docs/fleet.md first",
    )
    parser.add_argument("--key", metavar="NAME", help="of the tracker's servers to measure on")
    parser.add_argument(
        "--propose",
        type=Path,
        metavar="FILE",
        help="write what is to be measured elsewhere; nothing is measured here",
    )
    parser.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="go on with what was measured elsewhere",
    )
    parser.add_argument("--journal", type=Path, metavar="FILE", help="where measurements are kept")
    parser.add_argument(
        "--restart", action="store_true", help="forget what was measured before, and begin anew"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="with --dry-run: write a tuning log of all forms with computed costs, which says that "
        "nothing was measured",
    )
    parser.add_argument(
        IMPORT,
        dest="import_",
        type=Path,
        metavar="FILE",
        help="take in what was measured elsewhere: the log then has measured costs",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where GPUs' logs lie (default: where they are found)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _print(console: Any, form: Form, group: Sequence[Candidate]) -> None:
    columns = (
        "tile", "warps", "stages", "store", "registers", "spills", "shared", "blocks",
        "limited by", "of peak, computed", "",
    )  # fmt: skip
    rows = [
        (
            f"{c.tile.block_m}x{c.tile.block_n}x{c.tile.block_k}",
            f"{c.tile.warps_m}x{c.tile.warps_n}",
            c.tile.stages,
            c.tile.epilogue,
            c.resources.registers,
            output.size(c.resources.spill_stores + c.resources.spill_loads),
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
