"""The planner for CUDA as a native function of the host: `spec`, emitted as TensorIR.

It weighs the same plans in the same order, but gives up a cut as soon as its first region and the
launch of the second cost as much as the best plan so far.
"""

from __future__ import annotations

from tvm_moonpoly.constants import constant_array
from tvm_moonpoly.costmodel.cuda import CudaTable
from tvm_moonpoly.emit import (
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    cell,
    div,
    let,
    loop,
    scratch,
    select,
    when,
)
from tvm_moonpoly.planner.cuda.spec import Axis

#: ``PLAN(m, n, k, batch, out)``: out[0..4] = first, axis, cut, second, picoseconds.
PLAN = "moonpoly_cuda_plan"

#: How many integers a plan is written as, and which of them is what.
RESULTS = 5
FIRST, AXIS, CUT, SECOND, PICOSECONDS = range(RESULTS)

#: Fields of a kernel in memory, before its steps.
_BLOCK_M, _BLOCK_N, _BLOCK_K, _AROUND, _RESIDENT, _STEPS = range(6)

_INFINITE = 1 << 62


def emit(functions: Functions, table: CudaTable, name: str = PLAN) -> None:
    """Define the function ``name`` that plans by the costs of ``table``."""
    most = max(kernel.resident for kernel in table.kernels)
    width = _STEPS + most
    numbers = []
    for kernel in table.kernels:
        steps = [*kernel.steps, *[0] * (most - kernel.resident)]
        numbers += [kernel.block_m, kernel.block_n, kernel.block_k, kernel.around]
        numbers += [kernel.resident, *steps]
    _emit_region(functions, f"{name}_region", table)
    _emit_plan(functions, name, table, numbers, width)


def _emit_region(functions: Functions, name: str, table: CudaTable) -> None:
    """found[0] = what a region of ``rows`` by ``columns`` costs without its launch."""

    @functions.separate(name, kernel=INTS, rows=INT, columns=INT, k=INT, batch=INT, found=INTS)
    def _(kernel: Pointer, rows: Expr, columns: Expr, k: Expr, batch: Expr, found: Pointer) -> None:
        across = ceil_div(columns, kernel[_BLOCK_N])
        blocks = let(ceil_div(rows, kernel[_BLOCK_M]) * across * batch)
        capacity = let(kernel[_RESIDENT] * table.multiprocessors)
        waves = let(div(blocks, capacity))
        left = let(blocks - waves * capacity)
        steps = let(ceil_div(k, kernel[_BLOCK_K]))
        around = let(kernel[_AROUND])
        # with none left the last index is that of one block, and counts for nothing
        last = let(select(left > 0, ceil_div(left, table.multiprocessors), as_int(1)))
        full = around + steps * kernel[_STEPS + kernel[_RESIDENT] - 1]
        rest = around + steps * kernel[_STEPS + last - 1]
        found[0] = waves * full + select(left > 0, rest, as_int(0))


def _emit_plan(
    functions: Functions, name: str, table: CudaTable, numbers: list[int], width: int
) -> None:
    count = len(table.kernels)

    @functions.separate(name, m=INT, n=INT, k=INT, batch=INT, out=INTS)
    def _(m: Expr, n: Expr, k: Expr, batch: Expr, out: Pointer) -> None:
        kernels = constant_array(f"{name}_costs", numbers, 64)
        cost = scratch(1, INT)
        for i in (FIRST, AXIS, CUT, SECOND):
            out[i] = as_int(0)
        out[PICOSECONDS] = as_int(_INFINITE)

        def region(which: Expr, rows: Expr, columns: Expr) -> Expr:
            functions[f"{name}_region"](
                kernels.at(which * width), rows, columns, k, batch, cost.at(0)
            )
            return let(cost[0] + table.launch)

        with loop(count) as i:
            whole = region(i, m, n)
            with when(whole < out[PICOSECONDS]):
                out[FIRST] = i
                out[PICOSECONDS] = whole
        with loop(count) as i:
            at = let(i * width)
            down = let(ceil_div(m, kernels[at + _BLOCK_M]))
            across = let(ceil_div(n, kernels[at + _BLOCK_N]))
            capacity = let(kernels[at + _RESIDENT] * table.multiprocessors)
            blocks = let(down * across * batch)
            held = let(div(blocks, capacity) * capacity)
            with when(held > 0), loop(2) as columns:
                lines = let(select(columns > 0, across, down))
                full = let(div(held, div(blocks, lines)))
                block = let(kernels[at + select(columns > 0, as_int(_BLOCK_N), as_int(_BLOCK_M))])
                cut = let(full * block)
                with when(full > 0), when(full < lines):
                    rows, wide = let(select(columns > 0, m, cut)), let(select(columns > 0, cut, n))
                    first = cell(region(i, rows, wide))
                    left_m = let(select(columns > 0, m, m - cut))
                    left_n = let(select(columns > 0, n - cut, n))
                    with (
                        when(first + table.launch < out[PICOSECONDS]),
                        loop(count) as j,
                        when(j - i != 0),
                    ):
                        both = let(first + region(j, left_m, left_n))
                        with when(both < out[PICOSECONDS]):
                            out[FIRST], out[CUT], out[SECOND], out[PICOSECONDS] = i, cut, j, both
                            out[AXIS] = columns + int(Axis.ROWS)
