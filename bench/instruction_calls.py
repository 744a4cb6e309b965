"""The calls whose instructions are counted."""

from __future__ import annotations

from dataclasses import dataclass

#: How the driver calls: (packed function, what the call is).
KINDS = {
    "linear": ("moonpoly_linear_f32", "constant weight"),
    "plain": ("moonpoly_matmul_f32", "two matrices"),
    "scores": ("moonpoly_matmul_f32", "attention, b by columns"),
    "values": ("moonpoly_matmul_f32", "attention, b by rows"),
}


@dataclass(frozen=True)
class Job:
    """One call of the kind ``kind`` of `KINDS`, for ``batch`` products (m, k) @ (k, n)."""

    kind: str
    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.kind}:{self.batch},{self.m},{self.n},{self.k}"


JOBS = (
    Job("linear", 1, 384, 384),
    Job("linear", 1, 3072, 768),
    Job("linear", 4, 768, 768),
    Job("linear", 33, 384, 384),
    Job("linear", 128, 768, 768),
    Job("linear", 128, 768, 3072),
    Job("linear", 512, 3072, 768),
    Job("linear", 7, 1001, 768),
    Job("linear", 2048, 768, 768),
    Job("plain", 1, 768, 768),
    Job("plain", 128, 768, 768),
    Job("scores", 16, 16, 64, 12),
    Job("scores", 128, 128, 64, 12),
    Job("scores", 1, 33, 64, 12),
    Job("values", 16, 64, 16, 12),
    Job("values", 128, 64, 128, 12),
    Job("values", 1, 64, 33, 12),
)
