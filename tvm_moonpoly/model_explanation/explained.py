"""A model compiled twice, by TVM's own passes and by ours, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.target import Target

from relax_passes import Report, ShapeFacts, facts, pipeline
from relax_passes.shape_promises import promised
from relax_passes.steps import Step, run_steps

from .changes import Change, changes
from .measured import Key, Profile, profile
from .memory import Memory, planned_memory
from .predicted import predicted
from .sizes import Inputs, are_likely, made_inputs, sizes_of_call

#: The passes that make loops of operators: what comes before them are calls of packed functions.
LEGALIZE = ("LegalizeAroundViews", "LegalizeOps")


@dataclass(frozen=True)
class Compiled:
    """What became of a model: what each pass changed, the memory of a call, seconds of compiling,
    and where sizes are known the time of a call."""

    changes: tuple[Change, ...]
    memory: Memory
    seconds: float
    profile: Profile | None


@dataclass(frozen=True)
class ModelExplanation:
    """`ours`, and `plain` TVM for comparison; `predicted` are seconds of one call by function and
    shapes; `sizes` those of the call; `facts` what is known of the sizes of `function`."""

    ours: Compiled
    plain: Compiled | None
    predicted: Mapping[Key, float]
    sizes: Mapping[str, int] | None
    facts: ShapeFacts
    function: relax.Function
    report: Report


def explained_model(
    mod: tvm.IRModule,
    inputs: Inputs,
    target: Target,
    *,
    sizes: Mapping[str, int] | None = None,
    without: Collection[str] = (),
    compare: bool = True,
    measure: bool = True,
) -> ModelExplanation:
    """Compile `mod`, whose function `main` takes `inputs` (name, dtype and sizes of each), with
    all passes but those `without`; to `compare`, with TVM's own passes alone as well.

    With `sizes` of all dynamic dimensions that have no likely size, or where all have one, memory
    is in bytes and times are predicted; to `measure`, functions are called, which must be able to
    run here.

    Raises SizeError for sizes that do not fit, and ValueError for passes that cannot be left out.
    """
    known: Mapping[str, int] | None = None
    operands: list[np.ndarray] | None = None
    ranges = promised(mod["main"])
    if sizes is not None or are_likely(inputs, ranges):
        known = sizes_of_call(inputs, sizes or {}, ranges)
        operands = made_inputs(inputs, known) if measure else None
    report, steps = Report(), list[Step]()
    ours = _compiled(
        mod, target, pipeline(target, report=report, without=without, steps=steps), steps,
        known, operands,
    )  # fmt: skip
    plain = None
    if compare:
        of_tvm: list[Step] = []
        plain = _compiled(mod, target, _plain(target, of_tvm), of_tvm, known, operands)
    operators = next(step.before for step in steps if step.name in LEGALIZE)
    costs = {} if known is None else predicted(operators, known, target, None)
    first = operators["main"]
    return ModelExplanation(ours, plain, costs, known, facts(first), first, report)


def _compiled(
    mod: tvm.IRModule,
    target: Target,
    passes: tvm.transform.Pass,
    steps: Sequence[Step],
    sizes: Mapping[str, int] | None,
    operands: list[np.ndarray] | None,
) -> Compiled:
    start = time.perf_counter()
    executable: Any = tvm.compile(mod, target, relax_pipeline=passes)
    seconds = time.perf_counter() - start
    return Compiled(
        tuple(changes(steps)),
        planned_memory(steps, sizes or {}),
        seconds,
        None if operands is None else profile(executable, operands),
    )


def _plain(target: Target, steps: list[Step]) -> tvm.transform.Pass:
    """TVM's own pipeline for CPUs, which tells `steps` of each pass."""

    @tvm.transform.module_pass(opt_level=0, name="PlainPipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        passes = [
            *cpu.library_dispatch_passes(target),
            *cpu.legalize_passes(target),
            *cpu.dataflow_lower_passes(target),
            *cpu.finalize_passes(target),
        ]
        with target:
            return run_steps(passes, mod, steps=steps)

    return _pipeline
