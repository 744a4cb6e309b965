"""``moonpoly tune --gpu NAME --import FILE``: a log with what was measured elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import output
from tvm_moonpoly.cli.command import UserError

if TYPE_CHECKING:
    from tvm_moonpoly.costmodel.cuda_log import Contents
    from tvm_moonpoly.microkernels.cuda import Gpu
    from tvm_moonpoly.tuning.cuda.measured import Conclusion
    from tvm_moonpoly.tuning.cuda.results import Results

_TOLD = 5  # remarks that are told one by one


def run(told: argparse.Namespace) -> int:
    """Take the results in; nothing is written where something is wrong with them."""
    from tvm_moonpoly.microkernels.cuda import GPUS
    from tvm_moonpoly.tuning.cuda import gpu_logs, measured, results

    found = results.read(told.import_)
    found_for, names = {}, set()
    try:
        gpu = results.gpu_of(found) if told.gpu is None else GPUS[told.gpu]
        results.check_gpu(found, gpu)
        for dtype in gpu_logs.DTYPES:
            known = _known(gpu, dtype, told.output)
            names |= {kernel.name for kernel in known.kernels}
            conclusion = measured.conclude(known, found, gpu)
            if conclusion is not None:
                found_for[dtype] = conclusion
    except ValueError as error:
        raise UserError(f"{told.import_}: {error}") from error
    if not found_for:
        raise UserError(
            f"{told.import_}: none of its tasks is of a micro-kernel of {gpu.name}'s tuning log"
        )
    paths = write(gpu, found, found_for, told.output)
    if told.json:
        output.print_json(
            [
                {"path": str(path), **_described(conclusion)}
                for path, conclusion in zip(paths, found_for.values(), strict=False)
            ]
        )
    else:
        show(found_for, paths)
        unknown = [task.kernel for task in found.seconds if task.kernel not in names]
        if unknown:
            output.say(
                output.console(),
                f"{len(unknown)} launches are of micro-kernels that no log of {gpu.name} has, as "
                f"{unknown[0]}",
            )
    return 0 if len(paths) == len(found_for) else 1


def write(
    gpu: Gpu, found: Results, concluded: Mapping[str, Conclusion], folder: Path | None
) -> list[Path]:
    """Write the logs, each in one step; those that could be written."""
    from tvm_moonpoly.tuning.cuda import gpu_logs

    told = {"measured_on": {"gpu": found.device, **found.about}}
    paths = {dtype: gpu_logs.path_of(gpu, dtype, folder) for dtype in concluded}
    return [
        path
        for dtype, path in paths.items()
        if gpu_logs.write(path, gpu, concluded[dtype].contents, told)
    ]


def show(concluded: Mapping[str, Conclusion], paths: list[Path]) -> None:
    """What became of each form, and where it was written."""
    console = output.console()
    rows = [
        (s.form.name, s.measured, s.computed, s.dropped)
        for conclusion in concluded.values()
        for s in conclusion.forms
    ]
    console.print(output.table(("form", "measured", "not measured", "dropped"), rows))
    remarks = {
        name: why
        for conclusion in concluded.values()
        for summary in conclusion.forms
        for name, why in summary.remarks.items()
    }
    show_remarks([f"{name}: {why}" for name, why in remarks.items()], console, "; --json lists all")
    for dtype, conclusion in concluded.items():
        fit = ""
        if conclusion.errors:
            middle, most = conclusion.spread
            fit = (
                f"; launches differ from their fit by {middle:.1%} (median), {most:.1%} "
                "(90th percentile)"
            )
        output.say(console, f"{dtype}: {conclusion.contents.status}{fit}")
    for path in paths:
        output.say(console, f"wrote {path}")


def show_remarks(remarks: Sequence[str], console: Any, more: str = "") -> None:
    """The first of some remarks, and how many others there are; ``more`` says where they are."""
    for each in remarks[:_TOLD]:
        output.say(console, each)
    if len(remarks) > _TOLD:
        output.say(console, f"and {len(remarks) - _TOLD} more{more}")


def _known(gpu: Gpu, dtype: str, folder: Path | None) -> Contents:
    """All that is known of the GPU's micro-kernels: of its logs, the preferred first."""
    from tvm_moonpoly.tuning.cuda import gpu_logs, measured

    return measured.merged(gpu_logs.contents_of(gpu, dtype, folder))


def _described(conclusion: Conclusion) -> dict[str, Any]:
    middle, most = conclusion.spread
    return {
        "status": conclusion.contents.status,
        "median_error": middle,
        "tenth_error": most,
        "forms": [
            {
                "form": s.form.name,
                "measured": s.measured,
                "not_measured": s.computed,
                "dropped": s.dropped,
                "remarks": dict(s.remarks),
            }
            for s in conclusion.forms
        ],
    }
