"""MetaSchedule as a user runs it: a linear layer tuned for one number of rows after the other.

What TVM's own pipeline ``static_shape_tuning`` does, with its CPU weight prepacking, in two steps:
`tune` searches and writes a database, `compiled` applies one. Only the builder and the runner are
ours. TVM's default builder starts processes that import all tensor intrinsics, which takes longer
than it waits for them; its runner goes by the wall clock, which on a shared machine measures the
neighbours too.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir
from tvm.ir.utils import derived_object
from tvm.target import Target

from bench import measure
from tvm_moonpoly.tuning.searching.metaschedule import without_intrinsics

#: Candidates that are measured before the cost model learns from them.
BATCH = 16

#: Candidates that are timed once more when the search is over.
FINAL = 8

WORKLOADS, RECORDS, SUMMARY = "workloads.json", "records.json", "tuning.json"


@dataclass(frozen=True)
class Layer:
    """``x (m, k) @ w (k, n)`` with constant ``w`` and ``m`` known when it is compiled."""

    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"linear_{self.m}_{self.n}_{self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Tuned:
    """What tuning one layer took and found: processor time and wall time of the whole search, with
    building and measuring. A call of the kernel that was kept takes ``seconds``; ``best`` are the
    least ones after each trial."""

    m: int
    n: int
    k: int
    trials: int
    processor_seconds: float
    wall_seconds: float
    seconds: float
    best: tuple[float, ...]


def module(layers: Iterable[Layer]) -> tvm.IRModule:
    """One function a layer, whose second parameter is the weight."""
    builder = relax.BlockBuilder()
    for layer in layers:
        x = relax.Var("x", relax.TensorType([layer.m, layer.k], "float32"))
        w = relax.Var("w", relax.TensorType([layer.k, layer.n], "float32"))
        with builder.function(layer.name, [x, w], attrs={"num_input": 1}):
            with builder.dataflow():
                y = builder.emit_output(relax.op.matmul(x, w))
            builder.emit_func_output(y)
    return builder.get()


def lowered(layers: Iterable[Layer], target: Target) -> tvm.IRModule:
    """`module` as MetaSchedule meets it: fused functions that may store the weight as they like."""
    with without_intrinsics():
        passes = [
            relax.transform.DecomposeOpsForInference(),
            relax.transform.CanonicalizeBindings(),
            relax.get_pipeline("zero"),
            relax.transform.AttachAttrLayoutFreeBuffers(),
        ]
        with target:
            return tvm.transform.Sequential(passes)(module(layers))


def task(layer: Layer, target: Target) -> tvm.IRModule:
    """The function of ``layer`` that is tuned, alone in a module and named "main"."""
    mod = lowered([layer], target)
    (function,) = [f for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(function)


def tune(
    layer: Layer,
    target: Target,
    folder: Path,
    trials: int,
    *,
    seed: int = 1,
    quiet: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Tuned:
    """Tune ``layer`` by ``trials`` trials and add its best record to the database in ``folder``.

    The best are timed in turns once more, and the fastest of these is the one that is kept.
    ``quiet`` gives a context for that, such as a lock that keeps others away.
    Raises RuntimeError when no candidate could be run.
    """
    with without_intrinsics(), tempfile.TemporaryDirectory() as logs:
        from tvm.s_tir import meta_schedule as ms

        begin = time.process_time(), time.monotonic()
        libraries: dict[str, Any] = {}
        timed: list[float] = []
        database = ms.database.MemoryDatabase()
        mod = task(layer, target)
        kinds = dict.fromkeys(("sch_rules", "postprocs", "mutator_probs"), "llvm")
        ms.tune_tir(
            mod,
            target,
            logs,
            trials,
            num_trials_per_iter=BATCH,
            builder=_builder(ms, libraries),
            runner=_runner(ms, libraries, timed),
            database=database,
            # By default it learns nothing before the 100th sample: a short search would be random.
            cost_model=ms.cost_model.XGBModel(num_warmup_samples=BATCH, num_tuning_cores=1),
            # TVM's own third callback removes the folder of a file; there is none here.
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
            ],
            space=ms.space_generator.PostOrderApply(**kinds),
            num_tuning_cores=1,
            seed=seed,
        )
        with quiet():
            best, seconds = _final(
                mod, target, database.get_top_k(database.commit_workload(mod), FINAL)
            )
        took = time.process_time() - begin[0], time.monotonic() - begin[1]
    if not timed:
        raise RuntimeError(f"{layer.name}: none of {trials} trials could be built and run")
    file = open_database(folder)
    file.commit_tuning_record(
        ms.database.TuningRecord(
            best.trace, file.commit_workload(mod), [seconds], target, best.args_info
        )
    )
    curve = tuple(float(f"{each:.4g}") for each in np.minimum.accumulate(timed))
    return Tuned(
        layer.m,
        layer.n,
        layer.k,
        len(timed),
        round(took[0], 1),
        round(took[1], 1),
        float(f"{seconds:.4g}"),
        curve,
    )


def _final(mod: tvm.IRModule, target: Target, records: Iterable[Any]) -> tuple[Any, float]:
    """The fastest of ``records`` in interleaved rounds, and its median seconds."""
    records = list(records)
    runs = {}
    for place, record in enumerate(records):
        schedule = s_tir.Schedule(mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        runs[str(place)] = _call(_built(schedule.mod, target), record.args_info)
    seconds = measure.interleave(runs, rounds=5, min_seconds=0.01, clock=time.process_time)
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    best = min(medians, key=lambda name: medians[name])
    return records[int(best)], medians[best]


def _built(mod: tvm.IRModule, target: Target) -> Any:
    """A candidate in machine code. The weight is in its layout before the call: that is no part of
    the function that is timed."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(mod)
    return tvm.tirx.build(mod, target=target)


