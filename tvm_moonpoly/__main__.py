"""``python -m tvm_moonpoly`` is the command ``moonpoly``."""

import sys

from tvm_moonpoly.cli import main

sys.exit(main())
