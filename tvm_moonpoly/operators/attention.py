"""The packed functions of an attention: products, softmax and products again, without their
results in memory beyond some rows of scores.

``moonpoly_attention_f32(q, k, v, spec, out)`` and with a mask before ``spec``:
``out = softmax(scale * q @ k.T + mask) @ v`` for each batch entry and head. Where their dimensions
lie in the stored tensors is told by ``spec``, see `AttentionSpec`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    INTS,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    cell,
    div,
    let,
    loop,
    maximum,
    minimum,
    scratch,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators import attention_arguments, attention_softmax, dltensor
from tvm_moonpoly.operators.attention_arguments import ARGUMENTS, CALL
from tvm_moonpoly.operators.attention_constants import ATTENTION, ATTENTION_MASKED, Causal
from tvm_moonpoly.operators.attention_softmax import SCALE_ROWS, SOFTMAX
from tvm_moonpoly.operators.gemm_region import MINUS_INFINITY
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.packing import panel_stride
from tvm_moonpoly.operators.sharing import Each, run_chunks, with_space
from tvm_moonpoly.planner import native
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.shares import most_workers

PLAN = "moonpoly_attention_plan"
CHUNK = "moonpoly_attention_chunk"
PRODUCT = "moonpoly_attention_product"

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

#: The longest piece of a reduction over keys: longer ones are cut, and add to the output.
DEPTH = 1024

#: Picoseconds that a multiplication and an addition take, and all else that is done to a score.
_MULTIPLY, _SCORE = 28, 600

_POINTERS = {"q": FLOATS, "k": FLOATS, "v": FLOATS, "mask": FLOATS, "out": FLOATS}


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define `ATTENTION` and `ATTENTION_MASKED`."""
    attention_arguments.emit(functions)
    attention_softmax.emit(functions, machine.lanes)
    _emit_plan(functions, machine, table)
    _emit_product(functions, machine.lanes)
    _emit_chunk(functions, machine)
    for name in (ATTENTION, ATTENTION_MASKED):
        _emit_public(functions, name)


def _emit_public(functions: Functions, name: str) -> None:
    added = ["mask"] if name == ATTENTION_MASKED else []
    parameters = dict.fromkeys(["q", "k", "v", *added, "spec", "out"], "handle")

    @functions.public(name, **parameters)
    def _(**handles: Any) -> None:
        call = Numbers(PLANNED)
        given = {"mask": handles["q"], **handles}
        order = ("q", "k", "v", "mask", "spec", "out")
        functions[ARGUMENTS](*(given[each] for each in order), len(added), call.memory.at(0))
        with when(call["batch"] * call["rows"] > 0):
            functions[PLAN](call.memory.at(0))
            tensors = [
                dltensor.address(given[each], dltensor.DATA, "float32") for each in _POINTERS
            ]
            size = let(call["space"])

            def work(each: Each) -> None:
                def chunks(space: Pointer) -> None:
                    # the head of k and v that is packed in this worker's space
                    packed = scratch(1, INT)
                    packed[0] = as_int(-1)
                    each(
                        lambda index: functions[CHUNK](
                            call.memory.at(0), *tensors, space.at(0), packed.at(0), index
                        )
                    )

                with_space(size, chunks)

            count = let(call["batch"] * call["heads"] * call["tiles"])
            run_chunks(let(call["workers"]), count, work)


def _emit_plan(functions: Functions, machine: Machine, table: CostTable) -> None:
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


#: ``c = a @ b`` in tiles: b in panels ``b_vector`` apart whose rows are ``b_row`` apart, the
#: partial one at ``edge``.
_PRODUCT = {
    "a": FLOATS,
    "lda": INT,
    "b": FLOATS,
    "b_vector": INT,
    "b_row": INT,
    "in_place": INT,
    "edge": FLOATS,
    "c": FLOATS,
    "ldc": INT,
    "m": INT,
    "panels": INT,
    "columns": INT,
    "k": INT,
    "nv": INT,
    "mr": INT,
    "tail_nv": INT,
    "tail_mr": INT,
}


def _emit_product(functions: Functions, lanes: int) -> None:
    @functions.separate(PRODUCT, **_PRODUCT)
    def _(**args: Any) -> None:
        a, b, c, k = args["a"], args["b"], args["c"], args["k"]
        zeros = zeros_row(lanes)
        pieces = let(maximum(ceil_div(k, DEPTH), 1))
        piece = let(ceil_div(k, pieces))
        with loop(pieces) as index:
            first = let(index * piece)
            # later pieces add to what is there
            added = c.unless(index == 0, zeros)
            functions["moonpoly_row_blocks"](
                a.at(first),
                args["lda"],
                b.at(first * args["b_row"]),
                args["b_vector"],
                args["b_row"],
                args["in_place"],
                args["edge"].at(first * lanes),
                added.at(0),
                select(index == 0, 0, args["ldc"]),
                select(index == 0, 0, 1),
                zeros.at(0),
                0,
                c.at(0),
                args["ldc"],
                minimum(piece, k - first),
                MINUS_INFINITY,
                args["m"],
                args["panels"],
                args["columns"],
                0,
                args["nv"],
                args["mr"],
                args["tail_nv"],
                args["tail_mr"],
                0,
                args["m"],
                zeros.at(0),
            )


