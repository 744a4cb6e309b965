"""What a search of ours adds to MetaSchedule: a mutator of any decision, features of records.

MetaSchedule's own mutators know the decisions of its own rules, and its own features do not see
annotations; both are written in Python here. It calls them from one thread.
"""

from __future__ import annotations

import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object

from tvm_moonpoly.microkernels.gemm_schedule import SAMPLE
from tvm_moonpoly.microkernels.records import DECISIONS, Record


def load() -> Any:
    """The module ``tvm.s_tir.meta_schedule``.

    Raises ImportError when what it needs is not installed.
    """
    try:
        import xgboost  # noqa: F401

        with without_intrinsics():
            from tvm.s_tir import meta_schedule
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'tvm_moonpoly[tune]' brings it") from error
    return meta_schedule


@contextmanager
def without_intrinsics() -> Iterator[None]:
    """An empty package in the place of tvm's tensor intrinsics, unless they are loaded.

    Every `TuneContext` imports the intrinsics of all targets, which takes a minute and is not
    needed by schedules without any.
    """
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    package = types.ModuleType(name)
    package.__path__ = [str(Path(tvm.__path__[0]) / "s_tir" / "tensor_intrin")]
    sys.modules[name] = package
    try:
        yield
    finally:
        # whoever else imports them is to get them
        del sys.modules[name]


@contextmanager
def one_thread() -> Iterator[None]:
    """XGBoost in one thread: with a hundred samples, the threads cost more than the work."""
    import xgboost

    # releases before 3.1 do not have the setting
    known = {"nthread": 1} if "nthread" in xgboost.get_config() else {}
    with xgboost.config_context(**known):
        yield


def mutator(seed: int) -> Any:
    """A mutator that gives one decision of a trace another choice."""
    ms = load()
    chooser = random.Random(seed)

    @derived_object
    class MutateDecision(ms.mutator.PyMutator):  # type: ignore[name-defined]
        def _initialize_with_tune_context(self, context: Any) -> None:
            pass

        def apply(self, trace: Any, _: Any) -> Any:
            # the candidates of a sample are the first of its attributes
            samples = [
                (inst, len(inst.attrs[0]))
                for inst in trace.insts
                if inst.kind.name == SAMPLE and len(inst.attrs[0]) > 1
            ]
            inst, options = chooser.choice(samples)
            taken = int(trace.decisions[inst])
            other = chooser.choice([i for i in range(options) if i != taken])
            return trace.with_decision(inst, other, True)

        def clone(self) -> Any:
            return self

    return MutateDecision()


def extractor(features_of: Callable[[Any], list[float]]) -> Any:
    """A feature extractor that tells of each candidate what ``features_of`` finds."""
    ms = load()

    @derived_object
    class Features(ms.feature_extractor.PyFeatureExtractor):  # type: ignore[name-defined]
        def extract_from(self, context: Any, candidates: Any) -> list[Any]:
            rows = [features_of(candidate) for candidate in candidates]
            return [tvm.runtime.tensor(np.array([row], np.float32)) for row in rows]

    return Features()


def learned_model(features_of: Callable[[Any], list[float]]) -> Any:
    """MetaSchedule's XGBoost model, told of each candidate what ``features_of`` finds."""
    return load().cost_model.XGBModel(
        extractor=extractor(features_of), num_warmup_samples=0, num_tuning_cores=1
    )


def features(record: Record) -> list[float]:
    """What a cost model is told of a record: the tile, its decisions, and what follows from them:
    accumulators, steps and multiply-adds of an iteration, loads for each multiply-add."""
    tile = record.mr * record.nv
    sums, unroll = record.decision("sums"), record.decision("unroll")
    return [
        float(record.mr),
        float(record.nv),
        float(record.packed_a),
        float(tile * sums),
        math.log2(sums * unroll),
        math.log2(tile * sums * unroll),
        (record.mr + record.nv) / tile,
        record.decision("row_block") / record.mr,
        *(math.log2(1 + record.decision(name)) for name in DECISIONS),
    ]