def _call(library: Any, infos: Iterable[Any]) -> Callable[[], object]:
    """The call of a candidate's function on operands of its own."""
    function = library["main"]
    tensors = [
        tvm.runtime.tensor(np.full([int(d) for d in info.shape], 0.5, str(info.dtype)))
        for info in infos
    ]
    return lambda: function(*tensors)


def _builder(ms: Any, libraries: dict[str, Any]) -> Any:
    """A builder in this process that puts what it builds into ``libraries``."""

    @derived_object
    class Builder(ms.builder.PyBuilder):
        def build(self, inputs: Any) -> list[Any]:
            found = []
            for each in inputs:
                key = str(len(libraries))
                try:
                    libraries[key] = _built(each.mod, each.target)
                    found.append(ms.builder.BuilderResult(key, None))
                except Exception as error:  # whatever TVM raises counts as a failed trial
                    found.append(ms.builder.BuilderResult(None, str(error)))
            return found

    return Builder()


def _runner(ms: Any, libraries: dict[str, Any], timed: list[float]) -> Any:
    """A runner in this process. The least of three samples counts; ``timed`` collects them."""

    @derived_object
    class Future(ms.runner.PyRunnerFuture):
        def __init__(self, result: Any) -> None:
            super().__init__()
            self._result = result

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            return self._result

    @derived_object
    class Runner(ms.runner.PyRunner):
        def run(self, inputs: Any) -> list[Any]:
            return [Future(self._result(each)) for each in inputs]

        def _result(self, each: Any) -> Any:
            run = _call(libraries[str(each.artifact_path)], each.args_info)
            samples = [measure.sample(run, 1, 0.01, time.process_time)[0] for _ in range(3)]
            timed.append(min(samples))
            return ms.runner.RunnerResult([min(samples)], None)

    return Runner()


def recorded_or_tuned(
    n: int, k: int, rows: Iterable[int], target: Target, folder: Path, trials: int = 64
) -> list[Tuned]:
    """What was recorded of the layers (m, n, k) with m of ``rows``; nothing is searched.

    With ``MOONPOLY_RETUNE=1`` in the environment the layers are tuned anew instead, and take the
    place of their records in ``folder``. Raises ValueError when a layer was never tuned.
    """
    layers = [Layer(m, n, k) for m in sorted(set(rows))]
    if os.environ.get("MOONPOLY_RETUNE") == "1":
        return retuned(layers, target, folder, trials)
    found = {(each.m, each.n, each.k): each for each in read_summary(folder)}
    missing = [layer.name for layer in layers if (layer.m, n, k) not in found]
    if missing:
        raise ValueError(f"never tuned: {', '.join(missing)}; MOONPOLY_RETUNE=1 does it")
    return [found[layer.m, n, k] for layer in layers]


