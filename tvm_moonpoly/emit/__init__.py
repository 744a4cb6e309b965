"""Small helpers to write native functions with tvm's IRBuilder.

The library's loops are private PrimFuncs over raw pointers. A private function is called natively
(no packed calling convention), returns nothing, and keeps its scratch below 1 KiB on the stack:
those are the limits of tvm 0.27 on native callees. One that may fail returns its status, and its
caller fails with it.
"""

from tvm_moonpoly.emit.control import branch, loop, switch, unless, when
from tvm_moonpoly.emit.functions import STATUS, Functions, fail
from tvm_moonpoly.emit.memory import (
    Pointer,
    cell,
    fetched,
    prefetch,
    scratch,
    workspace,
)
from tvm_moonpoly.emit.values import (
    BYTE,
    BYTES,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    LINE,
    MINUS_INFINITY,
    Expr,
    as_int,
    balanced,
    ceil_div,
    div,
    item_size,
    let,
    maximum,
    minimum,
    select,
    spread,
    vector,
    vector_type,
)

__all__ = [
    "BYTE",
    "BYTES",
    "Expr",
    "FLOAT",
    "FLOATS",
    "Functions",
    "INT",
    "INTS",
    "LINE",
    "MINUS_INFINITY",
    "Pointer",
    "STATUS",
    "as_int",
    "balanced",
    "branch",
    "ceil_div",
    "cell",
    "div",
    "fail",
    "fetched",
    "item_size",
    "let",
    "loop",
    "maximum",
    "minimum",
    "prefetch",
    "scratch",
    "select",
    "spread",
    "switch",
    "unless",
    "vector",
    "vector_type",
    "when",
    "workspace",
]
