"""The search for a tile's best schedule: MetaSchedule's evolutionary search with XGBoost.

Each tile, and each form of its operands, has a space of its own, and one cost model learns from
all of them. One space with the tile as a decision was the alternative. But a search keeps what is
fastest, and would measure the one or two best tiles, while the planner needs a good kernel of every
height; and MetaSchedule searches one program of constant shapes, which the tile is a shape of. The
model is told the tile, so what it learns of one tile serves the next.

MetaSchedule's own builder and runner are not used: candidates are handed on as records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import s_tir
from tvm.target import Target

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm, gemm_schedule
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.searching import metaschedule

#: What each of some records takes: smaller is better; None when it could not be built or run.
Measure = Callable[[Sequence[Record]], "Sequence[float | None]"]

#: A record that failed counts as this many times the worst one that was measured. MetaSchedule's
#: 1e10 seconds would teach its model nothing, as it weighs samples by their speed.
_FAILURE = 10.0

#: Steps that traces are sampled at: a multiple of all that is ever unrolled.
_STEPS = 256


@dataclass(frozen=True)
class Effort:
    """How long a tile is searched: at most ``trials`` records, ``batch`` at a time, for each of
    which ``population`` candidates are weighed by the cost model."""

    trials: int = 32
    batch: int = 8
    population: int = 64


class CostModel:
    """``"xgb"``: MetaSchedule's XGBoost model, on features of records. ``"random"``: none at all,
    to see what the model is worth."""

    def __init__(self, kind: str = "xgb") -> None:
        ms = metaschedule.load()
        if kind not in ("xgb", "random"):
            raise ValueError(f"kind: {kind!r} is neither 'xgb' nor 'random'")
        #: the record of a candidate, in the space that is being searched
        self.record_of: Callable[[Any], Record]
        if kind == "random":
            self.model = ms.cost_model.RandomModel(seed=0)
            return
        extractor = metaschedule.extractor(lambda candidate: self.record_of(candidate))
        self.model = ms.cost_model.XGBModel(
            extractor=extractor, num_warmup_samples=0, num_tuning_cores=1
        )


def search(
    form: Record,
    machine: Machine,
    target: Target,
    known: Mapping[Record, float | None],
    measure: Measure,
    model: CostModel,
    effort: Effort,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> dict[Record, float | None]:
    """What each measured record of ``form``'s tile took: those that are ``known`` and new ones.

    ``form`` has no decisions and is measured first. ``stop`` is asked before each batch.
    """
    with metaschedule.one_thread():
        session = _Session(form, machine, target, model, effort, seed)
        measured = dict(known)
        if form not in measured:
            measured |= _measured([form], measure)
        # before anything is proposed: a model without samples proposes at random
        session.learn({session.candidate(record): cost for record, cost in measured.items()})
        while len(measured) < effort.trials and not stop():
            batch = session.propose()
            if not batch:
                break
            records = {candidate: session.record_of(candidate) for candidate in batch}
            new = [record for record in dict.fromkeys(records.values()) if record not in measured]
            measured |= _measured(new[: effort.trials - len(measured)], measure)
            session.learn({c: measured[r] for c, r in records.items() if r in measured})
    return measured


def _measured(records: Sequence[Record], measure: Measure) -> dict[Record, float | None]:
    return dict(zip(records, measure(records), strict=True)) if records else {}


class _Session:
    """One tile's search: proposes candidates and learns what they take."""

    def __init__(
        self,
        form: Record,
        machine: Machine,
        target: Target,
        model: CostModel,
        effort: Effort,
        seed: int,
    ) -> None:
        self._ms = ms = metaschedule.load()
        self._form, self._target, self._model = form, target, model.model
        self._space = space = cpu_gemm.space(form, machine)
        model.record_of = self.record_of
        function = gemm_schedule.at_trip_count(form, machine.lanes, _STEPS)
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
                    lambda sch: gemm_schedule.schedule(sch, space),
                    sch_rules=[],
                    postprocs=[],
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

    def candidate(self, record: Record) -> Any:
        """The record as a candidate of MetaSchedule."""
        sch = s_tir.Schedule(self._context.mod)
        gemm_schedule.schedule(sch, self._space, record.decisions)
        arguments = self._ms.arg_info.ArgInfo.from_entry_func(self._context.mod, False)
        return self._ms.MeasureCandidate(sch, arguments)

    def record_of(self, candidate: Any) -> Record:
        decisions = gemm_schedule.decisions_of(candidate.sch.trace, self._space)
        return replace(self._form, decisions=decisions)

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
