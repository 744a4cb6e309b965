"""The order of thread blocks over tiles of the result: one flat grid, in groups of rows."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

#: Attribute of a micro-kernel: rows of tiles that blocks walk down before the next column.
RASTER = "moonpoly.raster"

_ROWS, _COLUMNS = "blockIdx.y", "blockIdx.x"


def position(block: int, tiles_m: int, tiles_n: int, group: int) -> tuple[int, int]:
    """Row and column of the tile that block ``block`` of a flat grid computes."""
    first = block // (group * tiles_n) * group
    rows = min(tiles_m - first, group)
    inner = block - first * tiles_n
    return first + inner % rows, inner // rows


def rasterize() -> tvm.transform.Pass:
    """Turn the grid (columns, rows, batch) of micro-kernels into (tiles, 1, batch), by `position`.

    A flat grid is also not bound by the 65535 blocks of a grid's y. Raises ValueError when a
    micro-kernel's grid is not the one that `schedule` makes.
    """

    @tvm.tirx.transform.prim_func_pass(opt_level=0, name="moonpoly.rasterize")
    def apply(func: tirx.PrimFunc, mod: Any, ctx: Any) -> tirx.PrimFunc:
        if func.attrs is None or RASTER not in func.attrs:
            return func
        return func.with_body(_flat(func.body, int(func.attrs[RASTER])))

    return apply


def _flat(body: tirx.Stmt, group: int) -> tirx.Stmt:
    grid: dict[str, tuple[tirx.Var, Any]] = {}

    def inner(stmt: tirx.Stmt) -> tirx.Stmt:
        """``stmt`` without the bindings of rows and columns, which are put in ``grid``."""
        if isinstance(stmt, tirx.SeqStmt):
            # declarations, then the nest
            *before, last = stmt.seq
            return tirx.SeqStmt([*before, inner(last)])
        if not (isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent"):
            raise ValueError("schedule: blockIdx.x and blockIdx.y are not bound outside the block")
        tag = stmt.node.thread_tag
        if tag in (_ROWS, _COLUMNS):
            grid[tag] = (stmt.node.var, stmt.value)
            rest = stmt.body if len(grid) == 2 else inner(stmt.body)
        else:
            rest = inner(stmt.body)
        if len(grid) == 2 and tag == next(reversed(grid)):
            rest = _bound(grid, group, rest)
        if tag in (_ROWS, _COLUMNS):
            return rest
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, rest)

    return inner(body)


def _bound(grid: dict[str, tuple[tirx.Var, Any]], group: int, body: tirx.Stmt) -> tirx.Stmt:
    """``body`` below the flat grid, with the variables of rows and columns computed from it."""
    (row, tiles_m), (column, tiles_n) = grid[_ROWS], grid[_COLUMNS]
    block = tirx.Var("block", "int32")

    def once(value: Any) -> Any:
        # a call that tvm does not look into (in CUDA a conversion of an int to itself): simplified
        # into the addresses, the divisions would be repeated at each of them
        return tirx.call_extern("int32", "int", value)

    if group == 1:
        bindings = [
            tirx.Bind(row, once(tirx.truncdiv(block, tiles_n))),
            tirx.Bind(column, once(tirx.truncmod(block, tiles_n))),
        ]
    else:
        first, rows, inner = (tirx.Var(n, "int32") for n in ("first_row", "rows", "inner"))
        bindings = [
            tirx.Bind(first, once(tirx.truncdiv(block, tiles_n * group) * group)),
            tirx.Bind(rows, once(tirx.min(tiles_m - first, group))),
            tirx.Bind(inner, once(block - first * tiles_n)),
            tirx.Bind(row, once(first + tirx.truncmod(inner, rows))),
            tirx.Bind(column, once(tirx.truncdiv(inner, rows))),
        ]
    tiles = tiles_m * tiles_n
    axis = tirx.IterVar(tvm.ir.Range(0, tiles), block, tirx.IterVar.ThreadIndex, _COLUMNS)
    rest = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return tirx.AttrStmt(axis, "thread_extent", tiles, tirx.SeqStmt([*bindings, *rest]))
