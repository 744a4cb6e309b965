"""How a product is assembled, as data: the regions, the micro-kernels, the cost, the runners-up.

`explain` says the same as text (`explanation_text`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm.target import Target

from tvm_moonpoly.arguments import require, require_flags, size_or_none, sizes, target_of
from tvm_moonpoly.costmodel.tables import CostTable
from tvm_moonpoly.explanation_costs import parts
from tvm_moonpoly.logs import TuningLog
from tvm_moonpoly.machine import Machine, detect_target
from tvm_moonpoly.operators import described, supported
from tvm_moonpoly.operators.operator_library import costs
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode, Plan


@dataclass(frozen=True)
class Region:
    """Columns ``first`` to ``last`` of the output: ``groups`` groups of ``columns`` each, their
    rows in ``(number, height)`` tiles. ``kernel`` is the largest tile: 4x3v is 4 rows by 3
    vectors; none where B is streamed. ``partial``: the last columns, fewer than a vector, which
    are computed through a tile on the stack."""

    first: int
    last: int
    groups: int
    columns: int
    tiles: tuple[tuple[int, int], ...]
    kernel: str | None
    partial: bool = False


@dataclass(frozen=True)
class Explanation:
    """All that is known of how ``product`` is computed on ``machine``.

    ``ranked`` are all plans that were weighed, the cheapest first, for one core and one product;
    ``plan`` is the first of them, shared out over the machine's cores.
    """

    product: spec.Product
    machine: Machine
    log: TuningLog
    table: CostTable
    plan: Plan
    ranked: tuple[spec.Choice, ...]
    regions: tuple[Region, ...]

    @property
    def best(self) -> spec.Choice:
        return self.ranked[0]

    @property
    def gflops(self) -> float:
        """GFLOP/s of one product on one core, as predicted."""
        p = self.product
        return 2e3 * p.m * p.n * p.k / max(self.best.picoseconds, 1)

    def parts(self, choice: spec.Choice) -> dict[str, int]:
        """Picoseconds of ``choice`` by what they are spent on, the most first."""
        return dict(parts(self.product, choice, self.machine, self.table).most_common())

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in picoseconds on one core, sizes in elements."""
        product = self.product
        return {
            "m": product.m,
            "n": product.n,
            "k": product.k,
            "batch": product.batch,
            "constant_weights": product.b_mode == BMode.PREPACKED,
            **used_json(self.machine, self.log),
            "plan": plan_json(self.plan),
            "regions": [
                {
                    "columns": [region.first, region.last],
                    "groups": region.groups,
                    "columns_a_group": region.columns,
                    "row_tiles": [
                        {"number": number, "rows": rows} for number, rows in region.tiles
                    ],
                    "kernel": region.kernel,
                    "partial": region.partial,
                }
                for region in self.regions
            ],
            "predicted_ps": self.best.picoseconds,
            "predicted_gflops": round(self.gflops, 2),
            "spent_on": self.parts(self.best),
            "why": why(self),
            "ranked": [
                {"plan": plan_json(choice.plan), "predicted_ps": choice.picoseconds}
                for choice in self.ranked
            ],
        }


def explained(
    m: int,
    n: int,
    k: int,
    target: Target | dict[str, Any] | None = None,
    batch: int = 1,
    threads: int | None = None,
    constant_weights: bool = True,
) -> Explanation:
    """How ``batch`` products of (m, k) by (k, n) are assembled. See `explain`."""
    m, n, k, batch = sizes(m=m, n=n, k=k, batch=batch)
    threads = size_or_none("threads", threads)
    require_flags(constant_weights=constant_weights)
    if constant_weights and batch > 1:
        raise ValueError("batch: constant weights are for one product, so batch must be 1")
    machine, log, table = used(target, threads)
    mode = BMode.PREPACKED if constant_weights else BMode.DIRECT
    product = spec.Product(m, n, k, batch, mode)
    ranked = sorted(spec.candidates(product, machine, table), key=lambda c: c.picoseconds)
    plan = spec.plan(product, machine, table)
    regions = tuple(_regions(product, plan, machine.lanes))
    return Explanation(product, machine, log, table, plan, tuple(ranked), regions)


def used(
    target: Target | dict[str, Any] | None, threads: int | None
) -> tuple[Machine, TuningLog, CostTable]:
    """How ``target`` is used with so many threads. See `explain`."""
    target = detect_target() if target is None else target_of(target)
    reason = supported(target)
    if reason is not None:
        raise ValueError(f"target: {reason}")
    machine, log, table = described(target)
    if threads is not None:
        machine = replace(machine, cores=threads)
        table = costs(log, machine)
    return machine, log, table


