"""``python -m bench.minilm``: compile MiniLM once, run it at many sizes, check and compare."""

from __future__ import annotations

import argparse
import sys

from bench import model_cli


def parser() -> argparse.ArgumentParser:
    return model_cli.make_parser("bench.minilm", __doc__, "sizes")


def main(arguments: list[str] | None = None) -> int:
    return model_cli.run("bench.minilm", parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
