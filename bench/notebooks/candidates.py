"""All that TVM offers for a linear layer whose rows are counted at the call, and ours.

A candidate is built once for a weight. Its ``prepare`` turns a tensor of rows into the call that is
timed. All are called through TVM's virtual machine, which makes their output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.s_tir import dlight as dl
from tvm.target import Target

import tvm_moonpoly as mp
from bench.gemm.tvm_models import dim, tensor
from bench.hand_schedule import hand_scheduled_pipeline, scheduled_pipeline
from bench.notebooks import buckets, metaschedule
from bench.notebooks.metaschedule import Layer
from tvm_moonpoly import operators

#: The candidates' names, as they stand in tables and figures.
OURS, PLAIN, DLIGHT, HAND, PADDED, BUCKETS, EXACT = (
    "tvm_moonpoly",
    "plain TVM",
    "dlight",
    "hand schedule",
    "hand schedule, padded",
    "MetaSchedule, buckets",
    "MetaSchedule, exact M",
)

DATA = Path(__file__).parent / "data"

Run = Callable[[], object]


@dataclass(frozen=True)
class Candidate:
    """``prepare(x)`` gives the call for the rows ``x``; None of ``only`` means any number of rows.

    ``seconds`` of processor time were spent on this layer before its first call: compiling, and
    for MetaSchedule the tuning, as it was recorded.
    """

    name: str
    seconds: float
    prepare: Callable[[Any], Run]
    only: tuple[int, ...] | None = None

    def takes(self, rows: int) -> bool:
        return self.only is None or rows in self.only


def dynamic_layer(weight: np.ndarray) -> tvm.IRModule:
    """``x (m, k) @ weight`` with m symbolic, as a function "linear"."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor(dim("m"), weight.shape[0]))
    with builder.function("linear", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(y)
    return builder.get()


def dynamic(name: str, weight: np.ndarray, target: Target, pipeline: Any) -> Candidate:
    """The dynamic function compiled by a Relax pipeline."""
    begin = time.process_time()
    executable = tvm.compile(dynamic_layer(weight), target, relax_pipeline=pipeline)
    function = relax.VirtualMachine(executable, tvm.cpu())["linear"]
    seconds = time.process_time() - begin
    return Candidate(name, seconds, lambda x: lambda: function(x))


def dynamic_candidates(weight: np.ndarray, target: Target) -> list[Candidate]:
    """Those that are compiled once for all numbers of rows."""
    # built once for a processor, whatever the layers, and then kept
    operators.library(target).module.part("gemm")
    pipelines = {
        OURS: mp.pipeline(target),
        PLAIN: relax.get_default_pipeline(target),
        DLIGHT: dlight_pipeline(target),
        HAND: hand_scheduled_pipeline(target, threads=1),
        PADDED: hand_scheduled_pipeline(target, padded=True, threads=1),
    }
    found = {name: dynamic(name, weight, target, each) for name, each in pipelines.items()}
    found[DLIGHT] = with_gemv(found[DLIGHT], weight, target)
    return list(found.values())


def with_gemv(candidate: Candidate, weight: np.ndarray, target: Target) -> Candidate:
    """``candidate``, but for one row what dlight has a rule for: a static function of one row that
    reads a transposed weight."""
    k, n = weight.shape
    begin = time.process_time()
    pipeline = dlight_pipeline(target)
    executable = tvm.compile(by_rows(1, n, k), target, relax_pipeline=pipeline)
    function = relax.VirtualMachine(executable, tvm.cpu())["main"]
    seconds = candidate.seconds + time.process_time() - begin
    stored = tvm.runtime.tensor(np.ascontiguousarray(weight.T))

    def prepare(x: Any) -> Run:
        return (lambda: function(x, stored)) if x.shape[0] == 1 else candidate.prepare(x)

    return replace(candidate, seconds=seconds, prepare=prepare)


def static_candidates(
    weight: np.ndarray, target: Target, sizes: Sequence[int], exact: Sequence[int]
) -> list[Candidate]:
    """MetaSchedule's kernels by the recorded database: buckets of ``sizes``, and ``exact`` ones.

    A kernel of a bucket is also an exact one. Raises ValueError for layers without a record.
    """
    k, n = weight.shape
    layers = {m: Layer(m, n, k) for m in sorted({*sizes, *exact})}
    spent = {(each.m, each.n, each.k): each for each in metaschedule.read_summary(DATA)}
    seconds = {m: spent[m, n, k].processor_seconds for m in layers}
    begin = time.process_time()
    vm = metaschedule.compiled(layers.values(), target, DATA)
    compiling = (time.process_time() - begin) / len(layers)
    kernels = {m: kernel(vm, layer, weight) for m, layer in layers.items()}

    def exact_call(x: Any) -> Run:
        # of other rows than its own a kernel says what is wrong
        function = kernels.get(x.shape[0], kernels[max(kernels)])
        return lambda: function(x)

    few = {m: kernels[m] for m in sizes}
    return [
        Candidate(
            BUCKETS,
            sum(seconds[m] + compiling for m in sizes),
            lambda x: buckets.bucketed(few, x, n),
        ),
        Candidate(
            EXACT,
            sum(seconds[m] + compiling for m in layers) / len(layers),
            exact_call,
            tuple(layers),
        ),
    ]


def refusal(exact: Candidate, rows: int, k: int) -> str:
    """What TVM says when a kernel made for exact M is called with ``rows`` rows of ``k``."""
    try:
        exact.prepare(buckets.aligned(rows, k))()
    except Exception as error:
        return str(error).strip().splitlines()[0]
    raise ValueError(f"rows: there is a kernel for exactly {rows}")


def kernel(vm: Any, layer: Layer, weight: np.ndarray) -> Callable[[Any], Any]:
    """The function of ``layer`` with the weight in its layout."""
    function, packed = vm[layer.name], metaschedule.prepacked(vm, layer, weight)
    return lambda x: function(x, *packed)


def dlight_rules() -> tvm.transform.Pass:
    """All rules that dlight has for CPUs. Its rules for matmuls are for GPUs only."""
    return dl.ApplyDefaultSchedule(dl.cpu.GEMV(), dl.cpu.Reduction())


def dlight_pipeline(target: Target) -> tvm.transform.Pass:
    """TVM's default CPU pipeline with all of dlight's rules for CPUs after fusion."""
    return scheduled_pipeline(target, dlight_rules())


def dlight_coverage(n: int, k: int, target: Target) -> dict[str, bool]:
    """Which functions dlight's rules for CPUs schedule: linear layers and a softmax."""
    m = tvm.tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType([m, n], "float32"))
    functions = {
        "linear layer, any M, weight (K, N)": by_columns(m, n, k),
        "linear layer, any M, weight (N, K)": by_rows(m, n, k),
        "linear layer, M = 1, weight (K, N)": by_columns(1, n, k),
        "linear layer, M = 1, weight (N, K)": by_rows(1, n, k),
        "softmax over N, any M": _function([x], lambda _: relax.op.nn.softmax(x)),
    }
    return {name: _scheduled(function, target) for name, function in functions.items()}


