"""Some channels of the inputs of a chunk, copied next to each other with the padding around them.

So the pixels of a tile do not push each other out of the first-level cache where they are a large
power of two apart.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    cell,
    div,
    loop,
    maximum,
    minimum,
    prefetch,
    select,
    vector,
    when,
)
from tvm_moonpoly.numbers import Numbers

_COPY = "moonpoly_depthwise_copy"


def emit(functions: Functions, lanes: int) -> None:
    """Define what copies some rows and ``inputs`` columns of an image, ``channels`` of each.

    Columns begin with ``start``, which may be before the image; those outside are zero.
    ``channels`` is a multiple of a cache line.
    """
    names = ("x_row", "x_pixel", "width", "origin", "rows", "start", "inputs", "channels")

    @functions.separate(_COPY, x=FLOATS, out=FLOATS, **dict.fromkeys(names, INT))
    def _(x: Pointer, out: Pointer, **s: Expr) -> None:
        bits = f"int32x{lanes}"
        all_bits, none = (tirx.const(value, "int32") for value in (-1, 0))
        pairs = cell(div(s["channels"], 2 * LINE))

        def copy(source: Expr, target: Expr, lines: int, mask: Expr) -> None:
            for v in range(0, lines * LINE, LINE):
                # the next block of channels is copied next
                prefetch(x.at(source + s["channels"] + v), 2)
            for v in range(0, lines * LINE, lanes):
                found = tirx.reinterpret(bits, x[vector(source + v, lanes)])
                kept = tirx.bitwise_and(found, T.Broadcast(mask, lanes))
                out[vector(target + v, lanes)] = tirx.reinterpret(f"float32x{lanes}", kept)

        with loop(s["rows"]) as i, loop(s["inputs"]) as j:
            column = cell(s["start"] + j)
            inside = tirx.all(column >= 0, column < s["width"])
            source = cell((s["origin"] + i) * s["x_row"] + select(inside, column, 0) * s["x_pixel"])
            target = cell((i * s["inputs"] + j) * s["channels"])
            # without a branch, and as no loop that LLVM would take for one that clears memory
            mask = cell(tirx.Select(inside, all_bits, none), "int32")
            with loop(pairs) as pair:
                at = cell(pair * (2 * LINE))
                copy(cell(source + at), cell(target + at), 2, mask)
            with when(pairs * (2 * LINE) < s["channels"]):
                at = cell(pairs * (2 * LINE))
                copy(cell(source + at), cell(target + at), 1, mask)


def copy_inputs(
    functions: Functions,
    s: Numbers,
    geometry: Numbers,
    image: Expr,
    column: Expr,
    columns: Expr,
    space: Pointer,
) -> None:
    """Copies the inputs of some columns of outputs, and lets ``geometry`` tell about the copy."""
    x_row, channels = cell(s["w"] * s["c"]), cell(geometry["channels"])
    top = cell(geometry["row"] * s["stride_h"] - s["top"])
    origin = cell(minimum(maximum(top, 0), geometry["height"]))
    end = cell(top + (geometry["rows"] - 1) * s["stride_h"] + s["reach_h"])
    rows = cell(maximum(minimum(end, geometry["height"]) - origin, 0))
    inputs = cell((columns - 1) * s["stride_w"] + s["kernel_w"])
    start = cell(column * s["stride_w"] - s["left"])
    sizes = (x_row, s["c"], s["w"], origin, rows, start, inputs, channels)
    functions[_COPY](image, space.at(0), *sizes)
    geometry.fill(
        {
            "width": inputs,
            "x_row": inputs * channels,
            "x_pixel": channels,
            "left": as_int(0),
            "origin": origin,
        }
    )
