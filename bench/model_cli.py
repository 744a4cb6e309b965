"""The command line of the jobs that run a whole model."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from bench.wheels import FetchError


def positive(text: str) -> int:
    """A number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def make_parser(package: str, description: str | None, fewer: str) -> argparse.ArgumentParser:
    """The options that all such jobs have; ``fewer`` is what a quick run has fewer of."""
    found = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    found.add_argument(
        "--threads", type=positive, default=1, help="threads of every engine (default: 1)"
    )
    found.add_argument("--quick", action="store_true", help=f"fewer {fewer} and rounds")
    found.add_argument("--rounds", type=positive, help="rounds a size (default: 9, quick: 3)")
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    return found


def run(package: str, chosen: argparse.Namespace) -> int:
    """Run ``main(Options)`` of the package's module ``job``; returns the exit code."""
    # TVM reads it once, when its thread pool starts: it has to be there before TVM is imported.
    os.environ["TVM_NUM_THREADS"] = str(chosen.threads)
    job = importlib.import_module(f"{package}.job")
    chosen.rounds = chosen.rounds or (3 if chosen.quick else 9)
    try:
        code: int = job.main(job.Options(**vars(chosen)))
    except FetchError as error:
        print(error, file=sys.stderr)
        return 2
    return code
