"""Convolutions of few input channels, as the first of a network is: rows of A at offsets.

What a window reads lies where it is in the input, or in a band: the rows of the input that a block
needs, each once, with zeros around them. Of all pixels of an output row it is at the same offsets
from the pixel, so that no windows are copied. The offsets of the steps of the reduction are in a
table, which makes all layouts alike: channels last, or planes of channels (NCHW).
"""

from __future__ import annotations

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
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators import conv_offsets_tiles
from tvm_moonpoly.operators.bounded_activation import ACTIVATE_BOUNDED
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.operators.conv_constants import ConvActivation
from tvm_moonpoly.operators.conv_offsets_tiles import row_name
from tvm_moonpoly.operators.sharing import columns_of
from tvm_moonpoly.planner.conv import offsets_heights
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION

OFFSETS = "moonpoly_conv_offsets"

_FILL = "moonpoly_conv_offsets_fill"


def emit(functions: Functions, machine: Machine) -> None:
    """Define `OFFSETS`, one block or a part of its columns, after the functions of `conv_band` for
    float32. ``space`` is for the table, ``band`` for the band where there is padding."""
    conv_offsets_tiles.emit(functions, machine)
    _emit_fill(functions)
    _emit_block(functions, machine)


#: What a band is made of: of each of ``planes`` planes ``runs`` rows of ``columns`` times
#: ``channels`` floats. It begins at a row and column of the image, which may be outside.
_FILLED = ("planes", "runs", "columns", "channels", "row", "column", "h", "w", "left")


def _emit_fill(functions: Functions) -> None:
    """A band from the image at ``x``, of which ``left`` floats may be read."""

    @functions.separate(_FILL, x=FLOATS, q=FLOATS, **dict.fromkeys(_FILLED, INT))
    def _(x: Pointer, q: Pointer, **s: Expr) -> None:
        channels, step = s["channels"], cell(s["w"] * s["channels"])
        run = cell(s["columns"] * channels)
        before = cell(minimum(maximum(0 - s["column"], 0), s["columns"]))
        inside = cell(maximum(minimum(s["w"] - s["column"], s["columns"]) - before, 0))
        head, copied = cell(before * channels), cell(inside * channels)
        tail = cell(run - head - copied)

        def zeros(at: Expr, count: Expr) -> None:
            with when(count > 0):
                functions["moonpoly_conv_zeros"](q.at(at), count)

        with loop(s["planes"]) as p, loop(s["runs"]) as r:
            row = cell(s["row"] + r)
            to = cell((p * s["runs"] + r) * run)

            def copy(row: Expr = row, to: Expr = to, p: Expr = p) -> None:
                zeros(to, head)
                with when(copied > 0):
                    at = cell((p * s["h"] + row) * step + (s["column"] + before) * channels)
                    functions["moonpoly_conv_columns_f32"](
                        x.at(at), q.at(to + head), 0, 0, 1, copied, 1, 0, 1, s["left"] - at
                    )
                zeros(cell(to + head + copied), tail)

            within = tirx.all(row >= 0, row < s["h"])

            def outside(to: Expr = to) -> None:
                zeros(to, run)

            branch(within, copy, outside)


