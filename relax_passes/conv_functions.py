"""What the passes for convolutions share: the functions that concern them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.target import Target

from tvm_moonpoly import operators

from .bindings import Bindings, analyze, is_claimed
from .conv_match import Convolution, classify_conv, convolutions
from .functions import with_functions


def unsupported(target: Target) -> str | None:
    """Why there are no convolutions of ours for `target`, or None."""
    kind = str(target.kind.name)
    return operators.supported(target) if kind == "llvm" else f"no convolutions for {kind}"


def our_convolutions(
    bindings: Bindings, static: bool, target: Target
) -> dict[relax.Var, Convolution]:
    """The convolutions among `bindings` that are ours, in program order."""
    found = {var: classify_conv(var, bindings, static, target) for var in convolutions(bindings)}
    return {var: conv for var, conv in found.items() if isinstance(conv, Convolution)}


def rewrite_with_convolutions(
    mod: tvm.IRModule,
    target: Target,
    static: bool,
    rewrite: Callable[[relax.Function], relax.Function],
) -> tvm.IRModule:
    """`mod` with those functions rewritten that have a convolution of ours."""
    if unsupported(target) is not None:
        return mod
    changed = {}
    for gv, func in mod.functions_items():
        if not isinstance(func, relax.Function) or is_claimed(func):
            continue
        bindings = analyze(func, mod)
        # what is moved across a write into memory would read something else
        if bindings.writers or not our_convolutions(bindings, static, target):
            continue
        new = rewrite(func)
        if not new.same_as(func):
            changed[gv] = new
    return with_functions(mod, changed)