def retuned(
    layers: Iterable[Layer],
    target: Target,
    folder: Path,
    trials: int,
    quiet: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Tuned]:
    """Tune ``layers`` one by one and write each to ``folder`` when it is done, in the place of
    older records of the same layer."""
    done = []
    for layer in layers:
        with tempfile.TemporaryDirectory() as fresh:
            done.append(tune(layer, target, Path(fresh), trials, quiet=quiet))
            replace_record(folder, Path(fresh), layer, target)
        others = read_summary(folder) if (folder / SUMMARY).exists() else []
        same = {(layer.m, layer.n, layer.k)}
        write_summary(folder, [*(o for o in others if (o.m, o.n, o.k) not in same), done[-1]])
    return done


def replace_record(folder: Path, fresh: Path, layer: Layer, target: Target) -> None:
    """Put the record of ``layer`` in ``fresh`` into ``folder``, and what that has of it aside."""
    with without_intrinsics():
        from tvm.s_tir import meta_schedule as ms

        mod = task(layer, target)
        kept = [*open_database(folder).get_all_tuning_records()]
        new = open_database(fresh).query_tuning_record(mod, target, "main")
        old = [r for r in kept if not tvm_ffi.structural_equal(r.workload.mod, mod)]
        for name in (WORKLOADS, RECORDS):
            (folder / name).unlink(missing_ok=True)
        database = open_database(folder)
        for each in [*old, new]:
            workload = database.commit_workload(each.workload.mod)
            database.commit_tuning_record(
                ms.database.TuningRecord(
                    each.trace, workload, each.run_secs, each.target, each.args_info
                )
            )


def recorded_on(folder: Path, target: Target) -> str:
    """A sentence on the machine that the records in ``folder`` are from, and whether it is like
    this one."""
    text = (folder / SUMMARY).read_text(encoding="utf-8")
    cpu = json.loads(text)["machine"]["cpu"]
    records = open_database(folder).get_all_tuning_records()
    made_for = sorted({str(record.target.attrs["mcpu"]) for record in records})
    here = str(target.attrs["mcpu"])
    same = "the same as here" if made_for == [here] else f"here it is {here}: retune to compare"
    return f"Recorded on {cpu}, compiled for {', '.join(made_for)}: {same}."


def open_database(folder: Path) -> Any:
    """The JSON database in ``folder``, created when there is none."""
    with without_intrinsics():
        from tvm.s_tir import meta_schedule as ms

        folder.mkdir(parents=True, exist_ok=True)
        return ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))


def read_summary(folder: Path) -> list[Tuned]:
    """What tuning each layer of the database in ``folder`` took."""
    rows = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["layers"]
    return [Tuned(**{**row, "best": tuple(row["best"])}) for row in rows]


def write_summary(folder: Path, tuned: Iterable[Tuned]) -> None:
    """Write what `read_summary` reads, and on which machine it was measured."""
    facts = measure.machine_facts()
    machine = {name: facts[name] for name in ("cpu", "caches", "versions")}
    rows = ",\n".join("  " + json.dumps(asdict(each)) for each in tuned)
    text = f'{{"machine": {json.dumps(machine)},\n "layers": [\n{rows}\n]}}\n'
    (folder / SUMMARY).write_text(text, encoding="utf-8")


def compiled(layers: Iterable[Layer], target: Target, folder: Path) -> tvm.runtime.Module:
    """All ``layers`` by the records in ``folder``, as a virtual machine; nothing is searched.

    Function ``layer.name`` takes x and then what `prepacked` returns.
    Raises ValueError when a layer has no record.
    """
    layers = list(layers)
    database = open_database(folder)
    for layer in layers:
        if not database.query_tuning_record(task(layer, target), target, "main"):
            raise ValueError(f"{layer.name}: the database in {folder.name} has no record of it")
    with without_intrinsics(), target:
        with database:
            mod = relax.transform.MetaScheduleApplyDatabase()(lowered(layers, target))
        passes = [
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.LiftTransformParams(),
            relax.transform.FoldConstant(),
        ]
        mod = tvm.transform.Sequential(passes)(mod)
        return relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())


def prepacked(vm: Any, layer: Layer, weight: np.ndarray) -> list[Any]:
    """``weight`` in the layout that the record of ``layer`` wants."""
    made = vm[f"{layer.name}_transform_params"]([tvm.runtime.tensor(weight)])
    return list(made)
