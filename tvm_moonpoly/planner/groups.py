"""What one group of panels costs: the blocks of a product, the caches, the tiles.

Their twins in native code are in `native_groups`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tvm_moonpoly.costmodel.tables import CostTable, Traffic
from tvm_moonpoly.costmodel.tasks import Level, Residency
from tvm_moonpoly.machine import Machine
from tvm_moonpoly.microkernels.records import Form, looks_ahead
from tvm_moonpoly.planner.plan import BMode

#: Reading crowded columns of B in place costs half a ``pack_rows`` a vector more, up to this many
#: tiles of `CROWDED_ROWS` rows; with more, a whole one for each but the first, whatever the plan's
#: tiles are.
CROWDED_TILES, CROWDED_ROWS = 2, 4

#: Bytes apart at which rows meet in the same places of a first-level cache: the size of a page on
#: x86, whatever the cache's size, as it is looked up before the page is known.
PERIOD = 4096

#: Lines that one place of a first-level cache holds at least, and of most second-level caches.
WAYS = 8

#: Where tiles look ahead: how much of what the second-level cache saves over where B lies the first
#: tile of a group saves, in eighths, with as many tiles as panels and with fewer. Measured on
#: products of 2 to 32 rows with 2 to 85 MB of weights: by these, choices are 1.5 % slower than the
#: best in the mean; 2.9 % if it saved all, 3.6 % if nothing.
FETCHED_ALL, FETCHED_SOME, EIGHTHS = 5, 3, 8

#: Eighths of the third-level cache that rows of A may fill, and stay there: 12 MB stayed in 32 MiB,
#: 15 MB did not.
A_EIGHTHS = 3

#: Added to the way in which B is stored where its rows are crowded.
CROWDED = 4


@dataclass(frozen=True)
class Product:
    """The shape at hand: ``batch`` products of (m, k) by (k, n).

    ``b_mode`` PREPACKED: B is a packed constant. DIRECT: rows of B are contiguous, so it may be
    read in place or packed. PACKED: its columns are contiguous and it must be packed. ``b_row`` is
    how many floats rows of B are apart, 0 where nothing lies between them.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    b_mode: BMode = BMode.PREPACKED
    b_row: int = 0

    @property
    def crowded(self) -> bool:
        """Whether rows of B push each other out of the first-level cache.

        They do where there are more than a place of it holds and they are multiples of `PERIOD`
        apart: all of the same column then belong in that place.
        """
        apart = (self.b_row or self.n) * 4
        return self.b_mode == BMode.DIRECT and self.k > WAYS and not apart % PERIOD

    @property
    def stored(self) -> int:
        """How B is stored, as the native planner is told: ``b_mode``, and `CROWDED` if it is."""
        return int(self.b_mode) + CROWDED * self.crowded


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def balanced(rows: int, tallest: int) -> tuple[int, int, int]:
    """``rows`` in tiles of at most ``tallest``, one row apart: (small, large, tiles).

    ``large`` of the ``tiles`` have ``small + 1`` rows and come first, the others ``small``.
    """
    tiles = ceil_div(rows, tallest)
    small = rows // tiles
    return small, rows - small * tiles, tiles


class Blocks(NamedTuple):
    """The blocks of a product: how many there are, the steps and the rows of the largest."""

    k_blocks: int
    m_blocks: int
    depth: int
    rows: int


def blocks_of(product: Product, kc: int, mc: int) -> Blocks:
    """Blocks of at most ``kc`` steps and ``mc`` rows (0: all), all of about one size."""
    k_blocks = max(ceil_div(product.k, kc), 1) if kc else 1
    m_blocks = ceil_div(product.m, mc) if mc else 1
    return Blocks(k_blocks, m_blocks, ceil_div(product.k, k_blocks), ceil_div(product.m, m_blocks))


def level(size: int, machine: Machine) -> Level:
    """Where ``size`` bytes are found again: in a cache of which they fill half at most."""
    for found, cache in (
        (Level.L1, machine.l1_bytes),
        (Level.L2, machine.l2_bytes),
        (Level.L3, machine.l3_bytes),
    ):
        if size <= cache // 2:
            return found
    return Level.MEMORY


class Sources(NamedTuple):
    """Where the operands of a group's tiles come from.

    Columns of B come from ``far`` for the first tile in the first block of rows, from ``again`` for
    the first in the others, and from `near` for all other tiles; rows of A always from ``a``.
    """

    a: Level
    far: Level
    again: Level


def sources(product: Product, mode: BMode, blocks: Blocks, machine: Machine) -> Sources:
    """`Sources` of a product's blocks, where B is read in ``mode``."""
    n = product.n
    far = level(n * product.k * 4, machine)
    if mode == BMode.PACKED:
        far = min(far, Level.L2)  # packing has brought it there
    again = min(far, level(n * blocks.depth * 4, machine))
    a = min(level(blocks.rows * blocks.depth * 4, machine), Level.L3)
    return Sources(a, far, again)


