"""Constant weights, biases and plan tables in the form that the packed functions read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from tvm_moonpoly import operators


class Packing:
    """Makes the constants for one module; equal ones are made, and kept in the module, once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lanes = operators.lanes(target)
        self._made: dict[tuple[object, ...], GenericConst] = {}

    def weight(self, weight: np.ndarray) -> GenericConst:
        """`weight`, shape (K, N), float32, in panels of the machine's vector lanes."""
        key = ("weight", weight.shape, _digest(weight))
        return self._once(key, lambda: operators.pack_weight(weight, self._lanes))

    def bias(self, bias: np.ndarray | None, n: int) -> GenericConst:
        """`bias`, shape (n,), float32, or zeros, padded to whole panels."""
        key = ("bias", n, None if bias is None else _digest(bias))
        return self._once(key, lambda: operators.pad_bias(bias, n, self._lanes))

    def table(self, n: int, k: int) -> GenericConst:
        """The plans of an (M, k) by (k, n) product for each M."""
        return self._once(("table", n, k), lambda: operators.plan_table(n, k, self._target))

    def _once(self, key: tuple[object, ...], make: Callable[[], np.ndarray]) -> GenericConst:
        if key not in self._made:
            made = np.ascontiguousarray(make())
            # without a dtype, relax makes int32 of the int64 plans
            self._made[key] = relax.const(made, str(made.dtype))
        return self._made[key]


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).data).digest()
