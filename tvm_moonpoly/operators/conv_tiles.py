"""The tiles of a block of output pixels, several output rows at a time.

Of each group of panels all rows of the block are computed before the next group, so that its
weights come from far only once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    LINE,
    MINUS_INFINITY,
    Expr,
    Functions,
    Pointer,
    as_int,
    ceil_div,
    cell,
    div,
    let,
    loop,
    maximum,
    minimum,
    prefetch,
    select,
    switch,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators.bounded_activation import ACTIVATE_BOUNDED
from tvm_moonpoly.operators.conv_constants import ConvActivation
from tvm_moonpoly.operators.gemm_tiles import looking_at_panels, rows_name, zeros_row

TILES = "moonpoly_conv_tiles"

_FETCH = "moonpoly_conv_fetch"

#: What a block is. ``rows`` rows of ``width`` pixels, ``a_row``, ``x_row`` and ``c_row`` floats
#: from the pixels of one to those of the next, and ``lda``, ``ldx`` and ``ldc`` from pixel to
#: pixel. ``panels`` whole panels of ``depth`` steps and ``columns`` lanes of a partial one.
#: ``next_a``: how far behind it the rows of A of the next block are, of each of whose rows
#: ``fetched`` pixels are prefetched meanwhile. ``x_step`` is 0 where x is a row of zeros.
BLOCK = (
    "rows",
    "width",
    "a_row",
    "x_row",
    "c_row",
    "lda",
    "ldx",
    "ldc",
    "x_step",
    "depth",
    "panels",
    "columns",
    "nv",
    "mr",
    "tail_nv",
    "tail_mr",
    "kc",
    "activation",
    "first",
    "second",
    "next_a",
    "fetched",
)


def emit(functions: Functions, records: Sequence[Record], machine: Machine) -> None:
    """Define `TILES`: ``C = act(A @ B + X + z)`` for the block that ``numbers`` describe."""
    lanes = machine.lanes
    widths = sorted({r.nv for r in records if r.form == Form.PLAIN})
    _emit_fetch(functions)

    @functions.separate(TILES, numbers=INTS, a=FLOATS, b=FLOATS, x=FLOATS, z=FLOATS, c=FLOATS)
    def _(numbers: Pointer, a: Pointer, b: Pointer, x: Pointer, z: Pointer, c: Pointer) -> None:
        t = Numbers(BLOCK, numbers).kept()
        first, second = as_float(t["first"]), as_float(t["second"])
        zeros = zeros_row(lanes)
        depth, width = t["depth"], t["width"]
        k_blocks = let(maximum(ceil_div(depth, select(t["kc"] == 0, depth, t["kc"])), 1))
        kb = let(ceil_div(depth, k_blocks))
        relu = t["activation"] == int(ConvActivation.RELU)
        main = let(div(t["panels"] - t["tail_nv"], t["nv"]))
        all_groups = let(main + select(t["tail_nv"] > 0, 1, 0))
        # tiles that need no panels fetch pixels that are one behind another, `lanes` of them each
        near = t["panels"] * depth * (lanes * 4) <= machine.l2_bytes // 2
        evenly = tirx.all(t["lda"] == depth, t["rows"] == 1, k_blocks == 1)
        in_tiles = let(tirx.all(evenly, near, t["fetched"] > 0))
        at_once = let(select(in_tiles, lanes, 1))  # pixels that are fetched together
        turns = let(ceil_div(ceil_div(t["fetched"], at_once), maximum(k_blocks * all_groups, 1)))
        fetches = let(turns * at_once)

        with loop(k_blocks) as kk:
            k0 = let(kk * kb)
            steps = let(minimum(kb, depth - k0))
            last, later_block = let(kk == k_blocks - 1), kk > 0
            lo = let(tirx.Select(tirx.all(last, relu), tirx.const(0.0, FLOAT), MINUS_INFINITY))
            active = let(
                select(
                    tirx.all(last, t["activation"] > int(ConvActivation.RELU)), t["activation"], 0
                )
            )
            # later blocks of the reduction add to what is there
            added, bias = x.unless(later_block, c), z.unless(later_block, zeros)
            x_step = let(select(later_block, 1, t["x_step"]))
            x_row = let(select(later_block, t["c_row"], t["x_row"]))
            ldx = let(select(later_block, t["ldc"], t["ldx"]))
            z_step = let(select(later_block, 0, 1))

            def activate(panel: Expr, row: Expr, columns: Expr) -> None:
                with when(active > 0):
                    at = c.at(row * t["c_row"] + panel * lanes)
                    functions[ACTIVATE_BOUNDED](at, t["ldc"], width, columns, active, first, second)

            def tiles(panel: Expr, row: Expr) -> list[Expr]:
                """`TILE` of an output row, from the panel on."""
                column = let(panel * lanes)
                return [
                    a.at(row * t["a_row"] + k0),
                    t["lda"],
                    b.at((panel * depth + k0) * lanes),
                    depth * lanes,
                    as_int(lanes),
                    added.at(column * x_step + row * x_row),
                    ldx,
                    bias.at(column * z_step),
                    c.at(column + row * t["c_row"]),
                    t["ldc"],
                    steps,
                    lo,
                ]

            # the main region, then the tail region
            with loop(2) as region:
                in_main = let(region == 0)
                nv = cell(select(in_main, t["nv"], t["tail_nv"]))
                mr = cell(select(in_main, t["mr"], t["tail_mr"]))
                count = let(select(in_main, main, select(t["tail_nv"] > 0, 1, 0)))
                start = let(select(in_main, 0, main * t["nv"]))

                def groups(nv: int) -> None:
                    size = t["panels"] * steps * (lanes * 4)
                    later = cell(select(size > machine.l2_bytes // 2, nv * depth * lanes, 0))
                    looking = cell(looking_at_panels(later, width, mr, nv))
                    with loop(count) as g, loop(t["rows"]) as row:
                        panel = let(start + g * nv)
                        # each of all groups fetches as much of the next block
                        group = let(kk * all_groups + g + select(in_main, 0, main))
                        begun = let(minimum(group * fetches, t["fetched"]))
                        pixels = let(minimum(fetches, t["fetched"] - begun))
                        at_a = let(t["next_a"] + row * t["a_row"] + begun * t["lda"])
                        with when(tirx.all(pixels > 0, tirx.Not(in_tiles))):
                            functions[_FETCH](a.at(at_a), t["lda"], pixels, depth)
                        at_b = (panel * depth + k0) * lanes + later
                        looking_at_b = select(row == 0, looking, 0)
                        functions[rows_name(nv, Form.PLAIN)](
                            *tiles(panel, row),
                            width,
                            mr,
                            b.unless(in_tiles, a).at(select(in_tiles, at_a, at_b)),
                            select(in_tiles, ceil_div(pixels, lanes), looking_at_b),
                            depth * lanes,
                        )
                        activate(panel, row, as_int(nv * lanes))

                with when(count > 0):
                    switch(nv, widths, groups)
            with when(t["columns"] > 0), loop(t["rows"]) as row:
                functions["moonpoly_edge"](*tiles(t["panels"], row), width, t["columns"], 0)
                activate(t["panels"], row, t["columns"])


def _emit_fetch(functions: Functions) -> None:
    """``count`` pixels of ``floats`` floats, ``apart`` floats apart, into the second cache: rows of
    A that lie apart are none of the streams that processors fetch ahead by themselves."""

    @functions.separate(_FETCH, a=FLOATS, apart=INT, count=INT, floats=INT)
    def _(a: Pointer, apart: Expr, count: Expr, floats: Expr) -> None:
        with loop(count) as i, loop(ceil_div(floats, LINE)) as line:
            prefetch(a.at(i * apart + line * LINE), 2)
