"""The launches of a call whose tensors are known to be evenly spaced matrices."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    INT,
    Expr,
    Functions,
    as_int,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    switch,
    when,
)
from tvm_moonpoly.microkernels.cuda import (
    MAX_BATCH,
    MAX_OPERAND_ELEMENTS,
    Epilogue,
    Requirements,
    kernel_name,
)
from tvm_moonpoly.operators.cuda.assembly import Assembly, Operator
from tvm_moonpoly.operators.cuda.matrices import Matrices, move, view
from tvm_moonpoly.operators.tensors import Tensor
from tvm_moonpoly.planner.cuda import native as planner
from tvm_moonpoly.planner.cuda.spec import Axis


def plan_name(assembly: Assembly) -> str:
    """The native function that plans with an assembly: there may be several of one form."""
    tiles = hashlib.sha256(" ".join(tile.name for tile in assembly.tiles).encode()).hexdigest()
    return f"{planner.PLAN}_{assembly.form.name}_{tiles[:8]}"


class Launches:
    """What a call of ``operator`` launches, given its tensors in the order of the arguments of
    micro-kernels, and those that are ``seen`` as matrices, all checked.

    The assembly is chosen once; `emit` can be called for several groups of products.
    """

    def __init__(
        self, operator: Operator, tensors: Mapping[str, Tensor], seen: Mapping[str, Matrices]
    ) -> None:
        self._operator, self._seen = operator, seen
        a, c = seen["a"], list(seen.values())[-1]
        self._m, self._n, self._k, self._batch = c.rows, c.columns, a.columns, c.batch
        self._suited = scratch(1, INT)
        self._suited[0] = as_int(len(operator.assemblies) - 1)
        for i, assembly in reversed(list(enumerate(operator.assemblies[:-1]))):
            with when(_suits(assembly.needs, tensors, seen, self._n, self._k)):
                self._suited[0] = as_int(i)
        self._most = _products_at_once(list(seen.values()))
        self._views = {name: view(each) for name, each in seen.items()}
        self._arguments = [
            self._views[name].at(0) if name in seen else tensor.handle
            for name, tensor in tensors.items()
        ]

    def emit(self, at: Mapping[str, Expr] | None = None) -> None:
        """Launch for all products of the call, or those that begin at the elements ``at``."""
        functions, zero = Functions.current(), as_int(0)
        with loop(ceil_div(self._batch, self._most)) as part:
            first = let(part * self._most)
            count = let(minimum(self._most, self._batch - first))
            for name, each in self._seen.items():
                move(self._views[name], each, at[name] if at else zero, first, count)

            def launch_all(index: int) -> None:
                assembly = self._operator.assemblies[index]
                plan = scratch(planner.RESULTS, INT)
                functions[plan_name(assembly)](self._m, self._n, self._k, count, plan.at(0))
                epilogue = self._operator.epilogue
                _launch(assembly, epilogue, self._arguments, plan, self._m, self._n)

            switch(self._suited[0], range(len(self._operator.assemblies)), launch_all)


def _products_at_once(seen: Sequence[Matrices]) -> Expr:
    """As many products as one launch may have: its grid is not higher, and no tensor spans more
    elements than micro-kernels can address."""
    most = scratch(1, INT)
    most[0] = as_int(MAX_BATCH)
    for each in seen:
        with when(each.apart > 0):
            room = MAX_OPERAND_ELEMENTS - ((each.rows - 1) * each.row + each.columns)
            most[0] = minimum(most[0], div(room, each.apart) + 1)
    return let(most[0])


def _suits(
    needs: Requirements,
    given: Mapping[str, Tensor],
    seen: Mapping[str, Matrices],
    n: Expr,
    k: Expr,
) -> Expr:
    """Whether a call keeps what an assembly's micro-kernels need."""
    remainders = [k % needs.k, n % needs.n]
    for name, each in seen.items():
        multiple = needs.operands if name in ("a", "b") else needs.result
        remainders.append(each.strides % multiple)
    for name, tensor in given.items():
        multiple = needs.pointer_bytes if name in ("a", "b") else needs.result_bytes
        address = tirx.reinterpret("int64", tensor.data.at(0))
        remainders.append(address % multiple)
    total = remainders[0]
    for each in remainders[1:]:
        total = tirx.bitwise_or(total, each)
    return let(total) == 0


def _launch(
    assembly: Assembly, epilogue: Epilogue, handles: list[Any], plan: Any, m: Expr, n: Expr
) -> None:
    """The launches of a plan: its one region, or two."""
    axis, cut = let(plan[planner.AXIS]), let(plan[planner.CUT])
    by_rows, by_columns = axis == int(Axis.ROWS), axis == int(Axis.COLUMNS)
    with loop(select(axis == int(Axis.NONE), as_int(1), as_int(2))) as part:
        second = part > 0
        which = let(select(second, plan[planner.SECOND], plan[planner.FIRST]))
        m0 = let(select(tirx.all(second, by_rows), cut, as_int(0)))
        n0 = let(select(tirx.all(second, by_columns), cut, as_int(0)))
        rows = let(select(tirx.all(part == 0, by_rows), cut, m - m0))
        columns = let(select(tirx.all(part == 0, by_columns), cut, n - n0))

        def call(index: int) -> None:
            tile = assembly.tiles[index]
            numbers = (m0, n0, ceil_div(rows, tile.block_m), ceil_div(columns, tile.block_n))
            name = kernel_name(tile, assembly.form, epilogue)
            T.evaluate(T.call_cpacked(name, *handles, *(x.astype("int32") for x in numbers)))

        switch(which, range(len(assembly.tiles)), call)
