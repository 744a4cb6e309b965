"""Entry point of ``python -m bench.planner``."""

import sys

from bench.planner.cli import main

if __name__ == "__main__":
    sys.exit(main())
