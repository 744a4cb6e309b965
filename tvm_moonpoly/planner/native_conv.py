"""The planner of convolutions as a native function: the twin of `conv`.

What a convolution is and how it is planned lie in one vector of int64, see `conv_numbers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import (
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
    maximum,
    minimum,
    scratch,
    select,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form as KernelForm
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.planner import native_conv_places, native_groups
from tvm_moonpoly.planner.conv import (
    CHUNKS,
    DEPTHS,
    MOVED,
    NARROW,
    OFFSETS_CHANNELS,
    OFFSETS_DEPTH,
    OFFSETS_WIDTH,
    SCATTERED,
    offsets_heights,
)
from tvm_moonpoly.planner.conv_blocks import (
    BAND_PART,
    BOUNDED_BYTES,
    BOUNDED_KERNEL,
    FEWEST_PIXELS,
    OFFSET,
    PATCH,
    PATCHES_CACHES,
    PLACES_CACHES,
    SIDE,
    SLACK,
)
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION
from tvm_moonpoly.planner.conv_places import PLACES_SIXTEENTHS
from tvm_moonpoly.planner.conv_shapes import Form
from tvm_moonpoly.planner.native_groups import INFINITE, Layout
from tvm_moonpoly.planner.native_words import decode
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.planner.shares import most_workers

PLAN_CONV = "moonpoly_plan_conv"


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define ``moonpoly_plan_conv(numbers)``, which writes the plan of what is described there.

    No size may be 0.
    """
    layout = Layout(table)
    _emit_of_form(functions, machine, table)

    @functions.compact(PLAN_CONV, numbers=INTS)
    def _(numbers: Pointer) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        costs = native_groups.bind_costs(layout)
        s = conv.kept(
            "half", "top", "left", "bottom", "right", "kernel_h", "kernel_w", "groups",
            "dilation_h", "dilation_w", "stride_h", "stride_w", "ow", "channels", "outputs",
            "depth", "residual",
        )  # fmt: skip
        conv["picoseconds"] = as_int(INFINITE)
        in_place = tirx.all(
            s["half"] == 0,
            s["top"] + s["left"] + s["bottom"] + s["right"] == 0,
            s["kernel_h"] == 1,
            tirx.any(s["kernel_w"] == 1, tirx.all(s["groups"] == 1, s["dilation_w"] == 1)),
        )
        evenly = tirx.all(s["kernel_w"] == 1, s["stride_h"] == 1, s["stride_w"] == 1)
        windows = select(s["dilation_w"] == 1, int(Form.WINDOWS), int(Form.PIXELS))
        in_input = select(evenly, int(Form.JOINED), int(Form.ROWS))
        winograd = conv["winograd"] > 0
        others = select(in_place, in_input, windows)
        in_places = cell(select(native_conv_places.by_places(s), 1, 0))
        alone = tirx.all(in_places > 0, s["kernel_h"] * s["kernel_w"] == 1)
        others = select(alone, int(Form.PLACES), others)
        others = select(at_offsets(s, machine.lanes), int(Form.OFFSETS), others)
        form = cell(select(winograd, int(Form.PATCHES), others))
        functions[_OF_FORM](numbers.at(0), costs.at(0), form)
        by_rows = tirx.any(form == int(Form.ROWS), form == int(Form.WINDOWS))
        with when(tirx.all(by_rows, s["ow"] < NARROW)):
            functions[_OF_FORM](numbers.at(0), costs.at(0), int(Form.PIXELS))
        banded = tirx.any(form == int(Form.WINDOWS), form == int(Form.PIXELS))
        with when(tirx.all(in_places > 0, banded)):
            functions[_OF_FORM](numbers.at(0), costs.at(0), int(Form.PLACES))


def at_offsets(s: Mapping[str, Expr], lanes: int) -> Expr:
    """The twin of `conv.at_offsets`, of numbers called as in `CONVOLUTION`."""
    return tirx.all(
        s["channels"] <= OFFSETS_CHANNELS,
        s["groups"] == 1,
        tirx.truncmod(s["outputs"], as_int(lanes)) == 0,
        s["kernel_h"] * s["kernel_w"] > 1,
        s["stride_h"] <= s["kernel_h"],
        s["stride_w"] <= s["kernel_w"],
        s["dilation_h"] * s["dilation_w"] == 1,
        s["depth"] <= OFFSETS_DEPTH,
        s["half"] + s["residual"] == 0,
    )


