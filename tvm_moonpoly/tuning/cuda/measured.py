"""A GPU's log with measured costs in the place of computed ones.

Measured and computed costs do not compare: as soon as some micro-kernels of a form are measured,
the others of it are dropped. Forms without any stay computed, and say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel
from tvm_moonpoly.microkernels.cuda import Form, Gpu
from tvm_moonpoly.planner.groups import ceil_div
from tvm_moonpoly.tuning.cuda.elite import elite_kernels
from tvm_moonpoly.tuning.cuda.fit import Point, fitted
from tvm_moonpoly.tuning.cuda.results import Results
from tvm_moonpoly.tuning.cuda.tasks import Task

_PICOSECONDS = 1e12


@dataclass(frozen=True)
class Summary:
    """What became of the kernels of one form. ``remarks``: why some were dropped or stay computed,
    by their names."""

    form: Form
    measured: int
    computed: int
    dropped: int
    remarks: Mapping[str, str]


@dataclass(frozen=True)
class Conclusion:
    """A log's new contents; ``errors``: how far each measured launch is from its fit, as a part."""

    contents: Contents
    forms: tuple[Summary, ...]
    errors: tuple[float, ...]

    @property
    def spread(self) -> tuple[float, float]:
        """The median and the 90th percentile of the errors."""
        if len(self.errors) < 2:
            return (self.errors or (0.0,))[0], (self.errors or (0.0,))[0]
        return median(self.errors), quantiles(self.errors, n=10, method="inclusive")[-1]


def merged(logs: Iterable[Contents]) -> Contents:
    """What several logs of one GPU hold together: of two kernels with a name, the first."""
    first, *others = logs
    kernels = {kernel.name: kernel for kernel in first.kernels}
    for other in others:
        for kernel in other.kernels:
            kernels.setdefault(kernel.name, kernel)
    return replace(first, kernels=tuple(kernels.values()))


def conclude(known: Contents, results: Results, gpu: Gpu) -> Conclusion | None:
    """The log that ``known`` becomes by ``results`` of ``gpu``; None when they tell nothing of it.

    Raises ValueError when tasks are not what they say, none can be used, or all micro-kernels of a
    form were wrong.
    """
    by_name = {kernel.name: kernel for kernel in known.kernels}
    times = _times(results, by_name, gpu)
    if not times and not results.wrong & by_name.keys():
        return None
    launch, told = known.launch, results.launch_seconds is not None
    if results.launch_seconds is not None:
        launch = round(results.launch_seconds * _PICOSECONDS)
    kept: list[Kernel] = []
    summaries: list[Summary] = []
    errors: list[float] = []
    for form in dict.fromkeys(kernel.form for kernel in known.kernels):
        kernels = known.of(form)
        found, remarks = _of_form(kernels, results.wrong, times, launch, errors)
        count = sum(kernel.measured for kernel in found)
        left = len(kernels) - len(found)
        summaries.append(Summary(form, count, len(found) - count, left, remarks))
        kept += _ordered(found, known.multiprocessors, launch)
    if not errors and len(kept) == len(known.kernels):
        name, why = next(each for s in summaries for each in s.remarks.items())
        raise ValueError(f"tasks: they are too few to measure a micro-kernel, as {name}: {why}")
    contents = replace(
        known,
        launch=launch,
        measured_launch=told or known.measured_launch,
        kernels=tuple(kept),
        faults=(),
    )
    return Conclusion(contents, tuple(summaries), tuple(errors))


def check_task(task: Task, kernel: Kernel, gpu: Gpu) -> None:
    """Raise ValueError unless a task is of ``kernel``, and one wave on ``gpu``, as it says."""
    tile = kernel.tile
    if task.form != kernel.form.name:
        raise ValueError(f"tasks: {task.kernel} is of {kernel.form.name}, not of {task.form!r}")
    blocks = ceil_div(task.m, tile.block_m) * ceil_div(task.n, tile.block_n)
    if blocks != task.blocks * gpu.multiprocessors or ceil_div(task.k, tile.block_k) != task.steps:
        raise ValueError(
            f"tasks: {task.m} x {task.n} x {task.k} by {task.kernel} is not {task.steps} steps of "
            f"{task.blocks} blocks on each of {gpu.multiprocessors} multiprocessors"
        )


def _times(
    results: Results, by_name: Mapping[str, Kernel], gpu: Gpu
) -> dict[str, dict[int, list[Point]]]:
    """Points of lines by kernel and blocks on a multiprocessor."""
    times: dict[str, dict[int, list[Point]]] = {}
    for task, seconds in results.seconds.items():
        kernel = by_name.get(task.kernel)
        if kernel is None:
            continue
        check_task(task, kernel, gpu)
        points = times.setdefault(task.kernel, {}).setdefault(task.blocks, [])
        points.append((task.steps, seconds * _PICOSECONDS))
    return times


def _of_form(
    kernels: Sequence[Kernel],
    wrong: frozenset[str],
    times: Mapping[str, Mapping[int, Sequence[Point]]],
    launch: int,
    errors: list[float],
) -> tuple[list[Kernel], dict[str, str]]:
    """What is kept of a form's kernels, and why others are not, or stay computed."""
    found: list[Kernel] = []
    remarks: dict[str, str] = {}
    for kernel in kernels:
        if kernel.name in wrong:
            remarks[kernel.name] = "its results were wrong"
        elif kernel.name not in times:
            found.append(kernel)
        else:
            try:
                told = fitted(kernel.cost, launch, times[kernel.name])
            except ValueError as error:
                remarks[kernel.name] = str(error)
            else:
                errors += told.errors
                found.append(replace(kernel, cost=told.cost, measured=True))
    if all(kernel.name in wrong for kernel in kernels):
        raise ValueError(
            f"correct: all micro-kernels of {kernels[0].form.name} were wrong; something else is "
            "at fault, and no log is made of this"
        )
    if any(kernel.measured for kernel in found):
        for kernel in found:
            if not kernel.measured:
                remarks[kernel.name] = "it was not measured, and others were"
        return [kernel for kernel in found if kernel.measured], remarks
    # without any that are measured all that are not wrong stay computed
    return [kernel for kernel in kernels if kernel.name not in wrong], remarks


def _ordered(kernels: Sequence[Kernel], multiprocessors: int, launch: int) -> list[Kernel]:
    """The most useful first, by their costs. Those that store single elements come last: they serve
    calls that the others do not."""
    result: list[Kernel] = []
    for single in (False, True):
        group = [kernel for kernel in kernels if kernel.tile.single == single]
        if group:
            first = elite_kernels(group, multiprocessors, launch, len(group))
            result += [*first, *(kernel for kernel in group if kernel not in first)]
    return result
