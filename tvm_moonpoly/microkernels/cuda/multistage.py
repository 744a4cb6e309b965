"""The pipelined reduction as one loop with one barrier a step.

tvm's software pipeline of ``stages`` steps is a prologue of copies, a loop, and an epilogue of
products, with two barriers a step. Rewritten it is

    for s in range(stages - 1): copy step s, if there is one; commit
    for k in range(steps):
        wait for step k; barrier
        copy step k + stages - 1, if there is one; commit
        products of step k

The one barrier serves both: what all threads copied for step k is there, and all threads have done
the products of step k - 1, whose memory the next copy overwrites. Groups without copies are
committed too, so that the number of groups in flight is the same at every step. Copies through
registers are fetched at the place of the copy, and stored after the products and a second barrier,
since they have only one place in shared memory.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

#: Attribute of a micro-kernel: steps of the reduction that are in flight.
STAGES = "moonpoly.stages"

#: Attribute of one whose epilogue uses shared memory, where copies were before.
STAGED = "moonpoly.staged"

_COMMIT = "async_commit_queue_scope"
_WAIT = "async_wait_queue_scope"
_IN_FLIGHT = "async_wait_inflight_count"
_LOAD, _MULTIPLY = "tirx.ptx_legacy.ldmatrix", "tirx.ptx_legacy.mma"

Stmt = Any


def multistage() -> tvm.transform.Pass:
    """Rewrite the reductions of micro-kernels, after tvm has placed barriers and async copies.

    Raises ValueError where a reduction is not what `schedule` and tvm's pipeline make.
    """

    @tvm.tirx.transform.prim_func_pass(opt_level=0, name="moonpoly.multistage")
    def apply(func: tirx.PrimFunc, mod: Any, ctx: Any) -> tirx.PrimFunc:
        if func.attrs is None or STAGES not in func.attrs:
            return func
        stages = int(func.attrs[STAGES])
        staged = int(func.attrs.get(STAGED, 0)) != 0
        places = []
        tvm_ffi.structural_walk(
            func.body,
            (tirx.SeqStmt, lambda seq: places.append(seq) if _loop_of(seq) is not None else None),
        )
        if len(places) != 1:
            raise ValueError(f"schedule: {len(places)} pipelined loops, there must be one")
        (place,) = places
        rewritten = _rewrite(place, stages, staged)
        body = tvm_ffi.structural_map(
            func.body,
            (tirx.SeqStmt, lambda seq: rewritten if seq.same_as(place) else seq),
            order="pre",
        )
        return func.with_body(body)

    return apply


def _rewrite(seq: tirx.SeqStmt, stages: int, staged: bool) -> tirx.SeqStmt:
    statements = list(seq.seq)
    at = _loop_of(seq)
    assert at is not None
    loop = statements[at]
    last = next((i for i in range(at + 1, len(statements)) if _computes(statements[i])), None)
    if last is None or any(not _is_barrier(s) for s in statements[at + 1 : last]):
        raise ValueError("schedule: no products follow the pipelined loop")
    ahead = stages - 1
    leaves = [leaf for leaf in _leaves(loop.body) if not _is_barrier(leaf)]
    products = [leaf for leaf in leaves if _computes(leaf) or _any_call(leaf, _LOAD)]
    stores = [leaf for leaf in leaves if leaf not in products and _stores_shared(leaf)]
    copies = [leaf for leaf in leaves if leaf not in products and leaf not in stores]
    steps = Analyzer().simplify(loop.extent + ahead)
    more = loop.loop_var + ahead < steps
    asynchronous = _commits(loop.body)
    copy = tirx.IfThenElse(more, tirx.SeqStmt(copies), None)
    body = [_barrier(), copy, *products]
    if stores:
        body += [_barrier(), tirx.IfThenElse(more, tirx.SeqStmt(stores), None)]
    if asynchronous:
        body[:2] = [_wait(stages - 2), _commit(copy)]
    rewritten = tirx.For(loop.loop_var, loop.min, steps, loop.kind, tirx.SeqStmt(body))
    before = [_prologue(s) if asynchronous else _quiet(s) for s in statements[:at]]
    # the epilogue reuses the memory of the copies
    after = [_barrier()] if staged else []
    return tirx.SeqStmt([*before, rewritten, *after, *statements[last + 1 :]])


def _loop_of(seq: tirx.SeqStmt) -> int | None:
    """The place of the pipelined loop among the statements, if it is there."""
    for index, statement in enumerate(seq.seq):
        serial = isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.SERIAL
        if serial and _computes(statement):
            return index
    return None


def _prologue(stmt: Stmt) -> Stmt:
    """A statement before the loop, with groups committed whether or not there is something."""

    def swap(branch: Any) -> Any:
        body = branch.then_case
        if isinstance(body, tirx.AttrStmt) and body.attr_key == _COMMIT:
            return _commit(tirx.IfThenElse(branch.condition, body.body, None))
        return branch

    return tvm_ffi.structural_map(_quiet(stmt), (tirx.IfThenElse, swap), order="post")


def _quiet(stmt: Stmt) -> Stmt:
    """``stmt`` without barriers."""
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    return tvm_ffi.structural_map(
        stmt, (tirx.Evaluate, lambda s: nothing if _is_barrier(s) else s), order="post"
    )


def _leaves(stmt: Stmt) -> list[Stmt]:
    """The statements of a sequence, taken out of the scopes of asynchronous copies."""
    if isinstance(stmt, tirx.SeqStmt):
        return [leaf for child in stmt.seq for leaf in _leaves(child)]
    if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key in (_COMMIT, _WAIT, _IN_FLIGHT):
        return _leaves(stmt.body)
    return [stmt]


def _computes(stmt: Stmt) -> bool:
    return _any_call(stmt, _MULTIPLY)


def _any_call(stmt: Stmt, name: str) -> bool:
    found = False

    def see(call: Any) -> None:
        nonlocal found
        found = found or getattr(call.op, "name", "") == name

    tvm_ffi.structural_walk(stmt, (tvm.ir.Call, see))
    return found


def _stores_shared(stmt: Stmt) -> bool:
    found = False

    def see(store: Any) -> None:
        nonlocal found
        found = found or store.buffer.scope() == "shared.dyn"

    tvm_ffi.structural_walk(stmt, (tirx.BufferStore, see))
    return found


def _commits(stmt: Stmt) -> bool:
    found = False

    def see(attr: Any) -> None:
        nonlocal found
        found = found or attr.attr_key == _COMMIT

    tvm_ffi.structural_walk(stmt, (tirx.AttrStmt, see))
    return found


def _is_barrier(stmt: Stmt) -> bool:
    value = getattr(stmt, "value", None)
    return isinstance(stmt, tirx.Evaluate) and (
        getattr(getattr(value, "op", None), "name", "") == "tirx.tvm_storage_sync"
    )


def _barrier() -> Stmt:
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared.dyn"))


def _commit(body: Stmt) -> Stmt:
    zero = tirx.const(0, "int32")
    return tirx.AttrStmt(zero, _COMMIT, zero, body)


def _wait(in_flight: int) -> Stmt:
    zero = tirx.const(0, "int32")
    inner = tirx.AttrStmt(zero, _IN_FLIGHT, tirx.const(in_flight, "int32"), _barrier())
    return tirx.AttrStmt(zero, _WAIT, zero, inner)
