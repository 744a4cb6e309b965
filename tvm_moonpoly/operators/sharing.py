"""How the packed functions share their work out among the workers of tvm's thread pool.

Work is cut into chunks, more of them than there are workers. Each worker has a range of chunks of
its own, so that repeated calls find their operands in the same caches, and takes one after another
from it by an atomic counter. When it is done it goes on with what others have left: a core that
another process keeps busy holds up one chunk, not the whole call. The counters are on the stack of
the call. What a chunk computes does not depend on who takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    INT,
    INTS,
    LINE,
    Expr,
    Functions,
    Pointer,
    as_int,
    balanced,
    branch,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    when,
    workspace,
)
from tvm_moonpoly.operators.packing import panel_stride
from tvm_moonpoly.planner.plan import BMode, largest

#: Given a function of a chunk's number, emits the loop over the chunks of one worker.
Each = Callable[[Callable[[Expr], None]], None]

_TAKE = "moonpoly_take"
_SYMBOL = "moonpoly_take_next"

#: Reads before it adds: once all is taken, workers that look for more do not disturb each other.
_SOURCE = f"""
define i64 @{_SYMBOL}(ptr %counter, i64 %count) alwaysinline {{
entry:
  %seen = load atomic i64, ptr %counter monotonic, align 8
  %left = icmp slt i64 %seen, %count
  br i1 %left, label %take, label %done
take:
  %taken = atomicrmw add ptr %counter, i64 1 monotonic
  ret i64 %taken
done:
  ret i64 %count
}}
"""


def emit(functions: Functions) -> None:
    """Define ``moonpoly_take``, which takes the next chunk of a range.

    ``found[0]`` becomes a number that nobody else gets from this counter, or one that is not below
    ``count`` when none is left.
    """

    @functions.private(_TAKE, counter=INTS, count=INT, found=INTS)
    def _(counter: Pointer, count: Expr, found: Pointer) -> None:
        # tvm has no atomic operations on CPUs
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", _SOURCE):
            address = T.Bind(counter.at(0))
            found[0] = T.call_extern(INT, _SYMBOL, address, count)


def share_of(
    index: Expr, fields: dict[str, Expr], m: Expr, panels: Expr, columns: Expr, lanes: int
) -> dict[str, Any]:
    """The rows and panels of one chunk, number ``index`` of a product, and its plan.

    Rows are shared out in whole tiles and panels in whole groups, as evenly as they go; the last
    chunk of a row also takes the tail region and the partial panel.
    """
    # most plans have one chunk, which takes no arithmetic
    found = {
        name: scratch(1, INT) for name in ("row", "rows", "panel", "panels", "columns", "tail_nv")
    }
    for name, whole in {"row": 0, "rows": m, "panel": 0, "panels": panels}.items():
        found[name][0] = as_int(whole)
    found["columns"][0], found["tail_nv"][0] = columns, fields["tail_nv"]
    with when(fields["splits_m"] * fields["splits_n"] > 1):
        _cut(index, fields, m, panels, found)
    share = {name: let(place[0]) for name, place in found.items()}
    share["column"] = let(share["panel"] * lanes)
    return {
        **share,
        "fields": [
            fields["nv"],
            fields["mr"],
            share["tail_nv"],
            fields["tail_mr"],
            fields["pack_a"],
            fields["b_mode"],
            *(select(fields[name] == 0, as_int(1 << 40), fields[name]) for name in _BLOCKS),
        ],
    }


def _cut(
    index: Expr, fields: dict[str, Expr], m: Expr, panels: Expr, found: dict[str, Pointer]
) -> None:
    """What of the whole, which is in ``found``, chunk ``index`` takes."""
    i = let(div(index, fields["splits_n"]))
    j = let(index - i * fields["splits_n"])
    small, large, tiles = balanced(m, fields["mr"])

    def row_of(part: Expr) -> Expr:
        tile = let(div(part * tiles, fields["splits_m"]))
        return let(tile * small + minimum(tile, large))

    row = row_of(i)
    found["row"][0] = row
    found["rows"][0] = row_of(i + 1) - row
    for name, value in columns_of(j, fields, panels, found["columns"][0]).items():
        found[name][0] = value


def columns_of(
    part: Expr, fields: Mapping[str, Expr], panels: Expr, columns: Expr
) -> dict[str, Expr]:
    """What one of ``splits_n`` parts takes of ``panels`` whole panels and ``columns`` lanes of a
    partial one: whole groups of panels, the last part also the tail region and the partial panel.
    """
    nv, tail_nv = fields["nv"], fields["tail_nv"]
    groups = let(div(panels - tail_nv, nv))
    # the tail region is one group more
    regions = let(groups + select(tail_nv > 0, 1, 0))

    def group_of(part: Expr) -> Expr:
        # rounded up, so that the last part, with the partial panel, is no larger than others
        return let(minimum(ceil_div(part * regions, fields["splits_n"]), groups))

    first = group_of(part)
    last = let(part == fields["splits_n"] - 1)
    tail = let(select(last, tail_nv, 0))
    return {
        "panel": let(first * nv),
        "panels": let((group_of(part + 1) - first) * nv + tail),
        "columns": let(select(last, columns, 0)),
        "tail_nv": tail,
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
    """All items (a batch entry's chunk each), serially or by the workers of tvm's pool.

    ``item`` is given its number and the addresses of its worker's space for a packed block of A
    and one of B, and with ``extra`` of so many floats more. All that is taken from tvm's pool in
    one piece, once a worker, and only if there is any.
    """
    items = let(batch * fields["splits_m"] * fields["splits_n"])
    depth = let(select(fields["kc"] == 0, k, minimum(fields["kc"], k)))
    # the last block also takes the tail region
    block = fields["nc"] * fields["nv"] + fields["tail_nv"]
    wide = let(select(fields["nc"] == 0, panels, minimum(block, panels)))
    # whole cache lines, so that the block of B begins with one as well
    wa = let(ceil_div(fields["pack_a"] * fields["mc"] * depth, LINE) * LINE)
    # B read in place is packed in its partial panel only
    partial = select(columns > 0, 1, 0)
    packed_panels = select(
        fields["b_mode"] == int(BMode.PACKED),
        wide + partial,
        select(fields["b_mode"] == int(BMode.DIRECT), partial, 0),
    )
    wb = let(packed_panels * panel_stride(depth, lanes))

    packed = let(ceil_div(wa + wb, LINE) * LINE) if extra is not None else let(wa + wb)
    size = packed if extra is None else let(packed + extra)

    def work(each: Each) -> None:
        def with_workspace() -> None:
            space = workspace(size)
            more = [] if extra is None else [space.at(packed)]
            each(lambda index: item(index, space.at(0), space.at(wa), *more))

        def without() -> None:
            none = scratch(1)
            more = [] if extra is None else [none.at(0)]
            each(lambda index: item(index, none.at(0), none.at(0), *more))

        branch(size > 0, with_workspace, without)

    run_chunks(let(fields["workers"]), items, work)


def with_space(size: Expr, body: Callable[[Pointer], None]) -> None:
    """``body(space)``: ``size`` floats from tvm's pool of workspaces; none are taken for 0."""
    branch(size > 0, lambda: body(workspace(size)), lambda: body(scratch(1)))


def run_chunks(workers: Expr, chunks: Expr, work: Callable[[Each], None]) -> None:
    """``work(each)`` in each worker of tvm's pool; ``each(body)`` emits ``body(number)`` for the
    chunks that the worker takes. With one worker, in the calling thread for all in order.

    At most as many workers as a plan can name.
    """
    with T.attr({"device_id": 0}), T.attr({"device_type": 1}), T.If(workers > 1):
        with T.Then():
            counters = scratch(largest("workers"), INT)
            with loop(workers) as w:
                counters[w] = as_int(0)
            with T.parallel(0, workers) as w:
                work(lambda body: _take_all(w, workers, chunks, counters, body))
        with T.Else():

            def in_order(body: Callable[[Expr], None]) -> None:
                with loop(chunks) as index:
                    body(index)

            work(in_order)


def _take_all(
    worker: Expr, workers: Expr, chunks: Expr, counters: Pointer, body: Callable[[Expr], None]
) -> None:
    """The chunks of the worker's own range, then what the others have left of theirs."""
    found = scratch(1, INT)
    with loop(workers) as turn:
        after = let(worker + turn)
        owner = let(select(after < workers, after, after - workers))
        first = let(div(owner * chunks, workers))
        count = let(div((owner + 1) * chunks, workers) - first)
        take = Functions.current()[_TAKE]
        take(counters.at(owner), count, found.at(0))
        with T.While(found[0] < count):
            body(let(first + found[0]))
            take(counters.at(owner), count, found.at(0))
