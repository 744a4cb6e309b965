"""The options of ``moonpoly tune``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from tvm_moonpoly.cli import command, targets

EXAMPLES = """
moonpoly tune
moonpoly tune --quick
moonpoly tune --budget 10m --journal mine.jsonl --output mine.log.jsonl
moonpoly tune --no-measure --journal mine.jsonl
moonpoly tune --rpc 127.0.0.1:9190 --key servers --target znver4
moonpoly tune --gpu nvidia-a100 --dry-run    (--gpu has options of its own)
"""

#: Seconds of the longest budget: ten days.
_LONGEST = 864_000.0

#: TVM's are 32 bits wide, and it is given the next one.
_LARGEST_SEED = (1 << 31) - 2


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options in ``argv``, by default those of the process, which ends when they are wrong."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.rpc is None) != (not arguments.key):
        parser.error("--rpc and --key go together: which tracker, and which of its servers")
    if arguments.target is not None and arguments.rpc is None:
        parser.error("--target goes with --rpc: this machine is measured as what it is")
    if arguments.no_measure and (arguments.restart or arguments.rpc or arguments.tiles):
        parser.error("--no-measure takes a journal as it is: not with --restart, --rpc or --tiles")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "tune",
        "Search the schedules of this machine's micro-kernels, measure their tasks and whole "
        "products, and learn the tuning log from that. A stage that was stopped goes on where it "
        "was: run the same command again.",
        EXAMPLES,
    )
    parser.add_argument(
        "--budget",
        type=seconds,
        metavar="TIME",
        help="time for all sessions together, like 90s, 10m or 1h (default: 45m)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a rough result in less than 3 minutes"
    )
    parser.add_argument(
        "--tiles",
        type=_tiles,
        metavar="MxN,...",
        help="only these tiles, in rows x columns (default: the whole family)",
    )
    parser.add_argument("--trials", type=_positive, help="schedules measured for each tile")
    parser.add_argument("--seed", type=seed, help="of the search, the plans and the model")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="where measurements are kept")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the tuning log (default: where it is found)"
    )
    parser.add_argument(
        "--no-measure", action="store_true", help="learn again from a journal that is there"
    )
    parser.add_argument(
        "--restart", action="store_true", help="forget what was measured before, and begin anew"
    )
    parser.add_argument(
        "--cost-model",
        choices=("xgb", "random"),
        default="xgb",
        help="what chooses the schedules to measure; random: to see what the model is worth",
    )
    parser.add_argument(
        "--rpc",
        type=address,
        metavar="HOST:PORT",
        help="measure on the machines behind this TVM RPC tracker, not on this one: read "
        "docs/fleet.md first",
    )
    parser.add_argument("--key", metavar="NAME", help="of the tracker's servers to measure on")
    targets.add_option(parser)
    return parser


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no address like 127.0.0.1:9190")
    return host.removeprefix("[").removesuffix("]"), int(port)


def seconds(text: str) -> float:
    """Seconds of a time like ``90s``, ``10m``, ``1.5h`` or ``600``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 90s, 10m or 1h")
    return min(float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]], _LONGEST)


def _tiles(text: str) -> list[tuple[int, int]]:
    tiles = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+)", part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{part!r} is no tile like 4x24")
        tiles.append((int(match[1]), int(match[2])))
    return tiles


def seed(text: str) -> int:
    if not text.isdecimal() or int(text) > _LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed from 0 to {_LARGEST_SEED}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)
