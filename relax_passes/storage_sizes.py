"""Functions that decide how much memory a call asks for, from what calls before it asked for."""

from __future__ import annotations

from functools import reduce

import numpy as np
from tvm import tirx
from tvm.ir import GenericConst
from tvm.relax import const
from tvm.tirx import BufferStore, Evaluate, IfThenElse, IntImm, PrimFunc, SeqStmt

from .round_storages import power_of_two

PREFIX = "moonpoly_sizes"  # of the names of these functions
#: What TVM's runtime registers: all pools of the process give back what nobody uses.
CLEAR = "vm.builtin.memory_manager.clear"
RESULTS = 3  # numbers that `sizes_of_results` remembers


def nothing_yet(kind: int, count: int) -> GenericConst:
    """``count`` numbers for a function to remember, of which none is known: int64 (count,).

    They belong to the executable, and so to all virtual machines that run it. Two of them that
    write at the same time may lose a number; all who read one must do with any. An executable
    stores equal constants once, so the first number is minus ``kind``, another for each use.
    """
    return const(np.array([-kind] + [0] * (count - 1), np.int64), "int64")


def sizes_of_tensors(count: int) -> PrimFunc:
    """The function of int64 `largest` (count,) and of as many sizes, in bytes: makes each of
    `largest` the largest power of two so far that a size was rounded up to.

    Where one of them grows, what lies in the pool is too small from now on, and given back.
    """
    largest = tirx.decl_buffer((count,), "int64", "largest")
    sizes = [tirx.Var(f"size{at}", "int64") for at in range(count)]
    grown = [size > largest[at] for at, size in enumerate(sizes)]
    stores = [
        BufferStore(largest, tirx.max(largest[at], power_of_two(size)), [at])
        for at, size in enumerate(sizes)
    ]
    clear = IfThenElse(reduce(tirx.Or, grown), _clear(), None)
    return PrimFunc([largest, *sizes], SeqStmt([clear, *stores]))


def sizes_of_results() -> PrimFunc:
    """The function of int64 `known` (3,) and of the bytes that a call returns, in powers of two:
    lets the pool keep as much for results as the largest call needs, and no more.

    `known` are the bytes of the last call, those that went to the pool since it was emptied, and
    those of the largest call.
    """
    known = tirx.decl_buffer((RESULTS,), "int64", "known")
    size = tirx.Var("size", "int64")
    last, kept, largest = ([IntImm("int32", at)] for at in range(RESULTS))
    changed = SeqStmt(
        [
            BufferStore(known, size, last),
            BufferStore(known, known[1] + size, kept),
            BufferStore(known, tirx.max(known[2], size), largest),
            IfThenElse(
                known[1] > known[2], SeqStmt([_clear(), BufferStore(known, size, kept)]), None
            ),
        ]
    )
    return PrimFunc([known, size], IfThenElse(tirx.NE(size, known[0]), changed, None))


def _clear() -> tirx.Stmt:
    return Evaluate(tirx.call_packed(CLEAR))
