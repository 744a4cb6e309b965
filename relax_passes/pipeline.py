"""The whole compiler from Relax to a virtual machine executable, from top to bottom."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu
from tvm.s_tir.meta_schedule.database import Database
from tvm.target import Target

from tvm_moonpoly.arguments import by_name, names, require, require_flags, target_of

from . import own_errors, plan_memory, view_reshapes
from .attention import FuseAttention
from .channels_last import ConvertToChannelsLast
from .check_operands import MATMUL, CheckOperands
from .check_reshapes import CheckReshapes
from .cuda import CompileKernels
from .fold_into_convolutions import FoldIntoConvolutions
from .host_code import KeepHostCode
from .join_norms import JoinNorms
from .keep_nan import KeepNaN
from .map_weights import MapWeights
from .merge_products import MergeProducts
from .normalize_operators import NormalizeOperators
from .own_variables import OwnVariables
from .polymerize import PolymerizeDynamicOps
from .polymerize_convolutions import PolymerizeConvolutions
from .report import Report, report_of
from .reuse_storages import ReuseStorages
from .round_storages import RoundStorages
from .schedule_memory_bound import ScheduleMemoryBound
from .search_rows import SearchRows
from .shape_facts_prim import TellPrimFuncs
from .shape_promises import Promise, PromiseShapes
from .share_storages import ShareStorages
from .sink_reshapes import SinkReshapes
from .sizes_as_shapes import SizesAsShapes
from .steps import Step, run_steps
from .vector_math import VectorMath


def pipeline(
    target: Target,
    *,
    report: Report | None = None,
    dims: Mapping[str, Promise] | None = None,
    schedule_memory_bound: bool = True,
    static: bool = False,
    lift_parameters: bool = False,
    verify: bool = False,
    check_reshapes: bool = True,
    convolutions: bool = True,
    fold_into_convolutions: bool = True,
    channels_last: bool = True,
    winograd: bool = True,
    vector_math: bool = True,
    attention: bool = True,
    merge_products: bool = True,
    without: Collection[str] | None = None,
    steps: list[Step] | None = None,
) -> tvm.transform.Pass:
    """The pass to give to `tvm.compile(mod, target, relax_pipeline=...)`.

    It is TVM's own default pipeline for `target`, with the dynamic matmuls and convolutions taken
    out first.
    `report`, if given, is told what became of each of them. For CUDA, matmuls of half precision
    are taken out, and all kernels are compiled to machine code here.

    * `dims`: what is promised of dimensions, by their names or as `PARAMETER:AXIS`: a `Range`, or
      the smallest and the largest size. A call with another size raises an error.
    * `schedule_memory_bound`: a schedule for the functions that remain between them, on CPUs.
    * `static`: take out those of static shapes as well, unless the MetaSchedule database in context
      has a record for them.
    * `lift_parameters`: pack weights that are parameters once, in `NAME_transform_params`, whose
      results the function `NAME` then takes in their place (`LiftTransformParams`).
    * `verify`: compare each call with TVM's own operators, and raise where they differ by more
      than rounding explains; on CPUs.
    * `check_reshapes`: raise where a reshape at the call loses elements.
    * `convolutions`: take out convolutions at all; `fold_into_convolutions`: batch norms and pads
      around them become part of them; `channels_last`: convert networks in NCHW to NHWC, once at
      their borders; `winograd`: compute those of 3x3 kernels by Winograd's algorithm, which rounds
      relative to the largest numbers around a window.
    * `attention`: attention in fp32 as one operator, unless `verify`, which compares its products;
      `merge_products`: the linear layers that make its operands from one tensor as one.
    * `vector_math`: exp, sigmoid, erf and tanh in fp32 as arithmetic, in place of calls of libm.
    * `without`: names of passes to leave out; `steps`: is told of each pass that is run.

    Raises ValueError, which names the argument, for what is of a wrong type. Names in `dims` and
    `without` that there are not raise it when a module is compiled, before any pass is run.
    """
    require_flags(
        schedule_memory_bound=schedule_memory_bound,
        static=static,
        lift_parameters=lift_parameters,
        verify=verify,
        check_reshapes=check_reshapes,
        convolutions=convolutions,
        fold_into_convolutions=fold_into_convolutions,
        channels_last=channels_last,
        winograd=winograd,
        vector_math=vector_math,
        attention=attention,
        merge_products=merge_products,
    )
    require(steps is None or isinstance(steps, list), "steps", "a list", steps)
    without = names("without", without)
    target, report = target_of(target), report_of(report)
    promises = PromiseShapes(by_name("dims", dims))
    polymerize = PolymerizeDynamicOps(
        target, report, static=static, pack_parameters=lift_parameters, verify=verify
    )
    convolution_passes = [
        NormalizeOperators(target, static, lift_parameters),
        *([FoldIntoConvolutions(target, static)] if fold_into_convolutions else []),
        *([ConvertToChannelsLast(target, static, lift_parameters)] if channels_last else []),
        PolymerizeConvolutions(
            target,
            report,
            static=static,
            pack_parameters=lift_parameters,
            verify=verify,
            winograd=winograd,
        ),
    ]

    attention_passes = [
        FuseAttention(target, report, static=static),
        *([MergeProducts()] if merge_products else []),
    ]

    @tvm.transform.module_pass(opt_level=0, name="MoonPolyPipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        passes = [
            # Phase 0. What is promised of dimensions is written down, and checked by each call.
            promises,
            # Phase 1. Dynamic convolutions and matmuls become calls of the operator library.
            OwnVariables(),
            *([CheckReshapes()] if check_reshapes else []),
            CheckOperands(),
            *(convolution_passes if convolutions else []),
            *(attention_passes if attention and not verify else []),
            SinkReshapes(),
            polymerize,
            CheckOperands([MATMUL]),
            *([relax.transform.LiftTransformParams()] if lift_parameters else []),
            # Phase 2 and later. Everything else.
            *_passes_for(target, schedule_memory_bound, vector_math),
        ]
        with target:
            return run_steps(passes, mod, without, steps)

    return _pipeline


def _passes_for(
    target: Target, schedule_memory_bound: bool, vector_math: bool
) -> list[tvm.transform.Pass]:
    kind = str(target.kind.name)
    if kind == "llvm":
        return _cpu_passes(target, schedule_memory_bound, vector_math)
    if kind == "cuda":
        return [_tvm_pipeline(target), CompileKernels(target), KeepHostCode()]
    return [_tvm_pipeline(target)]


def _tvm_pipeline(target: Target) -> tvm.transform.Pass:
    """TVM's pipeline for `target`, or the general one where it has none of its own."""
    try:
        return relax.get_default_pipeline(target)
    except ValueError:
        return relax.get_pipeline("default")


