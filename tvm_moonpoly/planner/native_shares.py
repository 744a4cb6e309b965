"""How a plan is cut into chunks, natively: the twin of `shares`."""

from __future__ import annotations

from tvm import tirx

from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.emit import (
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
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
from tvm_moonpoly.planner.native_words import decode, encode
from tvm_moonpoly.planner.plan import BMode
from tvm_moonpoly.planner.shares import (
    CHUNK_PART,
    CHUNKS,
    LATE_PART,
    MOST,
    ROWS_PART,
    SHARED_LINE,
    most_workers,
)

SHARED_OUT = "moonpoly_shared_out"

_PRODUCT = {"m": INT, "n": INT, "k": INT, "batch": INT, "b_mode": INT, "crowded": INT}


def emit(functions: Functions, machine: Machine, table: CostTable) -> None:
    """Define ``moonpoly_shared_out(m, n, k, batch, b_mode, crowded, cost, out)``, the twin of
    `shares.shared_out`: out[0] is the encoded plan, which takes ``cost`` for one entry."""
    traffic, workers = table.traffic, most_workers(machine)

    @functions.separate(SHARED_OUT, **_PRODUCT, cost=INT, out=INTS)
    def _(
        m: Expr,
        n: Expr,
        k: Expr,
        batch: Expr,
        b_mode: Expr,
        crowded: Expr,
        cost: Expr,
        out: Pointer,
    ) -> None:
        plan = decode(out[0])
        lanes = machine.lanes
        tiles = cell(ceil_div(m, plan["mr"]))
        groups = div(div(n, lanes) - plan["tail_nv"], plan["nv"])
        groups = cell(maximum(groups + select(plan["tail_nv"] > 0, 1, 0), 1))
        pack_a = cell(plan["pack_a"] * traffic.pack_a * m * k)
        by_rows_of_b = cell(select(b_mode == int(BMode.DIRECT), 1, 0))
        rows = as_int(traffic.pack_rows) * (1 + crowded)
        per_vector = select(by_rows_of_b > 0, rows, traffic.pack_columns)
        packs_b = plan["b_mode"] == int(BMode.PACKED)
        pack_b = cell(select(packs_b, per_vector * k * ceil_div(n, lanes), 0))
        work = cell(maximum(cost - pack_a - pack_b, 0))
        tile = cell(div(work, tiles * groups))
        streams = plan["b_mode"] == int(BMode.STREAM)
        by_memory = cell(select(tirx.all(streams, by_rows_of_b > 0), 1, 0))
        best = scratch(3, INT)
        best[2] = as_int(-1)

        def weigh(number: int, by_rows: bool) -> None:
            wanted = cell(ceil_div(workers * number, batch))
            sizes = (tiles, groups) if by_rows else (groups, tiles)
            first = cell(minimum(minimum(wanted, sizes[0]), MOST))
            second = cell(minimum(minimum(ceil_div(wanted, first), sizes[1]), MOST))
            splits_m, splits_n = (first, second) if by_rows else (second, first)
            more = div(pack_a, splits_m) + div(pack_b, splits_n)
            lines = select(splits_n > 1, div(as_int(SHARED_LINE) * m, splits_m), as_int(0))
            more = cell(more + traffic.launch // CHUNK_PART + lines)
            usual = div(work, splits_m * splits_n) + more
            largest_part = ceil_div(tiles, splits_m) * ceil_div(groups, splits_n)
            largest_chunk = cell(tile * largest_part + more)
            turns = ceil_div(splits_m * splits_n * batch, workers)
            late = div(largest_chunk, LATE_PART)
            price = cell((turns - 1) * usual + largest_chunk + late)
            price = cell(price + div(price, ROWS_PART)) if by_rows else price
            with when(tirx.any(best[2] < 0, price < best[2])):
                best[0], best[1], best[2] = splits_m, splits_n, price

        for number in CHUNKS:
            if number == CHUNKS[0]:
                weigh(number, False)
                weigh(number, True)
            else:
                with when(by_memory == 0):
                    weigh(number, False)
                    weigh(number, True)
        with when(best[2] + traffic.launch < cost * batch):
            chunks = best[0] * best[1] * batch
            shares = {"splits_m": best[0], "splits_n": best[1]}
            out[0] = encode({**plan, **shares, "workers": minimum(workers, chunks)})
