"""Plans as integers, natively: the twins of `Plan.encode` and `Plan.decode`."""

from __future__ import annotations

from tvm import tirx

from tvm_moonpoly.emit import Expr, as_int, cell, div
from tvm_moonpoly.planner.plan import FIELDS


def encode(fields: dict[str, Expr]) -> Expr:
    """The twin of `Plan.encode`."""
    word, shift = as_int(0), 0
    for name, (bits, unit) in FIELDS.items():
        value = fields[name] if unit == 1 else div(fields[name], unit)
        word = tirx.bitwise_or(word, tirx.shift_left(value, as_int(shift)))
        shift += bits
    return cell(word)


def decode(word: Expr) -> dict[str, Expr]:
    """The twin of `Plan.decode`."""
    word = cell(word)
    fields, shift = {}, 0
    for name, (bits, unit) in FIELDS.items():
        moved = tirx.shift_right(word, as_int(shift))
        fields[name] = cell(tirx.bitwise_and(moved, as_int((1 << bits) - 1)) * unit)
        shift += bits
    return fields
