"""One tile of rows of one head: scores, softmax and the product with the values."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    INTS,
    MINUS_INFINITY,
    Expr,
    Functions,
    Pointer,
    branch,
    ceil_div,
    div,
    let,
    loop,
    maximum,
    minimum,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators.attention_constants import Causal
from tvm_moonpoly.operators.attention_plan import PLANNED
from tvm_moonpoly.operators.attention_softmax import SCALE_ROWS, SOFTMAX
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.planner.plan import BMode

CHUNK = "moonpoly_attention_chunk"
PRODUCT = "moonpoly_attention_product"

#: The longest piece of a reduction over keys: longer ones are cut, and add to the output.
DEPTH = 1024

#: The operands of `CHUNK`.
POINTERS = {"q": FLOATS, "k": FLOATS, "v": FLOATS, "mask": FLOATS, "out": FLOATS}


def emit(functions: Functions, machine: Machine) -> None:
    """Define `CHUNK`: the tile ``index`` of the plan ``numbers``; ``packed`` is the head of k and v
    that ``space`` holds."""
    _emit_product(functions, machine.lanes)
    _emit_chunk(functions, machine)


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

    @functions.separate(CHUNK, numbers=INTS, **POINTERS, space=FLOATS, packed=INTS, index=INT)
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
                lambda: branch(
                    call["k_far"] > 0,
                    lambda: through("moonpoly_dot_far", call["k_s"]),
                    lambda: through("moonpoly_dot", call["k_s"]),
                ),
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
