"""The offline stage of a GPU: groups of tiles are searched, and a log is made of what was measured.

In rounds, so that a budget that ends early has seen all groups. Tiles that are good in the forms
that are searched are measured in their siblings, other dtypes of the same layout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel
from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Gpu, candidates
from tvm_moonpoly.microkernels.cuda.form import FORMS
from tvm_moonpoly.microkernels.cuda.tile import check
from tvm_moonpoly.tuning.cuda import computed, measured
from tvm_moonpoly.tuning.cuda.bench import Bench
from tvm_moonpoly.tuning.cuda.elite import elite_kernels
from tvm_moonpoly.tuning.cuda.measured import Conclusion
from tvm_moonpoly.tuning.cuda.results import Results
from tvm_moonpoly.tuning.cuda.search import CostModel, Group, search, value
from tvm_moonpoly.tuning.searching.session import Effort

#: The forms that are searched by default; the others are their siblings.
SEARCHED = tuple(
    Form("float16", "float16", transposed, aligned)
    for transposed in (False, True)
    for aligned in (True, False)
)

#: Kernels of a form that a log keeps, and of those that store single elements.
_KEPT, _KEPT_SINGLE = 24, 8

#: Tiles of a searched form that its siblings take over.
_TAKEN = 12


@dataclass(frozen=True)
class Settings:
    """How much is done: ``trials`` tiles of each group at most, ``batch`` a round."""

    forms: tuple[Form, ...] = SEARCHED
    siblings: bool = True
    trials: int = 16
    batch: int = 8
    seed: int = 0


@dataclass
class Outcome:
    """The kernels that were measured, by form, and those that are yet to be."""

    kernels: dict[Form, list[Kernel]] = field(default_factory=dict)
    pending: list[Kernel] = field(default_factory=list)


def groups(form: Form, gpu: Gpu) -> list[Group]:
    """The sizes of blocks that a form is searched in."""
    sizes = dict.fromkeys((t.block_m, t.block_n) for t in candidates(form, gpu.arch))
    return [Group(form, *size) for size in sorted(sizes)]


def run(
    bench: Bench,
    settings: Settings,
    known: Mapping[Form, Sequence[Kernel]],
    stop: Callable[[], bool] = lambda: False,
    phase: Callable[[str], object] = lambda what: None,
) -> Outcome:
    """Search all groups. ``known`` kernels of logs are measured first; ``stop`` ends early."""
    gpu, model, outcome = bench.gpu, CostModel(), Outcome()
    todo = [group for form in settings.forms for group in groups(form, gpu)]
    compiled = {form: bench.tiles(form) for form in settings.forms}
    before = {group: _of_size(compiled[group.form], group) for group in todo}
    costs = {group: _values(bench, group.form, before[group]) for group in todo if not stop()}
    waiting: dict[Group, list[CudaTile]] = {group: [] for group in todo}
    for trials in _rounds(settings):
        for group in todo:
            if stop():
                break
            if waiting[group]:
                continue
            phase(group.name)
            tiles = [kernel.tile for kernel in known.get(group.form, ())]
            known_first = [*before[group], *first(group, gpu, tiles)]
            found = search(
                group,
                gpu,
                costs.get(group, {}),
                [tile for tile in known_first if tile not in costs.get(group, {})],
                functools.partial(_values, bench, group.form),
                model,
                Effort(trials, settings.batch),
                settings.seed,
                stop,
            )
            costs[group], waiting[group] = found.costs, found.pending
    for group in todo:
        usable = [tile for tile, cost in costs.get(group, {}).items() if cost is not None]
        _keep(outcome, bench, group.form, usable)
        outcome.pending += _compiled(bench, group.form, waiting[group])
    if settings.siblings:
        _siblings(outcome, bench, settings.forms, stop, phase)
    return outcome


def conclude(
    outcome: Outcome, bench: Bench, logs: Sequence[Contents], results: Results
) -> Conclusion | None:
    """What the log of one dtype becomes, of which ``logs`` are known; None without measurements."""
    dtype = logs[0].kernels[0].form.dtype_in
    kernels = [
        kernel
        for form, group in outcome.kernels.items()
        if form.dtype_in == dtype
        for kernel in group
    ]
    found = [replace(logs[0], kernels=tuple(kernels))] if kernels else []
    concluded = measured.conclude(measured.merged([*found, *logs]), results, bench.gpu)
    if concluded is None:
        return None
    return replace(concluded, contents=_pruned(concluded.contents))


def _rounds(settings: Settings) -> list[int]:
    """Trials that each round goes up to."""
    return [*range(settings.batch, settings.trials, settings.batch), settings.trials]


def first(group: Group, gpu: Gpu, known: Sequence[CudaTile]) -> list[CudaTile]:
    """The tiles that are known, and the best by computed costs."""
    family = _of_size(candidates(group.form, gpu.arch), group)
    best = computed.elite_tiles(group.form, gpu, 2, family)
    return list(dict.fromkeys([*_of_size(known, group), *best]))


def _of_size(tiles: Sequence[CudaTile], group: Group) -> list[CudaTile]:
    size = group.block_m, group.block_n
    return [tile for tile in tiles if (tile.block_m, tile.block_n) == size]


def _values(bench: Bench, form: Form, tiles: Sequence[CudaTile]) -> dict[CudaTile, float | None]:
    return {
        tile: None if found.kernel is None else value(found.kernel.cost)
        for tile, found in bench.values(form, tiles).items()
    }


def _compiled(bench: Bench, form: Form, tiles: Sequence[CudaTile]) -> list[Kernel]:
    return [each for each in bench.kernels(form, tiles) if isinstance(each, Kernel)]


def _keep(outcome: Outcome, bench: Bench, form: Form, tiles: Sequence[CudaTile]) -> None:
    values = bench.values(form, tiles)
    kernels = [found.kernel for found in values.values() if found.kernel is not None]
    if kernels:
        outcome.kernels.setdefault(form, []).extend(kernels)


def _siblings(
    outcome: Outcome,
    bench: Bench,
    searched: Sequence[Form],
    stop: Callable[[], bool],
    phase: Callable[[str], object],
) -> None:
    """Measure the best tiles of each searched form in the other forms of its layout."""
    limit = bench.gpu.architecture.block_shared_bytes
    for form in FORMS:
        base = next((f for f in searched if _layout(f) == _layout(form)), None)
        if form in searched or base is None or base not in outcome.kernels or stop():
            continue
        phase(f"{form.name}, tiles of {base.name}")
        tiles = []
        for tile in _best(outcome.kernels[base], bench):
            try:
                check(tile, form, limit)
            except ValueError:
                continue
            tiles.append(tile)
        values = bench.values(form, tiles)
        _keep(outcome, bench, form, [tile for tile in tiles if tile in values])
        pending = [tile for tile in tiles if tile not in values]
        outcome.pending += _compiled(bench, form, pending)


def _layout(form: Form) -> tuple[bool, bool]:
    return form.b_transposed, form.aligned


def _best(kernels: Sequence[Kernel], bench: Bench) -> list[CudaTile]:
    """The tiles by which most products are near their best, by measured costs."""
    found: list[CudaTile] = []
    for single in (False, True):
        group = [kernel for kernel in kernels if kernel.tile.single == single]
        if group:
            best = elite_kernels(group, bench.gpu.multiprocessors, bench.launch, _TAKEN)
            found += [kernel.tile for kernel in best]
    return found


def _pruned(contents: Contents) -> Contents:
    """What a log keeps: the most useful kernels of each form."""
    kept: list[Kernel] = []
    for form in dict.fromkeys(kernel.form for kernel in contents.kernels):
        kernels = contents.of(form)
        single = [kernel for kernel in kernels if kernel.tile.single]
        others = [kernel for kernel in kernels if not kernel.tile.single]
        kept += [*others[:_KEPT], *single[:_KEPT_SINGLE]]
    return replace(contents, kernels=tuple(kept))