def _edited(
    passes: Sequence[tvm.transform.Pass], instead: Mapping[str, list[tvm.transform.Pass]]
) -> Iterator[tvm.transform.Pass]:
    """`passes`, with others in the place of those that are named."""
    for each in passes:
        yield from instead.get(each.info.name, [each])


def _cpu_passes(
    target: Target, schedule_memory_bound: bool, vector_math: bool
) -> list[tvm.transform.Pass]:
    return [
        # Phase 2. The libraries that TVM itself brings for sampling and sorting.
        *cpu.library_dispatch_passes(target),
        # Phase 3. Reshapes become views, the other operators loops, fused where elementwise.
        *([JoinNorms(target), SearchRows(target)] if schedule_memory_bound else []),
        *_edited(
            cpu.legalize_passes(target),
            {
                view_reshapes.REPLACES: [view_reshapes.LegalizeAroundViews()],
                "FuseTIR": [SizesAsShapes(), relax.transform.FuseTIR()],
            },
        ),
        # What the user has tuned, if a database of MetaSchedule is in context.
        *([relax.transform.MetaScheduleApplyDatabase()] if Database.current() is not None else []),
        # Phase 4. Dataflow becomes a sequence of calls with explicit destinations, and a reshape
        # a view: those are recognised by their loops, which therefore come to be scheduled later.
        *cpu.dataflow_lower_passes(target),
        # Phase 5. The loops pass over memory once, in vectors, and know what is promised of sizes.
        TellPrimFuncs(),
        KeepNaN(target),
        *([ScheduleMemoryBound(target)] if schedule_memory_bound else []),
        *([VectorMath(target)] if vector_math else []),
        # Phase 6. Memory planning, computation of shapes, built-ins of the virtual machine.
        *_edited(
            cpu.finalize_passes(target),
            {
                plan_memory.REPLACES: [
                    plan_memory.PlanMemory(),
                    ShareStorages(),
                    ReuseStorages(),
                ],
                own_errors.FOLLOWS: [relax.transform.VMShapeLower(), own_errors.OwnErrors(target)],
                "KillAfterLastUse": [
                    RoundStorages(),
                    MapWeights(target),
                    relax.transform.KillAfterLastUse(),
                ],
            },
        ),
        KeepHostCode(),
    ]
