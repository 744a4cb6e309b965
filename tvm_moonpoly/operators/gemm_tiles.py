"""Tiles of micro-kernels side by side and one below the other, as private native functions.

All pointers are to floats; leading dimensions and strides are in floats; columns of B are counted
in panels, one vector wide. A tile computes ``C = max(A @ B + X + Z, lo)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    balanced,
    ceil_div,
    cell,
    let,
    loop,
    minimum,
    prefetch,
    scratch,
    select,
    switch,
    vector,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels import cpu_gemm
from tvm_moonpoly.microkernels.records import Form, Record, edge_height, looks_ahead
from tvm_moonpoly.operators.activation import Activation

#: What a tile function is given, besides the number of rows.
TILE = {
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


#: What rows of tiles prefetch, see `_emit_rows`.
AHEAD = {"ahead": FLOATS, "looking": INT, "apart": INT}

#: A row of zeros is at least as wide as the widest group of panels.
_ZEROS = 128


def zeros_row(lanes: int) -> Pointer:
    """A row of zeros on the stack, which stands for an absent addend."""
    zeros = scratch(_ZEROS)
    for i in range(_ZEROS // lanes):
        zeros[vector(i * lanes, lanes)] = T.Broadcast(tirx.const(0.0, FLOAT), lanes)
    return zeros


#: What the functions of a form are called.
SUFFIXES = {Form.PLAIN: "", Form.PACKED_A: "_packed", Form.IN_PLACE_B: "_in_place"}


def emit(functions: Functions, records: Sequence[Record], machine: Machine) -> None:
    """Define the groups of each form and what `emit_rows` does."""
    emit_rows(functions, records, machine)
    for form in Form:
        widths = sorted({r.nv for r in records if r.form == form})
        _emit_groups(functions, form, widths, machine)


def emit_rows(functions: Functions, records: Sequence[Record], machine: Machine) -> None:
    """Define the rows of each width and form of ``records``, ``moonpoly_edge``, and all that they
    call."""
    for record in records:
        functions.add(
            record.name,
            cpu_gemm.build(record, machine, looks_ahead(record.mr, record.nv, record.form)),
        )
        _emit_strip(functions, record, machine.lanes)
    for form in Form:
        for nv in sorted({r.nv for r in records if r.form == form}):
            _emit_rows(functions, nv, form, [r for r in records if r.form == form and r.nv == nv])
    _emit_edge(functions, records, machine.lanes)


def _emit_strip(functions: Functions, record: Record, lanes: int) -> None:
    """``count`` tiles of one micro-kernel, one below the other.

    Each of the first ``looking`` tiles prefetches as much as a panel, the first one at ``ahead``,
    the others ``apart`` floats further each.
    """
    looks = looks_ahead(record.mr, record.nv, record.form)
    ahead = {"ahead": FLOATS, "looking": INT, "apart": INT} if looks else {}

    @functions.private(f"{record.name}_strip", **TILE, count=INT, **ahead)
    def _(a: Any, lda: Expr, b: Any, x: Any, ldx: Expr, c: Any, ldc: Expr, **rest: Any) -> None:
        k = rest["k"]
        with loop(rest["count"]) as t:
            row = let(t * record.mr)
            # the kernel adds x at its end: until then the rows have come from wherever they were
            with when(ldx != 0):
                for i in range(record.mr):
                    for j in range(0, record.nv * lanes, LINE):
                        prefetch(x.at((row + i) * ldx + j))
            panel = []
            if looks:
                # the others are given what they read anyway
                looking = t < rest["looking"]
                further = let(select(looking, t * rest["apart"], 0))
                panel = [b.unless(looking, rest["ahead"]).at(further)]
            functions[record.name](
                a.at(row * (k if record.packed_a else lda)),
                b.at(0),
                x.at(row * ldx),
                rest["z"].at(0),
                c.at(row * ldc),
                *panel,
                lda,
                rest["b_vector"],
                rest["b_row"],
                ldx,
                ldc,
                k,
                rest["lo"],
            )


def looking_at_panels(later: Expr, m: Expr, mr: Expr, nv: Expr) -> Expr:
    """How many of the tiles prefetch one of the ``nv`` panels of a group ``later`` floats behind
    their own; 0: there is no need to. A single tile would be held up by reading twice as much."""
    return select(tirx.all(later > 0, m > mr), nv, 0)


def rows_name(nv: int, form: Form) -> str:
    return f"moonpoly_rows_{nv}{SUFFIXES[form]}"


def _emit_rows(functions: Functions, nv: int, form: Form, records: Sequence[Record]) -> None:
    """All ``m`` rows of one group of panels, in balanced tiles of at most ``mr`` rows.

    Each of the first ``looking`` tiles prefetches as much as one of these panels, the first at
    ``ahead``, the others ``apart`` floats further each.
    """
    by_height = {r.mr: r for r in records}

    @functions.separate(rows_name(nv, form), **TILE, m=INT, mr=INT, **AHEAD)
    def _(**args: Any) -> None:
        a, x, c, m = args["a"], args["x"], args["c"], args["m"]
        lda, ldx, ldc, k = args["lda"], args["ldx"], args["ldc"], args["k"]
        small, large_tiles, tiles = balanced(m, args["mr"])
        first = let(large_tiles * (small + 1))

        def strips(height: Expr, row: Expr, count: Expr, above: Expr) -> None:
            def strip(mr: int) -> None:
                looks = looks_ahead(mr, nv, form)
                ahead = [
                    args["ahead"].at(above * args["apart"]),
                    args["looking"] - above,
                    args["apart"],
                ]
                functions[f"{by_height[mr].name}_strip"](
                    a.at(row * (k if form == Form.PACKED_A else lda)),
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
                    *(ahead if looks else []),
                )

            switch(height, sorted(by_height), strip)

        with when(large_tiles > 0):
            strips(small + 1, as_int(0), large_tiles, as_int(0))
        strips(small, first, tiles - large_tiles, large_tiles)


def _emit_groups(functions: Functions, form: Form, widths: Sequence[int], machine: Machine) -> None:
    """``count`` groups of ``nv`` panels side by side, all rows of each."""
    lanes = machine.lanes

    @functions.private(
        f"moonpoly_groups{SUFFIXES[form]}",
        **TILE,
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
            # what fits the second cache is there already
            size = args["count"] * nv * args["k"] * (lanes * 4)
            later = let(select(size > machine.l2_bytes // 2, nv * args["b_vector"], 0))
            looking = cell(looking_at_panels(later, args["m"], args["mr"], nv))
            with loop(args["count"]) as g:
                column = let(g * (nv * lanes))
                functions[rows_name(nv, form)](
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
                    args["b"].at(g * nv * args["b_vector"] + later),
                    looking,
                    args["b_vector"],
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
    height = edge_height(records, lanes)

    @functions.separate("moonpoly_edge", **TILE, m=INT, columns=INT, activation=INT)
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
            functions[rows_name(1, Form.PLAIN)](
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
                args["b"].at(0),
                0,
                0,
            )
            with when(args["activation"] > int(Activation.RELU)):
                functions["moonpoly_activate"](c_tile.at(0), lanes, rows, lanes, args["activation"])
            with loop(rows) as i, loop(columns) as j:
                c[(row + i) * args["ldc"] + j] = c_tile[i * lanes + j]
