"""The loops around the micro-kernels of a matrix product, as private native functions.

``region`` computes ``C = act(A @ B + X + Z)`` for the rows and panels of one worker, by the blocks,
tiles and packing of a plan. All pointers are to floats; leading dimensions and strides are in
floats; columns of B are counted in panels, one vector wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import tirx
from tvm.tirx.script import builder as T

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
    scratch,
    select,
    switch,
    vector,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.cpu_gemm import Record
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.planner.plan import BMode

MINUS_INFINITY = tirx.const(float("-inf"), FLOAT)

#: What a tile function is given, besides the number of rows.
_TILE = {
    "a": FLOATS,
    "lda": INT,
    "b": FLOATS,
    "b_vector": INT,
    "b_row": INT,
    "x": FLOATS,
    "ldx": INT,
    "z": FLOATS,
    "c": FLOATS,
    "ldc": INT,
    "k": INT,
    "lo": FLOAT,
}


class Form(NamedTuple):
    """Where micro-kernels find their operands."""

    suffix: str
    packed_a: bool
    in_place_b: bool

    def holds(self, record: Record) -> bool:
        return (record.packed_a, record.in_place_b) == (self.packed_a, self.in_place_b)


PLAIN = Form("", packed_a=False, in_place_b=False)
PACKED_A = Form("_packed", packed_a=True, in_place_b=False)
IN_PLACE_B = Form("_in_place", packed_a=False, in_place_b=True)
FORMS = (PLAIN, PACKED_A, IN_PLACE_B)


def emit(functions: Functions, records: Sequence[Record], machine: Machine) -> None:
    """Define ``moonpoly_region`` and all that it calls in ``functions``."""
    for record in records:
        functions.add(record.name, cpu_gemm.build(record, machine))
        _emit_strip(functions, record)
    for form in FORMS:
        widths = sorted({r.nv for r in records if form.holds(r)})
        for nv in widths:
            _emit_rows(functions, nv, form, [r for r in records if form.holds(r) and r.nv == nv])
        _emit_groups(functions, form, widths, machine.lanes)
    _emit_edge(functions, records, machine.lanes)
    _emit_block(functions, machine.lanes)
    _emit_row_blocks(functions)
    _emit_region(functions, machine.lanes)


def _emit_strip(functions: Functions, record: Record) -> None:
    """``count`` tiles of one micro-kernel, one below the other."""

    @functions.private(f"{record.name}_strip", **_TILE, count=INT)
    def _(a: Any, lda: Expr, b: Any, x: Any, ldx: Expr, c: Any, ldc: Expr, **rest: Any) -> None:
        k = rest["k"]
        with loop(rest["count"]) as t:
            row = let(t * record.mr)
            functions[record.name](
                a.at(row * (k if record.packed_a else lda)),
                b.at(0),
                x.at(row * ldx),
                rest["z"].at(0),
                c.at(row * ldc),
                lda,
                rest["b_vector"],
                rest["b_row"],
                ldx,
                ldc,
                k,
                rest["lo"],
            )


def _rows_name(nv: int, form: Form) -> str:
    return f"moonpoly_rows_{nv}{form.suffix}"


def _emit_rows(functions: Functions, nv: int, form: Form, records: Sequence[Record]) -> None:
    """All ``m`` rows of one group of panels, in balanced tiles of at most ``mr`` rows."""
    by_height = {r.mr: r for r in records}

    @functions.private(_rows_name(nv, form), **_TILE, m=INT, mr=INT)
    def _(**args: Any) -> None:
        a, x, c, m = args["a"], args["x"], args["c"], args["m"]
        lda, ldx, ldc, k = args["lda"], args["ldx"], args["ldc"], args["k"]
        tiles = let(ceil_div(m, args["mr"]))
        small = let(div(m, tiles))
        large_tiles = let(m - small * tiles)
        first = let(large_tiles * (small + 1))

        def strips(height: Expr, row: Expr, count: Expr) -> None:
            def strip(mr: int) -> None:
                functions[f"{by_height[mr].name}_strip"](
                    a.at(row * (k if form.packed_a else lda)),
                    lda,
                    args["b"].at(0),
                    args["b_vector"],
                    args["b_row"],
                    x.at(row * ldx),
                    ldx,
                    args["z"].at(0),
                    c.at(row * ldc),
                    ldc,
                    k,
                    args["lo"],
                    count,
                )

            switch(height, sorted(by_height), strip)

        with when(large_tiles > 0):
            strips(small + 1, tirx.const(0, INT), large_tiles)
        strips(small, first, tiles - large_tiles)


def _emit_groups(functions: Functions, form: Form, widths: Sequence[int], lanes: int) -> None:
    """``count`` groups of ``nv`` panels side by side, all rows of each."""

    @functions.private(
        f"moonpoly_groups{form.suffix}",
        **_TILE,
        x_step=INT,
        z_step=INT,
        m=INT,
        mr=INT,
        nv=INT,
        count=INT,
        activation=INT,
    )
    def _(**args: Any) -> None:
        def groups(nv: int) -> None:
            with loop(args["count"]) as g:
                column = let(g * (nv * lanes))
                functions[_rows_name(nv, form)](
                    args["a"].at(0),
                    args["lda"],
                    args["b"].at(g * nv * args["b_vector"]),
                    args["b_vector"],
                    args["b_row"],
                    args["x"].at(column * args["x_step"]),
                    args["ldx"],
                    args["z"].at(column * args["z_step"]),
                    args["c"].at(column),
                    args["ldc"],
                    args["k"],
                    args["lo"],
                    args["m"],
                    args["mr"],
                )
                with when(args["activation"] > int(Activation.RELU)):
                    functions["moonpoly_activate"](
                        args["c"].at(column),
                        args["ldc"],
                        args["m"],
                        nv * lanes,
                        args["activation"],
                    )

        with when(args["count"] > 0):
            switch(args["nv"], widths, groups)


def _emit_edge(functions: Functions, records: Sequence[Record], lanes: int) -> None:
    """The last panel when only ``columns`` of its lanes exist, through a tile on the stack.

    B is packed here (its padding may be read), z is padded, x is not.
    """
    tallest = max(r.mr for r in records if r.nv == 1 and PLAIN.holds(r))
    height = min(tallest, 240 // lanes)

    @functions.private("moonpoly_edge", **_TILE, m=INT, columns=INT, activation=INT)
    def _(**args: Any) -> None:
        x, c, columns, m = args["x"], args["c"], args["columns"], args["m"]
        x_tile = scratch(height * lanes)
        c_tile = scratch(height * lanes)
        for i in range(height):
            x_tile[vector(i * lanes, lanes)] = T.Broadcast(tirx.const(0.0, FLOAT), lanes)
        with loop(ceil_div(m, height)) as t:
            row = let(t * height)
            rows = let(minimum(m - row, height))
            with loop(rows) as i, loop(columns) as j:
                x_tile[i * lanes + j] = x[(row + i) * args["ldx"] + j]
            functions[_rows_name(1, PLAIN)](
                args["a"].at(row * args["lda"]),
                args["lda"],
                args["b"].at(0),
                args["b_vector"],
                args["b_row"],
                x_tile.at(0),
                lanes,
                args["z"].at(0),
                c_tile.at(0),
                lanes,
                args["k"],
                args["lo"],
                rows,
                height,
            )
            with when(args["activation"] > int(Activation.RELU)):
                functions["moonpoly_activate"](c_tile.at(0), lanes, rows, lanes, args["activation"])
            with loop(rows) as i, loop(columns) as j:
                c[(row + i) * args["ldc"] + j] = c_tile[i * lanes + j]


#: A block of the output: tiles of the main region on packed or plain A, then the tail on plain A.
_BLOCK = {
    **_TILE,
    "x_step": INT,
    "z_step": INT,
    "packed": FLOATS,
    "pack_a": INT,
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
            functions[f"moonpoly_groups{form.suffix}"](
                args["packed" if form.packed_a else "a"].at(0),
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
            branch(args["pack_a"] > 0, lambda: main_region(PACKED_A), lambda: main_region(PLAIN))
            tail_region(PLAIN)

        def in_place_b() -> None:
            main_region(IN_PLACE_B)
            tail_region(IN_PLACE_B)

        branch(args["b_row"] == lanes, packed_b, in_place_b)
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


#: Parameters of ``moonpoly_region``.
#:
#: ``a`` (m, k) by rows of ``lda``. ``b``: packed panels of ``k`` rows (PREPACKED), or in place
#: with ``b_k`` floats from one row to the next and ``b_n`` from one column to the next (one of
#: them is 1; DIRECT needs ``b_n`` = 1; STREAM takes no X, Z or activation). ``x`` is added to the
#: product, ``ldx`` and ``x_step`` are 0 for a row of zeros; ``z`` is a row, padded to whole panels.
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

#: A row of zeros as wide as the widest group of panels.
_ZEROS = 128


def _emit_region(functions: Functions, lanes: int) -> None:
    """Blocks of panels, of the reduction, of rows: ``C = act(A @ B + X + Z)``.

    Later blocks of the reduction add to C: they take it as X, and zeros as Z.
    """

    @functions.private("moonpoly_region", **REGION)
    def _(**args: Any) -> None:
        a, b, c, x, z = (args[name] for name in "abcxz")
        k, panels, mode = args["k"], args["panels"], args["b_mode"]
        b_k, b_n, workspace = args["b_k"], args["b_n"], args["wb"]
        zeros = scratch(_ZEROS)
        for i in range(_ZEROS // lanes):
            zeros[vector(i * lanes, lanes)] = T.Broadcast(tirx.const(0.0, FLOAT), lanes)
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

            def rows(b_block: Expr, b_vector: Expr, b_row: Expr, edge: Expr) -> None:
                def accumulate(
                    x_row: Expr, ldx: Expr, x_step: Expr, z_row: Expr, z_step: Expr
                ) -> None:
                    functions["moonpoly_row_blocks"](
                        a.at(k0),
                        args["lda"],
                        b_block,
                        b_vector,
                        b_row,
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

            def pack(source: Expr, whole: Expr) -> None:
                functions["moonpoly_pack_b"](
                    b.at(source), b_k, b_n, workspace.at(0), kb, whole, columns
                )

            def prepacked() -> None:
                at = let(panel * lanes * k + k0 * lanes)
                rows(b.at(at), k * lanes, lanes, b.at(at + count * k * lanes))

            def direct() -> None:
                # the partial panel would be read beyond the end of its rows: it is packed
                with when(columns > 0):
                    pack(in_place + count * lanes * b_n, 0)
                rows(b.at(in_place), lanes, b_k, workspace.at(0))

            def packed() -> None:
                pack(in_place, count)
                rows(workspace.at(0), kb * lanes, lanes, workspace.at(count * kb * lanes))

            def stream() -> None:
                def through(name: str, ldb: Expr) -> None:
                    n = panels * lanes + args["columns"]
                    functions[name](
                        a.at(0), args["lda"], b.at(0), ldb, c.at(0), args["ldc"], args["m"], n, k
                    )

                branch(
                    b_n == 1,
                    lambda: through("moonpoly_axpy", b_k),
                    lambda: through("moonpoly_dot", b_n),
                )

            cases = {
                BMode.PREPACKED: prepacked,
                BMode.DIRECT: direct,
                BMode.PACKED: packed,
                BMode.STREAM: stream,
            }
            switch(mode, [int(case) for case in cases], lambda case: cases[BMode(case)]())
