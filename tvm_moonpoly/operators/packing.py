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
    LINE,
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
    prefetch,
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


#: Panels that are packed side by side, and what is left of them; rows of each at a time.
_TOGETHER, _ROWS = (8, 4), 64


def panel_stride(k: Expr, lanes: int) -> Expr:
    """Floats from one panel that is packed during a call to the next, for ``k`` rows.

    An odd number of cache lines: a large power of two would bring all panels into the same places
    of the caches, and those that are packed side by side would push each other out.
    """
    return tirx.bitwise_or(ceil_div(k * lanes, LINE), as_int(1)) * LINE


def emit(functions: Functions, packed_rows: Sequence[int], lanes: int) -> None:
    """Define ``moonpoly_pack_b``, ``moonpoly_pack_a`` (tiles of ``packed_rows`` rows) and
    ``moonpoly_turn``."""
    _emit_pack_b(functions, lanes)
    _emit_pack_a(functions, packed_rows)
    _emit_turn(functions, lanes)


def _emit_pack_b(functions: Functions, lanes: int) -> None:
    @functions.private(
        "moonpoly_pack_rows", b=FLOATS, b_k=INT, q=FLOATS, k=INT, panels=INT, stride=INT
    )
    def _(b: Any, b_k: Expr, q: Any, k: Expr, panels: Expr, stride: Expr) -> None:
        """Unit stride along n: whole vectors.

        Rows may be so far apart that each touches another page, and all of them the same places of
        the caches. So several panels are packed at a time, of few rows, and meanwhile the same rows
        of the next panels are fetched: nothing else sees them coming.
        """

        def pack(first: Expr, together: int, top: Expr, rows: Expr) -> None:
            target = let(first * stride + top * lanes)
            with loop(rows) as i:
                source = let((top + i) * b_k + first * lanes)
                for p in range(together):
                    q[vector(target + p * stride + i * lanes, lanes)] = b[
                        vector(source + p * lanes, lanes)
                    ]
                for ahead in range(0, together * lanes, LINE):
                    prefetch(b.at(source + together * lanes + ahead), level=2)

        def pack_rest(first: Expr, top: Expr, rows: Expr) -> None:
            """Row by row as well: one panel after another would come to each page again."""
            count = let(panels - first)
            with when(count > 0), loop(rows) as i, loop(count) as p:
                panel = let(first + p)
                q[vector(panel * stride + (top + i) * lanes, lanes)] = b[
                    vector((top + i) * b_k + panel * lanes, lanes)
                ]

        wide, narrow = _TOGETHER
        groups = let(div(panels, wide))
        left = let(panels - groups * wide)
        fours = let(div(left, narrow))
        with loop(ceil_div(k, _ROWS)) as block:
            top = let(block * _ROWS)
            rows = let(minimum(k - top, _ROWS))
            with loop(groups) as g:
                pack(let(g * wide), wide, top, rows)
            with loop(fours):
                pack(let(groups * wide), narrow, top, rows)
            pack_rest(let(groups * wide + fours * narrow), top, rows)

    @functions.private(
        "moonpoly_pack_columns", b=FLOATS, b_n=INT, q=FLOATS, k=INT, panels=INT, stride=INT
    )
    def _(b: Any, b_n: Expr, q: Any, k: Expr, panels: Expr, stride: Expr) -> None:
        """Unit stride along k: square blocks are transposed in registers."""
        blocks = let(div(k, lanes))
        with loop(panels) as panel:
            source = let(panel * lanes * b_n)
            target = let(panel * stride)
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
        stride=INT,
    )
    def _(
        b: Any, b_k: Expr, b_n: Expr, q: Any, k: Expr, panels: Expr, columns: Expr, stride: Expr
    ) -> None:
        branch(
            b_n == 1,
            lambda: functions["moonpoly_pack_rows"](b.at(0), b_k, q.at(0), k, panels, stride),
            lambda: functions["moonpoly_pack_columns"](b.at(0), b_n, q.at(0), k, panels, stride),
        )
        with when(columns > 0), loop(k) as row:
            target = let(panels * stride + row * lanes)
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
            mixed[i] = let(shuffle(low, high, even))
            mixed[i + step] = let(shuffle(low, high, odd))
        rows = mixed
        step *= 2
    return rows


def shuffle(a: Expr, b: Expr, indices: list[int]) -> Expr:
    """Lanes of two vectors, those of ``b`` counted after those of ``a``."""
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
