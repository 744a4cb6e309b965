"""The packed functions of a convolution with constant weights, NHWC.

``moonpoly_conv2d_f32(x, weight, bias, spec, out)`` and with a residual before ``spec``: ``x``
(N, H, W, C), ``out`` and the residual (N, OH, OW, OC), all compact; the constants are those of
`conv_constants`. The functions of float16 take and write float16, compute in float32, and have the
same constants. What is computed is ``out = act(conv(x) + bias + residual)``.
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
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    switch,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Record
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators import (
    conv_arguments,
    conv_band,
    conv_half,
    conv_offsets,
    conv_patch_inputs,
    conv_places,
    conv_tiles,
    conv_winograd,
)
from tvm_moonpoly.operators.conv_arguments import ARGUMENTS, addresses, operands
from tvm_moonpoly.operators.conv_constants import (
    CONV2D,
    CONV2D_F16,
    CONV2D_RESIDUAL,
    CONV2D_RESIDUAL_F16,
)
from tvm_moonpoly.operators.conv_tiles import BLOCK, TILES
from tvm_moonpoly.operators.gemm_tiles import zeros_row
from tvm_moonpoly.operators.sharing import Each, columns_of, run_chunks, with_space
from tvm_moonpoly.planner.conv_blocks import OFFSET
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION
from tvm_moonpoly.planner.conv_shapes import Form
from tvm_moonpoly.planner.native_conv import PLAN_CONV

#: The types of operands: of each its name, and the functions without and with a residual.
KINDS = {
    "f32": (FLOAT, CONV2D, CONV2D_RESIDUAL),
    "f16": ("float16", CONV2D_F16, CONV2D_RESIDUAL_F16),
}


def emit(functions: Functions, records: Sequence[Record], machine: Machine) -> None:
    """Define the functions of `KINDS` and all that they call but the planner."""
    conv_tiles.emit(functions, records, machine)
    conv_band.emit_zeros(functions, machine.lanes)
    conv_patch_inputs.emit_transform(functions, machine.lanes)
    for kind, (dtype, plain, residual) in KINDS.items():
        conv_arguments.emit(functions, kind, dtype, machine.lanes)
        conv_band.emit(functions, kind, dtype, machine.lanes)
        conv_winograd.emit(functions, kind, dtype, records, machine)
        if dtype == FLOAT:
            conv_offsets.emit(functions, machine)
            conv_places.emit(functions, records, machine)
        _emit_chunk(functions, kind, dtype, machine)
        for name in (plain, residual):
            _emit_public(functions, name, kind, dtype)


def _emit_public(functions: Functions, name: str, kind: str, dtype: str) -> None:
    added = ["residual"] if "residual" in name else []
    tensors = ["x", "weight", "bias", *added, "spec", "out"]

    @functions.public(name, **dict.fromkeys(tensors, "handle"))
    def _(**handles: Any) -> None:
        conv = Numbers(CONVOLUTION)
        given = {"residual": handles["out"], **handles}
        order = ("x", "weight", "bias", "spec", "residual", "out")
        functions[f"{ARGUMENTS}_{kind}"](
            *(given[each] for each in order), len(added), conv.memory.at(0)
        )
        with when(conv["n"] * conv["oh"] * conv["ow"] > 0):
            functions[PLAN_CONV](conv.memory.at(0))
            size = let(conv["band"])
            tensors = addresses(given, dtype)

            def work(each: Each) -> None:
                def chunks(space: Pointer) -> None:
                    each(
                        lambda index: functions[f"moonpoly_conv_chunk_{kind}"](
                            conv.memory.at(0), *tensors, space.at(0), index
                        )
                    )

                with_space(size, chunks)

            count = let(conv["groups"] * conv["blocks"] * conv["splits_n"])
            run_chunks(let(conv["workers"]), count, work)


def _emit_chunk(functions: Functions, kind: str, dtype: str, machine: Machine) -> None:
    """One block of one group, or a part of its columns."""
    lanes, half = machine.lanes, dtype != FLOAT
    if half:
        conv_half.emit(functions, lanes)

    parameters = {"numbers": INTS, **operands(dtype), "space": FLOATS}

    @functions.separate(f"moonpoly_conv_chunk_{kind}", **parameters, index=INT)
    def _(index: Expr, **pointers: Pointer) -> None:
        conv = Numbers(CONVOLUTION, pointers["numbers"])
        splits, blocks = let(conv["splits_n"]), let(conv["blocks"])
        whole = let(div(index, splits))
        part = let(index - whole * splits)
        group = let(div(whole, blocks))
        block = let(whole - group * blocks)
        given = [*(pointers[name].at(0) for name in parameters), group, block, part]

        def others() -> None:
            functions[f"moonpoly_conv_block_{kind}"](*given)

        def at_offsets() -> None:
            *before, space = (pointers[name] for name in parameters)
            functions[conv_offsets.OFFSETS](
                *(each.at(0) for each in before),
                space.at(0),
                space.at(conv["depth"] * OFFSET),
                block,
                part,
            )

        def in_places() -> None:
            functions[conv_places.PLACES](*given)

        def direct() -> None:
            if half:
                others()
            else:
                chosen = {Form.OFFSETS: at_offsets, Form.PLACES: in_places}
                known = tirx.any(*(conv["form"] == int(form) for form in chosen))
                branch(
                    known,
                    lambda: switch(
                        conv["form"], [int(form) for form in chosen], lambda f: chosen[Form(f)]()
                    ),
                    others,
                )

        branch(
            conv["form"] == int(Form.PATCHES),
            lambda: functions[conv_winograd.patches_name(kind)](*given),
            direct,
        )

    @functions.separate(f"moonpoly_conv_block_{kind}", **parameters, group=INT, block=INT, part=INT)
    def _(
        numbers: Pointer,
        x: Pointer,
        weight: Pointer,
        bias: Pointer,
        residual: Pointer,
        out: Pointer,
        space: Pointer,
        group: Expr,
        block: Expr,
        part: Expr,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        form, depth, panels = let(conv["form"]), let(conv["depth"]), let(conv["panels"])
        oh, ow = let(conv["oh"]), let(conv["ow"])
        channels, in_channels = let(conv["channels"]), let(conv["in_channels"])
        outputs, out_channels = let(conv["outputs"]), let(conv["out_channels"])
        by_rows = tirx.any(form == int(Form.ROWS), form == int(Form.WINDOWS))

        def of_rows(block: Expr, place: Pointer) -> None:
            segments = let(conv["segments"])
            row_blocks = let(ceil_div(oh, conv["rows"]))
            each = let(div(block, segments))
            image = let(div(each, row_blocks))
            row = let((each - image * row_blocks) * conv["rows"])
            pixel = let((block - each * segments) * conv["width"])
            place[0], place[1] = image * oh + row, pixel
            place[2], place[3] = minimum(conv["rows"], oh - row), minimum(conv["width"], ow - pixel)

        def of_pixels(block: Expr, place: Pointer) -> None:
            pixels = let(conv["n"] * oh * ow)
            first = let(block * conv["width"])
            row = let(div(first, ow))
            place[0], place[1] = row, first - row * ow
            place[2], place[3] = as_int(1), minimum(conv["width"], pixels - first)

        def place_of(block: Expr) -> list[Expr]:
            """The first output row, of all images, and pixel of a block; its rows and their
            pixels."""
            place = scratch(4, INT)
            branch(by_rows, lambda: of_rows(block, place), lambda: of_pixels(block, place))
            return [let(place[i]) for i in range(4)]

        row, pixel, rows, width = place_of(block)
        channel = let(group * channels)
        column_run = let(conv["kernel_h"] * channels)
        columns = let((width - 1) * conv["stride_w"] + conv["kernel_w"])
        window_row = let(columns * column_run)
        with when(rows * width > 0):
            # the band
            with when(form == int(Form.WINDOWS)), loop(rows) as i:
                functions[conv_band.band_name(kind)](
                    numbers.at(0), x.at(0), space.at(i * window_row), row + i, pixel, width,
                    0, channel,
                )  # fmt: skip
            with when(form == int(Form.PIXELS)):
                done, at = scratch(1, INT), scratch(2, INT)
                done[0], at[0], at[1] = as_int(0), row, pixel
                # a part of an output row at a time
                with loop(div(pixel + width - 1, ow) + 1):
                    count = let(minimum(ow - at[1], width - done[0]))
                    functions[conv_band.band_name(kind)](
                        numbers.at(0), x.at(0), space.at(done[0] * depth), at[0], at[1],
                        count, 1, channel,
                    )  # fmt: skip
                    done[0], at[0], at[1] = done[0] + count, at[0] + 1, as_int(0)

            stored = let(conv["columns"])
            own = columns_of(part, conv.kept("nv", "tail_nv", "splits_n"), panels, stored)
            panel = own["panel"]
            step = let(conv["w"] * in_channels)

            def input_of(row: Expr, pixel: Expr) -> Expr:
                """Where in the input the window of an output without padding begins."""
                image = let(div(row, oh))
                in_row = let((row - image * oh) * conv["stride_h"])
                at = (image * conv["h"] + in_row) * step + pixel * conv["stride_w"] * in_channels
                return let(at)

            at = input_of(row, pixel)
            t = Numbers(BLOCK)
            t["rows"], t["width"] = rows, width
            in_band = tirx.any(form == int(Form.WINDOWS), form == int(Form.PIXELS))
            band_step = select(form == int(Form.WINDOWS), conv["stride_w"] * column_run, depth)
            t["lda"] = select(in_band, band_step, conv["stride_w"] * in_channels)
            t["a_row"] = select(in_band, window_row, conv["stride_h"] * step)
            t["depth"] = depth
            # the pixels of the next block, where they are read as they lie
            t["next_a"], t["fetched"] = as_int(0), as_int(0)
            alone = tirx.any(
                form == int(Form.JOINED), tirx.all(form == int(Form.ROWS), conv["kernel_w"] == 1)
            )
            with when(tirx.all(alone, block + 1 < conv["blocks"])):
                next_row, next_pixel, _, next_width = place_of(let(block + 1))
                t["next_a"], t["fetched"] = input_of(next_row, next_pixel) - at, next_width
            t.fill({name: own[name] for name in ("panels", "columns", "tail_nv")})
            for name in ("nv", "mr", "tail_mr", "kc", "activation", "first", "second"):
                t[name] = conv[name]
            padded_panels = let(panels + select(stored > 0, 1, 0))
            weights = weight.at((group * padded_panels + panel) * lanes * depth)
            biases = bias.at((group * padded_panels + panel) * lanes)
            column = let(group * outputs + panel * lanes)
            to = let((row * ow + pixel) * out_channels + column)
            c_row = let(ow * out_channels)
            zeros = zeros_row(lanes)

            if not half:
                has = let(conv["residual"])
                t["ldc"], t["c_row"] = out_channels, c_row
                t["ldx"], t["x_row"] = out_channels * has, c_row * has
                t["x_step"] = has
                inside = x.unless(in_band, space)
                start = select(in_band, 0, at + channel)
                functions[TILES](
                    t.memory.at(0),
                    inside.at(start),
                    weights,
                    residual.unless(has == 0, zeros).at(select(has > 0, to, 0)),
                    biases,
                    out.at(to),
                )
            else:
                conv_half.through_floats(
                    functions, conv, t, space, weights, biases, zeros, residual, out, to, lanes
                )
