"""The search for the best micro-kernels of a block's size: MetaSchedule over the tile's decisions.

The decisions of `microkernels.cuda.space` become those of a trace by a program that does nothing:
a tile is no schedule that a trace could replay, as its parameters decide how it is written. The
kernel is built of what a trace says.

Each form and size of blocks is searched by itself, as a search keeps what is fastest and the
planner needs blocks of all sizes; one cost model learns from all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir.utils import derived_object
from tvm.script import tirx as T
from tvm.target import Target

from tvm_moonpoly.costmodel import cuda_analytic
from tvm_moonpoly.costmodel.cuda import BlockCost
from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Gpu, registers_estimate, space
from tvm_moonpoly.microkernels.cuda.tile import check, shared_bytes, store_elements
from tvm_moonpoly.microkernels.gemm_schedule import SAMPLE
from tvm_moonpoly.tuning.searching import metaschedule
from tvm_moonpoly.tuning.searching.session import Effort, Session

#: What some tiles cost, smaller is better; None for one that cannot be used. Tiles that are missing
#: are yet to be measured elsewhere.
Measure = Callable[[Sequence[CudaTile]], Mapping[CudaTile, "float | None"]]

#: Tiles that are proposed for one that can be used, at most.
_VAIN = 4

#: Batches that are proposed while others are yet to be measured, of which nothing can be learned.
_UNLEARNED = 3

#: The products that a kernel is valued by: depths with one block on a multiprocessor, and with all.
_SHALLOW, _DEEP = 1024, 4096

_MOST_REGISTERS = 255

_BLOCK = "tile"


@dataclass(frozen=True)
class Group:
    """What one search is about: a form, and the size of blocks."""

    form: Form
    block_m: int
    block_n: int

    @property
    def space(self) -> dict[str, tuple[Any, ...]]:
        """What each parameter of a tile may be."""
        return space(self.form) | {"block_m": (self.block_m,), "block_n": (self.block_n,)}

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.form.name}, blocks of {self.block_m}x{self.block_n}"


@dataclass
class Found:
    """What is known of a group's tiles after a search; ``pending`` are to be measured elsewhere."""

    costs: dict[CudaTile, float | None]
    pending: list[CudaTile]


class CostModel:
    """MetaSchedule's XGBoost model, on features of tiles; one for all groups."""

    def __init__(self) -> None:
        #: the features of a candidate, in the space that is being searched
        self.features_of: Callable[[Any], list[float]]
        self.model = metaschedule.learned_model(lambda candidate: self.features_of(candidate))


def value(cost: BlockCost) -> float:
    """What a search makes small: picoseconds of a block, the geometric mean of those of one alone
    on a multiprocessor and of a deep one among as many as fit."""
    few = cost.wave(1, _SHALLOW)
    many = cost.wave(cost.resident, _DEEP) / cost.resident
    return math.sqrt(few * many)


def allowed(values: Mapping[str, Any], form: Form, gpu: Gpu) -> CudaTile | None:
    """The tile of these parameters, if it keeps all rules and fits a multiprocessor."""
    try:
        tile = CudaTile(**values)
        check(tile, form, gpu.architecture.block_shared_bytes)
    except ValueError:
        return None
    small = registers_estimate(tile, form) <= _MOST_REGISTERS
    return tile if small and tile.warps > 1 and cuda_analytic.resident(tile, form, gpu) else None


