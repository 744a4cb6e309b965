"""The blocks of a matrix product around its tiles, as private native functions.

``moonpoly_region`` computes ``C = act(A @ B + X + Z)`` for the rows and panels of one worker, by
the blocks, tiles and packing of a plan. Units are those of `gemm_tiles`.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    MINUS_INFINITY,
    Expr,
    Functions,
    branch,
    ceil_div,
    div,
    let,
    loop,
    maximum,
    minimum,
    select,
    switch,
    when,
)
from tvm_moonpoly.operators import gemm_blocks
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.packing import panel_stride
from tvm_moonpoly.planner.plan import BMode


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_region`` and the blocks that it is made of."""
    gemm_blocks.emit(functions, lanes)
    _emit_region(functions, lanes)


#: Parameters of ``moonpoly_region``.
#:
#: ``a`` (m, k) by rows of ``lda``. ``b``: packed panels of ``k`` rows (PREPACKED), or in place
#: with ``b_k`` floats from one row to the next and ``b_n`` from one column to the next (one of
#: them is 1; DIRECT needs ``b_n`` = 1; STREAM is none of its modes). ``x`` is added to the product,
#: ``ldx`` and ``x_step`` are 0 for a row of zeros; ``z`` is a row, padded to whole panels.
#: ``panels`` whole panels and ``columns`` lanes of a partial one after them. ``wa`` and ``wb`` are
#: workspace for one packed block of A and one of B.
REGION = {
    "a": FLOATS,
    "lda": INT,
    "b": FLOATS,
    "b_k": INT,
    "b_n": INT,
    "x": FLOATS,
    "ldx": INT,
    "x_step": INT,
    "z": FLOATS,
    "z_step": INT,
    "c": FLOATS,
    "ldc": INT,
    "m": INT,
    "panels": INT,
    "columns": INT,
    "k": INT,
    "activation": INT,
    "nv": INT,
    "mr": INT,
    "tail_nv": INT,
    "tail_mr": INT,
    "pack_a": INT,
    "b_mode": INT,
    "kc": INT,
    "mc": INT,
    "nc": INT,
    "wa": FLOATS,
    "wb": FLOATS,
}


def _emit_region(functions: Functions, lanes: int) -> None:
    """Blocks of panels, of the reduction, of rows: ``C = act(A @ B + X + Z)``.

    Later blocks of the reduction add to C: they take it as X, and zeros as Z.
    """

    @functions.private("moonpoly_region", **REGION)
    def _(**args: Any) -> None:
        a, b, c, x, z = (args[name] for name in "abcxz")
        k, panels, mode = args["k"], args["panels"], args["b_mode"]
        b_k, b_n, workspace = args["b_k"], args["b_n"], args["wb"]
        zeros = zeros_row(lanes)
        relu = args["activation"] == int(Activation.RELU)
        lower_bound = T.Bind(tirx.Select(relu, tirx.const(0.0, FLOAT), MINUS_INFINITY))
        k_blocks = let(maximum(ceil_div(k, args["kc"]), 1))
        kc = let(ceil_div(k, k_blocks))
        groups = let(div(panels - args["tail_nv"], args["nv"]))
        n_blocks = let(maximum(ceil_div(groups, args["nc"]), 1))

        with loop(n_blocks) as jc, loop(k_blocks) as kk:
            panel = let(jc * args["nc"] * args["nv"])
            column = let(panel * lanes)
            last_columns = let(jc == n_blocks - 1)
            # the last block takes the tail region and the partial panel as well
            count = let(select(last_columns, panels - panel, args["nc"] * args["nv"]))
            columns = let(select(last_columns, args["columns"], 0))
            k0 = let(kk * kc)
            kb = let(minimum(kc, k - k0))
            last = let(kk == k_blocks - 1)
            in_place = let(k0 * b_k + column * b_n)

            def rows(
                b_block: Expr, b_vector: Expr, b_row: Expr, edge: Expr, in_place_b: bool = False
            ) -> None:
                def accumulate(
                    x_row: Expr, ldx: Expr, x_step: Expr, z_row: Expr, z_step: Expr
                ) -> None:
                    functions["moonpoly_row_blocks"](
                        a.at(k0),
                        args["lda"],
                        b_block,
                        b_vector,
                        b_row,
                        int(in_place_b),
                        edge,
                        x_row,
                        ldx,
                        x_step,
                        z_row,
                        z_step,
                        c.at(column),
                        args["ldc"],
                        kb,
                        tirx.Select(last, lower_bound, MINUS_INFINITY),
                        args["m"],
                        count,
                        columns,
                        select(last, args["activation"], 0),
                        args["nv"],
                        args["mr"],
                        select(last_columns, args["tail_nv"], 0),
                        args["tail_mr"],
                        args["pack_a"],
                        args["mc"],
                        args["wa"].at(0),
                    )

                x_step, z_step = args["x_step"], args["z_step"]
                branch(
                    kk == 0,
                    lambda: accumulate(
                        x.at(column * x_step), args["ldx"], x_step, z.at(column * z_step), z_step
                    ),
                    lambda: accumulate(c.at(column), args["ldc"], 1, zeros.at(0), 0),
                )

            stride = let(panel_stride(kb, lanes))

            def pack(source: Expr, whole: Expr) -> None:
                functions["moonpoly_pack_b"](
                    b.at(source), b_k, b_n, workspace.at(0), kb, whole, columns, stride
                )

            def prepacked() -> None:
                at = let(panel * lanes * k + k0 * lanes)
                rows(b.at(at), k * lanes, lanes, b.at(at + count * k * lanes))

            def direct() -> None:
                # the partial panel would be read beyond the end of its rows: it is packed
                with when(columns > 0):
                    pack(in_place + count * lanes * b_n, 0)
                rows(b.at(in_place), lanes, b_k, workspace.at(0), in_place_b=True)

            def packed() -> None:
                pack(in_place, count)
                rows(workspace.at(0), stride, lanes, workspace.at(count * stride))

            cases = {
                BMode.PREPACKED: prepacked,
                BMode.DIRECT: direct,
                BMode.PACKED: packed,
            }
            switch(mode, [int(case) for case in cases], lambda case: cases[BMode(case)]())
