"""How the packed functions share their work out among the workers of tvm's thread pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    Expr,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    workspace,
)
from tvm_moonpoly.planner.plan import BMode

#: Floats in a cache line.
_LINE = 16


def share_of(
    index: Expr, fields: dict[str, Expr], m: Expr, panels: Expr, columns: Expr, lanes: int
) -> dict[str, Any]:
    """The rows and panels of one of the plan's workers, and its plan.

    Rows are shared out in whole tiles and panels in whole groups; the last worker of a row also
    takes the tail region and the partial panel.
    """
    i = let(div(index, fields["splits_n"]))
    j = let(index - i * fields["splits_n"])
    tiles = ceil_div(m, fields["mr"])
    chunk = let(ceil_div(tiles, fields["splits_m"]) * fields["mr"])
    row = let(minimum(i * chunk, m))
    groups = let(div(panels - fields["tail_nv"], fields["nv"]))
    group_chunk = let(ceil_div(groups, fields["splits_n"]))
    first = let(minimum(j * group_chunk, groups))
    count = let(minimum(group_chunk, groups - first))
    last = let(j == fields["splits_n"] - 1)
    tail = let(select(last, fields["tail_nv"], 0))
    panel = let(first * fields["nv"])
    return {
        "row": row,
        "rows": let(minimum(chunk, m - row)),
        "panel": panel,
        "column": let(panel * lanes),
        "panels": let(count * fields["nv"] + tail),
        "columns": let(select(last, columns, 0)),
        "fields": [
            fields["nv"],
            fields["mr"],
            tail,
            fields["tail_mr"],
            fields["pack_a"],
            fields["b_mode"],
            *(select(fields[name] == 0, as_int(1 << 40), fields[name]) for name in _BLOCKS),
        ],
    }


_BLOCKS = ("kc", "mc", "nc")


def run_items(
    fields: dict[str, Expr],
    batch: Expr,
    k: Expr,
    panels: Expr,
    columns: Expr,
    lanes: int,
    item: Callable[..., None],
    extra: Expr | None = None,
) -> None:
    """All items (a batch entry's share each), serially or by the workers of tvm's pool.

    ``item`` is given its number and the addresses of its worker's space for a packed block of A
    and one of B, and with ``extra`` of so many floats more. All that is taken from tvm's pool in
    one piece, and only if there is any.
    """
    items = let(batch * fields["splits_m"] * fields["splits_n"])
    depth = let(select(fields["kc"] == 0, k, minimum(fields["kc"], k)))
    # the last block also takes the tail region
    block = fields["nc"] * fields["nv"] + fields["tail_nv"]
    wide = let(select(fields["nc"] == 0, panels, minimum(block, panels)))
    # whole cache lines, so that the block of B begins with one as well
    wa = let(ceil_div(fields["pack_a"] * fields["mc"] * depth, _LINE) * _LINE)
    # B read in place is packed in its partial panel only
    partial = select(columns > 0, 1, 0)
    packed_panels = select(
        fields["b_mode"] == int(BMode.PACKED),
        wide + partial,
        select(fields["b_mode"] == int(BMode.DIRECT), partial, 0),
    )
    wb = let(packed_panels * lanes * depth)

    packed = let(ceil_div(wa + wb, _LINE) * _LINE) if extra is not None else let(wa + wb)
    size = packed if extra is None else let(packed + extra)

    def work(first: Expr, count: Expr) -> None:
        def with_workspace() -> None:
            space = workspace(size)
            more = [] if extra is None else [space.at(packed)]
            with loop(count) as i:
                item(let(first + i), space.at(0), space.at(wa), *more)

        def without() -> None:
            none = scratch(1)
            more = [] if extra is None else [none.at(0)]
            with loop(count) as i:
                item(let(first + i), none.at(0), none.at(0), *more)

        branch(size > 0, with_workspace, without)

    run_ranges(let(fields["workers"]), items, work)


def run_ranges(workers: Expr, items: Expr, work: Callable[[Expr, Expr], None]) -> None:
    """``work(first, count)`` for ranges of the items, one range a worker of tvm's pool."""
    with T.attr({"device_id": 0}), T.attr({"device_type": 1}), T.If(workers > 1):
        with T.Then(), T.parallel(0, workers) as w:
            chunk = let(ceil_div(items, workers))
            first = let(minimum(w * chunk, items))
            work(first, let(minimum(chunk, items - first)))
        with T.Else():
            work(as_int(0), items)
