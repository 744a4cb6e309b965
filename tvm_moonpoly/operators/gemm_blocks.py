"""One block of a matrix product, and the rows of a block of B, as private native functions.

Units are those of `gemm_tiles`.
"""

from __future__ import annotations

from typing import Any

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    Expr,
    Functions,
    as_int,
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
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.operators.gemm_tiles import SUFFIXES, TILE


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_block`` and ``moonpoly_row_blocks``."""
    _emit_block(functions, lanes)
    _emit_row_blocks(functions)


#: A block of the output: tiles of the main region on packed or plain A, then the tail on plain A.
_BLOCK = {
    **TILE,
    "x_step": INT,
    "z_step": INT,
    "packed": FLOATS,
    "pack_a": INT,
    "in_place": INT,
    "edge_b": FLOATS,
    "m": INT,
    "panels": INT,
    "columns": INT,
    "nv": INT,
    "mr": INT,
    "tail_nv": INT,
    "tail_mr": INT,
    "activation": INT,
}


def _emit_block(functions: Functions, lanes: int) -> None:
    """One block: ``panels`` full panels and, when ``columns`` > 0, a partial one."""

    @functions.private("moonpoly_block", **_BLOCK)
    def _(**args: Any) -> None:
        lda, k, activation = args["lda"], args["k"], args["activation"]
        main = let(args["panels"] - args["tail_nv"])
        main_groups = let(div(main, args["nv"]))

        def groups(form: Form, panel: Expr, nv: Expr, mr: Expr, count: Expr) -> None:
            column = panel * lanes
            functions[f"moonpoly_groups{SUFFIXES[form]}"](
                args["packed" if form == Form.PACKED_A else "a"].at(0),
                lda,
                args["b"].at(panel * args["b_vector"]),
                args["b_vector"],
                args["b_row"],
                args["x"].at(column * args["x_step"]),
                args["ldx"],
                args["z"].at(column * args["z_step"]),
                args["c"].at(column),
                args["ldc"],
                k,
                args["lo"],
                args["x_step"],
                args["z_step"],
                args["m"],
                mr,
                nv,
                count,
                activation,
            )

        def main_region(form: Form) -> None:
            groups(form, as_int(0), args["nv"], args["mr"], main_groups)

        def tail_region(form: Form) -> None:
            with when(args["tail_nv"] > 0):
                groups(form, main, args["tail_nv"], args["tail_mr"], as_int(1))

        def packed_b() -> None:
            branch(
                args["pack_a"] > 0,
                lambda: main_region(Form.PACKED_A),
                lambda: main_region(Form.PLAIN),
            )
            tail_region(Form.PLAIN)

        def in_place_b() -> None:
            main_region(Form.IN_PLACE_B)
            tail_region(Form.IN_PLACE_B)

        # not told by ``b_row``: rows of B in place may be a vector apart, too, and a plan for B in
        # place names micro-kernels that there may be in that form alone
        branch(args["in_place"] > 0, in_place_b, packed_b)
        with when(args["columns"] > 0):
            column = let(args["panels"] * lanes)
            functions["moonpoly_edge"](
                args["a"].at(0),
                lda,
                args["edge_b"].at(0),
                0,
                lanes,
                args["x"].at(column * args["x_step"]),
                args["ldx"],
                args["z"].at(column * args["z_step"]),
                args["c"].at(column),
                args["ldc"],
                k,
                args["lo"],
                args["m"],
                args["columns"],
                activation,
            )


#: The rows of one block of B, in blocks of ``mc``.
_ROW_BLOCKS = {
    "a": FLOATS,
    "lda": INT,
    "b": FLOATS,
    "b_vector": INT,
    "b_row": INT,
    "in_place": INT,
    "edge_b": FLOATS,
    "x": FLOATS,
    "ldx": INT,
    "x_step": INT,
    "z": FLOATS,
    "z_step": INT,
    "c": FLOATS,
    "ldc": INT,
    "k": INT,
    "lo": FLOAT,
    "m": INT,
    "panels": INT,
    "columns": INT,
    "activation": INT,
    "nv": INT,
    "mr": INT,
    "tail_nv": INT,
    "tail_mr": INT,
    "pack_a": INT,
    "mc": INT,
    "wa": FLOATS,
}


def _emit_row_blocks(functions: Functions) -> None:
    @functions.private("moonpoly_row_blocks", **_ROW_BLOCKS)
    def _(**args: Any) -> None:
        m, lda, k = args["m"], args["lda"], args["k"]
        # a worker beyond the last share has no rows
        blocks = let(maximum(ceil_div(m, args["mc"]), 1))
        mc = let(ceil_div(m, blocks))
        with loop(select(m > 0, blocks, 0)) as ic:
            row = let(ic * mc)
            rows = let(minimum(mc, m - row))
            with when(args["pack_a"] > 0):
                functions["moonpoly_pack_a"](
                    args["a"].at(row * lda), lda, args["wa"].at(0), k, rows, args["mr"]
                )
            functions["moonpoly_block"](
                args["a"].at(row * lda),
                lda,
                args["b"].at(0),
                args["b_vector"],
                args["b_row"],
                args["x"].at(row * args["ldx"]),
                args["ldx"],
                args["z"].at(0),
                args["c"].at(row * args["ldc"]),
                args["ldc"],
                k,
                args["lo"],
                args["x_step"],
                args["z_step"],
                args["wa"].at(0),
                args["pack_a"],
                args["in_place"],
                args["edge_b"].at(0),
                rows,
                args["panels"],
                args["columns"],
                args["nv"],
                args["mr"],
                args["tail_nv"],
                args["tail_mr"],
                args["activation"],
            )
