"""The loops around the micro-kernels of depthwise convolution: rows and channels of one image.

A row of outputs has a tile at each edge, which masks the padding, and tiles of full width between.
Where rows are so long that those which outputs share do not stay in the second-level cache, these
go down the rows in strips. Where pixels are a large power of two apart, so that those of a tile
would push each other out of the first-level cache, some channels of the rows are copied next to
each other first, with the padding around them.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    cell,
    div,
    loop,
    maximum,
    minimum,
    prefetch,
    select,
    switch,
    vector,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.operators.depthwise_sizes import SIZES
from tvm_moonpoly.operators.depthwise_tiles import (
    ANY_COLUMNS,
    GEOMETRY,
    TAPS,
    Taps,
    any_name,
    known_name,
    parameters,
)

_COPY = "moonpoly_depthwise_copy"


def _rows_name(dtype: str) -> str:
    return f"moonpoly_depthwise_rows_{dtype}"


def chunk_name(dtype: str) -> str:
    """The function for one chunk of a call."""
    return f"moonpoly_depthwise_chunk_{dtype}"


def emit(functions: Functions, machine: Machine) -> None:
    """Define `chunk_name` of float32 and float16, and all that they call."""
    _emit_copy(functions, machine.lanes)
    for taps in TAPS:
        _emit_known_rows(functions, taps, machine)
    for dtype in (FLOAT, "float16"):
        _emit_any_rows(functions, dtype, machine)
        _emit_rows(functions, dtype, machine)
        _emit_chunk(functions, dtype)


def _given(arguments: dict[str, Any]) -> list[Any]:
    pointers = ("x", "weight", "bias", "residual", "out", "geometry")
    return [*(arguments[n].at(0) for n in pointers), arguments["first"], arguments["second"]]


def _emit_known_rows(functions: Functions, taps: Taps, machine: Machine) -> None:
    """All ``columns`` of the rows that the geometry says."""
    widest = taps.columns

    @functions.separate(f"{taps.name}_rows", **_rows_parameters(FLOAT))
    def _(**arguments: Any) -> None:
        geometry = Numbers(GEOMETRY, arguments["geometry"])
        columns, given = arguments["columns"], _given(arguments)

        def one(width: Expr, column: Expr) -> None:
            start = cell(column * taps.stride - geometry["left"])
            end = cell(start + (width - 1) * taps.stride + taps.count)

            def tile(edge: bool) -> None:
                switch(
                    width,
                    range(1, widest + 1),
                    lambda n: functions[known_name(taps, n, edge)](*given, column, 1),
                )

            inside = tirx.all(start >= 0, end <= geometry["width"])
            branch(inside, lambda: tile(False), lambda: tile(True))

        # what is not in tiles of full width is halved: more than one such tile, at most two
        inner = cell(maximum(div(columns - 1, widest) - 1, 0))
        rest = cell(columns - inner * widest)
        left = cell(select(columns <= widest, columns, div(rest, 2)))
        right = cell(rest - left)
        one(left, as_int(0))
        pixel = geometry["kernel_h"] * geometry["channels"] * 4
        near = div(as_int(machine.l1_bytes // 2), pixel) - (taps.count - taps.stride)
        strip = cell(maximum(div(maximum(near, 0), taps.stride * widest), 1))
        # where all columns of these rows fit the second-level cache, whole rows are read faster
        fits = pixel * geometry["width"] <= machine.l2_bytes // 2
        strip = cell(select(fits, maximum(inner, 1), strip))
        with loop(ceil_div(inner, strip)) as i:
            count = minimum(inner - i * strip, strip)
            column = left + i * (strip * widest)
            functions[known_name(taps, widest, edge=False)](*given, column, count)
        with when(right > 0):
            one(right, cell(columns - right))


def _rows_parameters(dtype: str) -> dict[str, str]:
    kept = {k: v for k, v in parameters(dtype).items() if k not in ("column", "count")}
    return {**kept, "columns": INT}


def _emit_any_rows(functions: Functions, dtype: str, machine: Machine) -> None:
    @functions.separate(f"moonpoly_depthwise_any_rows_{dtype}", **_rows_parameters(dtype))
    def _(**arguments: Any) -> None:
        geometry = Numbers(GEOMETRY, arguments["geometry"])
        given, columns = _given(arguments), arguments["columns"]
        stride = cell(geometry["stride_w"])
        reach = cell((geometry["kernel_w"] - 1) * geometry["dilation_w"] + 1)
        low = cell(minimum(ceil_div(geometry["left"], stride), columns))
        room = cell(geometry["width"] + geometry["left"] - reach)
        within = select(room >= 0, div(maximum(room, 0), stride) + 1, 0)
        high = cell(minimum(maximum(within, low), columns))
        tiles = cell(div(high - low, ANY_COLUMNS))
        after = cell(low + tiles * ANY_COLUMNS)

        def all_columns(lanes: int) -> None:
            one, several = (functions[any_name(lanes, n, dtype)] for n in (1, ANY_COLUMNS))
            one(*given, 0, low)
            several(*given, low, tiles)
            one(*given, after, columns - after)

        few = geometry["channels"] < machine.lanes
        branch(few, lambda: all_columns(1), lambda: all_columns(machine.lanes))


def _is_known(geometry: dict[str, Expr], taps: Taps, columns: Expr) -> Expr:
    """Whether the micro-kernels of ``taps`` can do it: the edges must hold all the padding."""
    left, width, stride = geometry["left"], geometry["width"], taps.stride
    # the fewest columns of an edge, where there is more than one tile
    least = (taps.columns + 1) // 2
    last = (columns - least - 1) * stride - left + taps.count
    return tirx.all(
        geometry["kernel_w"] == taps.count,
        geometry["stride_w"] == stride,
        geometry["dilation_w"] == 1,
        tirx.any(columns <= taps.columns, tirx.all(left <= least * stride, last <= width)),
    )


def _emit_rows(functions: Functions, dtype: str, machine: Machine) -> None:
    @functions.separate(_rows_name(dtype), **_rows_parameters(dtype))
    def _(**arguments: Any) -> None:
        geometry = Numbers(GEOMETRY, arguments["geometry"]).kept()
        given, columns = _given(arguments), arguments["columns"]

        def any_taps() -> None:
            functions[f"moonpoly_depthwise_any_rows_{dtype}"](*given, columns)

        def choose(known: tuple[Taps, ...]) -> None:
            if not known:
                any_taps()
                return
            taps, *others = known
            branch(
                _is_known(geometry, taps, columns),
                lambda: functions[f"{taps.name}_rows"](*given, columns),
                lambda: choose(tuple(others)),
            )

        if dtype != FLOAT:
            any_taps()
            return
        few = geometry["channels"] < machine.lanes
        branch(few, any_taps, lambda: choose(TAPS))


def _emit_copy(functions: Functions, lanes: int) -> None:
    """Some rows and ``inputs`` columns of an image, ``channels`` of each pixel only.

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
            functions[_rows_name(dtype)](
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
                _copy(functions, s, geometry, pointers["x"].at(at), column, columns, space)
                run(space, as_int(0), out + column * s["c"], columns)

        if dtype == FLOAT:
            branch(s["copy"] > 0, copied, lambda: run(pointers["x"], at, out, s["ow"]))
        else:
            run(pointers["x"], at, out, s["ow"])


def _copy(
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
