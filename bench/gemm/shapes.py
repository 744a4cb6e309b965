"""One case of the bench: which product, how its right operand comes, what is done to the result.

Which cases are measured is told in ``bench.gemm.cases``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

TINY_FLOPS = 1_000_000
CHAIN = 32  # products of a case of the workload "chain"
WORKLOADS = ("linear", "dynamic", "row", "attention", "fused", "stream", "chain")
EPILOGUES = ("none", "bias_gelu", "bias_residual")
SOURCES = ("list", "random")
CLASSES = (
    "tiny",
    "m=1",
    "m=2..4",
    "m=5..17",
    "m=18..100",
    "m=101..512",
    "m>512",
    "attention",
)


@dataclass(frozen=True)
class Shape:
    """One product: (batch, m, k) times (batch, k, n) in float32.

    ``constant`` says that the right operand is a constant weight, which every candidate may prepare
    beforehand; otherwise it is new at each call, always so with a batch above 1. ``transposed``: a
    right operand that is new is stored as (batch, n, k), as the keys of attention are.
    ``row_stride`` is how many elements its stored rows are apart, None when they are adjacent.

    ``workload`` is one of ``WORKLOADS``, "linear" with a batch above 1 becomes "attention". A
    "chain" multiplies (m, k) by ``CHAIN`` different (k, k) weights, one after the other.
    ``epilogue`` is one of ``EPILOGUES``: gelu(product + bias), or product + bias + residual.
    ``source`` tells a case of the list from one that was drawn at random.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layer: str = ""
    transposed: bool = False
    workload: str = "linear"
    constant: bool = True
    row_stride: int | None = None
    epilogue: str = "none"
    source: str = "list"

    def __post_init__(self) -> None:
        if self.batch > 1:
            object.__setattr__(self, "constant", False)
            if self.workload == "linear":
                object.__setattr__(self, "workload", "attention")
        for name, known in (("workload", WORKLOADS), ("epilogue", EPILOGUES), ("source", SOURCES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {self}")
        if self.workload == "chain" and self.n != self.k:
            raise ValueError(f"a chain needs square weights, n = k, got {self}")
        if self.row_stride is not None and (
            self.dynamic is False or self.batch > 1 or self.row_stride < self.row_length
        ):
            raise ValueError(
                "row_stride belongs to a single right operand that is new at each call and must "
                f"be at least its row's length, got {self}"
            )

    @property
    def dynamic(self) -> bool:
        """Whether both operands come at the call."""
        return not self.constant

    @property
    def row_length(self) -> int:
        """Elements of a row of the right operand as it is stored."""
        return self.k if self.transposed else self.n

    @property
    def products(self) -> int:
        """How many products one call computes one after the other."""
        return CHAIN if self.workload == "chain" else 1

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiplication and an addition counted as two."""
        return 2 * self.m * self.n * self.k * self.batch * self.products

    @property
    def right_bytes(self) -> int:
        """Bytes of all right operands."""
        return 4 * self.n * self.k * self.batch * self.products

    @property
    def group(self) -> str:
        """The class by size under which the shape is summed up, one of ``CLASSES``.

        "tiny" is work below 1 MFLOP, where a call takes so little time that a library's own
        overhead from Python decides (1 us for numpy up to 15 us for oneDNN through torch).
        """
        if self.batch > 1:
            return "attention"
        if self.flops < TINY_FLOPS:
            return "tiny"
        for limit, name in ((1, "m=1"), (4, "m=2..4"), (17, "m=5..17"), (100, "m=18..100")):
            if self.m <= limit:
                return name
        return "m=101..512" if self.m <= 512 else "m>512"

    @property
    def key(self) -> str:
        """A string that no other case has; the name of the layer has no part in it."""
        words = [self.workload, f"{self.batch}x{self.m}x{self.n}x{self.k}", self.right_kind]
        if self.epilogue != "none":
            words.append(self.epilogue)
        if self.source != "list":
            words.append(self.source)
        return "/".join(words)

    @property
    def right_kind(self) -> str:
        """How the right operand comes, in a word: "constant", "rows+4096", "columns"."""
        if self.constant:
            return "constant"
        kind = "columns" if self.transposed else "rows"
        return kind if self.row_stride is None else f"{kind}+{self.row_stride}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """The shape of ``to_json``; raises ValueError when a field is unknown or missing."""
        unknown = set(data) - {field.name for field in fields(cls)}
        if unknown or not {"m", "n", "k"} <= set(data):
            raise ValueError(f"not a shape: {dict(data)}")
        return cls(**data)


def parse_shapes(text: str) -> list[Shape]:
    """Shapes from ``"m,n,k;m,n,k,batch"``.

    A batch above 1 makes both operands dynamic. Raises ValueError that names the part at fault.
    """
    shapes = []
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        try:
            numbers = [int(number) for number in part.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (3, 4) or min(numbers) < 1:
            raise ValueError(f"--shapes takes m,n,k or m,n,k,batch, each at least 1, got {part!r}")
        m, n, k, batch = [*numbers, 1][:4]
        shapes.append(Shape(m, n, k, batch, layer="given"))
    if not shapes:
        raise ValueError("--shapes must name at least one shape, such as 33,768,768")
    return shapes
