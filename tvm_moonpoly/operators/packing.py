"""Packing: operands laid out as the micro-kernels read them.

B in panels ``[panel][k][lanes]``, the last one padded with zeros. A in balanced row tiles, each
``[k][rows]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    Expr,
    Functions,
    as_int,
    balanced,
    branch,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    switch,
    vector,
    when,
)


def pack_weight(w: np.ndarray, lanes: int) -> np.ndarray:
    """``w`` (k, n) as panels: (ceil(n / lanes), k, lanes) float32, padded with zeros.

    Raises ValueError when ``w`` is not a float32 matrix.
    """
    if w.ndim != 2 or w.dtype != np.float32:
        raise ValueError(f"w: a float32 matrix is needed, not {w.dtype} with {w.ndim} dimensions")
    k, n = w.shape
    panels = -(-n // lanes)
    padded = np.zeros((k, panels * lanes), np.float32)
    padded[:, :n] = w
    return np.ascontiguousarray(padded.reshape(k, panels, lanes).transpose(1, 0, 2))


def pad_bias(bias: np.ndarray | None, n: int, lanes: int) -> np.ndarray:
    """``bias`` (n,) padded with zeros to whole panels; all zeros when there is none.

    Raises ValueError when ``bias`` is not a float32 vector of ``n`` elements.
    """
    padded = np.zeros(-(-n // lanes) * lanes, np.float32)
    if bias is not None:
        if bias.shape != (n,) or bias.dtype != np.float32:
            raise ValueError(
                f"bias: float32 of shape ({n},) is needed, not {bias.dtype} {bias.shape}"
            )
        padded[:n] = bias
    return padded


def emit(functions: Functions, packed_rows: Sequence[int], lanes: int) -> None:
    """Define ``moonpoly_pack_b``, ``moonpoly_pack_a`` (tiles of ``packed_rows`` rows) and
    ``moonpoly_turn``."""
    _emit_pack_b(functions, lanes)
    _emit_pack_a(functions, packed_rows)
    _emit_turn(functions, lanes)


def _emit_pack_b(functions: Functions, lanes: int) -> None:
    @functions.private("moonpoly_pack_rows", b=FLOATS, b_k=INT, q=FLOATS, k=INT, panels=INT)
    def _(b: Any, b_k: Expr, q: Any, k: Expr, panels: Expr) -> None:
        """Unit stride along n: whole vectors; four panels at a time use whole cache lines."""
        together = 4
        wide = let(div(panels, together))
        with loop(wide) as w, loop(k) as row:
            for p in range(together):
                panel = w * together + p
                q[vector((panel * k + row) * lanes, lanes)] = b[
                    vector(row * b_k + panel * lanes, lanes)
                ]
        with loop(panels - wide * together) as rest, loop(k) as row:
            panel = wide * together + rest
            q[vector((panel * k + row) * lanes, lanes)] = b[
                vector(row * b_k + panel * lanes, lanes)
            ]

    @functions.private("moonpoly_pack_columns", b=FLOATS, b_n=INT, q=FLOATS, k=INT, panels=INT)
    def _(b: Any, b_n: Expr, q: Any, k: Expr, panels: Expr) -> None:
        """Unit stride along k: square blocks are transposed in registers."""
        blocks = let(div(k, lanes))
        with loop(panels) as panel:
            source = let(panel * lanes * b_n)
            target = let(panel * k * lanes)
            with loop(blocks) as block:
                rows = [
                    let(b[vector(source + j * b_n + block * lanes, lanes)]) for j in range(lanes)
                ]
                for i, column in enumerate(transpose(rows)):
                    q[vector(target + (block * lanes + i) * lanes, lanes)] = column
            with loop(k - blocks * lanes) as rest:
                row = let(blocks * lanes + rest)
                for j in range(lanes):
                    q[target + row * lanes + j] = b[source + j * b_n + row]

    @functions.separate(
        "moonpoly_pack_b",
        b=FLOATS,
        b_k=INT,
        b_n=INT,
        q=FLOATS,
        k=INT,
        panels=INT,
        columns=INT,
    )
    def _(b: Any, b_k: Expr, b_n: Expr, q: Any, k: Expr, panels: Expr, columns: Expr) -> None:
        branch(
            b_n == 1,
            lambda: functions["moonpoly_pack_rows"](b.at(0), b_k, q.at(0), k, panels),
            lambda: functions["moonpoly_pack_columns"](b.at(0), b_n, q.at(0), k, panels),
        )
        with when(columns > 0), loop(k) as row:
            target = let((panels * k + row) * lanes)
            q[vector(target, lanes)] = T.Broadcast(tirx.const(0.0, "float32"), lanes)
            with loop(columns) as j:
                q[target + j] = b[row * b_k + (panels * lanes + j) * b_n]


def transpose(rows: list[Expr]) -> list[Expr]:
    """A square matrix of vectors transposed by log2(lanes) rounds of two-vector shuffles."""
    lanes = len(rows)
    step = 1
    while step < lanes:
        mixed: list[Expr] = list(rows)
        for i in range(lanes):
            if i & step:
                continue
            low, high = rows[i], rows[i + step]
            even = [j if not j & step else lanes + j - step for j in range(lanes)]
            odd = [j + step if not j & step else lanes + j for j in range(lanes)]
            mixed[i] = let(_shuffle(low, high, even))
            mixed[i + step] = let(_shuffle(low, high, odd))
        rows = mixed
        step *= 2
    return rows


def _shuffle(a: Expr, b: Expr, indices: list[int]) -> Expr:
    return tirx.Shuffle([a, b], [tirx.const(i, "int32") for i in indices])


def _emit_pack_a(functions: Functions, packed_rows: Sequence[int]) -> None:
    for rows in packed_rows:

        @functions.private(f"moonpoly_pack_a_{rows}", a=FLOATS, lda=INT, q=FLOATS, k=INT, count=INT)
        def _(a: Any, lda: Expr, q: Any, k: Expr, count: Expr, rows: int = rows) -> None:
            tile = scratch(rows)
            with loop(count) as t, loop(k) as column:
                for i in range(rows):
                    tile[i] = a[(t * rows + i) * lda + column]
                for i in range(rows):
                    q[t * rows * k + column * rows + i] = tile[i]

    @functions.separate("moonpoly_pack_a", a=FLOATS, lda=INT, q=FLOATS, k=INT, m=INT, mr=INT)
    def _(a: Any, lda: Expr, q: Any, k: Expr, m: Expr, mr: Expr) -> None:
        # the tiles that the micro-kernels will take
        small, large_tiles, tiles = balanced(m, mr)
        first = let(large_tiles * (small + 1))

        def pack(height: Expr, row: Expr, count: Expr) -> None:
            switch(
                height,
                list(packed_rows),
                lambda rows: functions[f"moonpoly_pack_a_{rows}"](
                    a.at(row * lda), lda, q.at(row * k), k, count
                ),
            )

        with when(large_tiles > 0):
            pack(small + 1, tirx.const(0, INT), large_tiles)
        pack(small, first, tiles - large_tiles)


def _emit_turn(functions: Functions, lanes: int) -> None:
    """The rows of a matrix whose columns are adjacent, one after another."""

    together = 2  # blocks side by side, which share cache lines

    @functions.compact("moonpoly_turn", a=FLOATS, a_k=INT, q=FLOATS, ldq=INT, m=INT, k=INT)
    def _(a: Any, a_k: Expr, q: Any, ldq: Expr, m: Expr, k: Expr) -> None:
        high, wide = let(div(m, lanes)), let(div(k, lanes))

        def blocks(first: Expr, count: Expr, column: Expr) -> None:
            with loop(count) as i:
                row = let((first + i) * lanes)
                columns = [let(a[vector((column + c) * a_k + row, lanes)]) for c in range(lanes)]
                for r, turned in enumerate(transpose(columns)):
                    q[vector((row + r) * ldq + column, lanes)] = turned

        with loop(ceil_div(high, together)) as i, loop(wide) as j:
            first = let(i * together)
            blocks(first, let(minimum(high - first, together)), let(j * lanes))

        def rest(first_row: Expr, rows: Expr, first: Expr, columns: Expr) -> None:
            with loop(rows) as i, loop(columns) as j:
                row, column = let(first_row + i), let(first + j)
                q[row * ldq + column] = a[row + column * a_k]

        whole = let(high * lanes)
        rest(as_int(0), whole, let(wide * lanes), k - wide * lanes)
        rest(whole, m - whole, as_int(0), k)
