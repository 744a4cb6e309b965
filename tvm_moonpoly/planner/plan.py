"""A plan: the decisions that assemble one matrix product, and its form as one integer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum


class BMode(IntEnum):
    """Where the micro-kernels find B."""

    #: constant weights, packed in panels when the model was compiled
    PREPACKED = 0
    #: in place: rows of B are contiguous
    DIRECT = 1
    #: packed block by block during the call
    PACKED = 2
    #: in place, as it lies in memory, without micro-kernels: for one row, or a few
    STREAM = 3


#: How B may be read, by how it is stored: packed already, or by contiguous rows, or columns.
READINGS = {
    BMode.PREPACKED: (BMode.PREPACKED,),
    BMode.DIRECT: (BMode.DIRECT, BMode.PACKED, BMode.STREAM),
    BMode.PACKED: (BMode.PACKED, BMode.STREAM),
}

#: Each field of the encoded plan, lowest bits first: (bits, unit of the stored number).
FIELDS = {
    "nv": (3, 1),
    "mr": (4, 1),
    "tail_nv": (3, 1),
    "tail_mr": (4, 1),
    "pack_a": (1, 1),
    "b_mode": (2, 1),
    "kc": (9, 8),
    "mc": (8, 4),
    "nc": (10, 1),
    "splits_m": (6, 1),
    "splits_n": (6, 1),
    "workers": (7, 1),
}
assert sum(bits for bits, _ in FIELDS.values()) <= 63


def largest(name: str) -> int:
    """The largest number that the field ``name`` holds."""
    bits, unit = FIELDS[name]
    return ((1 << bits) - 1) * unit


@dataclass(frozen=True)
class Plan:
    """How ``C[m, n] = A @ B`` is cut and tiled.

    Columns are counted in panels (one vector wide). The plane is two regions: full groups of
    ``nv`` panels tiled by at most ``mr`` rows, then one group of ``tail_nv`` panels (0: none)
    tiled by at most ``tail_mr`` rows. Row tiles are balanced: they differ by at most one row.
    Blocks hold at most ``kc`` of the reduction, ``mc`` rows, ``nc`` groups (0: all).
    Rows are cut in ``splits_m`` parts and groups in ``splits_n``, which makes as many chunks of
    each batch entry as the two multiplied. ``workers`` threads take them from one another, 1: the
    calling thread computes all.
    """

    nv: int
    mr: int
    tail_nv: int
    tail_mr: int
    pack_a: bool
    b_mode: BMode
    kc: int = 0
    mc: int = 0
    nc: int = 0
    splits_m: int = 1
    splits_n: int = 1
    workers: int = 1

    def encode(self) -> int:
        """The plan as one int64.

        Raises ValueError when a field is no multiple of its unit or too large for its bits.
        """
        word, shift = 0, 0
        for name, (bits, unit) in FIELDS.items():
            value, rest = divmod(int(getattr(self, name)), unit)
            if rest or not 0 <= value < 1 << bits:
                raise ValueError(
                    f"{name}: {value * unit + rest} does not fit {bits} bits of {unit}"
                )
            word |= value << shift
            shift += bits
        return word

    @classmethod
    def decode(cls, word: int) -> Plan:
        """Inverse of `encode`."""
        values, shift = {}, 0
        for name, (bits, unit) in FIELDS.items():
            values[name] = (word >> shift & (1 << bits) - 1) * unit
            shift += bits
        pack_a, b_mode = bool(values.pop("pack_a")), BMode(values.pop("b_mode"))
        return cls(pack_a=pack_a, b_mode=b_mode, **values)


assert tuple(f.name for f in fields(Plan)) == tuple(FIELDS)
