"""What can be known of a GPU's micro-kernels without running them, for its tuning log.

Costs are computed from what the compiler tells. They are for ranking and for a first use; a log of
them says that it was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel, Static
from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Gpu, candidates, kernel_name
from tvm_moonpoly.microkernels.cuda.form import FORMS
from tvm_moonpoly.microkernels.cuda.tile import check
from tvm_moonpoly.tuning.cuda.dry_run import Candidate
from tvm_moonpoly.tuning.cuda.elite import elite

#: What compiles tiles of a form and tells what became of each.
Compile = Callable[[Form, Sequence[CudaTile]], Iterable[Candidate]]

#: Results of at least so many elements a block are staged in shared memory by some kernels.
_STAGED_AREA = 128 * 128


@dataclass(frozen=True)
class Counts:
    """Micro-kernels of a form at most: ``elite`` by computed costs, ``few`` of those that store
    single elements; ``spread``: whether others of each block's size are added, for measuring."""

    elite: int = 8
    few: int = 6
    spread: bool = True


def log_of(gpu: Gpu, dtype: str, compile: Compile, counts: Counts | None = None) -> Contents:
    """The contents of a log of ``gpu`` for operands of ``dtype``, nothing of it measured."""
    kernels: list[Kernel] = []
    for form in FORMS:
        if form.dtype_in == dtype:
            kernels += of_form(form, gpu, compile, counts or Counts())
    return Contents(gpu.multiprocessors, cuda_analytic.LAUNCH, False, tuple(kernels))


def of_form(form: Form, gpu: Gpu, compile: Compile, counts: Counts) -> list[Kernel]:
    """The micro-kernels of one form with computed costs, the most useful first.

    What spills registers is replaced by what is next best.
    """
    tiles = [t for t in candidates(form, gpu.arch) if cuda_analytic.resident(t, form, gpu)]
    found: list[Candidate] = []
    for single in (False, True):
        group = [t for t in tiles if t.single == single]
        if not group:
            continue
        usual = partial(elite_tiles, form, gpu, counts.few if single else counts.elite)
        found += _compiled(usual, group, form, compile)[0]
        if counts.spread and not single:
            others, _ = _compiled(partial(_of_each_size, form, gpu), group, form, compile)
            staged = _staged([*found, *others], form, gpu, compile)
            known = {candidate.tile for candidate in found}
            found += [candidate for candidate in [*others, *staged] if candidate.tile not in known]
    return [kernel(candidate, gpu) for candidate in found]


def shortlist(
    form: Form, gpu: Gpu, count: int, compile: Compile
) -> tuple[list[Candidate], list[Candidate]]:
    """``count`` micro-kernels at most by which most products are near their best, by computed
    costs; and what was rejected and replaced by what is next best."""
    tiles = [t for t in candidates(form, gpu.arch) if cuda_analytic.resident(t, form, gpu)]
    return _compiled(partial(elite_tiles, form, gpu, count), tiles, form, compile)


def kernel(candidate: Candidate, gpu: Gpu) -> Kernel:
    """A candidate as a log's kernel, its cost computed."""
    tile, form = candidate.tile, candidate.form
    registers = candidate.resources.registers
    cost = cuda_analytic.block_cost(tile, form, gpu, registers)
    held = candidate.occupancy
    static = Static(registers, candidate.shared_bytes, held.blocks, held.limit)
    return Kernel(form, tile, static, cost)


def _compiled(
    choose: Callable[[list[CudaTile]], list[CudaTile]],
    tiles: list[CudaTile],
    form: Form,
    compile: Compile,
) -> tuple[list[Candidate], list[Candidate]]:
    """What is chosen of ``tiles``, compiled; chosen anew without what is rejected. And that."""
    known: dict[CudaTile, Candidate] = {}
    while True:
        left = [t for t in tiles if t not in known or not known[t].reason]
        chosen = choose(left) if left else []
        new = [tile for tile in chosen if tile not in known]
        known |= {candidate.tile: candidate for candidate in compile(form, new)} if new else {}
        if not any(known[tile].reason for tile in chosen):
            rejected = [each for each in known.values() if each.reason]
            return [known[tile] for tile in chosen], rejected


def elite_tiles(form: Form, gpu: Gpu, count: int, tiles: Sequence[CudaTile]) -> list[CudaTile]:
    """The most useful of some tiles, by computed costs."""
    by_name = {kernel_name(tile, form): tile for tile in tiles}
    return [by_name[cost.name] for cost in elite(cuda_analytic.table(tiles, form, gpu), count)]


def _of_each_size(form: Form, gpu: Gpu, tiles: list[CudaTile]) -> list[CudaTile]:
    """The best of each block's rows and columns, by computed costs: these are rough, and what is
    measured should not all be alike."""
    groups: dict[tuple[int, int], list[CudaTile]] = {}
    for tile in tiles:
        groups.setdefault((tile.block_m, tile.block_n), []).append(tile)
    return [elite_tiles(form, gpu, 1, group)[0] for group in groups.values()]


def _staged(found: Sequence[Candidate], form: Form, gpu: Gpu, compile: Compile) -> list[Candidate]:
    """The same tiles with results that go through shared memory, which computed costs do not tell
    from the others."""
    limit = gpu.architecture.block_shared_bytes
    tiles: dict[CudaTile, None] = {}
    for candidate in found:
        tile = replace(candidate.tile, epilogue="shared")
        if tile.block_m * tile.block_n < _STAGED_AREA:
            continue
        try:
            check(tile, form, limit)
        except ValueError:
            continue
        tiles[tile] = None
    compiled = compile(form, list(tiles)) if tiles else []
    return [candidate for candidate in compiled if not candidate.reason]
