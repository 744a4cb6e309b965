"""``python -m bench.fuzz``: see the package."""

import sys

from bench.fuzz.cli import main

if __name__ == "__main__":
    sys.exit(main())