_OF_FORM = "moonpoly_plan_conv_form"


def _emit_of_form(functions: Functions, machine: Machine, table: CostTable) -> None:
    """The twin of `conv.of_form`: written where it is cheaper than what is there."""
    lanes, traffic = machine.lanes, table.traffic

    @functions.compact(_OF_FORM, numbers=INTS, costs=native_groups.COSTS, form=INT)
    def _(numbers: Pointer, costs: Pointer, form: Expr) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept(
            "n", "oh", "ow", "channels", "outputs", "groups", "kernel_h", "kernel_w", "stride_w",
            "depth", "half", "stride_h", "top", "left", "bottom", "right", "h", "w",
            "dilation_h", "dilation_w",
        )  # fmt: skip
        offsets = cell(select(form == int(Form.OFFSETS), 1, 0))
        pixels = cell(s["n"] * s["oh"] * s["ow"])
        patches = cell(select(form == int(Form.PATCHES), 1, 0))
        places = cell(select(form == int(Form.PLACES), 1, 0))
        sees = [scratch(1, INT) for _ in range(2)]
        inputs = scratch(1, INT)
        sees[0][0], sees[1][0], inputs[0] = as_int(0), as_int(0), as_int(0)
        with when(places > 0):
            for axis in range(2):
                sees[axis][0] = native_conv_places.seen(s, axis)
            inputs[0] = native_conv_places.floats_seen(s, [each[0] for each in sees])
        all_outputs = cell(ceil_div(s["outputs"], lanes) * lanes)
        padded = cell(select(s["half"] > 0, all_outputs, 0))
        column = cell(s["kernel_h"] * s["channels"])
        patch = cell(PATCH * (s["channels"] + max(table.widths(KernelForm.PLAIN)) * lanes))
        # the twins of `conv.workers_of` and `conv.most_floats`
        fitting = maximum(div(pixels * s["groups"], 2 * BAND_PART), 1)
        workers = cell(minimum(most_workers(machine), fitting))
        steps = cell(select(patches > 0, PATCH * s["channels"], s["depth"]))
        weight = cell(steps * s["outputs"] * 4)
        large = select(patches > 0, machine.l2_bytes // 4 * PATCHES_CACHES, machine.l2_bytes // 8)
        most = cell(select(weight <= machine.l2_bytes // 4, machine.l2_bytes // 16, large))
        columns = cell(pixels * s["depth"] * s["groups"])
        bounded = tirx.all(
            s["kernel_h"] * s["kernel_w"] >= BOUNDED_KERNEL, columns * 4 >= BOUNDED_BYTES
        )
        beside = SLACK + patches * PATCH * s["channels"] + offsets * OFFSET * s["depth"]
        bound = maximum(div(columns, BAND_PART * workers) - beside, 1)
        most = cell(select(bounded, minimum(most, bound), most))
        whole_cache = weight > PLACES_CACHES * machine.l2_bytes
        of_places = select(whole_cache, machine.l2_bytes // 4, machine.l2_bytes // 8)
        most = cell(select(places > 0, of_places, most))

        one_by_one = tirx.any(form == int(Form.JOINED), form == int(Form.PIXELS))
        by_rows = cell(select(one_by_one, 0, 1))
        rows, width, segments, blocks = (scratch(1, INT) for _ in range(4))
        rows[0], segments[0] = as_int(1), as_int(1)
        # the rows that are cut: those of patches are of all images
        tall_patches = cell(s["n"] * ceil_div(s["oh"], SIDE))
        images = cell(select(patches + places > 0, 1, s["n"]))
        height = cell(select(places > 0, s["n"] * s["oh"], s["oh"]))
        height = cell(select(patches > 0, tall_patches, height))
        whole = cell(select(patches > 0, ceil_div(s["ow"], SIDE), s["ow"]))

        def columns_of(pixels_of_row: Expr) -> Expr:
            return (pixels_of_row - 1) * s["stride_w"] + s["kernel_w"]

        def cut_rows() -> None:
            wider = (s["kernel_w"] - s["stride_w"]) * column
            first = cell(select(patches + places > 0, 0, wider))
            step = select(places > 0, inputs[0], s["stride_w"] * column) + all_outputs
            step = cell(select(patches > 0, patch, step))
            row = cell(first + whole * step)
            room = cell(maximum(most - maximum(first, 0), 0))
            narrow = cell(minimum(whole, maximum(div(room, step), 1)))
            segments[0] = cell(select(row > most, ceil_div(whole, narrow), 1))
            width[0] = ceil_div(whole, segments[0])
            many = cell(select(segments[0] == 1, maximum(div(most, row), 1), 1))
            rows[0] = ceil_div(height, ceil_div(height, many))
            blocks[0] = images * ceil_div(height, rows[0]) * segments[0]

        def cut_pixels() -> None:
            each = cell(minimum(maximum(div(most, s["depth"] + all_outputs), 1), pixels))
            blocks[0] = ceil_div(pixels, each)
            width[0] = ceil_div(pixels, blocks[0])

        branch(by_rows > 0, cut_rows, cut_pixels)
        best = scratch(2, INT)
        best[0] = as_int(INFINITE)
        best[1] = as_int(0)
        tall = cell(rows[0] * width[0])
        run_rows, run_width = scratch(1, INT), scratch(1, INT)
        run_rows[0], run_width[0] = rows[0], width[0]
        with when(places > 0):
            for axis, run in enumerate((run_rows, run_width)):
                run[0] = native_conv_places.places_share(s, axis, run[0], sees[axis][0])
        apart = tirx.all(run_rows[0] > 1, patches == 0)
        mc = cell(select(apart, run_width[0], 0))
        seen = cell(run_rows[0] * run_width[0])
        n = cell(select(patches > 0, all_outputs, s["outputs"]))
        k = cell(select(patches > 0, s["channels"], s["depth"]))
        for kc in DEPTHS:
            with when(tirx.all(k > kc, patches + places == 0) if kc else k > 0):
                functions[native_groups.with_blocks_name(KernelForm.PLAIN)](
                    seen,
                    n,
                    k,
                    int(BMode.PREPACKED),
                    0,
                    int(BMode.PREPACKED),
                    kc if kc else select(places > 0, s["channels"], 0),
                    mc,
                    costs.at(0),
                    best.at(0),
                )
        # the twin of `conv.filling`
        channels = cell(ceil_div(s["channels"], lanes))
        overlapping = rows[0] * columns_of(width[0])
        window = cell(select(form == int(Form.WINDOWS), overlapping, tall * s["kernel_w"]))
        floats = s["n"] * s["h"] * s["w"] * s["channels"] * s["groups"]
        scattered = tirx.all(
            form == int(Form.PIXELS),
            s["kernel_h"] * s["kernel_w"] == 1,
            s["stride_h"] * s["stride_w"] > 1,
            s["half"] == 0,
            floats * 4 > machine.l2_bytes,
        )
        moved = window * s["kernel_h"] * channels * MOVED
        moved = moved + cell(select(scattered, tall * SCATTERED, 0))
        in_band = tirx.any(form == int(Form.WINDOWS), form == int(Form.PIXELS))
        padding = s["top"] + s["left"] + s["bottom"] + s["right"]
        banded = cell(select(padding > 0, offsets, 0))

        def offsets_band(rows: Expr, width: Expr) -> Expr:
            runs = (rows - 1) * s["stride_h"] + s["kernel_h"]
            band = runs * columns_of(width) * s["channels"]
            return banded * band + OFFSET * s["depth"] + SLACK

        band_vectors = ceil_div(offsets_band(rows[0], width[0]), lanes) * MOVED
        transformed = tall * PATCH * (channels + div(all_outputs, lanes))
        stored = select(places > 0, tall * div(all_outputs, lanes) * MOVED, 0)
        vectors = select(patches > 0, transformed, select(in_band, moved, stored))
        vectors = cell(select(banded > 0, band_vectors, vectors))
        times = cell(select(patches > 0, PATCH, 1))
        block_cost = cell(times * best[0] + vectors * traffic.axpy_step)
        scaled = div(block_cost * PLACES_SIXTEENTHS, 16)
        block_cost = cell(select(places > 0, scaled, block_cost))
        cost = cell(blocks[0] * block_cost * s["groups"])
        with when(cost < conv["picoseconds"]):
            plan = {**decode(best[1])}
            plan["kc"] = cell(select(places > 0, 0, plan["kc"]))
            # the twin of `conv.offsets_tiles`
            heights, panels = offsets_heights(machine), cell(div(n, lanes))
            odd = panels - div(panels, OFFSETS_WIDTH) * OFFSETS_WIDTH
            tail = cell(select(odd > 0, minimum(panels, OFFSETS_WIDTH + 1), 0))
            tail_mr = select(tail == 1, heights[1], select(tail > 0, heights[3], 0))
            for name, value in (
                ("nv", OFFSETS_WIDTH),
                ("mr", heights[OFFSETS_WIDTH]),
                ("tail_nv", tail),
                ("tail_mr", tail_mr),
            ):
                plan[name] = cell(select(offsets > 0, value, plan[name]))
            splits, taken = scratch(1, INT), scratch(1, INT)
            splits[0], taken[0] = as_int(1), as_int(1)
            if most_workers(machine) > 1:
                with when(tirx.all(workers > 1, cost >= 2 * traffic.launch)):
                    wanted = cell(ceil_div(CHUNKS * workers, s["groups"]))

                    def more_rows() -> None:
                        least = select(patches > 0, FEWEST_PIXELS // SIDE**2, FEWEST_PIXELS)
                        at_least = cell(maximum(div(least, width[0]), 1))
                        most_blocks = cell(maximum(div(height, at_least), 1))
                        now = ceil_div(height, rows[0])
                        asked = minimum(ceil_div(wanted, images * segments[0]), most_blocks)
                        rows[0] = ceil_div(height, cell(maximum(now, asked)))
                        blocks[0] = images * ceil_div(height, rows[0]) * segments[0]

                    def more_pixels() -> None:
                        asked = minimum(wanted, maximum(div(pixels, FEWEST_PIXELS), 1))
                        many = cell(maximum(blocks[0], asked))
                        width[0] = ceil_div(pixels, many)
                        blocks[0] = ceil_div(pixels, width[0])

                    branch(by_rows > 0, more_rows, more_pixels)
                    chunks = cell(blocks[0] * s["groups"])
                    with when(chunks < 2 * workers):
                        main = cell(div(n, lanes) - plan["tail_nv"])
                        groups = div(main, plan["nv"]) + select(plan["tail_nv"] > 0, 1, 0)
                        parts = minimum(ceil_div(2 * workers, chunks), maximum(groups, 1))
                        splits[0] = cell(parts)
                    taken[0] = minimum(workers, chunks * splits[0])
            band = scratch(1, INT)
            final = cell(rows[0] * width[0])
            windows = rows[0] * columns_of(width[0]) * column
            band[0] = select(form == int(Form.WINDOWS), windows, final * s["depth"])
            band[0] = select(in_band, band[0], 0) + final * padded
            band[0] = select(band[0] > 0, band[0] + SLACK, 0)
            of_patches = final * patch + PATCH * s["channels"] + SLACK
            band[0] = select(patches > 0, of_patches, band[0])
            band[0] = select(offsets > 0, offsets_band(rows[0], width[0]), band[0])
            conv.fill(
                {
                    "form": form,
                    "rows": rows[0],
                    "width": width[0],
                    "segments": segments[0],
                    "blocks": blocks[0],
                    "splits_n": splits[0],
                    "workers": taken[0],
                    "band": band[0],
                    "picoseconds": cost,
                    **{name: plan[name] for name in ("nv", "mr", "tail_nv", "tail_mr", "kc")},
                }
            )
