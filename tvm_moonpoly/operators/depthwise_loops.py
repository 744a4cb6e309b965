"""The chunks of a depthwise convolution: rows and channels of one image.

Where pixels are a large power of two apart, so that those of a tile would push each other out of
the first-level cache, some channels of the rows are copied next to each other first, with the
padding around them.
"""

from __future__ import annotations

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
    cell,
    div,
    loop,
    minimum,
    select,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators import depthwise_copy, depthwise_rows
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.operators.depthwise_call import GEOMETRY
from tvm_moonpoly.operators.depthwise_copy import copy_inputs
from tvm_moonpoly.operators.depthwise_rows import rows_name
from tvm_moonpoly.operators.depthwise_sizes import SIZES


def chunk_name(dtype: str) -> str:
    """The function for one chunk of a call."""
    return f"moonpoly_depthwise_chunk_{dtype}"


def emit(functions: Functions, machine: Machine) -> None:
    """Define `chunk_name` of float32 and float16, and all that they call."""
    depthwise_copy.emit(functions, machine.lanes)
    depthwise_rows.emit(functions, machine)
    for dtype in (FLOAT, "float16"):
        _emit_chunk(functions, dtype)


def _emit_chunk(functions: Functions, dtype: str) -> None:
    """Chunk ``index`` of a call: some rows and channels of one image.

    ``space`` is for the copy of its inputs, where `SIZES` say that there is one.
    """

    @functions.separate(chunk_name(dtype), **operands(dtype), sizes=INTS, space=FLOATS, index=INT)
    def _(sizes: Pointer, space: Pointer, index: Expr, **pointers: Pointer) -> None:
        s, geometry = Numbers(SIZES, sizes), Numbers(GEOMETRY)
        of_image = cell(s["row_blocks"] * s["blocks"])
        image = cell(div(index, of_image))
        rest = cell(index - image * of_image)
        block = cell(div(rest, s["blocks"]))
        number = cell(rest - block * s["blocks"])
        first = cell(number * s["channels"])
        row = cell(block * s["rows"])
        for name in GEOMETRY:
            if name in SIZES:
                geometry[name] = s[name]
        x_row, out_row = cell(s["w"] * s["c"]), cell(s["ow"] * s["c"])
        last = number == s["blocks"] - 1
        geometry.fill(
            {
                # of an image without columns nothing may be read
                "height": select(s["w"] > 0, s["h"], 0),
                "width": s["w"],
                "x_row": x_row,
                "x_pixel": s["c"],
                "out_row": out_row,
                "out_pixel": s["c"],
                "channels": select(last, s["c"] - first, s["channels"]),
                "origin": as_int(0),
                "row": row,
                "rows": minimum(s["oh"] - row, s["rows"]),
            }
        )
        at = cell(image * (s["h"] * x_row) + first)
        out = cell(image * (s["oh"] * out_row) + first)

        def run(x: Pointer, start: Expr, out: Expr, columns: Expr) -> None:
            functions[rows_name(dtype)](
                x.at(start),
                pointers["weight"].at(first),
                pointers["bias"].at(first),
                pointers["residual"].at(out),
                pointers["out"].at(out),
                geometry.memory.at(0),
                as_float(s["first"]),
                as_float(s["second"]),
                columns,
            )

        def copied() -> None:
            with loop(ceil_div(s["ow"], s["columns"])) as i:
                column = cell(i * s["columns"])
                columns = cell(minimum(s["ow"] - column, s["columns"]))
                copy_inputs(functions, s, geometry, pointers["x"].at(at), column, columns, space)
                run(space, as_int(0), out + column * s["c"], columns)

        if dtype == FLOAT:
            branch(s["copy"] > 0, copied, lambda: run(pointers["x"], at, out, s["ow"]))
        else:
            run(pointers["x"], at, out, s["ow"])
