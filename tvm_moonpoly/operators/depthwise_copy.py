"""Some channels of the inputs of a chunk, copied next to each other with the padding around them.

So the pixels of a tile do not push each other out of the first-level cache where they are a large
power of two apart.
"""

from __future__ import annotations

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
    branch,
    cell,
    div,
    loop,
    maximum,
    minimum,
    prefetch,
    vector,
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
        one_line = s["channels"] == LINE
        low = cell(minimum(maximum(0 - s["start"], 0), s["inputs"]))
        high = cell(minimum(maximum(s["width"] - s["start"], low), s["inputs"]))

        def line(source: Expr, target: Expr) -> None:
            # the next block of channels is copied next
            prefetch(x.at(source + s["channels"]), 2)
            for v in range(0, LINE, lanes):
                out[vector(target + v, lanes)] = x[vector(source + v, lanes)]

        def nothing(target: Expr) -> None:
            for v in range(0, LINE, lanes):
                out[vector(target + v, lanes)] = T.Broadcast(tirx.const(0.0, FLOAT), lanes)

        with loop(s["rows"]) as i:
            target = cell(i * s["inputs"] * s["channels"])
            source = cell((s["origin"] + i) * s["x_row"] + (s["start"] + low) * s["x_pixel"])
            first = cell(target + low * s["channels"])

            def each_pixel() -> None:
                with loop(high - low) as j:
                    line(source + j * s["x_pixel"], first + j * LINE)

            def each_line() -> None:
                with loop(high - low) as j:
                    at, to = cell(source + j * s["x_pixel"]), cell(first + j * s["channels"])
                    with loop(div(s["channels"], LINE)) as number:
                        line(at + number * LINE, to + number * LINE)

            branch(one_line, each_pixel, each_line)
            for begin, end in ((as_int(0), low), (high, s["inputs"])):
                with loop(div((end - begin) * s["channels"], LINE)) as number:
                    nothing(target + begin * s["channels"] + number * LINE)


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