def search(
    group: Group,
    gpu: Gpu,
    known: Mapping[CudaTile, float | None],
    first: Sequence[CudaTile],
    measure: Measure,
    model: CostModel,
    effort: Effort,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """What each tile of ``group`` costs: those that are ``known``, the ``first`` ones, which are
    measured before others, and new ones until ``effort.trials`` can be used.

    ``stop`` is asked before each batch. Ends early when tiles are to be measured elsewhere.
    """
    found = Found(dict(known), [])

    def measured(tiles: Sequence[CudaTile]) -> dict[CudaTile, float | None]:
        new = [tile for tile in dict.fromkeys(tiles) if tile not in found.costs]
        new = [tile for tile in new if tile not in found.pending]
        told = dict(measure(new)) if new else {}
        found.costs |= told
        found.pending += [tile for tile in new if tile not in told]
        return told

    def left() -> int:
        """Tiles that are still to be measured."""
        used = sum(cost is not None for cost in found.costs.values()) + len(found.pending)
        vain = _VAIN * effort.trials - len(found.costs) - len(found.pending)
        return min(effort.trials - used, vain)

    if left() <= 0 or stop():
        return found
    measured(first[: left()])
    if left() <= 0 or stop():
        return found
    options = group.space
    with metaschedule.one_thread():

        def tile_of(candidate: Any) -> CudaTile:
            tile = allowed(_decisions_of(candidate.sch.trace, options), group.form, gpu)
            assert tile is not None, "the post-processor lets no others pass"
            return tile

        model.features_of = lambda candidate: features(tile_of(candidate), group.form, gpu)
        session = Session(
            _carrier(),
            lambda sch, decisions: _apply(sch, options, decisions),
            Target({"kind": "llvm"}),  # of the program that does nothing
            model.model,
            effort,
            seed,
            [_only_allowed(lambda trace: _decisions_of(trace, options), group.form, gpu)],
        )
        if found.costs:
            session.learn({session.candidate(asdict(t)): cost for t, cost in found.costs.items()})
        unlearned = 0
        while left() > 0 and not stop() and unlearned < _UNLEARNED:
            batch = session.propose()
            unlearned += bool(found.pending)
            if not batch:
                break
            tiles = {candidate: tile_of(candidate) for candidate in batch}
            told = measured(list(tiles.values())[: left()])
            if told:
                session.learn({c: told[tile] for c, tile in tiles.items() if tile in told})
    return found


def features(tile: CudaTile, form: Form, gpu: Gpu) -> list[float]:
    """What a cost model is told of a tile: its parameters, and what follows from them."""
    blocks = cuda_analytic.resident(tile, form, gpu)
    computed = cuda_analytic.block_cost(tile, form, gpu)
    brought = (tile.block_m + tile.block_n) / (tile.block_m * tile.block_n)
    loaded = (tile.warp_m + tile.warp_n) / (tile.warp_m * tile.warp_n)
    return [
        math.log2(value(computed)),
        *(math.log2(each) for each in (tile.block_m, tile.block_n, tile.block_k)),
        *(math.log2(each) for each in (tile.warps_m, tile.warps_n, tile.raster)),
        float(tile.stages),
        float(tile.swizzle),
        float(store_elements(tile, form)),
        float(registers_estimate(tile, form)),
        shared_bytes(tile, form) / 1024,
        float(blocks),
        float(blocks * tile.warps),
        brought,
        loaded,
        float(form.aligned),
        float(form.b_transposed),
        float(form.dtype_out == "float32"),
    ]


@functools.cache
def _carrier() -> tirx.PrimFunc:
    """A program that does nothing, whose schedules carry a tile's parameters."""

    @T.prim_func(s_tir=True)
    def nothing(c: T.Buffer((1,), "float32")):  # type: ignore[no-untyped-def, valid-type]
        for i in range(1):
            with T.sblock(_BLOCK):
                vi = T.axis.spatial(1, i)
                c[vi] = T.float32(0)

    return nothing


def _apply(
    sch: s_tir.Schedule, options: Mapping[str, Sequence[Any]], decisions: Mapping[str, Any] | None
) -> None:
    block = sch.get_sblock(_BLOCK)
    for name, choices in options.items():
        at = None if decisions is None else choices.index(decisions[name])
        even = [1.0 / len(choices)] * len(choices)
        sampled = sch.sample_categorical(list(range(len(choices))), even, decision=at)
        sch.annotate(block, f"moonpoly.{name}", sampled)


def _decisions_of(trace: s_tir.Trace, options: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    sampled = [int(trace.decisions[i]) for i in trace.insts if i.kind.name == SAMPLE]
    return {name: options[name][at] for name, at in zip(options, sampled, strict=True)}


def _only_allowed(decisions_of: Callable[[Any], dict[str, Any]], form: Form, gpu: Gpu) -> Any:
    """A post-processor that lets only tiles pass that keep all rules."""
    ms = metaschedule.load()

    @derived_object
    class OnlyAllowed(ms.postproc.PyPostproc):  # type: ignore[name-defined]
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, sch: Any) -> bool:
            return allowed(decisions_of(sch.trace), form, gpu) is not None

        def clone(self) -> Any:
            return self

    return OnlyAllowed()
