"""Entry point of ``python -m bench.conv``."""

import sys

from bench.conv.cli import main

if __name__ == "__main__":
    sys.exit(main())
