"""Copies of statements with variables of their own."""

from __future__ import annotations

from typing import TypeVar

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Var
from tvm.tirx import For

S = TypeVar("S", tirx.Stmt, s_tir.SBlock)


def renamed(stmt: S) -> S:
    """`stmt` with variables of its own: no two definitions of one variable in a function."""
    new: dict[Var, Var] = {}

    def rename_loop(loop: For) -> None:
        new[loop.loop_var] = tirx.Var(loop.loop_var.name, str(loop.loop_var.ty))

    def rename_block(inner: s_tir.SBlock) -> None:
        for each in inner.iter_vars:
            new[each.var] = tirx.Var(each.var.name, str(each.var.ty))
        for buffer in inner.alloc_buffers:
            new[buffer] = tirx.decl_buffer(buffer.shape, str(buffer.dtype), buffer.name)

    tvm_ffi.structural_walk(stmt, [(For, rename_loop), (s_tir.SBlock, rename_block)])
    return tvm_ffi.structural_map(stmt, (Var, lambda var: new.get(var, var)))
