"""``moonpoly tune --gpu``: options of the offline stage for a GPU, and it without measuring."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tvm_moonpoly.cli import command, tune_gpu_dry, tune_gpu_import, tune_gpu_stage
from tvm_moonpoly.tuning import options

if TYPE_CHECKING:
    pass

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

#: Tiles that are tried of each form and size of blocks.
_TRIALS, _DRY_TRIALS = 16, 4

#: The forms that a dry run searches by default.
_USUAL = ("f16_f16_nn", "f16_f16_nt", "f16_f16_nn_any")


def main(arguments: Sequence[str]) -> int:
    """Run the stage that the options ask for."""
    told = _parsed(arguments)
    if told.import_ is not None:
        return tune_gpu_import.run(told)
    if not told.dry_run:
        return tune_gpu_stage.run(told)
    tune_gpu_stage.need_compiler()
    return tune_gpu_dry.write(told) if told.write else tune_gpu_dry.search(told)


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
    told.trials = told.trials or (_DRY_TRIALS if told.dry_run else _TRIALS)
    if told.dry_run:
        told.form = told.form or list(_USUAL)
    return told


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tune --gpu",
        "Search the micro-kernels of a GPU, measure them, and write its tuning log. A stage that "
        "was stopped goes on where it was: run the same command again. --dry-run does all but the "
        "measuring: it searches by computed costs, and lists what the compiler tells of each "
        "candidate. --propose and --replay let search here and measuring elsewhere alternate.",
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
        help="with --dry-run: candidates of each form that are listed, the best (default: all); "
        "with --write kernels of each form that computed costs choose (default: 8)",
    )
    parser.add_argument(
        "--trials",
        type=command.positive,
        help="tiles that are measured of each form and size of blocks (default: "
        f"{_TRIALS}, with --dry-run {_DRY_TRIALS})",
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
