"""3x3 convolutions by Winograd's algorithm F(2x2, 3x3): 16 products for 4 outputs instead of 36.

A patch of 4x4 inputs is transformed to ``V = B' d B``, multiplied by the transformed weights
element by element, summed over the channels, and transformed back to 2x2 outputs, ``A' M A``. The
sums are 16 matrix products, of as many rows as there are patches in a block, by the same
micro-kernels as all others. Of each group of panels all 16 are computed and transformed back while
they are near.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    INTS,
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
    minimum,
    scratch,
    select,
    switch,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, Record
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators import conv_exact, conv_patch_inputs, conv_patch_outputs
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.operators.gemm_tiles import looking_at_panels, rows_name, zeros_row
from tvm_moonpoly.planner.conv_blocks import PATCH, SIDE
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION


def patches_name(kind: str) -> str:
    """The function of a block's part: see `emit`."""
    return f"moonpoly_conv_patches_{kind}"


def emit(
    functions: Functions, kind: str, dtype: str, records: Sequence[Record], machine: Machine
) -> None:
    """Define ``moonpoly_conv_patches(numbers, x, weight, bias, residual, out, space, group, block,
    part)``: one block of one group, or a part of its columns; after
    `conv_patch_inputs.emit_transform`."""
    conv_patch_inputs.emit(functions, kind, dtype, machine.lanes)
    conv_patch_outputs.emit(functions, kind, dtype, machine.lanes)
    conv_exact.emit(functions, kind, dtype, machine.lanes)
    widths = sorted({r.nv for r in records if r.form == Form.PLAIN})
    _emit_block(functions, kind, dtype, widths, machine)


def _emit_block(
    functions: Functions, kind: str, dtype: str, widths: Sequence[int], machine: Machine
) -> None:
    lanes = machine.lanes
    widest = max(widths) * lanes

    @functions.separate(
        patches_name(kind),
        numbers=INTS,
        **operands(dtype),
        space=FLOATS,
        group=INT,
        block=INT,
        part=INT,
    )
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
        s = conv.kept(
            "splits_n", "segments", "rows", "width", "n", "oh", "ow", "channels",
            "outputs", "panels", "columns", "nv", "mr", "tail_nv", "tail_mr",
        )  # fmt: skip
        row_block = let(div(block, s["segments"]))
        row = let(row_block * s["rows"])
        pixel = let((block - row_block * s["segments"]) * s["width"])
        rows = let(minimum(s["rows"], s["n"] * ceil_div(s["oh"], SIDE) - row))
        width = let(minimum(s["width"], ceil_div(s["ow"], SIDE) - pixel))
        with when(tirx.all(rows > 0, width > 0)):
            channels, patches = s["channels"], let(rows * width)
            step = let(patches * channels)
            products = let(PATCH * step)
            # a patch that is not yet transformed lies behind all others
            functions[f"moonpoly_conv_inputs_{kind}"](
                numbers.at(0), x.at(0), space.at(0),
                space.at(products + patches * (PATCH * widest)), group * channels, row, pixel,
                rows, width,
            )  # fmt: skip
            # all panels are whole here, as the last one is computed with its padding
            panels = let(s["panels"] + select(s["columns"] > 0, 1, 0))
            main = let(div(panels - s["tail_nv"], s["nv"]))
            regions = let(main + select(s["tail_nv"] > 0, 1, 0))
            begin = let(div(part * regions, s["splits_n"]))
            end = let(div((part + 1) * regions, s["splits_n"]))
            zeros = zeros_row(lanes)
            odd = scratch(1, INT)
            odd[0] = as_int(0)
            with loop(end - begin) as g:
                number = let(begin + g)
                in_main = let(number < main)
                panel = cell(minimum(number, main) * s["nv"])
                nv = cell(select(in_main, s["nv"], s["tail_nv"]))
                mr = cell(select(in_main, s["mr"], s["tail_mr"]))
                base = let((group * panels + panel) * lanes)
                far = let(panels * channels * (PATCH * lanes * 4) > machine.l2_bytes // 2)

                def products_of(nv: int, mr: Expr = mr, base: Expr = base, far: Expr = far) -> None:
                    columns = nv * lanes
                    looking = cell(select(far, looking_at_panels(1, patches, mr, nv), 0))
                    with loop(PATCH) as e:
                        functions[rows_name(nv, Form.PLAIN)](
                            space.at(e * step),
                            channels,
                            weight.at(base * (PATCH * channels) + e * (channels * lanes)),
                            PATCH * channels * lanes,
                            as_int(lanes),
                            zeros.at(0),
                            0,
                            zeros.at(0),
                            space.at(products + e * (patches * columns)),
                            as_int(columns),
                            channels,
                            MINUS_INFINITY,
                            patches,
                            mr,
                            weight.at(base * (PATCH * channels) + (e + 1) * (channels * lanes)),
                            looking,
                            PATCH * channels * lanes,
                        )

                switch(nv, widths, products_of)
                columns = let(nv * lanes)
                channel = let(group * s["outputs"] + panel * lanes)
                functions[f"moonpoly_conv_outputs_{kind}"](
                    numbers.at(0), space.at(products), bias.at(base), residual.at(channel),
                    out.at(channel), row, pixel, rows, width, columns,
                    minimum(columns, s["outputs"] - panel * lanes), odd.at(0),
                )  # fmt: skip
            with when(odd[0] > 0):
                first_panel = let(minimum(begin, main) * s["nv"])
                last_panel = let(select(end == regions, panels, end * s["nv"]))
                functions[conv_exact.exact_name(kind)](
                    numbers.at(0), x.at(0), weight.at(0), bias.at(0), residual.at(0), out.at(0),
                    group, first_panel, last_panel, row, pixel, rows, width,
                )  # fmt: skip
