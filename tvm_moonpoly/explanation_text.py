"""An explanation as text for people: lines, a drawing in ASCII, a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tvm_moonpoly.explanation import Explanation, Region, why
from tvm_moonpoly.planner.plan import BMode, Plan

#: Runners-up that are shown.
SHOWN = 5

#: Characters between the borders of the drawing, and lines.
_WIDTH, _HEIGHT = 72, 6

#: The narrowest that a region is drawn, so that its kernel can be read.
_NARROWEST = 10

_PLACES = {
    BMode.PREPACKED: "packed at compile time",
    BMode.DIRECT: "read in place",
    BMode.PACKED: "packed block by block during the call",
    BMode.STREAM: "streamed in place, without micro-kernels",
}


def text(found: Explanation, runners_up: bool = True) -> str:
    """All of it, with a drawing of the regions and a table of the ``runners_up``."""
    product, machine, log, plan = found.product, found.machine, found.log, found.plan
    m, n, k, batch = product.m, product.n, product.k, product.batch
    lines = [
        f"C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], fp32"
        + (f", {batch} products" if batch > 1 else "")
        + f", on {machine.mcpu} ({machine.isa}, {machine.lanes} lanes, {machine.cores} threads)",
        f"costs from the log of {log.machine['mcpu']} ({log.origin})",
        "",
        *drawing(found.regions, m),
        "",
        *(_region(i + 1, region) for i, region in enumerate(found.regions)),
        f"B is {_PLACES[plan.b_mode]}; "
        f"A is {'packed in row tiles' if plan.pack_a else 'read in place'}",
        _blocks(plan),
        _threads(plan),
        f"predicted on one core: {found.best.picoseconds / 1e6:.2f} us, {found.gflops:.1f} GFLOP/s",
        f"spent on: {_spent(found)}",
        f"chosen: {why(found)}",
    ]
    return "\n".join(lines) + ("\n\n" + _runners_up(found) if runners_up else "\n")


def drawing(regions: tuple[Region, ...], m: int) -> list[str]:
    """The output as a box: regions from left to right, in each its tiles from top to bottom.

    Roughly to scale; a region too narrow to be read is drawn wider.
    """
    widths = _widths([region.last - region.first + 1 for region in regions])
    columns = [
        _column(i + 1, region, m, width)
        for i, (region, width) in enumerate(zip(regions, widths, strict=True))
    ]
    border = "+" + "+".join("-" * width for width in widths) + "+"
    heads = [
        str(region.first).ljust(width + 1) for region, width in zip(regions, widths, strict=True)
    ]
    rows = [0, *[None] * (_HEIGHT - 2), m - 1]
    margin = max(len(str(m - 1)), 1)
    body = [
        f"{'' if row is None or (i and not row) else row:>{margin}} "
        + _joined([column[i] for column in columns])
        for i, row in enumerate(rows)
    ]
    pad = " " * (margin + 1)
    return [(pad + " " + "".join(heads)).rstrip(), pad + border, *body, pad + border]


def _joined(cells: list[str]) -> str:
    """Cells side by side; a horizontal line meets its borders with a cross."""
    line = "|"
    for i, cell in enumerate(cells):
        following = cells[i + 1] if i + 1 < len(cells) else ""
        crossed = cell.startswith("-") or following.startswith("-")
        line = ("+" + line[1:] if i == 0 and cell.startswith("-") else line) + cell
        line += "+" if crossed else "|"
    return line


def _widths(columns: list[int]) -> list[int]:
    """Characters for regions of so many columns: in proportion, none below the narrowest."""
    room = _WIDTH - (len(columns) - 1)
    spare = room - _NARROWEST * len(columns)
    shares = [_NARROWEST + spare * count // sum(columns) for count in columns]
    return [shares[0] + room - sum(shares), *shares[1:]]


def _column(number: int, region: Region, m: int, width: int) -> list[str]:
    """The lines of one region."""
    head = [f"region {number}"] if region.groups == 1 else [
        f"region {number}: {region.groups} x {region.columns}"
    ]  # fmt: skip
    if region.partial:
        boxes = [[*head, "partial"]]
    elif region.kernel is None:
        boxes = [[*head, "streamed"]]
    else:
        vectors = region.kernel.split("x")[1]
        boxes = [[f"{tiles} x {rows}x{vectors}"] for tiles, rows in region.tiles]
        boxes[0] = [*head, *boxes[0]]
    if len(boxes) == 1:
        lines = boxes[0] + [""] * (_HEIGHT - len(boxes[0]))
    else:
        number_of_tiles, rows = region.tiles[0]
        above = min(max(_HEIGHT * number_of_tiles * rows // m, 2), _HEIGHT - 2)
        lines = boxes[0] + [""] * (above - 2) + ["-" * width] + boxes[1]
        lines += [""] * (_HEIGHT - len(lines))
    return [line if line.startswith("-") else f" {line}"[:width].ljust(width) for line in lines]


def _region(number: int, region: Region) -> str:
    if region.partial:
        return f"the last {region.columns} columns: a partial panel, through a tile on the stack"
    if region.kernel is None:
        return "one region: row by row of A, without tiles"
    groups = (
        "one group"
        if number > 1 and region.groups == 1
        else f"{region.groups} groups of {region.columns} columns"
    )
    tiles = " + ".join(f"{count} x {rows}" for count, rows in region.tiles)
    return f"region {number}: columns {region.first}..{region.last}, {groups}, row tiles {tiles}"


def _blocks(plan: Plan) -> str:
    sizes = {"k": plan.kc, "m": plan.mc, "groups": plan.nc}
    named = [f"{name} by {size}" for name, size in sizes.items() if size]
    return "blocks: " + (", ".join(named) if named else "none, everything in one pass")


def _threads(plan: Plan) -> str:
    if plan.workers == 1:
        return "threads: the calling one"
    return f"threads: {plan.workers}, rows in {plan.splits_m} parts and groups in {plan.splits_n}"


def _spent(found: Explanation) -> str:
    spent = found.parts(found.best)
    total = max(sum(spent.values()), 1)
    return ", ".join(f"{part} {picoseconds / total:.0%}" for part, picoseconds in spent.items())


def _runners_up(found: Explanation) -> str:
    table = Table("rank", "main tile", "tail tile", "A", "B", "kc", "mc", "predicted us")
    for i, choice in enumerate(found.ranked[:SHOWN]):
        table.add_row(str(i + 1), *cells(choice.plan), f"{choice.picoseconds / 1e6:.2f}")
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def cells(plan: Plan) -> list[str]:
    """A plan in a row of a table: main tile, tail tile, A, B, kc, mc."""
    return [
        f"{plan.mr}x{plan.nv}v",
        f"{plan.tail_mr}x{plan.tail_nv}v" if plan.tail_nv else "-",
        "packed" if plan.pack_a else "plain",
        plan.b_mode.name.lower(),
        str(plan.kc or "all"),
        str(plan.mc or "all"),
    ]
