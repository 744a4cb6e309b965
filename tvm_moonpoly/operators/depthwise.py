"""The packed functions of depthwise convolution: each channel with a kernel of its own.

``out = act(conv(x) + bias [+ residual])``, layout NHWC; x, residual and out are all float32 or all
float16, weight (`conv_constants.pack_depthwise_weight`) and bias (`packing.pad_bias`) float32, and
so are the sums. ``spec`` is what `ConvSpec.encode` makes. They write their last argument, which
must share no memory with the others, and hold no state.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
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
    let,
    maximum,
    minimum,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators import (
    depthwise_loops,
    depthwise_pairs,
    depthwise_sizes,
    depthwise_tiles,
)
from tvm_moonpoly.operators.conv_arguments import addresses
from tvm_moonpoly.operators.conv_constants import (
    DEPTHWISE,
    DEPTHWISE_F16,
    DEPTHWISE_RESIDUAL,
    DEPTHWISE_RESIDUAL_F16,
)
from tvm_moonpoly.operators.depthwise_loops import chunk_name
from tvm_moonpoly.operators.depthwise_sizes import SIZES, check_name
from tvm_moonpoly.operators.depthwise_tiles import TAPS, Taps
from tvm_moonpoly.operators.sharing import Each, run_chunks, with_space
from tvm_moonpoly.planner.plan import largest

#: Multiplications that are worth a worker of their own.
_GRAIN = 1 << 18

#: Chunks for each worker, of which there may be fewer, and the fewest rows of one.
_CHUNKS, _FEWEST_ROWS = 8, 4

#: An image of so many times the second-level cache is fetched a row ahead, and so are images that
#: are so many times as large together.
_FAR, _FAR_TOGETHER = 4, 8

#: Where addresses repeat in the first-level cache: bytes of one of its ways.
_WAY = 4096

#: The part of the second-level cache that a copy takes where the first-level cache holds no line of
#: channels of a whole image. It is read in the order in which it lies.
_COPY_PART = 4

#: The most bytes of that: a worker's products have an im2col buffer of four times as many.
_MOST_COPIED = 1 << 18

#: Columns that are copied at once are a multiple of this one.
_STRIP = 8

_BLOCKS = "moonpoly_depthwise_blocks"


def emit(functions: Functions, machine: Machine) -> None:
    """Define the packed functions and all that they call."""
    depthwise_sizes.emit(functions)
    depthwise_tiles.emit(functions, machine.lanes)
    depthwise_pairs.emit(functions, machine.lanes)
    depthwise_loops.emit(functions, machine)
    _emit_blocks(functions, machine)
    for name, dtype, adds in (
        (DEPTHWISE, FLOAT, False),
        (DEPTHWISE_RESIDUAL, FLOAT, True),
        (DEPTHWISE_F16, "float16", False),
        (DEPTHWISE_RESIDUAL_F16, "float16", True),
    ):
        _emit(functions, name, dtype, adds)


def _emit(functions: Functions, name: str, dtype: str, adds: bool) -> None:
    names = ["x", "weight", "bias", *(["residual"] if adds else []), "spec", "out"]

    @functions.public(name, **dict.fromkeys(names, "handle"))
    def _(**handles: Any) -> None:
        s = Numbers(SIZES)
        given = {"residual": handles["out"], **handles}
        order = ("x", "weight", "bias", "residual", "spec", "out")
        functions[check_name(dtype)](*(given[n] for n in order), int(adds), s.memory.at(0))
        functions[_BLOCKS](s.memory.at(0), int(dtype == FLOAT))
        tensors, size = addresses(given, dtype), let(s["copy"])

        def work(each: Each) -> None:
            def chunks(space: Pointer) -> None:
                each(
                    lambda index: functions[chunk_name(dtype)](
                        *tensors, s.memory.at(0), space.at(0), index
                    )
                )

            with_space(size, chunks)

        with when(s["workers"] > 0):
            count = let(s["n"] * s["row_blocks"] * s["blocks"])
            run_chunks(let(s["workers"]), count, work)


def _emit_blocks(functions: Functions, machine: Machine) -> None:
    """How the work is cut: writes the last of `SIZES`. There are no workers where there is no
    output. The inputs of chunks are copied only if ``may_copy``, where pixels are in conflict."""

    @functions.separate(_BLOCKS, sizes=INTS, may_copy=INT)
    def _(sizes: Pointer, may_copy: Expr) -> None:
        s = Numbers(SIZES, sizes)
        outputs = cell(s["n"] * s["oh"] * s["ow"] * s["c"])
        taps = s["kernel_h"] * s["kernel_w"]
        products = tirx.Cast(FLOAT, outputs) * tirx.Cast(FLOAT, taps)
        most = float(min(machine.cores, largest("workers")))
        grains = tirx.min(products / tirx.const(float(_GRAIN), FLOAT), tirx.const(most, FLOAT))
        s["workers"] = select(outputs > 0, maximum(tirx.Cast(INT, grains), 1), 0)
        s.fill({"copy": as_int(0), "far": as_int(0)})
        with when(outputs > 0):
            copied = tirx.all(may_copy != 0, _in_conflict(s, machine))
            branch(copied, lambda: _copied(s, machine), lambda: _direct(s, machine))
            s["row_blocks"] = ceil_div(s["oh"], s["rows"])


def _direct(s: Numbers, machine: Machine) -> None:
    """As many chunks as workers can share fairly, of all channels if there are rows enough."""
    workers = cell(s["workers"])
    chunks = cell(workers * _CHUNKS)
    fair = cell(maximum(ceil_div(s["n"] * s["oh"], chunks), _FEWEST_ROWS))
    # the edges of a chunk are done first: its inputs are then still in the second-level cache
    row = cell(s["w"] * s["c"] * s["stride_h"] * 4)
    near = cell(maximum(div(as_int(machine.l2_bytes // 4), maximum(row, 1)), _FEWEST_ROWS))
    rows = cell(minimum(select(workers > 1, minimum(fair, near), near), s["oh"]))
    found = cell(s["n"] * ceil_div(s["oh"], rows))
    vectors = cell(maximum(div(s["c"], machine.lanes), 1))
    parts = cell(minimum(ceil_div(chunks, found), vectors))
    cut = tirx.all(workers > 1, found < 2 * workers)
    whole = cell(ceil_div(vectors, parts) * machine.lanes)
    # rows that come from beyond the second-level cache, and each output row needs one more
    image = s["h"] * s["w"] * s["c"] * 4
    far = tirx.any(
        image > _FAR * machine.l2_bytes, s["n"] * image > _FAR_TOGETHER * machine.l2_bytes
    )
    s["far"] = select(tirx.all(far, s["stride_h"] == 1), 1, 0)
    s["rows"] = rows
    s["channels"] = select(tirx.all(cut, parts > 1), whole, s["c"])
    # what is left of the channels, less than a vector, goes with the last block
    s["blocks"] = maximum(div(s["c"], s["channels"]), 1)


def _in_conflict(s: Numbers, machine: Machine) -> Expr:
    """Whether the pixels of a tile push each other out of the first-level cache."""
    pixel = cell(s["c"] * 4)
    # places repeat with the size of a way, in which pixels begin at so many different lines
    apart = cell(minimum(tirx.bitwise_and(pixel, 0 - pixel), _WAY))
    room = cell(div(as_int(machine.l1_bytes), apart))

    def crowded(taps: Taps) -> Expr:
        columns = minimum(s["ow"], taps.columns)
        lines = s["kernel_h"] * ((columns - 1) * taps.stride + taps.count)
        # where fewer columns share an input, it is less of a loss
        enough = room * (2 + min(taps.stride, 2))
        return tirx.all(
            s["kernel_w"] == taps.count, s["stride_w"] == taps.stride, lines * 2 > enough
        )

    known = tirx.any(*(crowded(taps) for taps in TAPS))
    # two rows at a time read so little twice that only what stays in this cache is worth a copy
    height, width = (cell((s[f"o{a}"] - 1) * s[f"stride_{a}"] + s[f"reach_{a}"]) for a in "hw")
    stays = height * width <= div(as_int(machine.l1_bytes), LINE * 4)
    pairs = tirx.all(
        s["kernel_h"] == 3,
        s["kernel_w"] == 3,
        s["dilation_h"] == 1,
        s["stride_h"] <= 2,
        tirx.Not(depthwise_pairs.crowded(s["stride_w"], s["c"])),
    )
    return tirx.all(
        s["dilation_w"] == 1,
        tirx.truncmod(s["c"], as_int(LINE)) == 0,
        known,
        tirx.any(stays, tirx.Not(pairs)),
    )


def _copied(s: Numbers, machine: Machine) -> None:
    """All rows of some channels where these fit the first-level cache, else of one cache line of
    channels, and of as many columns at once, or of as many rows, as a part of the second-level
    cache holds."""
    room = cell(div(as_int(machine.l1_bytes), LINE * 4))  # cache lines

    def inputs(columns: Expr) -> Expr:
        return (columns - 1) * s["stride_w"] + s["kernel_w"]

    def outputs(inputs: Expr, axis: str) -> Expr:
        """How many follow from so many rows or columns; at least 1."""
        beyond = cell(maximum(inputs - s[f"reach_{axis}"], 0))
        return cell(div(beyond, s[f"stride_{axis}"]) + 1)

    height = cell((s["oh"] - 1) * s["stride_h"] + s["reach_h"])
    lines = cell(minimum(div(room, height * inputs(s["ow"])), div(s["c"], LINE)))
    s.fill({"rows": s["oh"], "columns": s["ow"]})
    with when(lines == 0):
        room = cell(as_int(min(machine.l2_bytes // _COPY_PART, _MOST_COPIED) // (LINE * 4)))
        fitting = cell(div(outputs(div(room, height), "w"), _STRIP) * _STRIP)
        columns = cell(minimum(maximum(fitting, _STRIP), s["ow"]))
        # all columns of some rows, where fewer inputs are copied twice for that
        rows = cell(minimum(outputs(div(room, inputs(s["ow"])), "h"), s["oh"]))
        beside = cell((s["kernel_w"] - s["stride_w"]) * rows * s["stride_h"])
        above = cell((s["reach_h"] - s["stride_h"]) * columns * s["stride_w"])
        whole = tirx.all(inputs(s["ow"]) * s["reach_h"] <= room, above < beside)

        def in_strips() -> None:
            s["columns"] = columns
            with when(fitting == 0):
                s["rows"] = minimum(outputs(div(room, inputs(columns)), "h"), s["oh"])

        branch(whole, lambda: s.__setitem__("rows", rows), in_strips)
    s["channels"] = maximum(lines, 1) * LINE
    s["blocks"] = ceil_div(s["c"], s["channels"])
    height = cell((s["rows"] - 1) * s["stride_h"] + s["reach_h"])
    s["copy"] = height * inputs(s["columns"]) * s["channels"]
