"""``moonpoly tune --gpu NAME``: search and measure, here, behind a tracker, or by files."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_moonpoly.cli import output, tune_gpu_import
from tvm_moonpoly.cli.command import INTERRUPTED, UserError

if TYPE_CHECKING:
    from tvm_moonpoly.costmodel.cuda_log import Contents, Kernel
    from tvm_moonpoly.microkernels.cuda import Form, Gpu
    from tvm_moonpoly.tuning.cuda.bench import Bench
    from tvm_moonpoly.tuning.cuda.device import Device
    from tvm_moonpoly.tuning.cuda.gpu_stage import Outcome, Settings
    from tvm_moonpoly.tuning.cuda.results import Results

NO_GPU = (
    "no CUDA device was found, and measuring needs one: --rpc measures behind a tracker, --propose "
    "writes down what is to be measured elsewhere, --dry-run (make: DRY_RUN=1) compiles and lists"
)


def run(told: argparse.Namespace) -> int:
    """The stage; what is measured is in its journal, and the same command goes on."""
    from tvm_moonpoly.microkernels.cuda import GPUS
    from tvm_moonpoly.tuning.cuda import bench, gpu_logs
    from tvm_moonpoly.tuning.journal import Busy, Journal

    gpu = GPUS[told.gpu]
    by_files = told.propose is not None or told.replay is not None
    if not by_files and told.rpc is None and not _has_gpu():
        raise UserError(NO_GPU)
    need_compiler()
    settings = _settings(told)
    replayed = None if told.replay is None else _replayed(told.replay, gpu)
    known = {dtype: _logs_of(gpu, dtype) for dtype in gpu_logs.DTYPES}
    path = told.journal or journal_path(gpu)
    try:
        journal = Journal(path, bench.origin(gpu), anew=told.restart)
    except Busy as error:
        raise UserError(str(error)) from error
    with journal:
        if replayed is not None:
            count = bench.replay(journal, replayed)
            output.say(output.console(), f"{told.replay}: {count} launches taken in")
        with _device(told, gpu, known) if not by_files else contextlib.nullcontext() as device:
            if device is not None:
                bench.is_of(journal, device.name, device.about)
            try:
                return _searched(told, gpu, journal, settings, known, device)
            except KeyboardInterrupt:
                output.say(
                    output.console(),
                    f"stopped: what was measured is kept in {path}, the same command goes on",
                )
                return INTERRUPTED


def _replayed(path: Path, gpu: Gpu) -> Results:
    """The results in a file, without what this stage does not time, which is told.

    Raises UserError where nothing is left.
    """
    from tvm_moonpoly.tuning.cuda import results

    found = results.read(path)
    try:
        results.check_gpu(found, gpu)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    taken, reasons = results.fitting(found, gpu)
    first = next(iter(reasons.values()), "")
    if not (taken.seconds or taken.failed):
        raise UserError(
            f"{path}: none of its {len(reasons)} launches is one that a stage of {gpu.name} times, "
            f"as the first: {first}"
        )
    if reasons:
        console = output.console()
        output.say(console, f"{path}: {len(reasons)} launches are none that this stage times:")
        tune_gpu_import.show_remarks(
            [f"{task.kernel}: {why}" for task, why in reasons.items()], console
        )
    return taken


def journal_path(gpu: Gpu) -> Path:
    """Where the journal lies by default."""
    from tvm_moonpoly.tuning import journal

    return journal.own_path(gpu.name)


def need_compiler() -> None:
    """Raise UserError where kernels cannot be compiled."""
    from tvm_moonpoly.operators.cuda import machine_code

    if machine_code.compiler() is None:
        raise UserError(machine_code.MISSING)


def forms(names: Sequence[str]) -> list[Form]:
    """The forms that ``--form`` names. Raises UserError."""
    from tvm_moonpoly.microkernels.cuda.form import FORMS

    known = {form.name: form for form in FORMS}
    for name in names:
        if name not in known:
            raise UserError(f"--form must be one of {', '.join(known)}, not {name!r}")
    return [known[name] for name in names]


def _searched(
    told: argparse.Namespace,
    gpu: Gpu,
    journal: Any,
    settings: Settings,
    known: dict[str, list[Contents]],
    device: Device | None,
) -> int:
    from tvm_moonpoly.tuning.cuda import dry_run, gpu_stage
    from tvm_moonpoly.tuning.cuda.bench import Bench, score
    from tvm_moonpoly.tuning.progress import Display, duration

    console = output.console()
    if journal.spent_before:
        output.say(console, f"{journal.path}: goes on after {duration(journal.spent_before)}")
    seconds = told.minutes * 60.0
    with Display(console, lambda: seconds - journal.spent()) as display:
        seen: set[str] = set()

        def done(kernel: Kernel) -> None:
            if kernel.name not in seen:
                seen.add(kernel.name)
                display.measured(score(kernel.cost, gpu), new=True)

        compile = functools.partial(dry_run.compiled, gpu=gpu)
        bench = Bench(gpu, journal, compile, device, done)
        total = settings.trials * sum(len(gpu_stage.groups(f, gpu)) for f in settings.forms)
        outcome = gpu_stage.run(
            bench,
            settings,
            _by_form(known),
            lambda: journal.spent() > seconds,
            lambda what: display.phase(what, total),
        )
    if journal.spent() > seconds:
        output.say(console, f"the budget of {duration(seconds)} is spent: --minutes gives more")
    code = _concluded(told, gpu, bench, outcome, known)
    if told.propose is not None:
        code = _proposed(told, gpu, bench, outcome) or code
    elif outcome.pending:
        output.say(
            console,
            f"{len(outcome.pending)} micro-kernels are yet to be measured: --propose writes them",
        )
    return code


def _concluded(
    told: argparse.Namespace,
    gpu: Gpu,
    bench: Bench,
    outcome: Outcome,
    known: dict[str, list[Contents]],
) -> int:
    """Write the logs of what was measured, if something was."""
    from tvm_moonpoly.tuning.cuda import gpu_stage

    searched = [kernel for group in outcome.kernels.values() for kernel in group]
    results = bench.results([*searched, *_kernels(known)])
    found = {}
    for dtype, contents in known.items():
        concluded = gpu_stage.conclude(outcome, bench, contents, results)
        if concluded is not None and concluded.errors:
            found[dtype] = concluded
    if not found:
        output.say(output.console(), "nothing was measured yet: no tuning log is written")
        return 0
    paths = tune_gpu_import.write(gpu, results, found, told.output)
    tune_gpu_import.show(found, paths)
    return 0 if len(paths) == len(found) else 1


def _proposed(told: argparse.Namespace, gpu: Gpu, bench: Bench, outcome: Outcome) -> int:
    from tvm_moonpoly.tuning.cuda import proposals

    wanted = [task for kernel in outcome.pending for task in bench.wanted(kernel)]
    if not proposals.write(told.propose, gpu, outcome.pending, wanted):
        return 1  # and has said why
    output.say(
        output.console(),
        f"wrote {told.propose}: {len(outcome.pending)} micro-kernels to be measured by "
        f"{len(wanted)} launches; --replay takes the results",
    )
    return 0


def _settings(told: argparse.Namespace) -> Settings:
    from tvm_moonpoly.tuning.cuda import gpu_stage

    chosen = tuple(forms(told.form or ())) or gpu_stage.SEARCHED
    return gpu_stage.Settings(chosen, siblings=not told.form, trials=told.trials, seed=told.seed)


def _logs_of(gpu: Gpu, dtype: str) -> list[Contents]:
    from tvm_moonpoly.tuning.cuda import gpu_logs

    try:
        return gpu_logs.contents_of(gpu, dtype)
    except ValueError as error:
        raise UserError(str(error)) from error


def _kernels(known: dict[str, list[Contents]]) -> list[Kernel]:
    return [k for contents in known.values() for each in contents for k in each.kernels]


def _by_form(known: dict[str, list[Contents]]) -> dict[Form, list[Kernel]]:
    found: dict[Form, list[Kernel]] = {}
    for kernel in _kernels(known):
        found.setdefault(kernel.form, []).append(kernel)
    return found


def _has_gpu() -> bool:
    import tvm

    return bool(tvm.cuda(0).exist)


@contextlib.contextmanager
def _device(
    told: argparse.Namespace, gpu: Gpu, known: dict[str, list[Contents]]
) -> Iterator[Device]:
    from tvm_moonpoly.tuning.cuda.device import Device, DeviceError

    first = min(_kernels(known), key=lambda k: k.tile.block_m * k.tile.block_n)
    try:
        with Device(gpu, first, told.rpc, told.key or "") as device:
            yield device
    except DeviceError as error:
        raise UserError(str(error)) from error
