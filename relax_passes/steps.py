"""The passes of a pipeline one after another: some left out, and what each of them made."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import tvm
from tvm import relax

from tvm_moonpoly.arguments import names

#: Without these there is no executable.
NEEDED = frozenset(
    {
        *("OwnVariables", "LegalizeOps", "AnnotateTIROpPattern", "FuseTIR", "ToNonDataflow"),
        *("RemovePurityChecking", "CallTIRRewrite", "LowerAllocTensor", "KillAfterLastUse"),
        *("LowerRuntimeBuiltin", "ComputePrimValue", "VMShapeLower", "AttachGlobalSymbol"),
        *("KeepHostCode", "CompileKernels"),
    }
)
#: What is run in the place of a pass that is left out.
INSTEAD = {"LegalizeAroundViews": relax.transform.LegalizeOps}


@dataclass(frozen=True, eq=False)
class Step:
    """A pass that was run, and the module before and after it."""

    name: str
    before: tvm.IRModule
    after: tvm.IRModule
    seconds: float


def run_steps(
    passes: Sequence[tvm.transform.Pass],
    mod: tvm.IRModule,
    without: Collection[str] | None = None,
    steps: list[Step] | None = None,
) -> tvm.IRModule:
    """`mod` after `passes` but those named in `without`; `steps` is told of each that is run.

    Raises ValueError for a name that none of them has, and for one that cannot be left out.
    """
    without = names("without", without)
    _require_known(passes, without)
    for each in passes:
        name = str(each.info.name)
        if name in without:
            if name not in INSTEAD:
                continue
            each = INSTEAD[name]()
            name = str(each.info.name)
        start = time.perf_counter()
        after = tvm.transform.Sequential([each])(mod)
        if steps is not None:
            steps.append(Step(name, mod, after, time.perf_counter() - start))
        mod = after
    return mod


def _require_known(passes: Sequence[tvm.transform.Pass], without: Collection[str]) -> None:
    known = list(dict.fromkeys(str(each.info.name) for each in passes))
    optional = [name for name in known if name not in NEEDED]
    for name in without:
        if name not in optional:
            reason = "cannot be left out"
            if name not in known and name not in NEEDED:
                close = get_close_matches(name, optional, n=1)
                meant = f" (did you mean {close[0]!r}?)" if close else ""
                reason = f"is none of the passes{meant}"
            raise ValueError(f"without: {name!r} {reason}; these can be: {', '.join(optional)}")