def _emit_block(functions: Functions, machine: Machine) -> None:
    lanes = machine.lanes
    widths = sorted(offsets_heights(machine))

    @functions.separate(
        OFFSETS,
        numbers=INTS,
        **operands(FLOAT),
        space=INTS,
        band=FLOATS,
        block=INT,
        part=INT,
    )
    def _(
        numbers: Pointer,
        x: Pointer,
        weight: Pointer,
        bias: Pointer,
        out: Pointer,
        space: Pointer,
        band: Pointer,
        block: Expr,
        part: Expr,
        **_: Pointer,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept(
            "n", "h", "w", "oh", "ow", "channels", "outputs", "depth", "panels", "kernel_h",
            "kernel_w", "stride_h", "stride_w", "top", "left", "bottom", "right", "rows",
            "segments", "planes", "activation",
        )  # fmt: skip
        row_blocks = cell(ceil_div(s["oh"], s["rows"]))
        each = cell(div(block, s["segments"]))
        image = cell(div(each, row_blocks))
        row = cell((each - image * row_blocks) * s["rows"])
        pixel = cell((block - each * s["segments"]) * conv["width"])
        rows = cell(minimum(s["rows"], s["oh"] - row))
        width = cell(minimum(conv["width"], s["ow"] - pixel))
        # planes are images of one channel
        by_planes = s["planes"] > 0
        planes = cell(select(by_planes, s["channels"], 1))
        channels = cell(select(by_planes, 1, s["channels"]))
        padded = s["top"] + s["left"] + s["bottom"] + s["right"] > 0
        runs = cell((rows - 1) * s["stride_h"] + s["kernel_h"])
        columns = cell((width - 1) * s["stride_w"] + s["kernel_w"])
        in_row = cell(select(padded, columns, s["w"]) * channels)
        plane = cell(select(padded, runs, s["h"]) * in_row)
        size = cell(s["h"] * s["w"] * s["channels"])
        at = cell(image * size)
        with when(tirx.all(rows > 0, width > 0)):
            top, left = (
                cell(row * s["stride_h"] - s["top"]),
                cell(pixel * s["stride_w"] - s["left"]),
            )
            with when(padded):
                functions[_FILL](
                    x.at(at), band.at(0), planes, runs, columns, channels, top, left, s["h"],
                    s["w"], (s["n"] - image) * size,
                )  # fmt: skip
            count = scratch(1, INT)
            count[0] = as_int(0)
            with loop(s["kernel_w"]) as kw, loop(s["kernel_h"]) as kh, loop(s["channels"]) as c:
                apart = select(by_planes, plane, 1)
                space[count[0]] = kh * in_row + kw * channels + c * apart
                count[0] = count[0] + 1

            source = x.unless(padded, band)
            start = cell(select(padded, 0, at + top * in_row + left * channels))
            own = columns_of(part, conv.kept("nv", "tail_nv", "splits_n"), s["panels"], as_int(0))
            relu = s["activation"] == int(ConvActivation.RELU)
            lo = let(tirx.Select(relu, tirx.const(0.0, FLOAT), MINUS_INFINITY))
            first, second = as_float(conv["first"]), as_float(conv["second"])
            outputs = s["outputs"]
            to = cell(((image * s["oh"] + row) * s["ow"] + pixel) * outputs + own["panel"] * lanes)
            # all panels of a tile before the next tile where their weights stay near
            near = s["depth"] * own["panels"] * (lanes * 4) <= machine.l1_bytes // 2
            main = cell(div(own["panels"] - own["tail_nv"], conv["nv"]))
            with loop(2) as region:
                in_main = region == 0
                nv = cell(select(in_main, conv["nv"], own["tail_nv"]))
                total = cell(select(in_main, main, select(own["tail_nv"] > 0, 1, 0)))
                from_panel = cell(select(in_main, 0, main * conv["nv"]))
                together = cell(select(near, maximum(total, 1), 1))

                def groups(width_of: int) -> None:
                    with loop(div(total, together)) as g, loop(rows) as r:
                        panel = cell(from_panel + g * width_of)
                        functions[row_name(width_of)](
                            source.at(start + r * (s["stride_h"] * in_row)),
                            space.at(0),
                            weight.at((own["panel"] + panel) * (lanes * s["depth"])),
                            bias.at((own["panel"] + panel) * lanes),
                            out.at(to + r * (s["ow"] * outputs) + panel * lanes),
                            s["stride_w"] * channels,
                            outputs,
                            s["depth"],
                            lo,
                            together,
                            width,
                        )

                with when(total > 0):
                    switch(nv, widths, groups)
            with when(s["activation"] > int(ConvActivation.RELU)), loop(rows) as r:
                functions[ACTIVATE_BOUNDED](
                    out.at(to + r * (s["ow"] * outputs)), outputs, width, own["panels"] * lanes,
                    s["activation"], first, second,
                )  # fmt: skip
