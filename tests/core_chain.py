"""What the tests of chains share: calls, operands of all kinds, and the bound of their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from core_testing import CANARY, EPS, Weight, check_close, tensor
from hypothesis import strategies as st

from tvm_moonpoly.operators import LINEAR_CHAIN, Activation, Chain, OperatorLibrary, Step
from tvm_moonpoly.operators import chain as chains
from tvm_moonpoly.operators.chain import MAX_OPERANDS, MAX_STEPS

Operands = Sequence[np.ndarray | None]

#: All steps that a chain can have, each with operand 0 where it takes one.
EVERY_STEP: tuple[tuple[Step | Activation, int | None], ...] = (
    *((step, 0) for step in Step),
    *((activation, None) for activation in Activation if activation != Activation.NONE),
)


def given(array: np.ndarray | None) -> Any:
    return None if array is None else tensor(array)


def linear_chain(
    library: OperatorLibrary,
    x: np.ndarray,
    weight: Weight,
    chain: Chain,
    operands: Operands = (),
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Call ``moonpoly_linear_chain_f32``."""
    if out is None:
        out = np.full((*x.shape[:-1], weight.w.shape[1]), CANARY, np.float32)
    constants = (weight.packed, weight.padded, weight.table)
    padded = [*operands, *[None] * (MAX_OPERANDS - len(operands))]
    library.module[LINEAR_CHAIN](
        *map(tensor, (x, *constants)), None, chain.encode(), *map(given, padded), tensor(out)
    )
    return out


def check_linear_chain(
    result: np.ndarray, x: np.ndarray, weight: Weight, chain: Chain, operands: Operands = ()
) -> None:
    """``result`` is ``chain(x @ w + bias)`` within the bound."""
    x64, w64 = x.astype(np.float64), weight.w.astype(np.float64)
    value, size = x64 @ w64, np.abs(x64) @ np.abs(w64)
    if weight.bias is not None:
        value, size = value + weight.bias, size + np.abs(weight.bias)
    check_chain(result, value, (x.shape[-1] + 2) * EPS * size, chain, operands)


def check_chain(
    result: np.ndarray, value: np.ndarray, bound: np.ndarray, chain: Chain, operands: Operands
) -> None:
    """``result`` is ``chain`` of ``value``, which was known within ``bound``."""
    for step, operand in chain.steps:
        single = Chain(((step, operand),))
        after = chains.reference(single, value, operands)
        e = np.float64(0) if operand is None else np.abs(operands[operand].astype(np.float64))
        if step == Step.MULTIPLY:
            bound = bound * e
        elif step == Step.DIVIDE:
            bound = bound / e
        if isinstance(step, Step):
            bound = np.broadcast_to(bound + EPS * np.abs(after), after.shape)
        elif step > Activation.RELU:
            # slopes of the activations are below 1.2; their own formulas are good to about 1e-6
            bound = 1.2 * bound + 1e-6 * (1 + np.abs(value))
        value = after
    check_close(result, value, bound)


def operand_values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Of either sign, and not near 0: they are divisors too."""
    sign = rng.choice(np.array([-1, 1], np.float32), shape)
    return np.asarray(sign * rng.uniform(0.4, 2.5, shape), np.float32)


def laid_out(array: np.ndarray, kind: str) -> np.ndarray:
    """The same values with other strides; of ``repeated`` the values are those of the first."""
    if kind == "compact" or array.ndim == 0:
        return np.array(array, order="C")
    if kind == "repeated":
        return np.lib.stride_tricks.as_strided(
            np.array(array, order="C").reshape(-1)[:1], array.shape, (0,) * array.ndim
        )
    if kind == "gaps":
        memory = np.full((*array.shape[:-1], 2 * array.shape[-1] + 3), CANARY)
        view = memory[..., 1 : 1 + 2 * array.shape[-1] : 2]
    elif kind == "columns":
        view = np.empty(array.shape[::-1], np.float32).T
    else:
        assert kind == "backwards"
        view = np.empty(array.shape, np.float32)[(slice(None, None, -1),) * array.ndim]
    view[...] = array
    return view


LAYOUTS = ("compact", "gaps", "columns", "backwards", "repeated")


@st.composite
def chains_of_steps(draw: Callable[..., Any]) -> Chain:
    """Any chain."""
    operand = st.integers(0, MAX_OPERANDS - 1)
    with_operand = st.tuples(st.sampled_from(Step), operand)
    kinds = [kind for kind in Activation if kind != Activation.NONE]
    activation = st.tuples(st.sampled_from(kinds), st.none())
    return Chain(tuple(draw(st.lists(with_operand | activation, max_size=MAX_STEPS))))


@st.composite
def operands_for(draw: Callable[..., Any], shape: tuple[int, ...], chain: Chain) -> Operands:
    """Operands of ``chain`` that broadcast to ``shape``; None for those that it does not name."""
    named = {operand for _, operand in chain.steps}
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32), label="seed of operands"))
    result: list[np.ndarray | None] = []
    for which in range(MAX_OPERANDS):
        if which not in named:
            result.append(None)
            continue
        ndim = draw(st.integers(0, len(shape)), label="dimensions")
        own = [
            size if draw(st.booleans(), label="whole") else 1 for size in shape[len(shape) - ndim :]
        ]
        layout = draw(st.sampled_from(LAYOUTS), label="layout")
        result.append(laid_out(operand_values(rng, *own), layout))
    return result