def by_columns(m: Any, n: int, k: int) -> tvm.IRModule:
    """``x (m, k) @ w (k, n)`` as a function "main" of both."""
    x, w = (relax.Var(name, relax.TensorType(dims, "float32"))
            for name, dims in (("x", [m, k]), ("w", [k, n])))  # fmt: skip
    return _function([x, w], lambda _: relax.op.matmul(x, w))


def by_rows(m: Any, n: int, k: int) -> tvm.IRModule:
    """``x (m, k) @ w.T`` with ``w`` (n, k) read as it lies, as a function "main" of both."""
    x, w = (relax.Var(name, relax.TensorType(dims, "float32"))
            for name, dims in (("x", [m, k]), ("w", [n, k])))  # fmt: skip

    def product(x: Any, w: Any) -> Any:
        r = te.reduce_axis((0, k), "r")
        return te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), "linear")

    return _function([x, w], lambda builder: builder.emit_te(product, x, w))


def _function(parameters: list[Any], emit: Callable[[Any], Any]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            y = builder.emit_output(emit(builder))
        builder.emit_func_output(y)
    return builder.get()


def _scheduled(mod: tvm.IRModule, target: Target) -> bool:
    """Whether dlight schedules the functions that ``mod`` is lowered to."""
    passes = [*cpu.legalize_passes(target), dlight_rules()]
    with target:
        mod = tvm.transform.Sequential(passes)(mod)
    functions = [each for _, each in mod.functions_items() if isinstance(each, tvm.tirx.PrimFunc)]
    return all("tirx.is_scheduled" in (each.attrs or {}) for each in functions)
