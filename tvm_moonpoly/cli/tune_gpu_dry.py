"""``moonpoly tune --gpu NAME --dry-run``: the stage for a GPU without measuring."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import output, tune_gpu_stage
from tvm_moonpoly.cli.command import UserError

if TYPE_CHECKING:
    from tvm_moonpoly.tuning.cuda.dry_run import Candidate
    from tvm_moonpoly.tuning.cuda.dry_search import Searched


def search(told: argparse.Namespace) -> int:
    """Search as the stage does, and list what the compiler tells of each candidate."""
    from tvm_moonpoly.microkernels.cuda import GPUS
    from tvm_moonpoly.tuning.cuda import dry_run
    from tvm_moonpoly.tuning.cuda.dry_search import searched
    from tvm_moonpoly.tuning.cuda.search import CostModel

    gpu, found = GPUS[told.gpu], []
    compile = functools.partial(dry_run.compiled, gpu=gpu)
    model, end = CostModel(), time.monotonic() + told.minutes * 60

    def spent() -> bool:
        return time.monotonic() > end

    for form in tune_gpu_stage.forms(told.form):
        with output.working(f"searching micro-kernels, {form.name}, for {gpu.arch}"):
            found.append(searched(form, gpu, compile, model, told.trials, told.seed, spent))
    if told.json:
        output.print_json(
            {
                "gpu": asdict(gpu),
                "measured": False,
                "searched": [
                    {
                        "form": group.form.name,
                        "sizes": group.sizes,
                        "candidates": len(group.candidates),
                        "proposed": group.proposed,
                        "rejected": len(group.rejected),
                    }
                    for group in found
                ],
                "kernels": [
                    _described(each)
                    for group in found
                    for each in [*group.best(told.count), *group.rejected]
                ],
            }
        )
        return 0
    console = output.console()
    for group in found:
        _print(console, group, told.count)
    if spent():
        output.say(console, f"{told.minutes} minutes were spent: --minutes gives more")
    output.say(console, f"{gpu.name} ({gpu.arch}): costs are computed, nothing was measured")
    return 0


def write(told: argparse.Namespace) -> int:
    """The log of what is known without measuring, one file a dtype."""
    from tvm_moonpoly.microkernels.cuda import GPUS
    from tvm_moonpoly.operators.cuda import machine_code
    from tvm_moonpoly.tuning.cuda import computed, dry_run, gpu_logs

    gpu = GPUS[told.gpu]
    paths = {dtype: gpu_logs.path_of(gpu, dtype, told.output) for dtype in gpu_logs.DTYPES}
    for path in paths.values():
        if gpu_logs.is_measured(path, gpu):
            raise UserError(f"{path} was measured, and is not replaced by what is computed")
    counts = computed.Counts(elite=told.count or computed.Counts.elite)
    compile = functools.partial(dry_run.compiled, gpu=gpu)
    compiler = machine_code.compiler()
    console = output.console()
    for dtype, path in paths.items():
        with output.working(f"compiling micro-kernels, {dtype}, for {gpu.arch}"):
            found = computed.log_of(gpu, dtype, compile, counts)
        if not gpu_logs.write(path, gpu, found, {"compiler": compiler}):
            return 1  # and has said why
        output.say(console, f"wrote {path}: {len(found.kernels)} micro-kernels, {found.status}")
    return 0


def _print(console: Any, group: Searched, count: int | None) -> None:
    columns = [
        "tile", "warps", "stages", "layout", "store", "raster", "registers", "spills", "shared",
        "blocks", "limited by", "of peak, computed",
    ]  # fmt: skip
    listed = [*group.best(count), *group.rejected]
    rows = [_row(candidate) for candidate in listed]
    if group.rejected:
        columns.append("rejected")
        rows = [(*row, each.reason) for row, each in zip(rows, listed, strict=True)]
    table = output.table(columns, rows)
    table.title = group.form.name
    console.print(table)
    output.say(
        console,
        f"{group.form.name}: {len(group.candidates)} candidates of {group.sizes} sizes of blocks, "
        f"{group.proposed} of them proposed by MetaSchedule; {len(group.rejected)} rejected",
    )


def _row(candidate: Candidate) -> Sequence[object]:
    tile, taken = candidate.tile, candidate.resources
    return (
        f"{tile.block_m}x{tile.block_n}x{tile.block_k}",
        f"{tile.warps_m}x{tile.warps_n}",
        tile.stages,
        "permuted" if tile.swizzle else "padded",
        tile.epilogue,
        tile.raster,
        taken.registers,
        output.size(taken.spilled),
        output.size(candidate.shared_bytes),
        candidate.occupancy.blocks,
        candidate.occupancy.limit,
        "-" if candidate.of_peak is None else f"{candidate.of_peak:.0%}",
    )


def _described(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "tile": asdict(candidate.tile),
        "form": asdict(candidate.form),
        "resources": asdict(candidate.resources),
        "shared_bytes": candidate.shared_bytes,
        "blocks": candidate.occupancy.blocks,
        "limited_by": candidate.occupancy.limit,
        "of_peak_computed": candidate.of_peak,
        "rejected": candidate.reason or None,
    }