def _emit_chunk(functions: Functions, machine: Machine) -> None:
    """One tile of rows of one head."""
    lanes = machine.lanes

    @functions.separate(CHUNK, numbers=INTS, **_POINTERS, space=FLOATS, packed=INTS, index=INT)
    def _(
        numbers: Pointer,
        q: Pointer,
        k: Pointer,
        v: Pointer,
        mask: Pointer,
        out: Pointer,
        space: Pointer,
        packed: Pointer,
        index: Expr,
    ) -> None:
        call = Numbers(PLANNED, numbers)
        tile, tiles, heads = let(call["tile"]), let(call["tiles"]), let(call["heads"])
        entry = let(div(index, tiles))
        batch = let(div(entry, heads))
        head = let(entry - batch * heads)
        kv_heads = let(call["kv_heads"])
        kv_head = let(div(head * kv_heads, heads))
        row = let((index - entry * tiles) * tile)
        rows = let(minimum(tile, call["rows"] - row))
        keys, size, value_size = let(call["keys"]), let(call["size"]), let(call["value_size"])
        lds, panels = let(call["lds"]), let(call["panels"])
        k_packed, v_packed = (let(call[m] == int(BMode.PACKED)) for m in ("k_mode", "v_mode"))

        def start(name: str, which: Expr) -> Expr:
            return let(
                call[f"{name}_offset"] + batch * call[f"{name}_b"] + which * call[f"{name}_h"]
            )

        at_k, at_v = start("k", kv_head), start("v", kv_head)
        at_q = let(start("q", head) + row * call["q_s"])
        at_out = let(start("out", head) + row * call["out_s"])
        at_mask = let(batch * call["mask_b"] + head * call["mask_h"] + row * call["mask_s"])
        v_panels = let(div(value_size, lanes))
        v_columns = let(value_size - v_panels * lanes)
        k_stride, v_stride = let(call["k_stride"]), let(call["v_stride"])
        packed_k, packed_v = let(call["at_k"]), let(call["at_v"])
        this = let(batch * kv_heads + kv_head)

        with when(packed[0] != this):
            packed[0] = this
            with when(k_packed):
                whole = let(div(keys, lanes))
                functions["moonpoly_pack_b"](
                    k.at(at_k), call["k_d"], call["k_s"], space.at(packed_k),
                    size, whole, keys - whole * lanes, k_stride,
                )  # fmt: skip
            with when(call["v_mode"] != int(BMode.STREAM)):
                # in place, the partial panel would be read beyond the end of its rows
                done = let(select(v_packed, 0, v_panels))
                functions["moonpoly_pack_b"](
                    v.at(at_v + done * lanes), call["v_s"], 1, space.at(packed_v),
                    keys, v_panels - done, v_columns, v_stride,
                )  # fmt: skip

        # the keys that the first row sees, and the last one
        causal, from_last = let(call["causal"]), call["causal"] == int(Causal.FROM_LAST)
        apart = let(keys - call["rows"])
        earlier = let(select(from_last, maximum(apart, 0 - apart), 0))
        seen = let(select(causal > 0, row + 1 + earlier, keys))
        step = let(select(causal > 0, 1, 0))
        limit = let(maximum(minimum(seen + (rows - 1) * step, keys), 0))

        def tiles_of_scores() -> None:
            nv = let(call["s_nv"])
            needed = let(ceil_div(ceil_div(limit, lanes), nv) * nv)
            all_panels = let(needed >= panels)
            functions[PRODUCT](
                q.at(at_q), call["q_s"], space.at(packed_k), k_stride, lanes, 0, space.at(0),
                space.at(0), lds, rows, select(all_panels, panels, needed), 0, size,
                nv, call["s_mr"], select(all_panels, call["s_tail_nv"], 0), call["s_tail_mr"],
            )  # fmt: skip

        def scores_in_place() -> None:
            def through(name: str, ldb: Expr) -> None:
                functions[name](
                    q.at(at_q), call["q_s"], k.at(at_k), ldb, space.at(0), lds, rows, limit, size
                )

            branch(
                tirx.any(call["k_d"] == 1, size <= 1),
                lambda: through("moonpoly_dot", call["k_s"]),
                lambda: through("moonpoly_axpy", call["k_d"]),
            )

        branch(k_packed, tiles_of_scores, scores_in_place)
        inverse = let(call["at_inverse"])
        functions[SOFTMAX](
            space.at(0), lds, mask.at(at_mask), call["mask_s"], space.at(inverse),
            as_float(call["scale"]), call["masked"], rows, seen, step, limit,
        )  # fmt: skip

        def tiles_of_output() -> None:
            b = v.unless(v_packed, space)
            edge = let(packed_v + select(v_packed, v_panels, 0) * v_stride)
            functions[PRODUCT](
                space.at(0), lds, b.at(select(v_packed, packed_v, at_v)),
                select(v_packed, v_stride, lanes), select(v_packed, lanes, call["v_s"]),
                select(v_packed, 0, 1), space.at(edge), out.at(at_out), call["out_s"], rows,
                v_panels, v_columns, limit, call["o_nv"], call["o_mr"],
                call["o_tail_nv"], call["o_tail_mr"],
            )  # fmt: skip

        def output_in_place() -> None:
            functions["moonpoly_axpy"](
                space.at(0), lds, v.at(at_v), call["v_s"], out.at(at_out), call["out_s"],
                rows, value_size, limit,
            )  # fmt: skip

        branch(call["v_mode"] == int(BMode.STREAM), output_in_place, tiles_of_output)
        functions[SCALE_ROWS](
            out.at(at_out), call["out_s"], space.at(inverse), rows, value_size,
            select(keys == 0, 1, 0),
        )  # fmt: skip
