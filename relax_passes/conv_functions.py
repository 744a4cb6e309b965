"""What the passes for convolutions share: the functions that concern them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.target import Target

from tvm_moonpoly import operators

from .bindings import Bindings, analyze
from .conv_match import Convolution, classify_conv, convolutions
from .functions import with_rewritten


def unsupported(target: Target) -> str | None:
    """Why there are no convolutions of ours for `target`, or None."""
    kind = str(target.kind.name)
    return operators.supported(target) if kind == "llvm" else f"no convolutions for {kind}"


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
) -> tvm.IRModule:
    """`mod` with those functions rewritten that have a convolution of ours: `rewrite` is given
    the function, its bindings, and its convolutions in program order."""
    if unsupported(target) is not None:
        return mod

    def rewritten(func: relax.Function, _name: str) -> relax.Function:
        bindings = analyze(func, mod)
        # what is moved across a write into memory would read something else
        ours = {} if bindings.writers else _our_convolutions(bindings, static, target)
        return rewrite(func, bindings, ours) if ours else func

    return with_rewritten(mod, rewritten)
