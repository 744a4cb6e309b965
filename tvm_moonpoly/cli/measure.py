"""Timing the plans of one product side by side.

The best plan is picked on half of the rounds and compared with the chosen one on the other half:
otherwise the luckiest would look better than it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from rich.table import Table
from tvm.target import Target

from tvm_moonpoly import operators
from tvm_moonpoly.cli import output, timing
from tvm_moonpoly.cli.timing import BUDGET, filled
from tvm_moonpoly.explanation import Explanation, name
from tvm_moonpoly.explanation_text import cells
from tvm_moonpoly.operators import LINEAR, encode_axes
from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Choice

#: Calls of each plan that it takes to compare them: two to warm up, and two rounds.
LEAST_CALLS = 4

#: Plans that are predicted to cost more than this many times the best one are left out, unless
#: they are among the first.
SLOWEST, ALWAYS = 2.0, 5


@dataclass(frozen=True)
class Measurement:
    """Picoseconds of the first ``len(picoseconds)`` ranked plans, of one product on one core;
    ``best`` is the index of the best plan, ``loss`` by how much the chosen one is slower. ``wall``
    is the time of the whole call as planned, where that takes more threads than one, and
    ``threads`` how many TVM has for it."""

    found: Explanation
    picoseconds: tuple[float, ...]
    best: int
    loss: float
    wall: float | None
    threads: int

    def to_json(self) -> dict[str, Any]:
        """For `Explanation.to_json`, in its order of plans."""
        return {
            "measured_ps": [round(each) for each in self.picoseconds],
            "best_found": self.best,
            "loss": round(self.loss, 4),
            "wall_ps": None if self.wall is None else round(self.wall),
            "threads": self.threads,
        }

    def table(self) -> Table:
        """The plans by measured time, with the rank that the planner gave them."""
        order = sorted(range(len(self.picoseconds)), key=lambda i: self.picoseconds[i])
        ranked = self.found.ranked
        return output.table(
            ["rank", "main tile", "tail tile", "A", "B", "kc", "mc", "predicted us", "measured us",
             "measured / predicted"],
            [
                [
                    i + 1,
                    *cells(ranked[i].plan),
                    f"{ranked[i].picoseconds / 1e6:.2f}",
                    f"{self.picoseconds[i] / 1e6:.2f}",
                    f"{self.picoseconds[i] / max(ranked[i].picoseconds, 1):.2f}",
                ]
                for i in order
            ],
        )  # fmt: skip

    def verdict(self) -> list[str]:
        """What it comes to, in sentences."""
        plan, best = self.found.best.plan, self.found.ranked[self.best].plan
        lines = [
            f"measured on one core: {self.picoseconds[0] / 1e6:.2f} us for the chosen plan, "
            f"{name(plan)}"
        ]
        if self.best == 0:
            lines.append(f"best plan found: the chosen one, of {len(self.picoseconds)} measured")
        else:
            lines.append(
                f"best plan found: {name(best)}, of {len(self.picoseconds)} measured; the chosen "
                f"one takes {self.loss:+.1%} (picked on half of the rounds, compared on the others)"
            )
        if self.wall is not None:
            lines.append(timing.whole_call(self.wall, self.found.plan.workers, self.threads))
        return lines


def measured(found: Explanation, target: Target) -> Measurement:
    """Time the plans of ``found`` here. The first time on a machine compiles its library.

    Raises UserError when code for ``target`` does not run here, or the operands are too large.
    """
    product, machine = found.product, found.machine
    m, n, k = product.m, product.n, product.k
    plans = [choice.plan for choice in _worth_timing(found)]
    # and each plan's table, with an entry for each number of rows
    taken = product.batch * (m * k + n * k + m * n) * 4 + len(plans) * m * 8
    timing.require_measurable(machine, taken)
    with output.working(f"measuring {len(plans)} plans"):
        module = operators.library(target).module
        call = _calls(module, found)
        times = timing.interleaved([call(plan) for plan in plans]) / product.batch
        wall = timing.after_a_pause(call(found.plan)) if found.plan.workers > 1 else None
    best = int(np.argmin(np.median(times[::2], axis=0)))
    others = np.median(times[1::2], axis=0)
    return Measurement(
        found,
        tuple(float(each) for each in np.median(times, axis=0)),
        best,
        float(others[0] / others[best] - 1),
        wall,
        timing.threads_of(found.plan.workers),
    )


def _worth_timing(found: Explanation) -> list[Choice]:
    """The first plans: not much slower than the best, and no more than there is time for."""
    slowest, seconds = SLOWEST * found.best.picoseconds, 0.0
    for i, choice in enumerate(found.ranked):
        seconds += LEAST_CALLS * choice.picoseconds * found.product.batch * 1e-12
        if i >= ALWAYS and (choice.picoseconds > slowest or seconds > BUDGET):
            return list(found.ranked[:i])
    return list(found.ranked)


def _calls(module: Any, found: Explanation) -> Callable[[Plan], Callable[[], object]]:
    """What makes a call of all products by a plan. All plans get the same operands: with dozens of
    plans, operands of their own would fill the memory."""
    m, n, k = found.product.m, found.product.n, found.product.k
    lanes, batch = found.machine.lanes, found.product.batch
    if found.product.b_mode == BMode.PREPACKED:
        x, out = filled(m, k), filled(m, n)
        packed, bias = filled(-(-n // lanes), k, lanes), filled(-(-n // lanes) * lanes)
        linear = module[LINEAR]

        def of_weights(plan: Plan) -> Callable[[], object]:
            table = tvm.runtime.tensor(np.full(m + 1, plan.encode(), np.int64))
            return lambda: linear(x, packed, bias, table, None, 0, out)

        return of_weights
    a, b, c = filled(batch, m, k), filled(batch, k, n), filled(batch, m, n)
    axes, matmul = encode_axes((0, 1, 2)), module[MATMUL_PLANNED]

    def of_both(plan: Plan) -> Callable[[], object]:
        word = plan.encode()
        return lambda: matmul(a, b, axes, axes, axes, None, word, c)

    return of_both
