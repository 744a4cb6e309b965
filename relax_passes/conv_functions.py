"""What the passes for convolutions share: the functions that concern them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.target import Target

from tvm_moonpoly import machine, operators

from .bindings import Bindings, analyze
from .conv_match import Convolution, classify_conv, convolutions
from .functions import with_rewritten


def unsupported(target: Target) -> str | None:
    """Why there are no convolutions of ours for `target`, or None."""
    return machine.no_convolutions(target) or operators.supported(target)


def _our_convolutions(
    bindings: Bindings, static: bool, target: Target
) -> dict[relax.Var, Convolution]:
    """The convolutions among `bindings` that are ours, in program order."""
    found = {var: classify_conv(var, bindings, static, target) for var in convolutions(bindings)}
    return {var: conv for var, conv in found.items() if isinstance(conv, Convolution)}


def rewrite_with_convolutions(
    mod: tvm.IRModule,
    target: Target,
    static: bool,
    rewrite: Callable[[relax.Function, Bindings, dict[relax.Var, Convolution]], relax.Function],
    pack_parameters: bool = False,
) -> tvm.IRModule:
    """`mod` with those functions rewritten that have a convolution of ours: `rewrite` is given
    the function, its bindings, and its convolutions in program order. Among these are those whose
    weights are parameters if `pack_parameters`."""
    if unsupported(target) is not None:
        return mod

    def rewritten(func: relax.Function, _name: str) -> relax.Function:
        bindings = analyze(func, mod, pack_parameters)
        # what is moved across a write into memory would read something else
        ours = {} if bindings.writers else _our_convolutions(bindings, static, target)
        return rewrite(func, bindings, ours) if ours else func

    return with_rewritten(mod, rewritten)
