"""Records of GEMM micro-kernels: a tile, the form of its operands, and the schedule's decisions.

Data only: a record that came from outside is checked here before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

FAMILY = "cpu_gemm_f32"

#: Rows, and vectors of columns, of the largest tile: no register file holds half of that, and a
#: foreign record cannot grow code without end.
_LARGEST = 16

#: The decisions of the family's schedule and what each may be, in the order in which they are
#: sampled. What a missing decision stands for comes first.
DECISIONS: dict[str, tuple[int, ...]] = {
    # rows of one vector of columns that are computed before the next vector: a divisor of mr;
    # 1 is row by row, mr is column by column
    "row_block": tuple(range(1, _LARGEST + 1)),
    # steps of the reduction that are written out in one iteration, for each of the partial sums
    "unroll": (1, 2, 4, 8),
    # partial sums of each output, added up at the end: more of them hide the latency of an addition
    "sums": (1, 2, 4),
    # how many steps ahead rows of packed B are prefetched; 0: not at all. Of B in place the next
    # columns are, whatever the number
    "prefetch_b": (0, 16, 64, 256),
    # whether the lines of C are prefetched before the reduction
    "prefetch_c": (0, 1),
}

#: What each decision is called in a kernel's symbol.
_LETTERS = {"row_block": "r", "unroll": "u", "sums": "s", "prefetch_b": "b", "prefetch_c": "c"}


class Form(Enum):
    """Where a micro-kernel finds its operands, in words."""

    PLAIN = "plain A, packed B"
    PACKED_A = "packed A and B"
    IN_PLACE_B = "plain A, B in place"


@dataclass(frozen=True)
class Record:
    """One member of the family.

    ``mr`` rows by ``nv`` vectors of columns; ``packed_a`` says that A comes as ``[k][mr]``
    instead of rows with a stride, ``in_place_b`` that rows of B are as far apart as it is told
    instead of one vector (a distance known when compiling saves registers). ``decisions`` names a
    choice for each entry of `DECISIONS`; one that is missing is the first choice, and the first
    choice is left out, so that equal kernels have equal records.

    Raises ValueError for a tile or a decision that the family does not have.
    """

    mr: int
    nv: int
    packed_a: bool = False
    in_place_b: bool = False
    decisions: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mr < 1 or self.nv < 1:
            raise ValueError(f"record: tile {self.mr}x{self.nv} must be at least 1x1")
        if self.packed_a and self.in_place_b:
            raise ValueError("record: where A is packed, B is packed as well")
        if self.mr > _LARGEST or self.nv > _LARGEST:
            raise ValueError(
                f"record: tile {self.mr}x{self.nv} must be at most {_LARGEST}x{_LARGEST}"
            )
        possible = choices(self.mr)
        for name, choice in self.decisions.items():
            if name not in possible:
                raise ValueError(f"decisions: {name!r} is none of {', '.join(possible)}")
            # True and 1.0 equal 1, but are not what the schedule samples
            if type(choice) is not int or choice not in possible[name]:
                raise ValueError(
                    f"decisions: {name}={choice!r} is none of {possible[name]} for {self.mr} rows"
                )
        chosen = {n: self.decisions[n] for n in possible if n in self.decisions}
        if self.in_place_b and chosen.get("prefetch_b"):
            # of B in place the next columns are fetched, however many steps that says
            chosen["prefetch_b"] = possible["prefetch_b"][1]
        kept = {n: choice for n, choice in chosen.items() if choice != possible[n][0]}
        object.__setattr__(self, "decisions", kept)

    def __hash__(self) -> int:
        form = (self.mr, self.nv, self.packed_a, self.in_place_b)
        return hash((*form, tuple(self.decisions.items())))

    @property
    def form(self) -> Form:
        """Where its operands lie."""
        if self.packed_a:
            return Form.PACKED_A
        return Form.IN_PLACE_B if self.in_place_b else Form.PLAIN

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        form = ("p" if self.packed_a else "") + ("d" if self.in_place_b else "")
        chosen = [f"{_LETTERS[name]}{choice}" for name, choice in self.decisions.items()]
        return "_".join([f"moonpoly_gemm_{self.mr}x{self.nv}{form}", *chosen])

    def decision(self, name: str) -> int:
        """What is chosen for the decision ``name``."""
        return self.decisions.get(name, DECISIONS[name][0])

    def to_json(self) -> dict[str, Any]:
        return {
            "family": FAMILY,
            "mr": self.mr,
            "nv": self.nv,
            "packed_a": self.packed_a,
            "in_place_b": self.in_place_b,
            "decisions": dict(self.decisions),
        }

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """Inverse of `to_json`; raises ValueError on anything that is no record of this family."""
        if not isinstance(data, Mapping):
            raise ValueError(f"record: must be an object, not {data!r}")
        if data.get("family") != FAMILY:
            raise ValueError(f"record: family {data.get('family')!r} is not {FAMILY!r}")
        for name, kind in _FIELDS.items():
            if name not in data:
                raise ValueError(f"record: {name} is missing in {dict(data)!r}")
            if type(data[name]) is not kind:
                raise ValueError(f"record: {name} must be {kind.__name__}, not {data[name]!r}")
        return cls(**{name: data[name] for name in _FIELDS})


_FIELDS = {"mr": int, "nv": int, "packed_a": bool, "in_place_b": bool, "decisions": dict}


def choices(mr: int) -> dict[str, tuple[int, ...]]:
    """What each decision may be for a tile of ``mr`` rows."""
    divisors = tuple(rows for rows in DECISIONS["row_block"] if mr % rows == 0)
    return {**DECISIONS, "row_block": divisors}


#: Floats of the tile on the stack that the partial panel goes through.
_EDGE_TILE = 240


def looks_ahead(mr: int, nv: int, form: Form) -> bool:
    """Whether a micro-kernel prefetches a panel of the next group while it computes.

    Small tiles wait for memory themselves, and rows of B in place have no next panel of their own.
    """
    return form != Form.IN_PLACE_B and mr >= 3 and nv >= 2


def edge_height(records: Iterable[Record], lanes: int) -> int:
    """Rows of the tiles in which the partial panel of fewer than ``lanes`` columns is computed."""
    tallest = max(r.mr for r in records if r.nv == 1 and r.form == Form.PLAIN)
    return min(tallest, _EDGE_TILE // lanes)
