"""How a product is assembled on a GPU, as data and as text: regions, waves, cost, runners-up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from tvm.target import Target

from tvm_moonpoly.arguments import sizes
from tvm_moonpoly.costmodel.cuda import BlockCost
from tvm_moonpoly.logs import TuningLog
from tvm_moonpoly.microkernels.cuda import CudaTile, Form, Gpu, products
from tvm_moonpoly.operators.cuda.assemblies import assembled, log_of_product
from tvm_moonpoly.operators.cuda.assembly import Assembly
from tvm_moonpoly.planner.cuda import spec
from tvm_moonpoly.planner.groups import ceil_div

#: Runners-up that are shown.
SHOWN = 5

NOT_MEASURED = "computed, not measured"


@dataclass(frozen=True)
class Region:
    """A part of the result, and how its blocks go over the GPU.

    ``blocks`` of its tile, ``held`` of them at once; ``full`` waves of that many, and one more of
    ``rest`` where that is not 0. ``picoseconds`` without the launch.
    """

    tile: CudaTile
    row: int
    column: int
    rows: int
    columns: int
    blocks: int
    held: int
    picoseconds: int

    @property
    def full(self) -> int:
        return self.blocks // self.held

    @property
    def rest(self) -> int:
        return self.blocks % self.held


@dataclass(frozen=True)
class CudaExplanation:
    """All that is known of how ``product`` is computed on ``gpu``.

    ``ranked`` are all plans that were weighed, the cheapest first. The GPU of the log may be
    another one of the same compute capability. ``measured_launch``: whether a launch was timed.
    """

    product: spec.Product
    gpu: Gpu
    log: TuningLog
    assembly: Assembly
    measured_launch: bool
    ranked: tuple[spec.Choice, ...]

    @property
    def form(self) -> Form:
        return self.assembly.form

    @property
    def best(self) -> spec.Choice:
        return self.ranked[0]

    @property
    def status(self) -> str:
        """What predictions are made of; they are none themselves that were measured."""
        return "by measured costs" if self.assembly.table.measured else NOT_MEASURED

    @property
    def tflops(self) -> float:
        """TFLOP/s as predicted."""
        p = self.product
        return 2.0 * p.batch * p.m * p.n * p.k / max(self.best.picoseconds, 1)

    def regions(self, choice: spec.Choice) -> tuple[Region, ...]:
        """The regions of a plan, in the order of their launches."""
        product, table = self.product, self.assembly.table
        found = []
        for each in spec.regions(choice.plan, product):
            kernel = table.kernels[each.kernel]
            part = spec.Product(each.rows, each.columns, product.k, product.batch)
            picoseconds = spec.single(each.kernel, part, table) - table.launch
            blocks = _blocks(part, kernel)
            held = kernel.resident * table.multiprocessors
            tile = self.assembly.tiles[each.kernel]
            found.append(Region(tile, each.row, each.column, each.rows, each.columns, blocks, held,
                                picoseconds))  # fmt: skip
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Plain data; times in picoseconds, sizes in elements."""
        product = self.product
        return {
            "m": product.m,
            "n": product.n,
            "k": product.k,
            "batch": product.batch,
            "dtype": self.form.dtype_in,
            "b_transposed": self.form.b_transposed,
            "aligned": self.form.aligned,
            "gpu": {
                "name": self.gpu.name,
                "arch": self.gpu.arch,
                "multiprocessors": self.assembly.table.multiprocessors,
            },
            "log": {"origin": self.log.origin, "gpu": self.log.machine_name},
            "measured": self.assembly.table.measured,
            "launch_ps": self.assembly.table.launch,
            "measured_launch": self.measured_launch,
            "regions": [
                {**asdict(region), "tile": region.tile.name, "waves": waves(region)}
                for region in self.regions(self.best)
            ],
            "predicted_ps": self.best.picoseconds,
            "predicted_tflops": round(self.tflops, 2),
            "why": why(self),
            "ranked": [
                {"plan": name(self, choice), "predicted_ps": choice.picoseconds}
                for choice in self.ranked
            ],
        }


def explained(
    m: int,
    n: int,
    k: int,
    target: Target,
    batch: int = 1,
    dtype: str = "float16",
    b_transposed: bool = False,
) -> CudaExplanation:
    """How ``batch`` products of (m, k) by (k, n), of contiguous tensors, are assembled.

    Raises ValueError for sizes below 1 and for targets without micro-kernels.
    """
    m, n, k, batch = sizes(m=m, n=n, k=k, batch=batch)
    try:
        log, contents = log_of_product(target, dtype, dtype, b_transposed)
    except LookupError as error:
        raise ValueError(f"target: {error}") from None
    found = assembled(contents, dtype, dtype, b_transposed)
    assembly = next(each for each in found if each.suits(n, k))
    product = spec.Product(m, n, k, batch)
    ranked = sorted(spec.candidates(product, assembly.table), key=lambda c: c.picoseconds)
    gpu, timed = products(target)[0], contents.measured_launch
    return CudaExplanation(product, gpu, log, assembly, timed, tuple(ranked))


