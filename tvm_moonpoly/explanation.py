"""Say how a product is assembled: the regions, the micro-kernels, and the runners-up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from tvm.target import Target

from tvm_moonpoly.machine import detect_target
from tvm_moonpoly.operators import described, supported
from tvm_moonpoly.planner import spec
from tvm_moonpoly.planner.plan import BMode, Plan

_PLACES = {
    BMode.PREPACKED: "packed at compile time",
    BMode.DIRECT: "read in place",
    BMode.PACKED: "packed block by block during the call",
    BMode.STREAM: "streamed in place, without micro-kernels",
}


def explain(
    m: int,
    n: int,
    k: int,
    target: Target | dict[str, Any] | None = None,
    batch: int = 1,
    threads: int | None = None,
    constant_weights: bool = True,
) -> str:
    """The plan for ``batch`` products of (m, k) by (k, n) as text, with its predicted cost.

    ``target`` is this machine's by default, ``threads`` the target's cores. ``constant_weights``
    says that B was packed at compile time; otherwise it changes from call to call.

    Raises ValueError for sizes below 1 and for targets without micro-kernels.
    """
    for name, size in {"m": m, "n": n, "k": k, "batch": batch, "threads": threads}.items():
        if size is not None and (not isinstance(size, int) or size < 1):
            raise ValueError(f"{name}: must be a whole number of at least 1, not {size!r}")
    if constant_weights and batch > 1:
        raise ValueError("batch: constant weights are for one product, so batch must be 1")
    target = detect_target() if target is None else Target(target)
    reason = supported(target)
    if reason is not None:
        raise ValueError(f"target: {reason}")
    machine, log, table = described(target)
    if threads is not None:
        machine = replace(machine, cores=threads)
    mode = BMode.PREPACKED if constant_weights else BMode.DIRECT
    product = spec.Product(m, n, k, batch, mode)
    ranked = sorted(spec.candidates(product, machine, table), key=lambda c: c.picoseconds)
    plan = spec.plan(product, machine, table)
    best = spec.best(product, machine, table)
    work = 2 * m * n * k

    lines = [
        f"C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], fp32"
        + (f", {batch} products" if batch > 1 else "")
        + f", on {machine.mcpu} ({machine.isa}, {machine.lanes} lanes, {machine.cores} threads)",
        f"costs from the log of {log.machine.get('mcpu')} ({log.origin})",
        "",
        *_regions(product, plan, machine.lanes),
        f"B is {_PLACES[plan.b_mode]}; "
        f"A is {'packed in row tiles' if plan.pack_a else 'read in place'}",
        _blocks(plan),
        _threads(plan),
        f"predicted on one core: {best.picoseconds / 1e6:.2f} us, "
        f"{work / max(best.picoseconds, 1) * 1e3:.1f} GFLOP/s",
    ]
    return "\n".join(lines) + "\n\n" + _runners_up(ranked[:5])


def _regions(product: spec.Product, plan: Plan, lanes: int) -> list[str]:
    if plan.b_mode == BMode.STREAM:
        return ["one region: row by row of A, without tiles"]
    panels = product.n // lanes
    main = panels - plan.tail_nv
    regions = []
    if main:
        regions.append(
            f"region 1: columns 0..{main * lanes - 1}, {main // plan.nv} groups of "
            f"{plan.nv * lanes} columns, row tiles {_tiles(product.m, plan.mr)}"
        )
    if plan.tail_nv:
        regions.append(
            f"region 2: columns {main * lanes}..{panels * lanes - 1}, one group, "
            f"row tiles {_tiles(product.m, plan.tail_mr)}"
        )
    if product.n % lanes:
        regions.append(
            f"the last {product.n % lanes} columns: a partial panel, through a tile on the stack"
        )
    return regions


def _tiles(m: int, mr: int) -> str:
    small, large, tiles = spec.balanced(m, mr)
    parts = [f"{large} x {small + 1}"] if large else []
    return " + ".join([*parts, f"{tiles - large} x {small}"])


def _blocks(plan: Plan) -> str:
    sizes = {"k": plan.kc, "m": plan.mc, "groups": plan.nc}
    named = [f"{name} by {size}" for name, size in sizes.items() if size]
    return "blocks: " + (", ".join(named) if named else "none, everything in one pass")


def _threads(plan: Plan) -> str:
    if plan.workers == 1:
        return "threads: the calling one"
    return f"threads: {plan.workers}, rows in {plan.splits_m} parts and groups in {plan.splits_n}"


def _runners_up(ranked: list[spec.Choice]) -> str:
    table = Table("rank", "main tile", "tail tile", "A", "B", "kc", "mc", "predicted us")
    for i, choice in enumerate(ranked):
        p = choice.plan
        table.add_row(
            str(i + 1),
            f"{p.mr}x{p.nv}v",
            f"{p.tail_mr}x{p.tail_nv}v" if p.tail_nv else "-",
            "packed" if p.pack_a else "plain",
            p.b_mode.name.lower(),
            str(p.kc or "all"),
            str(p.mc or "all"),
            f"{choice.picoseconds / 1e6:.2f}",
        )
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
