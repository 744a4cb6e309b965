"""What is decided of a call of an attention before it is computed: tiles, how k and v are read, and
the workspace."""

from __future__ import annotations

from tvm import tirx

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import (
    INT,
    INTS,
    LINE,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    cell,
    div,
    let,
    maximum,
    minimum,
    scratch,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators.attention_arguments import CALL
from tvm_moonpoly.operators.packing import panel_stride
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.shares import most_workers

PLAN = "moonpoly_attention_plan"

#: What of a plan is kept, and the plan of a product of nothing.
_TILING = ("nv", "mr", "tail_nv", "tail_mr")
_NO_PLAN = Plan(1, 1, 0, 0, False, BMode.PREPACKED).encode()

#: What is decided for a call: rows of q at a time and how many such tiles there are, panels of k
#: and of v, the row tiles and groups of both products (``s_`` of the scores, ``o_`` of the output),
#: how k and v are read, and where in the workspace all lies.
PLANNED = (
    *CALL,
    "tile",
    "tiles",
    "workers",
    "panels",
    *(f"{product}_{field}" for product in "so" for field in _TILING),
    "k_mode",
    "v_mode",
    "k_far",
    "lds",
    "k_stride",
    "v_stride",
    "at_k",
    "at_v",
    "at_inverse",
    "space",
)

#: How the planner is told that k, whose columns are adjacent, is read: by rows, or packed before.
_STREAMED = (int(BMode.DIRECT), int(BMode.PREPACKED))

#: Floats of scores at a time, and the most rows of them.
SCORES, MOST_ROWS = 1 << 13, 64

#: Rows of q from which on k and v are always packed.
ALWAYS_PACKED = 32

#: Picoseconds that a multiplication and an addition take, and all else that is done to a score.
_MULTIPLY, _SCORE = 28, 600


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define `PLAN`, which fills in what of `PLANNED` follows from `CALL`."""
    lanes = machine.lanes

    @functions.separate(PLAN, numbers=INTS)
    def _(numbers: Pointer) -> None:
        call = Numbers(PLANNED, numbers)
        rows, keys, size = let(call["rows"]), let(call["keys"]), let(call["size"])
        value_size = let(call["value_size"])
        entries = let(call["batch"] * call["heads"])
        panels = let(ceil_div(keys, lanes))
        lds = let(ceil_div(keys, 2 * lanes) * (2 * lanes))
        # not a power of two, which would bring all rows into the same places of the caches
        lds = cell(lds + select(tirx.truncmod(lds, as_int(256)) == 0, 2 * lanes, 0))
        most = minimum(maximum(div(SCORES, maximum(lds, 1)), 8), MOST_ROWS)
        tile = cell(minimum(rows, most))

        work = (size + value_size) * _MULTIPLY + _SCORE
        picoseconds = let(entries * rows * keys * work)
        workers = let(most_workers(machine))
        if most_workers(machine) > 1:
            worth = picoseconds >= 2 * table.traffic.launch
            # as many tiles as workers where there are too few heads
            fewer = let(maximum(ceil_div(rows * entries, workers), 1))
            tile = cell(select(tirx.all(worth, tile > fewer), fewer, tile))
            workers = cell(select(worth, workers, 1))
        tiles = cell(ceil_div(rows, tile))
        tile = cell(ceil_div(rows, tiles))
        call.fill({"tile": tile, "tiles": tiles, "panels": panels, "lds": lds})
        call["workers"] = minimum(workers, entries * tiles)

        many = let(rows >= ALWAYS_PACKED)
        # of few rows the plan says whether k and v are worth packing
        by_rows = let(tirx.any(call["k_d"] == 1, size <= 1))
        of_k = select(by_rows, int(BMode.PACKED), select(rows <= 2, *_STREAMED))
        stored_k = cell(select(many, int(BMode.PREPACKED), of_k))
        stored_v = cell(select(many, int(BMode.PREPACKED), int(BMode.DIRECT)))
        for product, n, k, stored in (
            ("s", panels * lanes, size, stored_k),
            ("o", value_size, keys, stored_v),
        ):
            plan = scratch(1, INT)
            plan[0] = as_int(_NO_PLAN)
            with when(tirx.all(n > 0, k > 0)):
                functions["moonpoly_plan"](tile, n, k, 1, stored, plan.at(0))
            fields = native.decode(plan[0])
            for field in _TILING:
                call[f"{product}_{field}"] = fields[field]
            mode = fields["b_mode"]
            call["k_mode" if product == "s" else "v_mode"] = select(
                mode == int(BMode.PREPACKED), int(BMode.PACKED), mode
            )
        with when(call["k_mode"] == int(BMode.DIRECT)):
            call["k_mode"] = as_int(int(BMode.STREAM))
        # rows of k that follow one another and, with v, are more than stays in the last cache:
        # measured as in `matmul`, the order of memory pays from 3/4 of it on
        floats = let(call["batch"] * call["kv_heads"] * keys * (size + value_size))
        far = tirx.all(floats > machine.l3_bytes * 3 // 16, call["k_s"] < size + LINE)
        call["k_far"] = select(far, 1, 0)
        # the last panel of v is packed in any case
        k_stride, v_stride = let(panel_stride(size, lanes)), let(panel_stride(keys, lanes))
        v_panels = let(div(value_size, lanes))
        partial = select(value_size - v_panels * lanes > 0, 1, 0)
        of_k = select(call["k_mode"] == int(BMode.PACKED), panels * k_stride, 0)
        of_v = select(call["v_mode"] == int(BMode.STREAM), 0, partial * v_stride)
        of_v = select(call["v_mode"] == int(BMode.PACKED), (v_panels + partial) * v_stride, of_v)
        at_k = let(tile * lds)
        at_v = let(at_k + of_k)
        at_inverse = let(at_v + of_v)
        call.fill({"k_stride": k_stride, "v_stride": v_stride, "at_k": at_k, "at_v": at_v})
        call.fill({"at_inverse": at_inverse, "space": at_inverse + ceil_div(tile, LINE) * LINE})
