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
from dataclasses import replace
from typing import Any

from tvm.target import Target

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm, gemm_schedule
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.tuning.searching import metaschedule
from tvm_moonpoly.tuning.searching.session import Effort, Session

#: What each of some records takes: smaller is better; None when it could not be built or run.
Measure = Callable[[Sequence[Record]], "Sequence[float | None]"]

#: Steps that traces are sampled at: a multiple of all that is ever unrolled.
_STEPS = 256


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
        self.model = metaschedule.learned_model(
            lambda candidate: metaschedule.features(self.record_of(candidate))
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
    space = cpu_gemm.space(form, machine)
    function = gemm_schedule.at_trip_count(form, machine.lanes, _STEPS)

    def record_of(candidate: Any) -> Record:
        decisions = gemm_schedule.decisions_of(candidate.sch.trace, space)
        return replace(form, decisions=decisions)

    model.record_of = record_of
    with metaschedule.one_thread():
        session = Session(
            function,
            lambda sch, decisions: gemm_schedule.schedule(sch, space, decisions),
            target,
            model.model,
            effort,
            seed,
        )
        measured = dict(known)
        if form not in measured:
            measured |= _measured([form], measure)
        # before anything is proposed: a model without samples proposes at random
        session.learn({session.candidate(r.decisions): cost for r, cost in measured.items()})
        while len(measured) < effort.trials and not stop():
            batch = session.propose()
            if not batch:
                break
            records = {candidate: record_of(candidate) for candidate in batch}
            new = [record for record in dict.fromkeys(records.values()) if record not in measured]
            measured |= _measured(new[: effort.trials - len(measured)], measure)
            session.learn({c: measured[r] for c, r in records.items() if r in measured})
    return measured


def _measured(records: Sequence[Record], measure: Measure) -> dict[Record, float | None]:
    return dict(zip(records, measure(records), strict=True)) if records else {}