def used_json(machine: Machine, log: TuningLog) -> dict[str, Any]:
    """The machine and the log as plain data."""
    return {
        "machine": {
            "mcpu": machine.mcpu,
            "isa": machine.isa,
            "lanes": machine.lanes,
            "threads": machine.cores,
        },
        "log": {"origin": log.origin, "mcpu": log.machine["mcpu"]},
    }


def explain(
    m: int,
    n: int,
    k: int,
    target: Target | dict[str, Any] | None = None,
    batch: int = 1,
    threads: int | None = None,
    constant_weights: bool = True,
    *,
    dtype: str = "float16",
    b_transposed: bool = False,
) -> str:
    """The plan for ``batch`` products of (m, k) by (k, n) as text, with its predicted cost.

    ``target`` is this machine's by default, ``threads`` the target's cores. ``constant_weights``
    says that B was packed at compile time; otherwise it changes from call to call. On a GPU, which
    knows neither, ``dtype`` of the operands is float16 or bfloat16, and ``b_transposed`` says that
    B is stored as (n, k).

    Raises ValueError for sizes below 1 and for targets without micro-kernels.
    """
    require_flags(b_transposed=b_transposed)
    require(dtype in ("float16", "bfloat16"), "dtype", "float16 or bfloat16", dtype)
    target = None if target is None else target_of(target)
    if target is not None and str(target.kind.name) == "cuda":
        from tvm_moonpoly import explanation_cuda

        return explanation_cuda.text(
            explanation_cuda.explained(m, n, k, target, batch, dtype, b_transposed)
        )
    from tvm_moonpoly.explanation_text import text

    return text(explained(m, n, k, target, batch, threads, constant_weights))


def why(explanation: Explanation) -> str:
    """Why the plan was chosen: one sentence."""
    first, *others = explanation.ranked
    if not others:
        return "there is no other plan for it"
    second = others[0]
    more = second.picoseconds / max(first.picoseconds, 1) - 1
    chosen = f"the cheapest of {len(explanation.ranked)} plans; the next one, {name(second.plan)}"
    if second.picoseconds == first.picoseconds:
        return f"{chosen}, costs the same and comes later"
    mine, its = explanation.parts(first), explanation.parts(second)
    differences = {part: its.get(part, 0) - mine.get(part, 0) for part in {**mine, **its}}
    part = max(differences, key=lambda each: (differences[each], each))
    return (
        f"{chosen}, costs {more:.1%} more, first of all for {part} "
        f"({differences[part] / 1e6:+.2f} us)"
    )


def name(plan: Plan) -> str:
    """A plan in a few characters: tiles, and what is special about it."""
    if plan.b_mode == BMode.STREAM:
        return "streaming"
    tiles = f"{plan.mr}x{plan.nv}v" + (f" + {plan.tail_mr}x{plan.tail_nv}v" * bool(plan.tail_nv))
    packed = [f"packed {matrix}" for matrix, is_packed in _packed(plan).items() if is_packed]
    blocks = [f"{name} {size}" for name, size in (("kc", plan.kc), ("mc", plan.mc)) if size]
    return ", ".join([tiles, *packed, *blocks])


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain data, 0 for blocks of all."""
    return {**vars(plan), "b_mode": plan.b_mode.name.lower()}


def _packed(plan: Plan) -> dict[str, bool]:
    return {"A": plan.pack_a, "B": plan.b_mode == BMode.PACKED}


def _regions(product: spec.Product, plan: Plan, lanes: int) -> list[Region]:
    m, n = product.m, product.n
    if plan.b_mode == BMode.STREAM:
        return [Region(0, n - 1, 1, n, ((m, 1),), None)]
    main = n // lanes - plan.tail_nv
    found = []
    if main:
        width = plan.nv * lanes
        kernel = f"{plan.mr}x{plan.nv}v"
        found.append(
            Region(0, main * lanes - 1, main // plan.nv, width, _tiles(m, plan.mr), kernel)
        )
    if plan.tail_nv:
        first, width = main * lanes, plan.tail_nv * lanes
        kernel = f"{plan.tail_mr}x{plan.tail_nv}v"
        found.append(Region(first, first + width - 1, 1, width, _tiles(m, plan.tail_mr), kernel))
    if n % lanes:
        found.append(Region(n - n % lanes, n - 1, 1, n % lanes, (), None, partial=True))
    return found


def _tiles(m: int, mr: int) -> tuple[tuple[int, int], ...]:
    small, large, tiles = spec.balanced(m, mr)
    found = [(large, small + 1), (tiles - large, small)]
    return tuple((number, rows) for number, rows in found if number)
