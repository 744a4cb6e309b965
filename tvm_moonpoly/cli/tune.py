"""``moonpoly tune``: the offline stage, which has options of its own."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_moonpoly.cli import tune_gpu
from tvm_moonpoly.tuning import options


def main(arguments: Sequence[str]) -> int:
    """Hand ``arguments`` to the stage, or to that of a GPU."""
    if {a.partition("=")[0] for a in arguments} & {tune_gpu.OPTION, tune_gpu.IMPORT}:
        return tune_gpu.main(arguments)
    # wrong ones, and a call for help, need not wait for the stage, which loads tvm
    options.parsed(arguments)
    from tvm_moonpoly.tuning import stage

    return stage.main(list(arguments))
