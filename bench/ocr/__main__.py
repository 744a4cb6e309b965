"""``python -m bench.ocr``: compile two networks that read text once each, read lines with them."""

from __future__ import annotations

import argparse
import sys

from bench import model_cli


def parser() -> argparse.ArgumentParser:
    found = model_cli.make_parser("bench.ocr", __doc__, "lines")
    found.add_argument(
        "--operators", action="store_true", help="also print what became of each operator"
    )
    return found


def main(arguments: list[str] | None = None) -> int:
    return model_cli.run("bench.ocr", parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