def _blocks(product: spec.Product, kernel: BlockCost) -> int:
    down = ceil_div(product.m, kernel.block_m)
    return down * ceil_div(product.n, kernel.block_n) * product.batch


def waves(region: Region) -> str:
    """How its blocks go over the GPU, in words."""
    if not region.full:
        return f"{region.rest} of {region.held} blocks that fit"
    full = f"{region.full} full {'wave' if region.full == 1 else 'waves'} of {region.held} blocks"
    return f"{full} and {region.rest} more" if region.rest else full


def name(found: CudaExplanation, choice: spec.Choice) -> str:
    """A plan in a few characters: its tiles, and where the result is cut."""
    plan = choice.plan
    first = _tile(found.assembly.tiles[plan.first])
    if plan.axis == spec.Axis.NONE:
        return first
    where = "row" if plan.axis == spec.Axis.ROWS else "column"
    return f"{first} to {where} {plan.cut}, {_tile(found.assembly.tiles[plan.second])}"


def _tile(tile: CudaTile) -> str:
    sizes = f"{tile.block_m}x{tile.block_n}x{tile.block_k}"
    warps = f"{tile.warps_m}x{tile.warps_n} warps"
    return f"{sizes} ({warps}, {tile.stages} stages, {tile.epilogue})"


def why(found: CudaExplanation) -> str:
    """Why the plan was chosen: one sentence."""
    first, *others = found.ranked
    if not others:
        return "there is no other plan for it"
    more = others[0].picoseconds / max(first.picoseconds, 1) - 1
    chosen = f"the cheapest of {len(found.ranked)} plans; the next one, {name(found, others[0])}"
    if others[0].picoseconds == first.picoseconds:
        return f"{chosen}, costs the same and comes later"
    return f"{chosen}, costs {more:.1%} more"


def text(found: CudaExplanation, runners_up: bool = True) -> str:
    """All of it for people, with a table of the ``runners_up``."""
    product, form, table = found.product, found.form, found.assembly.table
    m, n, k, batch = product.m, product.n, product.k, product.batch
    regions = found.regions(found.best)
    layout = f"B stored as ({n}, {k})" if form.b_transposed else f"B stored as ({k}, {n})"
    copied = "16 bytes at a time" if form.aligned else "one element at a time: rows are not aligned"
    peak = found.tflops / found.gpu.peak_tflops
    lines = [
        f"C[{m}, {n}] = A[{m}, {k}] @ B[{k}, {n}], {form.dtype_in}, {layout}"
        + (f", {batch} products" if batch > 1 else "")
        + f", on {found.gpu.name} ({found.gpu.arch}, {table.multiprocessors} multiprocessors)",
        f"costs from the log of {found.log.machine_name} ({found.log.origin}): "
        + ("measured" if table.measured else NOT_MEASURED),
        f"operands are copied {copied}",
        "",
        *(_region(i + 1, region) for i, region in enumerate(regions)),
        f"launches: {len(regions)}, {table.launch / 1e6:.2f} us each"
        + ("" if found.measured_launch else f" ({NOT_MEASURED})"),
        f"predicted: {found.best.picoseconds / 1e6:.2f} us, {found.tflops:.1f} TFLOP/s, "
        f"{peak:.0%} of the peak ({found.status})",
        f"chosen: {why(found)}",
    ]
    return "\n".join(lines) + ("\n\n" + _runners_up(found) if runners_up else "\n")


def _region(number: int, region: Region) -> str:
    rows = f"rows {region.row}..{region.row + region.rows - 1}"
    columns = f"columns {region.column}..{region.column + region.columns - 1}"
    return (
        f"region {number}: {rows}, {columns}, by {_tile(region.tile)}: {waves(region)}, "
        f"{region.picoseconds / 1e6:.2f} us"
    )


def _runners_up(found: CudaExplanation) -> str:
    table = Table("rank", "plan", "waves", f"us, {found.status}")
    for i, choice in enumerate(found.ranked[:SHOWN]):
        over = "; ".join(waves(region) for region in found.regions(choice))
        table.add_row(str(i + 1), name(found, choice), over, f"{choice.picoseconds / 1e6:.2f}")
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
