"""``python -m bench.minilm``: compile MiniLM once, run it at many sizes, check and compare."""

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
    found = argparse.ArgumentParser(prog="python -m bench.minilm", description=__doc__)
    found.add_argument(
        "--threads", type=positive, default=1, help="threads of every engine (default: 1)"
    )
    found.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    found.add_argument("--rounds", type=positive, help="rounds a size (default: 9, quick: 3)")
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    return found


def main(arguments: list[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    # TVM reads it once, when its thread pool starts: it has to be there before TVM is imported.
    os.environ["TVM_NUM_THREADS"] = str(chosen.threads)
    from bench.minilm import job
    from bench.wheels import FetchError

    rounds = chosen.rounds or (3 if chosen.quick else 9)
    options = job.Options(chosen.threads, chosen.quick, rounds, chosen.json)
    try:
        return job.main(options)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
