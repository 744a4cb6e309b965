"""``moonpoly tune``: the offline stage, which has options of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence

STAGE = "tvm_moonpoly.tuning.stage"


def main(arguments: Sequence[str]) -> int:
    """Hand ``arguments`` to the stage, or to the calibration where there is no stage."""
    if importlib.util.find_spec(STAGE) is not None:
        return int(importlib.import_module(STAGE).main(list(arguments)) or 0)
    from tvm_moonpoly import logs
    from tvm_moonpoly.machine import Machine, detect_target
    from tvm_moonpoly.tuning import calibrate

    # it reads them from there
    default = str(logs.of_machine(Machine.from_target(detect_target())))
    sys.argv = ["moonpoly tune", *(arguments or [default])]
    calibrate.main()
    return 0
