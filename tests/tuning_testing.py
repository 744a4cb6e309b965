"""What the tests of the tuning stage share: tasks that take made-up times, and a search without
MetaSchedule."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console

from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.tuning.measuring.kernel_loop import PROBE_CHAINS
from tvm_moonpoly.tuning.measuring.processes import WorkerError
from tvm_moonpoly.tuning.measuring.tasks import Task, Timing
from tvm_moonpoly.tuning.measuring.trials import one_by_one
from tvm_moonpoly.tuning.progress import Display
from tvm_moonpoly.tuning.settings import Settings
from tvm_moonpoly.tuning.steps import Stage

MACHINE = Machine(
    triple="x86_64-linux-gnu",
    mcpu="made-up",
    features=frozenset({"avx2", "fma"}),
    isa="avx2",
    lanes=8,
    vector_registers=16,
    cores=2,
    l1_bytes=32 << 10,
    l2_bytes=512 << 10,
    l3_bytes=16 << 20,
)

#: Small, but with every step of a stage.
SETTINGS = Settings(
    budget=1e6,
    search_share=0.5,
    tasks_share=1.0,
    trials=5,
    batch=2,
    finalists=2,
    rounds=2,
    thorough=False,
)


def gigaflops(task: Task, timing: Timing, reference: float, machine: Machine) -> float:
    """GFLOP/s of a timed task, on the machine of which one step of the probe takes ``reference``
    nanoseconds."""
    return task.flops(machine) / (timing.steps * reference)


def efficiency(task: Task, timing: Timing, machine: Machine) -> float:
    """The task's speed as a part of the probe's, which is about the peak of one core."""
    return task.flops(machine) / timing.steps / (2 * PROBE_CHAINS * machine.lanes)


def made_up(task: Task, machine: Machine = MACHINE) -> Timing:
    """A timing that depends on all decisions; the best are 2 partial sums, 4 steps unrolled."""
    decision = task.record.decision
    penalty = (
        1.0
        + 0.30 * (decision("sums") != 2)
        + 0.10 * (decision("unroll") != 4)
        + 0.05 * (decision("row_block") != 1)
        + 0.04 * (decision("prefetch_b") != 64)
        + 0.02 * (decision("prefetch_c") != 1)
        + 0.50 * (task.placement == "b_memory")
        + 0.10 * task.busy
    )
    one = Timing(1.0, 0.0, 1, True)
    return Timing(efficiency(task, one, machine) * penalty, 0.01, 9, True)


def failing_on(fails: Callable[[Task], bool]) -> Callable[[Task], Timing]:
    def measure(task: Task) -> Timing:
        if fails(task):
            raise WorkerError("crashed with SIGSEGV")
        return made_up(task)

    return measure


def in_order(trials: int):
    """A search that measures a space from its first record on."""

    def search(form, known, measure, stop):
        space = cpu_gemm.space(form, MACHINE)
        measured = set(known)
        for choice in itertools.product(*space.values()):
            record = replace(form, decisions=dict(zip(space, choice, strict=True)))
            if len(measured) == trials or stop():
                break
            if record not in measured:
                measured.add(record)
                measure([record])

    return search


def stage_of(journal, measure=made_up, settings=SETTINGS, clock=time.monotonic) -> Stage:
    """A stage that measures nothing real; what it shows is in ``stage.shown``."""
    shown = io.StringIO()
    display = Display(Console(file=shown), lambda: settings.budget - journal.spent(), clock)
    search = in_order(settings.trials)
    many = one_by_one(measure)
    stage = Stage(MACHINE, journal, settings, many, lambda: 2.0, search, display)
    stage.shown = shown
    return stage
