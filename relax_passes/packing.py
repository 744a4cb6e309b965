"""Constant weights, biases and plan tables in the form that the packed functions read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, Op
from tvm.relax import Expr, Var
from tvm.runtime import Tensor
from tvm.target import Target

from tvm_moonpoly import operators

from .bindings import Bindings
from .match import Operand
from .shapes import dims, same_dim

# What is packed, or hashed, at a time.
PANELS = 64
ROWS = 64

DPS_PACKED = Op.get("relax.call_dps_packed")


class Packing:
    """Makes the constants for one module; equal ones are made, and kept in the module, once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._lanes = operators.lanes(target)
        self._made: dict[tuple[object, ...], GenericConst] = {}

    def parameter(self, weight: Operand, k: int, n: int) -> Call:
        """A weight that is a parameter, (k, n) as the product sees it, packed like `weight` by an
        operator of its own: what depends on parameters alone may be computed once, and is by
        `LiftTransformParams`."""
        shape = (-(-n // self._lanes), k, self._lanes)
        code = relax.prim_value(operators.encode_axes(weight.axes))
        ty = relax.TensorType(shape, "float32")
        return relax.call_dps_packed(operators.PACK, [weight.stored, code], ty)

    def weight(self, weight: np.ndarray) -> GenericConst:
        """`weight`, shape (K, N), float32, in panels of the machine's vector lanes."""
        key = ("weight", weight.shape, digest(weight))
        return self.once(key, lambda: self._in_panels(weight))

    def _in_panels(self, weight: np.ndarray) -> Tensor:
        """`pack_weight` a block at a time, into the tensor that the module keeps: a model's
        weights are most of its memory, and one of them can be most of the weights."""
        k, n = weight.shape
        made = tvm.runtime.empty((-(-n // self._lanes), k, self._lanes), "float32")
        panels = np.from_dlpack(made)
        for first in range(0, len(panels), PANELS):
            columns = weight[:, first * self._lanes : (first + PANELS) * self._lanes]
            panels[first : first + PANELS] = operators.pack_weight(columns, self._lanes)
        return made

    def takes_bias(self, bias: Expr | None, n: int, bindings: Bindings) -> bool:
        """Whether `bias` has one value for each of `n` columns, and a form that `bias` can give
        the packed functions."""
        shape = dims(bias) if bias is not None else None
        if shape is None or not all(same_dim(dim, 1) for dim in shape[:-1]):
            return False
        if isinstance(bias, GenericConst):
            return bias.value.numpy().size in (1, n)
        whole = n % self._lanes == 0 or bindings.is_parameter(bias)
        return whole and len(shape) == 1 and same_dim(shape[-1], n)

    def bias(self, bias: Expr | None, n: int) -> Expr:
        """`bias` (see `takes_bias`), or zeros, padded to whole panels."""
        if isinstance(bias, Var):
            missing = -n % self._lanes
            return relax.op.nn.pad(bias, [0, missing]) if missing else bias
        vector = None
        if bias is not None:
            vector = np.ascontiguousarray(np.broadcast_to(bias.value.numpy().ravel(), (n,)))
        key = ("bias", n, None if vector is None else digest(vector))
        return self.once(key, lambda: operators.pad_bias(vector, n, self._lanes))

    def table(self, n: int, k: int) -> GenericConst:
        """The plans of an (M, k) by (k, n) product for each M."""
        return self.once(("table", n, k), lambda: operators.plan_table(n, k, self.target))

    def text(self, text: str | None) -> GenericConst:
        """`text` as the packed functions read it: UTF-8, empty for none."""
        encoded = np.frombuffer((text or "").encode(), np.uint8)
        return self.once(("text", text), lambda: encoded)

    def unused(self) -> GenericConst:
        """What stands for an operand that a chain does not have."""
        return self.once(("unused",), lambda: np.zeros((), np.float32))

    def once(
        self, key: tuple[object, ...], make: Callable[[], np.ndarray | Tensor]
    ) -> GenericConst:
        """The constant called `key`, which `make` makes where it is not there yet."""
        if key not in self._made:
            made = make()
            # an array is copied, a tensor is not
            tensor = tvm.runtime.tensor(made) if isinstance(made, np.ndarray) else made
            self._made[key] = relax.const(tensor)
        return self._made[key]


def digest(array: np.ndarray) -> bytes:
    """Of the values of `array`, whatever its strides, without a copy of it all."""
    hashed = hashlib.sha256()
    for first in range(0, len(array), ROWS):
        hashed.update(np.ascontiguousarray(array[first : first + ROWS]).data)
    return hashed.digest()


def is_packing(call: Call) -> bool:
    """Whether `call` packs a weight that is a parameter."""
    return call.op == DPS_PACKED and call.args[0].global_symbol == operators.PACK