def near(nv: int, depth: int, far: Level, machine: Machine) -> Level:
    """Where a group's columns of B are after its first tile."""
    return min(far, level(nv * machine.lanes * depth * 4, machine))


def in_place(product: Product, machine: Machine, traffic: Traffic) -> int:
    """Picoseconds of reading B in place."""
    vectors = product.n // machine.lanes * product.k
    return traffic.b_direct * vectors + traffic.pack_rows * b_anew(product, vectors)


def b_anew(product: Product, vectors: int) -> int:
    """How many vectors of B are brought at the price of packing them, because they are crowded."""
    tiles = ceil_div(product.m, CROWDED_ROWS)
    halves = 2 * (tiles - 1) if tiles > CROWDED_TILES else 1
    return vectors * halves * product.crowded // 2


def packing(product: Product, machine: Machine, traffic: Traffic) -> int:
    """Picoseconds of packing B: rows that are crowded arrive half as fast."""
    rows = traffic.pack_rows * (1 + product.crowded)
    per_vector = rows if product.b_mode == BMode.DIRECT else traffic.pack_columns
    return per_vector * product.k * ceil_div(product.n, machine.lanes)


def kept_bytes(machine: Machine) -> int:
    """The most that a block's rows of A may take and stay in the third-level cache."""
    return machine.l3_bytes * A_EIGHTHS // EIGHTHS


def a_again(product: Product, blocks: Blocks, groups: int, machine: Machine) -> int:
    """Vectors of A that come from memory again: all of them for each group of panels after the
    first, where the rows of a block do not stay in the third-level cache.

    They leave it before they fill it, as what is read of B and written to C is there as well.
    """
    if blocks.rows * blocks.depth * 4 <= kept_bytes(machine):
        return 0
    return product.m * product.k // machine.lanes * (groups - 1)


def main_form(pack_a: bool, mode: BMode) -> Form:
    """The micro-kernels of the main region."""
    return Form.PACKED_A if pack_a else tail_form(mode)


def tail_form(mode: BMode) -> Form:
    """The micro-kernels of the tail region, which has no packed A."""
    return Form.IN_PLACE_B if mode == BMode.DIRECT else Form.PLAIN


def tallest(
    nv: int, form: Form, blocks: Blocks, found: Sources, machine: Machine, table: CostTable
) -> tuple[int, int]:
    """The cheapest height for one group of ``nv`` panels, the first of equals: (cost, height)."""
    return min(
        (group_cost(mr, nv, form, blocks, found, machine, table), mr)
        for mr in tried_heights(nv, form, table)
    )


def tried_heights(nv: int, form: Form, table: CostTable) -> list[int]:
    """The upper half of the heights: of lower tiles, two can be one."""
    heights = table.heights(nv, form)
    return [mr for mr in heights if 2 * mr > heights[-1]]


def brought(b: Level, near_b: Level) -> Level:
    """From where a tile gets columns of B that were fetched ahead into the second-level cache."""
    return max(near_b, min(b, Level.L2))


def fetched_share(first: int, tiles: int, nv: int, form: Form) -> int:
    """How much is saved by looking ahead, in `EIGHTHS`, where the first of ``tiles`` has ``first``
    rows: each fetches one of the next group's ``nv`` panels."""
    if not looks_ahead(first, nv, form):
        return 0
    return FETCHED_ALL if tiles >= nv else FETCHED_SOME


def arriving(far: int, fetched: int, share: int) -> int:
    """What a task costs that saves ``share`` of the difference between ``far``, its cost with
    columns of B from where they are, and ``fetched``, with all of them brought ahead of time."""
    return ((EIGHTHS - share) * far + share * fetched) // EIGHTHS


def group_cost(
    mr: int,
    nv: int,
    form: Form,
    blocks: Blocks,
    found: Sources,
    machine: Machine,
    table: CostTable,
) -> int:
    """Picoseconds of one group of panels, over all rows and the whole reduction.

    Tiles of at most ``mr`` rows are balanced: ``ceil(rows / mr)`` of them, one row apart.
    """
    near_b = near(nv, blocks.depth, found.far, machine)

    def task(height: int, b: Level) -> int:
        return table.task(height, nv, form).at(Residency(found.a, b), blocks.depth)

    small, large, tiles = balanced(blocks.rows, mr)
    first = small + 1 if large else small
    share = fetched_share(first, tiles, nv, form)
    count = blocks.k_blocks * blocks.m_blocks
    cost = count * (tiles - large) * task(small, near_b)
    if large:
        cost += count * large * task(small + 1, near_b)

    def extra(b: Level) -> int:
        """What the first tile costs more than the others, with columns of B from ``b``."""
        fetched = task(first, brought(b, near_b))
        return arriving(task(first, b), fetched, share) - task(first, near_b)

    cost += blocks.k_blocks * extra(found.far)
    if blocks.m_blocks > 1:
        cost += blocks.k_blocks * (blocks.m_blocks - 1) * extra(found.again)
    return cost + count * (table.traffic.tile * tiles + table.traffic.group)
