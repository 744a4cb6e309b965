"""Rows of outputs of a depthwise convolution: which micro-kernel computes which of their columns.

A row of outputs has a tile at each edge, which masks the padding, and tiles of full width between.
Where rows are so long that those which outputs share do not stay in the second-level cache, these
go down the rows in strips.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_moonpoly.emit import (
    FLOAT,
    INT,
    Expr,
    Functions,
    as_int,
    branch,
    ceil_div,
    cell,
    div,
    loop,
    maximum,
    minimum,
    select,
    switch,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators.depthwise_call import GEOMETRY, parameters
from tvm_moonpoly.operators.depthwise_pairs import (
    COLUMNS,
    FEWEST,
    PAIRS,
    ROWS,
    Pair,
    crowded,
    pair_name,
)
from tvm_moonpoly.operators.depthwise_pairs import TAPS as PAIR_TAPS
from tvm_moonpoly.operators.depthwise_tiles import ANY_COLUMNS, TAPS, Taps, any_name, known_name


def rows_name(dtype: str) -> str:
    """The function for all ``columns`` of the rows that the geometry says."""
    return f"moonpoly_depthwise_rows_{dtype}"


def emit(functions: Functions, machine: Machine) -> None:
    """Define `rows_name` of float32 and float16, and all that they call but micro-kernels."""
    for taps in TAPS:
        _emit_known_rows(functions, taps, machine)
    for pair in PAIRS:
        _emit_pair_rows(functions, pair, machine)
    for dtype in (FLOAT, "float16"):
        _emit_any_rows(functions, dtype, machine)
        _emit_rows(functions, dtype, machine)


def _given(arguments: dict[str, Any]) -> list[Any]:
    pointers = ("x", "weight", "bias", "residual", "out", "geometry")
    return [*(arguments[n].at(0) for n in pointers), arguments["first"], arguments["second"]]


@dataclass(frozen=True)
class _Tiles:
    """Micro-kernels of some rows of outputs at once: ``name(columns, edge)``.

    From ``fewest`` to ``columns`` columns; ``taps`` are along a row, ``stride`` as well.
    """

    fewest: int
    columns: int
    taps: int
    stride: int
    name: Callable[[int, bool], str]

    @classmethod
    def known(cls, taps: Taps) -> _Tiles:
        """Of one row."""
        return cls(
            1, taps.columns, taps.count, taps.stride, lambda n, edge: known_name(taps, n, edge)
        )

    @classmethod
    def pair(cls, pair: Pair) -> _Tiles:
        """Of two rows."""
        return cls(
            FEWEST, COLUMNS, PAIR_TAPS, pair.stride_w, lambda n, edge: pair_name(pair, n, edge)
        )

    def fit(self, geometry: dict[str, Expr], columns: Expr) -> Expr:
        """Whether they can compute ``columns``: the edges must hold all the padding."""
        left, width, stride = geometry["left"], geometry["width"], self.stride
        # the fewest columns of an edge, where there is more than one tile
        least = (self.columns + 1) // 2
        last = (columns - least - 1) * stride - left + self.taps
        return tirx.all(
            geometry["kernel_w"] == self.taps,
            geometry["stride_w"] == stride,
            geometry["dilation_w"] == 1,
            tirx.any(columns <= self.columns, tirx.all(left <= least * stride, last <= width)),
        )


def _emit_known_rows(functions: Functions, taps: Taps, machine: Machine) -> None:
    """All ``columns`` of the rows that the geometry says."""

    @functions.separate(_known_rows(taps), **rows_parameters(FLOAT))
    def _(**arguments: Any) -> None:
        geometry = Numbers(GEOMETRY, arguments["geometry"])
        rows = geometry["kernel_h"]
        _all_columns(functions, _Tiles.known(taps), geometry, arguments, rows, machine)


def _known_rows(taps: Taps) -> str:
    return f"{taps.name}_rows"


def _emit_pair_rows(functions: Functions, pair: Pair, machine: Machine) -> None:
    """The same, two rows at a time where no row of taps lies in the padding."""
    single = _known_rows(_taps_of(pair))

    @functions.separate(f"{pair.name}_rows", **rows_parameters(FLOAT))
    def _(**arguments: Any) -> None:
        geometry = Numbers(GEOMETRY, arguments["geometry"])
        stride = pair.stride_h
        row, rows = cell(geometry["row"]), cell(geometry["rows"])
        low = cell(minimum(maximum(ceil_div(geometry["top"], stride) - row, 0), rows))
        room = cell(geometry["height"] + geometry["top"] - PAIR_TAPS)
        high = cell(minimum(select(room >= 0, div(maximum(room, 0), stride) + 1, 0) - row, rows))
        paired = cell(div(maximum(high - low, 0), ROWS) * ROWS)

        def some(first: Expr, count: Expr, compute: Callable[[], None]) -> None:
            with when(count > 0):
                geometry.fill({"row": row + first, "rows": count})
                compute()

        def one_by_one() -> None:
            functions[single](*_given(arguments), arguments["columns"])

        def in_pairs() -> None:
            tiles, read = _Tiles.pair(pair), as_int(pair.input_rows)
            _all_columns(functions, tiles, geometry, arguments, read, machine)

        some(as_int(0), low, one_by_one)
        some(low, paired, in_pairs)
        after = cell(low + paired)
        some(after, rows - after, one_by_one)
        geometry.fill({"row": row, "rows": rows})


def _taps_of(pair: Pair) -> Taps:
    """Those along a row of ``pair``."""
    return next(t for t in TAPS if (t.count, t.stride) == (PAIR_TAPS, pair.stride_w))


def _all_columns(
    functions: Functions,
    tiles: _Tiles,
    geometry: Numbers,
    arguments: dict[str, Any],
    rows: Expr,
    machine: Machine,
) -> None:
    """All columns by ``tiles``, each of which reads ``rows`` of the input."""
    widest, columns, given = tiles.columns, arguments["columns"], _given(arguments)

    def one(width: Expr, column: Expr) -> None:
        start = cell(column * tiles.stride - geometry["left"])
        end = cell(start + (width - 1) * tiles.stride + tiles.taps)

        def tile(edge: bool) -> None:
            switch(
                width,
                range(tiles.fewest, widest + 1),
                lambda n: functions[tiles.name(n, edge)](*given, column, 1),
            )

        inside = tirx.all(start >= 0, end <= geometry["width"])
        branch(inside, lambda: tile(False), lambda: tile(True))

    # what is not in tiles of full width is halved: more than one such tile, at most two
    inner = cell(maximum(div(columns - 1, widest) - 1, 0))
    rest = cell(columns - inner * widest)
    left = cell(select(columns <= widest, columns, div(rest, 2)))
    right = cell(rest - left)
    one(left, as_int(0))
    pixel = cell(rows * geometry["channels"] * 4)
    near = div(as_int(machine.l1_bytes // 2), pixel) - (tiles.taps - tiles.stride)
    strip = cell(maximum(div(maximum(near, 0), tiles.stride * widest), 1))
    # where all columns of these rows fit the second-level cache, whole rows are read faster
    fits = pixel * geometry["width"] <= machine.l2_bytes // 2
    strip = cell(select(fits, maximum(inner, 1), strip))
    with loop(ceil_div(inner, strip)) as i:
        count = minimum(inner - i * strip, strip)
        column = left + i * (strip * widest)
        functions[tiles.name(widest, False)](*given, column, count)
    with when(right > 0):
        one(right, cell(columns - right))


def rows_parameters(dtype: str) -> dict[str, str]:
    kept = {k: v for k, v in parameters(dtype).items() if k not in ("column", "count")}
    return {**kept, "columns": INT}


def _emit_any_rows(functions: Functions, dtype: str, machine: Machine) -> None:
    @functions.separate(f"moonpoly_depthwise_any_rows_{dtype}", **rows_parameters(dtype))
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


def _emit_rows(functions: Functions, dtype: str, machine: Machine) -> None:
    @functions.separate(rows_name(dtype), **rows_parameters(dtype))
    def _(**arguments: Any) -> None:
        geometry = Numbers(GEOMETRY, arguments["geometry"]).kept()
        given, columns = _given(arguments), arguments["columns"]

        def any_taps() -> None:
            functions[f"moonpoly_depthwise_any_rows_{dtype}"](*given, columns)

        def choose(known: list[tuple[Expr, str]]) -> None:
            if not known:
                any_taps()
                return
            (fits, name), *others = known
            branch(fits, lambda: functions[name](*given, columns), lambda: choose(others))

        def pair_fits(pair: Pair) -> Expr:
            return tirx.all(
                _Tiles.pair(pair).fit(geometry, columns),
                _Tiles.known(_taps_of(pair)).fit(geometry, columns),
                geometry["kernel_h"] == PAIR_TAPS,
                geometry["stride_h"] == pair.stride_h,
                geometry["dilation_h"] == 1,
                columns >= FEWEST,
                tirx.Not(crowded(geometry["stride_w"], geometry["x_pixel"])),
            )

        known = [
            *((pair_fits(pair), f"{pair.name}_rows") for pair in PAIRS),
            *((_Tiles.known(taps).fit(geometry, columns), _known_rows(taps)) for taps in TAPS),
        ]
        if dtype != FLOAT:
            any_taps()
            return
        few = geometry["channels"] < machine.lanes
        branch(few, any_taps, lambda: choose(known))
