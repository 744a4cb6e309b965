"""``python -m bench.models``."""

from __future__ import annotations

import sys

from bench.models.cli import main

if __name__ == "__main__":
    sys.exit(main())
