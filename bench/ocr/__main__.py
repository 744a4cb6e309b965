"""``python -m bench.ocr``: compile two networks that read text once each, read lines with them."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m bench.ocr", description=__doc__)
    found.add_argument(
        "--threads", type=positive, default=1, help="threads of every engine (default: 1)"
    )
    found.add_argument("--quick", action="store_true", help="fewer lines and rounds")
    found.add_argument("--rounds", type=positive, help="rounds a size (default: 9, quick: 3)")
    found.add_argument(
        "--operators", action="store_true", help="also print what became of each operator"
    )
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    return found


def main(arguments: list[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    # TVM reads it once, when its thread pool starts: it has to be there before TVM is imported.
    os.environ["TVM_NUM_THREADS"] = str(chosen.threads)
    from bench.ocr import job
    from bench.wheels import FetchError

    rounds = chosen.rounds or (3 if chosen.quick else 9)
    options = job.Options(chosen.threads, chosen.quick, rounds, chosen.operators, chosen.json)
    try:
        return job.main(options)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
