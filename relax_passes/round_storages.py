"""Memory whose size depends on the call is asked for in sizes of which there are few."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call

from .functions import with_rewritten
from .storages import STORAGE, resized, size_of

PAGE = 4096  # the least that the pool asks the system for


@tvm.transform.module_pass(opt_level=0, name="RoundStorages")
class RoundStorages:
    """Round the sizes of storages up to powers of two where they are not constants.

    The virtual machine's pool keeps what is freed, and hands it out again for exactly the same size
    (in pages): a function called with ever new shapes would make it grow with each of them. Of
    powers of two there are few, and all that are smaller take no more than the largest together.
    What of a storage is not used costs addresses, no memory.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return with_rewritten(mod, lambda func, _name: _Rounding().visit_expr(func))


def power_of_two(size: Any) -> Any:
    """The least power of two from ``size`` on, and from a page on; of 64 bits, as `size` is."""
    below = tirx.max(size, tirx.IntImm("int64", PAGE)) - 1
    digits = tirx.IntImm("int64", 64) - tirx.clz(below).astype("int64")
    return tirx.shift_left(tirx.IntImm("int64", 1), digits)


@relax.expr_functor.mutator
class _Rounding(relax.PyExprMutator):
    def visit_call_(self, call: Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != STORAGE or isinstance(size_of(call), tirx.IntImm):
            return call
        return resized(call, power_of_two(size_of(call)))
