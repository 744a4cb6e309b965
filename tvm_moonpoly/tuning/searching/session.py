"""One search of MetaSchedule: proposes candidates of a space, and learns what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target

from tvm_moonpoly.tuning.searching import metaschedule

#: A record that failed counts as this many times the worst one that was measured. MetaSchedule's
#: 1e10 seconds would teach its model nothing, as it weighs samples by their speed.
_FAILURE = 10.0

#: Applies a schedule with decisions, or samples them where there are none.
Apply = Callable[[s_tir.Schedule, "Mapping[str, Any] | None"], None]


@dataclass(frozen=True)
class Effort:
    """How long a tile is searched: at most ``trials`` records, ``batch`` at a time, for each of
    which ``population`` candidates are weighed by the cost model."""

    trials: int = 32
    batch: int = 8
    population: int = 64


class Session:
    """The search of one space, whose schedules ``apply`` makes of ``function``."""

    def __init__(
        self,
        function: tirx.PrimFunc,
        apply: Apply,
        target: Target,
        model: Any,
        effort: Effort,
        seed: int,
        postprocs: Sequence[Any] = (),
    ) -> None:
        self._ms = ms = metaschedule.load()
        self._apply, self._target, self._model = apply, target, model
        self._strategy = ms.search_strategy.EvolutionarySearch(
            population_size=effort.population,
            init_min_unmeasured=min(effort.batch, effort.population),
            genetic_num_iters=3,
        )
        with metaschedule.without_intrinsics():
            self._context = ms.TuneContext(
                mod=function.with_attr("global_symbol", "main"),
                target=target,
                space_generator=ms.space_generator.ScheduleFn(
                    lambda sch: apply(sch, None),
                    sch_rules=[],
                    postprocs=list(postprocs),
                    mutator_probs={metaschedule.mutator(seed): 1.0},
                ),
                search_strategy=self._strategy,
                num_threads=1,  # the mutator and the features are in Python
                rand_state=seed + 1,  # 0 is no seed
            )
        self._worst = 0.0
        self._database = ms.database.MemoryDatabase()
        self._workload = self._database.commit_workload(self._context.mod)
        without_end = 1 << 20
        designs = self._context.generate_design_space()
        self._strategy.pre_tuning(without_end, effort.batch, designs, self._database, self._model)

    def candidate(self, decisions: Mapping[str, Any]) -> Any:
        """The schedule with ``decisions`` as a candidate of MetaSchedule."""
        sch = s_tir.Schedule(self._context.mod)
        self._apply(sch, decisions)
        arguments = self._ms.arg_info.ArgInfo.from_entry_func(self._context.mod, False)
        return self._ms.MeasureCandidate(sch, arguments)

    def propose(self) -> list[Any]:
        """The next batch of candidates; empty when the space is exhausted."""
        return list(self._strategy.generate_measure_candidates() or [])

    def learn(self, costs: Mapping[Any, float | None]) -> None:
        """Tell the strategy, its database and the cost model what candidates take."""
        runner, database = self._ms.runner, self._ms.database
        self._worst = max(self._worst, *(cost or 0.0 for cost in costs.values()))
        failure = _FAILURE * self._worst or 1.0
        candidates, results = list(costs), []
        for candidate, cost in costs.items():
            results.append(runner.RunnerResult([failure if cost is None else cost], None))
            if cost is not None:
                trace, arguments = candidate.sch.trace, candidate.args_info
                self._database.commit_tuning_record(
                    database.TuningRecord(trace, self._workload, [cost], self._target, arguments)
                )
        self._strategy.notify_runner_results(candidates, results)
        self._model.update(self._context, candidates, results)
