"""The plans of one product as calls on operands of our own, and the watch that times them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from bench import measure
from tvm_moonpoly.operators import LINEAR, encode_axes
from tvm_moonpoly.operators.matmul import MATMUL_PLANNED
from tvm_moonpoly.planner.plan import BMode, Plan
from tvm_moonpoly.planner.spec import Product

#: Sets of operands that take turns. An odd number, as every other round picks the oracle.
SETS = 3

#: A call that takes longer, in seconds, is not made untimed ahead of its sample.
LONG = 0.005

Run = Callable[[], object]


@dataclass(frozen=True)
class Operands:
    """Tensors of one product; ``b`` is packed where that is constant."""

    product: Product
    a: Any
    b: Any
    bias: Any
    out: Any


def make_operands(product: Product, lanes: int) -> Operands:
    """Operands whose values do not matter, only that they are normal numbers."""
    m, n, k = product.m, product.n, product.k
    batch = (product.batch,) if product.b_mode != BMode.PREPACKED else ()
    panels = -(-n // lanes)
    stored = {
        BMode.PREPACKED: (panels, k, lanes),
        BMode.DIRECT: (*batch, k, n),
        BMode.PACKED: (*batch, n, k),
    }
    return Operands(
        product,
        filled(*batch, m, k),
        filled(*stored[product.b_mode]),
        filled(panels * lanes),
        filled(*batch, m, n),
    )


def filled(*shape: int) -> Any:
    return tvm.runtime.tensor(np.full(shape, 0.5, np.float32))


def call(module: Any, operands: Operands, plan: Plan) -> Run:
    """All products of ``operands`` by ``plan``."""
    product, a, b, out = operands.product, operands.a, operands.b, operands.out
    if product.b_mode == BMode.PREPACKED:
        linear, bias = module[LINEAR], operands.bias
        table = tvm.runtime.tensor(np.full(product.m + 1, plan.encode(), np.int64))
        return lambda: linear(a, b, bias, table, None, 0, out)
    matmul, word = module[MATMUL_PLANNED], plan.encode()
    as_is = encode_axes((0, 1, 2))
    b_axes = as_is if product.b_mode == BMode.DIRECT else encode_axes((0, 2, 1))
    return lambda: matmul(a, b, as_is, b_axes, as_is, None, word, out)


def empty_call(module: Any, product: Product, lanes: int) -> float:
    """Seconds of a call that computes nothing, as `call` makes it: what times hold besides."""
    nothing = Product(0, product.n, 1, product.batch, product.b_mode)
    run = call(module, make_operands(nothing, lanes), Plan(1, 1, 0, 0, False, product.b_mode))
    return min(measure.sample(run, 1000, 0, time.thread_time)[0] for _ in range(9))


class Watch:
    """Times plans by ``clock``: ``watch(plan, seconds, turn)``."""

    def __init__(
        self,
        calls: Sequence[Sequence[Run]],
        overhead: float,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``calls[s][p]`` is plan p on set s of the operands, ``overhead`` seconds to subtract.

        The clock is the processor time of this thread where no other one works for it.
        """
        self._calls, self._overhead, self._clock = calls, overhead, clock
        self._repeats = [1] * len(calls[0])
        self._known: dict[int, float] = {}
        self._set: int | None = None

    def __call__(self, plan: int, seconds: float, turn: int) -> float:
        """Seconds of one call of a plan: over as many calls as take ``seconds``, in round
        ``turn``, which tells the set of operands."""
        which = turn % len(self._calls)
        run = self._calls[which][plan]
        known = self._known.get(plan)
        if which != self._set or (known is not None and known < LONG):
            run()
        self._set = which
        each, self._repeats[plan] = measure.sample(run, self._repeats[plan], seconds, self._clock)
        self._known[plan] = each
        return max(each - self._overhead, 1e-9)
