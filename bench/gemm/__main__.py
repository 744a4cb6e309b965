"""Entry point of ``python -m bench.gemm``."""

import sys

from bench.gemm.cli import main

if __name__ == "__main__":
    sys.exit(main())
