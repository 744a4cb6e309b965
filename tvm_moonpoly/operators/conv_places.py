"""Convolutions with padding, of each place of the kernel only those pixels that see the input.

At a place the pixels of an output row read pixels of the input that are evenly spaced, so that
nothing is copied. One place gives the outputs their first value, with bias and residual; where it
sees padding, without a product. The others add to that, each those pixels that it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    MINUS_INFINITY,
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
    switch,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators.bounded_activation import ACTIVATE_BOUNDED
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.operators.conv_constants import ConvActivation
from tvm_moonpoly.operators.gemm_tiles import TILE, looking_at_panels, rows_name, zeros_row
from tvm_moonpoly.operators.sharing import columns_of
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION
from tvm_moonpoly.planner.native_conv_places import span

PLACES = "moonpoly_conv_places"

_TILES = "moonpoly_conv_places_tiles"


def emit(functions: Functions, records: Sequence[Record], machine: Machine) -> None:
    """Define `PLACES`: one block of a group, or a part of its columns, in float32."""
    _emit_tiles(functions, sorted({r.nv for r in records if r.form == Form.PLAIN}))
    _emit_block(functions, machine)


def _emit_tiles(functions: Functions, widths: Sequence[int]) -> None:
    """``m`` rows of a group of ``nv`` panels, or where that is 0 of ``columns`` lanes of one."""

    @functions.separate(_TILES, **TILE, m=INT, nv=INT, mr=INT, later=INT, columns=INT)
    def _(m: Expr, nv: Expr, mr: Expr, later: Expr, columns: Expr, **tile: Any) -> None:
        looking = cell(looking_at_panels(later, m, mr, nv))
        given = [each.at(0) if isinstance(each, Pointer) else each for each in tile.values()]

        def whole() -> None:
            def rows(width: int) -> None:
                functions[rows_name(width, Form.PLAIN)](
                    *given, m, mr, tile["b"].at(later), looking, tile["b_vector"]
                )

            switch(nv, widths, rows)

        branch(nv > 0, whole, lambda: functions["moonpoly_edge"](*given, m, columns, 0))


def _emit_block(functions: Functions, machine: Machine) -> None:
    lanes = machine.lanes

    @functions.separate(
        PLACES, numbers=INTS, **operands(FLOAT), space=FLOATS, group=INT, block=INT, part=INT
    )
    def _(
        numbers: Pointer,
        x: Pointer,
        weight: Pointer,
        bias: Pointer,
        residual: Pointer,
        out: Pointer,
        group: Expr,
        block: Expr,
        part: Expr,
        **_: Pointer,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept(
            "n", "h", "w", "oh", "ow", "channels", "outputs", "depth", "panels", "columns",
            "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "top",
            "left", "in_channels", "out_channels", "residual", "activation", "segments", "nv",
            "mr", "tail_mr",
        )  # fmt: skip
        first, second = as_float(conv["first"]), as_float(conv["second"])
        zeros = zeros_row(lanes)
        # output rows of all images
        each = cell(div(block, s["segments"]))
        row = cell(each * conv["rows"])
        pixel = cell((block - each * s["segments"]) * conv["width"])
        rows = cell(minimum(conv["rows"], s["n"] * s["oh"] - row))
        width = cell(minimum(conv["width"], s["ow"] - pixel))

        own = columns_of(part, conv.kept("nv", "tail_nv", "splits_n"), s["panels"], s["columns"])
        padded_panels = cell(s["panels"] + select(s["columns"] > 0, 1, 0))
        main = cell(div(own["panels"] - own["tail_nv"], s["nv"]))
        tails = cell(select(own["tail_nv"] > 0, 1, 0))
        edges = cell(select(own["columns"] > 0, 1, 0))
        places = cell(s["kernel_h"] * s["kernel_w"])
        # the place that sees the input of the first pixel, and most often those of all
        first_h = cell(minimum(ceil_div(s["top"], s["dilation_h"]), s["kernel_h"] - 1))
        first_w = cell(minimum(ceil_div(s["left"], s["dilation_w"]), s["kernel_w"] - 1))
        first_place = cell(first_w * s["kernel_h"] + first_h)
        relu = s["activation"] == int(ConvActivation.RELU)
        zero = tirx.const(0.0, FLOAT)
        lo = let(tirx.Select(tirx.all(relu, places == 1), zero, MINUS_INFINITY))
        has, channel = s["residual"], cell(group * s["channels"])
        out_row = cell(s["ow"] * s["out_channels"])
        column_step = cell(s["stride_w"] * s["in_channels"])
        far = s["depth"] * s["panels"] * (lanes * 4) > machine.l2_bytes // 2

        with (
            when(tirx.all(rows > 0, width > 0)),
            loop(main + tails + edges) as g,
        ):
            in_main, in_tail = g < main, tirx.all(g == main, tails > 0)
            nv = cell(select(in_main, s["nv"], select(in_tail, own["tail_nv"], 0)))
            mr = cell(select(in_main, s["mr"], s["tail_mr"]))
            beyond = select(in_tail, main * s["nv"], own["panels"])
            panel = cell(own["panel"] + select(in_main, g * s["nv"], beyond))
            padded_panel = cell(group * padded_panels + panel)
            weights = cell(padded_panel * (lanes * s["depth"]))
            column = cell(group * s["outputs"] + panel * lanes)
            to = cell((row * s["ow"] + pixel) * s["out_channels"] + column)
            wide = cell(select(nv > 0, nv * lanes, own["columns"]))

            def tiles(
                a: Expr,
                b: Expr,
                added: Expr,
                ldx: Expr,
                z: Expr,
                at: Expr,
                steps: Expr,
                lo: Expr,
                m: Expr,
                later: Expr,
                nv: Expr = nv,
                mr: Expr = mr,
            ) -> None:
                functions[_TILES](
                    a, column_step, b, s["depth"] * lanes, lanes, added, ldx, z, out.at(at),
                    s["out_channels"], steps, lo, m, nv, mr, later, own["columns"],
                )  # fmt: skip

            with loop(places) as turn:
                # the first place, then the others in their order
                after = select(turn <= first_place, turn - 1, turn)
                starts = turn == 0
                place = cell(select(starts, first_place, after))
                kw = cell(div(place, s["kernel_h"]))
                kh = cell(place - kw * s["kernel_h"])
                at_w = cell(kw * s["dilation_w"] - s["left"])
                at_h = cell(kh * s["dilation_h"] - s["top"])
                begin, end = span(at_w, s["w"], s["stride_w"], s["ow"])
                begin = cell(minimum(maximum(begin - pixel, 0), width))
                end = cell(minimum(maximum(end - pixel, begin), width))
                b = cell(weights + place * (s["channels"] * lanes))
                # the first tiles fetch what comes next: the next place, the next group
                following = cell(select(turn + 1 <= first_place, turn, turn + 1))
                ahead = (following - place) * (s["channels"] * lanes)
                next_group = (first_place - place) * (s["channels"] * lanes)
                next_group = next_group + nv * (s["depth"] * lanes)
                later = scratch(1, INT)
                later[0] = maximum(select(turn + 1 == places, next_group, ahead), 0)
                later[0] = select(far, later[0], 0)
                with loop(rows) as r:
                    image = cell(div(row + r, s["oh"]))
                    high = cell((row + r - image * s["oh"]) * s["stride_h"] + at_h)
                    inside = cell(select(tirx.all(high >= 0, high < s["h"]), 1, 0))
                    # the pixels that see padding before the others, those, and those after them
                    bounds = scratch(4, INT)
                    bounds[0], bounds[3] = as_int(0), width
                    bounds[1], bounds[2] = begin * inside, end * inside
                    with loop(select(starts, 3, inside)) as run:
                        which = cell(select(starts, run, 1))
                        start = cell(bounds[which])
                        count = cell(bounds[which + 1] - start)
                        product = which == 1
                        place_of = (image * s["h"] + high) * s["w"]
                        place_of = place_of + (pixel + start) * s["stride_w"] + at_w
                        source = cell(select(product, place_of * s["in_channels"] + channel, 0))
                        at = cell(to + r * out_row + start * s["out_channels"])

                        def given(
                            source: Expr = source,
                            at: Expr = at,
                            count: Expr = count,
                            product: Expr = product,
                            b: Expr = b,
                            later: Pointer = later,
                            starts: Expr = starts,
                            padded_panel: Expr = padded_panel,
                        ) -> None:
                            before = residual.unless(has == 0, zeros)
                            added = out.unless(starts, before)
                            at_added = select(starts, select(has > 0, at, 0), at)
                            ldx = select(starts, s["out_channels"] * has, s["out_channels"])
                            z = zeros.unless(starts, bias)
                            tiles(
                                x.at(source),
                                weight.at(b),
                                added.at(at_added),
                                ldx,
                                z.at(select(starts, padded_panel * lanes, 0)),
                                at,
                                select(product, s["channels"], 0),
                                lo,
                                count,
                                select(product, later[0], 0),
                            )
                            later[0] = select(product, 0, later[0])

                        with when(count > 0):
                            given()
            with loop(rows) as r:
                at = cell(to + r * out_row)
                with when(tirx.all(relu, places > 1)):
                    tiles(
                        x.at(0), weight.at(weights), out.at(at), s["out_channels"], zeros.at(0),
                        at, as_int(0), zero, width, as_int(0),
                    )  # fmt: skip
                with when(s["activation"] > int(ConvActivation.RELU)):
                    functions[ACTIVATE_BOUNDED](
                        out.at(at), s["out_channels"], width, wide, s["activation"], first, second
                    )
