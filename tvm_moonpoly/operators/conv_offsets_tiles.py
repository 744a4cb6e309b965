"""The tiles of convolutions that read windows at offsets: some pixels of an output row each."""

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
    balanced,
    cell,
    fetched,
    let,
    loop,
    scratch,
    switch,
    vector,
    when,
)
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.planner.conv import offsets_heights

#: What a tile function is given. ``tiles`` of pixels side by side, ``groups`` of panels each;
#: ``pixel`` and ``ldc`` floats from a pixel to the next in A and in C.
_TILE = {
    "a": FLOATS,
    "offsets": INTS,
    "b": FLOATS,
    "z": FLOATS,
    "c": FLOATS,
    "pixel": INT,
    "ldc": INT,
    "depth": INT,
    "lo": FLOAT,
    "tiles": INT,
    "groups": INT,
}


def emit(functions: Functions, machine: Machine) -> None:
    """Define `row_name` of all widths, and all that they call."""
    for nv, most in offsets_heights(machine).items():
        for mr in range(1, most + 1):
            _emit_tile(functions, mr, nv, machine.lanes)
        _emit_row(functions, nv, most)


def _tile_name(mr: int, nv: int) -> str:
    return f"moonpoly_conv_offsets_{mr}x{nv}"


def _emit_tile(functions: Functions, mr: int, nv: int, lanes: int) -> None:
    """``C = max(A @ B + Z, lo)`` in tiles of ``mr`` pixels and ``nv`` vectors."""

    @functions.separate(_tile_name(mr, nv), **_TILE)
    def _(**given: Any) -> None:
        a, offsets, b, z, c = (given[n] for n in ("a", "offsets", "b", "z", "c"))
        pixel, ldc, depth = given["pixel"], given["ldc"], given["depth"]
        panel = cell(depth * lanes)
        whole = vector(0, lanes)
        with loop(given["tiles"]) as t:
            first = cell(t * (mr * pixel))
            rows = [Pointer.to(T.Bind(a.at(first + i * pixel)), FLOAT) for i in range(mr)]
            with loop(given["groups"]) as g:
                sums = [[scratch(lanes) for _ in range(nv)] for _ in range(mr)]
                for v in range(nv):
                    bias = let(z[vector((g * nv + v) * lanes, lanes)])
                    for row in sums:
                        row[v][whole] = bias
                # written when the sums are done: until then the lines have come
                for i in range(mr):
                    for v in range(0, nv * lanes, LINE):
                        at = (t * mr + i) * ldc + g * (nv * lanes) + v
                        T.evaluate(fetched(c.at(at), write=True))
                start = cell(g * (nv * panel))
                with loop(depth) as k:
                    at = let(offsets[k])
                    factors = [
                        let(b[vector(start + v * panel + k * lanes, lanes)]) for v in range(nv)
                    ]
                    for row, source in zip(sums, rows, strict=True):
                        value = let(T.Broadcast(source[at], lanes))
                        for each, factor in zip(row, factors, strict=True):
                            each[whole] = each[whole] + value * factor
                low = let(T.Broadcast(given["lo"], lanes))
                for i, row in enumerate(sums):
                    for v, each in enumerate(row):
                        # written so that NaN passes: a comparison with NaN is false
                        value = tirx.Select(each[whole] < low, low, each[whole])
                        to = (t * mr + i) * ldc + (g * nv + v) * lanes
                        c[vector(to, lanes)] = value


def row_name(nv: int) -> str:
    """The function of ``width`` pixels of an output row, ``nv`` vectors of outputs at a time."""
    return f"moonpoly_conv_offsets_row_{nv}"


def _emit_row(functions: Functions, nv: int, most: int) -> None:
    """``width`` pixels of an output row, in balanced tiles of at most ``most``."""
    kept = {name: kind for name, kind in _TILE.items() if name != "tiles"}

    @functions.separate(row_name(nv), **kept, width=INT)
    def _(**given: Any) -> None:
        a, c, pixel, ldc = (given[n] for n in ("a", "c", "pixel", "ldc"))
        small, large, tiles = balanced(given["width"], most, cell)

        def strip(height: Expr, start: Expr, count: Expr) -> None:
            def tile(mr: int) -> None:
                moved = {
                    **given,
                    "a": a.at(start * pixel),
                    "c": c.at(start * ldc),
                    "tiles": count,
                    **{name: given[name].at(0) for name in ("offsets", "b", "z")},
                }
                functions[_tile_name(mr, nv)](*(moved[name] for name in _TILE))

            switch(height, range(1, most + 1), tile)

        with when(large > 0):
            strip(cell(small + 1), as_int(0), large)
        strip(small, cell(large * (small + 1)), cell(tiles - large))
