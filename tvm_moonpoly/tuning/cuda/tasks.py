"""What is measured of a micro-kernel on a GPU: launches of exactly one wave.

With ``blocks`` of them on each multiprocessor and ``steps`` steps along the reduction, such a
launch takes ``launch + around + steps * step(blocks)``: over several numbers of steps a line, whose
slope is the step (see `costmodel.cuda`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Gpu, kernel_name
from tvm_moonpoly.microkernels.cuda.form import FORMS
from tvm_moonpoly.microkernels.cuda.tile import check
from tvm_moonpoly.planner.groups import ceil_div

#: Steps along the reduction, where the operands are not too large for the last of them.
STEPS = (4, 16, 48, 128)

#: Elements of an operand, at most: 256 MiB of two bytes each.
MOST_ELEMENTS = 1 << 27

#: Tiles of so few rows are made for products of few rows.
_FEW_ROWS = 32

#: Steps that operands must leave place for.
_LEAST_STEPS = 64


@dataclass(frozen=True)
class Task:
    """A product (m, k) by (k, n) to be timed, computed by one micro-kernel: ``blocks`` on each
    multiprocessor, ``steps`` steps. ``kernel`` and ``form`` are names."""

    kernel: str
    form: str
    blocks: int
    steps: int
    m: int
    n: int
    k: int

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def tasks(tile: CudaTile, form: Form, gpu: Gpu, resident: int) -> list[Task]:
    """What is measured of a micro-kernel of which ``resident`` blocks fit a multiprocessor.

    Sizes of an unaligned form are odd, as where it is used. Results of tiles of few rows are wide,
    as those that they are made for; others are about square, so that blocks share operands.

    Raises ValueError when ``resident`` is less than 1.
    """
    if resident < 1:
        raise ValueError(f"resident: at least one block must fit, not {resident}")
    found = []
    for blocks in shares(resident):
        down, across = _grid(tile, blocks * gpu.multiprocessors)
        # one less than whole tiles has as many tiles and steps
        odd = 0 if form.aligned else 1
        m, n = down * tile.block_m, across * tile.block_n - odd
        most = max(MOST_ELEMENTS // max(m, n) // tile.block_k, len(STEPS))
        for steps in _steps(most):
            k = steps * tile.block_k - odd
            found.append(Task(kernel_name(tile, form), form.name, blocks, steps, m, n, k))
    return found


def misfit(task: Task, gpu: Gpu) -> str | None:
    """Why ``task`` is none that `tasks` has for a micro-kernel on ``gpu``; None where it is one."""
    prefix = f"moonpoly_{task.form}_"
    try:
        form = next(form for form in FORMS if form.name == task.form)
        tile = CudaTile.named(task.kernel.removeprefix(prefix))
        check(tile, form, gpu.architecture.block_shared_bytes)
    except StopIteration:
        return f"there is no form {task.form!r}"
    except ValueError:
        return f"{task.kernel} is no micro-kernel of {task.form} for {gpu.name}"
    wanted = tasks(tile, form, gpu, task.blocks)
    if task in wanted:
        return None
    sizes = " or ".join(f"{t.m} x {t.n} x {t.k}" for t in wanted if t.blocks == task.blocks)
    return f"{task.m} x {task.n} x {task.k} is timed as {sizes}"


def shares(resident: int) -> list[int]:
    """The numbers of blocks on a multiprocessor that are measured: 1, 2, 4 ... and ``resident``."""
    return sorted({1 << i for i in range(resident.bit_length())} | {resident})


def _steps(most: int) -> list[int]:
    """`STEPS` where they are at most ``most``; else as many numbers up to that."""
    if most >= STEPS[-1]:
        return list(STEPS)
    ratio = (most / STEPS[0]) ** (1 / (len(STEPS) - 1))
    return sorted({max(round(STEPS[0] * ratio**i), 1) for i in range(len(STEPS))} | {most})


def _grid(tile: CudaTile, blocks: int) -> tuple[int, int]:
    """Tiles down and across: a factor of ``blocks`` and the other one."""
    pairs = [(down, blocks // down) for down in range(1, blocks + 1) if blocks % down == 0]
    if tile.block_m <= _FEW_ROWS:
        depth = _LEAST_STEPS * tile.block_k
        return next(p for p in pairs if p[1] * tile.block_n * depth <= MOST_ELEMENTS)
    return min(pairs, key=lambda pair: _skew(pair[0] * tile.block_m, pair[1] * tile.block_n))


def _skew(rows: int, columns: int) -> int:
    """How far a result is from square; wide ones are preferred to equally high ones."""
    long, short = max(rows, columns), min(rows, columns)
    return 2 * ceil_div(long, short) + (rows > columns)
