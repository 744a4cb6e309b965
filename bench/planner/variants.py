"""Other planners: the learned table with parts of it taken away, and a fixed rule.

All but the rule go through the planner itself with another cost table, so that they differ in
nothing but what they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import RESIDENCIES, TRIPS, Level, Residency, TaskCost
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form
from tvm_moonpoly.planner import counts, spec
from tvm_moonpoly.planner.groups import tail_form
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Choice, Product, ceil_div
from tvm_moonpoly.tuning.learning.lines import line_through

#: The planner as it is.
LEARNED = "learned"

#: Operands in the first cache.
_NEAREST = Residency(Level.L1, Level.L1)

#: What streaming costs: it has no micro-kernels that it could be told by.
_STREAMING = tuple(f.name for f in fields(Traffic) if f.name.startswith(("axpy_", "dot_")))


@dataclass(frozen=True)
class Variant:
    """``ranked(product)`` are its plans, the one that it chooses first; ``priced`` is the cost that
    it predicts, where it predicts any."""

    name: str
    about: str
    ranked: Callable[[Product], list[Choice]]
    priced: Callable[[Product, Plan], int] | None


def variants(machine: Machine, table: CostTable) -> list[Variant]:
    """The planner of ``table`` on ``machine``, and those it is compared to.

    ``table`` is the one for as many cores as ``machine`` has.
    """
    tables = {
        LEARNED: ("the planner as it is", table),
        "g alone": ("the tasks' costs with operands in L1; no traffic", g_alone(table)),
        "waves alone": ("tiles times the full tile at the FMA peak", waves_alone(table, machine)),
        "lines": (
            "straight lines in place of the learned curves, one a residency",
            straightened(table, [(each,) for each in RESIDENCIES]),
        ),
        "one line": (
            "one straight line a micro-kernel, wherever the operands lie",
            straightened(table, [RESIDENCIES]),
        ),
    }
    planners = [planner(name, about, machine, t) for name, (about, t) in tables.items()]

    def rule(product: Product) -> list[Choice]:
        plan = fixed_rule(product, machine, table)
        cost = counts.priced(product, plan, machine, table)
        return [Choice(spec.shared_out(plan, cost, product, machine, table), cost)]

    about = "one tile, packed from k >= 1024 and m >= 24 on with kc 512 and mc 240"
    return [*planners, Variant("fixed rule", about, rule, None)]


def planner(name: str, about: str, machine: Machine, table: CostTable) -> Variant:
    """The planner of ``table`` on ``machine``: all that it weighs, shared out over the cores. What
    it predicts is on one core."""

    def ranked(product: Product) -> list[Choice]:
        found = sorted(spec.candidates(product, machine, table), key=lambda c: c.picoseconds)
        return [
            Choice(spec.shared_out(c.plan, c.picoseconds, product, machine, table), c.picoseconds)
            for c in found
        ]

    def priced(product: Product, plan: Plan) -> int:
        one_core = counts.priced(product, plan, machine, table)
        return shared_cost(plan, one_core, product, table.traffic.launch)

    return Variant(name, about, ranked, priced)


def shared_cost(plan: Plan, picoseconds: int, product: Product, launch: int) -> int:
    """What ``plan`` takes by its workers, where it takes so many ``picoseconds`` on one core: as
    long as the worker with the most parts, and the launch. Of one of the product's batch entries.
    """
    if plan.workers == 1:
        return picoseconds
    parts = plan.splits_m * plan.splits_n * product.batch
    share = ceil_div(parts, plan.workers) / parts
    return round(picoseconds * share + launch / product.batch)


def g_alone(table: CostTable) -> CostTable:
    """Tasks cost what they do with all operands in the first cache; nothing else costs anything,
    but for streaming, which has no tasks."""

    def nearest(cost: TaskCost) -> TaskCost:
        return TaskCost(dict.fromkeys(RESIDENCIES, cost.knots[_NEAREST]))

    tasks = {record: nearest(cost) for record, cost in table.tasks.items()}
    return CostTable(tasks, _without_traffic(table.traffic))


def waves_alone(table: CostTable, machine: Machine) -> CostTable:
    """Every tile costs as much as the highest one of its width, at the FMA peak: what counts is
    the number of tiles, which is that of waves on one core."""
    flop = peak_picoseconds(table, machine)
    tasks = {}
    for record in table.tasks:
        tallest = max(table.heights(record.nv, record.form))
        step = 2 * tallest * record.nv * machine.lanes * flop
        tasks[record] = TaskCost.of(lambda _, k, step=step: step * k)  # type: ignore[misc]
    return CostTable(tasks, _without_traffic(table.traffic))


def peak_picoseconds(table: CostTable, machine: Machine) -> float:
    """Picoseconds of one floating-point operation in the fastest of all tasks."""
    return min(
        cost.knots[_NEAREST][-1] / (2 * record.mr * record.nv * machine.lanes * TRIPS[-1])
        for record, cost in table.tasks.items()
    )


def straightened(table: CostTable, groups: Iterable[Iterable[Residency]]) -> CostTable:
    """Each task's curves of a group of residencies replaced by one line ``start + step * k``, that
    of the least relative squares."""
    together = [tuple(group) for group in groups]
    tasks = {}
    for record, cost in table.tasks.items():
        lines = {each: line_of(cost.knots, group) for group in together for each in group}
        tasks[record] = TaskCost.of(
            lambda residency, k, lines=lines: lines[residency][0] + lines[residency][1] * k  # type: ignore[misc]
        )
    return CostTable(tasks, table.traffic)


def line_of(
    knots: Mapping[Residency, tuple[int, ...]], group: tuple[Residency, ...]
) -> tuple[float, float]:
    """The start and the step of the line through the knots of a group of residencies."""
    trips = [k for _ in group for k in TRIPS]
    return line_through(trips, [cost for each in group for cost in knots[each]])


def fixed_rule(product: Product, machine: Machine, table: CostTable) -> Plan:
    """A plan by thresholds, as a library has that was written for one kind of CPU.

    One row times an operand that is not packed is streamed. Otherwise the tile is always the
    `square_tile`, B that comes by rows is packed from 24 rows on, and products of m >= 24 and
    k >= 1024 go block by block through packed A, ``kc`` 512 and ``mc`` 240; through plain A where
    the table has no tile as good on packed A: the rule is not to look worse than it is.
    """
    m, k, panels = product.m, product.k, product.n // machine.lanes
    if product.b_mode != BMode.PREPACKED and m == 1:
        return Plan(1, 1, 0, 0, False, BMode.STREAM)
    packed_widths = table.widths(Form.PACKED_A)
    large = m >= 24 and k >= 1024 and panels >= max(packed_widths)
    mode = product.b_mode
    if mode == BMode.DIRECT and m >= 24:
        mode = BMode.PACKED
    tails = tail_form(mode)
    tiles = {form: square_tile(table, machine, form) for form in (Form.PACKED_A, tails)}
    packed, plain = (reuse(tiles[form], machine.lanes) for form in (Form.PACKED_A, tails))
    pack_a = large and packed >= plain
    form = Form.PACKED_A if pack_a else tails
    mr, nv = tiles[form]
    kc, mc = (512, 240) if large else (0, 0)
    depth = ceil_div(k, ceil_div(k, kc)) if kc else k
    nv = min(nv, max(panels, 1))
    # narrow tiles need not come as tall
    mr = min(mr, max(table.heights(nv, form)))
    tail = panels % nv
    nc, _ = spec.column_blocks(mode, panels // nv, nv, depth, machine)
    tail_mr = min(mr, max(table.heights(tail, tails))) if tail else 0
    return Plan(nv, mr, tail, tail_mr, pack_a, mode, kc, mc, nc)


def square_tile(table: CostTable, machine: Machine, form: Form) -> tuple[int, int]:
    """Rows and vectors of the tile that computes the most for each element that it loads."""
    tiles = ((record.mr, record.nv) for record in table.tasks if record.form == form)
    return max(tiles, key=lambda tile: reuse(tile, machine.lanes))


def reuse(tile: tuple[int, int], lanes: int) -> float:
    """Outputs of a tile, rows by vectors, for each element of A and B that a step of it loads."""
    rows, columns = tile[0], tile[1] * lanes
    return rows * columns / (rows + columns)


def _without_traffic(traffic: Traffic) -> Traffic:
    others = [f.name for f in fields(Traffic) if f.name not in _STREAMING]
    return replace(traffic, **dict.fromkeys(others, 0))
