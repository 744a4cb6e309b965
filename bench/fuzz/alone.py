"""Run one case alone, and say all about it."""

from __future__ import annotations

from rich.console import Console

from bench.fuzz.build import build_module
from bench.fuzz.crew import run_tasks
from bench.fuzz.draw import draw_form
from bench.fuzz.execute import Outcome
from bench.fuzz.run import describe, draw_run, form_of
from bench.fuzz.worker import Options, Task, way_of


def run_alone(case: int, options: Options, together: bool = False) -> int:
    """0 when no fault was found, else 1. ``together``: the other forms of the module that the case
    is of in a whole run are compiled with its form, though not printed."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    form = draw_form(options.seed, form_of(case))
    run = draw_run(form, options.seed, case)
    console.print(f"case {case} of seed {options.seed}: form {form.index}, {form.kind}")
    console.print(build_module([form], options.seed).script())
    console.print(describe(form, run))
    console.print(way_of(case, options))
    console.print(f"sizes {run.sizes}, guarded results: {run.guarded}, shared: {run.same}")
    outcomes: list[Outcome] = []
    run_tasks([Task((case,), together=together)], 1, options, outcomes.append)
    (outcome,) = outcomes
    console.print(f"{outcome.verdict.value}: {outcome.detail or 'no fault'}")
    if not (outcome.verdict.is_fault or together):
        console.print("If it was found in a whole run, try --together.")
    return int(outcome.verdict.is_fault)
