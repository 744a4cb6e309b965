"""The search of the offline stage with nothing measured: MetaSchedule proposes, and what it learns
from is the cost that is computed of each candidate once it is compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Gpu
from tvm_moonpoly.tuning.cuda import computed, gpu_stage
from tvm_moonpoly.tuning.cuda.dry_run import Candidate
from tvm_moonpoly.tuning.cuda.search import CostModel, Group, search, value
from tvm_moonpoly.tuning.searching.session import Effort


@dataclass(frozen=True)
class Searched:
    """All candidates of a form, of ``sizes`` sizes of blocks; the first of each were chosen by
    computed costs, ``proposed`` by the search."""

    form: Form
    sizes: int
    proposed: int
    candidates: tuple[Candidate, ...]

    @property
    def rejected(self) -> list[Candidate]:
        """Those that cannot be used; `Candidate.reason` says why."""
        return [candidate for candidate in self.candidates if candidate.reason]

    def best(self, count: int | None = None) -> list[Candidate]:
        """Those that can be used, or so many of them, the nearest to the GPU's peak first."""
        usable = [candidate for candidate in self.candidates if not candidate.reason]
        return sorted(usable, key=lambda candidate: -(candidate.of_peak or 0))[:count]


def searched(
    form: Form,
    gpu: Gpu,
    compile: computed.Compile,
    model: CostModel,
    trials: int,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Searched:
    """Search each size of blocks until ``trials`` candidates of it can be used, or four times as
    many were tried. ``stop`` is asked before each batch.

    Raises ImportError where MetaSchedule's model cannot be loaded, RuntimeError where a candidate
    cannot be compiled.
    """
    groups = gpu_stage.groups(form, gpu)
    firsts = {group: gpu_stage.first(group, gpu, [])[:trials] for group in groups}
    # together, as a compiler then has all cores to work on
    compiled: dict[CudaTile, Candidate] = {}
    _compile([tile for tiles in firsts.values() for tile in tiles], form, compile, compiled)
    chosen = len(compiled)
    for group in groups:
        search(
            group,
            gpu,
            {},
            firsts[group],
            functools.partial(_costs, group, gpu, compile, compiled),
            model,
            Effort(trials, batch=min(trials, 8)),
            seed,
            stop,
        )
    return Searched(form, len(groups), len(compiled) - chosen, tuple(compiled.values()))


def _costs(
    group: Group,
    gpu: Gpu,
    compile: computed.Compile,
    compiled: dict[CudaTile, Candidate],
    tiles: Sequence[CudaTile],
) -> dict[CudaTile, float | None]:
    """What a search makes small, by what the compiler tells; None for what is rejected."""
    _compile([tile for tile in tiles if tile not in compiled], group.form, compile, compiled)
    found = {tile: compiled[tile] for tile in tiles}
    return {
        tile: None if candidate.reason else value(computed.kernel(candidate, gpu).cost)
        for tile, candidate in found.items()
    }


def _compile(
    tiles: Sequence[CudaTile],
    form: Form,
    compile: computed.Compile,
    compiled: dict[CudaTile, Candidate],
) -> None:
    if tiles:
        compiled |= {candidate.tile: candidate for candidate in compile(form, tiles)}
