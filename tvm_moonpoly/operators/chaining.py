"""Chains of elementwise steps in the packed functions: their checks, and their loops.

A chain is applied to rows of the output that were just stored: each row stays in the nearest cache
while step after step goes over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    select,
    switch,
    vector,
    vector_type,
    when,
)
from tvm_moonpoly.operators import dltensor
from tvm_moonpoly.operators.activation import Activation
from tvm_moonpoly.operators.chain import MAX_OPERANDS, MAX_STEPS, Step
from tvm_moonpoly.operators.errors import require
from tvm_moonpoly.operators.tensors import MAX_DIMS, Tensor

#: Operands as parameters of the packed functions.
OPERAND_NAMES = tuple(f"e{i}" for i in range(MAX_OPERANDS))
PARAMETERS = {"program": INT, **dict.fromkeys(OPERAND_NAMES, "handle")}

#: Columns that are taken through all steps before the next ones.
COLUMNS = 2048

#: The memory of a program: how many steps it has and leading dimensions its operands step through,
#: then dimensions, the last one at the end: of each its size, and a stride for each operand. The
#: size of the last dimension is not there.
_STEPS, _LEADING, _DIMS = 0, 1, 2
_WORDS = 1 + MAX_OPERANDS
_LAST = _DIMS + (MAX_DIMS - 1) * _WORDS
_PROGRAM_SIZE = _LAST + _WORDS


class Program:
    """The chain of one call and its operands, all checked."""

    def __init__(self, handles: Mapping[str, Any], shape: Pointer, ndim: Expr) -> None:
        """``shape`` holds the ``ndim`` sizes, at most `MAX_DIMS`, that operands broadcast to."""
        self._arguments = [handles[name] for name in PARAMETERS]
        self._memory = scratch(_PROGRAM_SIZE, INT)
        check = Functions.current()["moonpoly_operands"]
        check(*self._arguments, shape.at(0), ndim, self._memory.at(0))

    def apply(self, c: Expr, ldc: Expr, row: Expr, rows: Expr, column: Expr, n: Expr) -> None:
        """Take a part of the output through the chain, in place.

        ``c`` is ``rows`` rows of ``n`` elements, ``ldc`` apart: those that begin at ``row``,
        counted through all leading dimensions, and ``column``.
        """
        chain = Functions.current()["moonpoly_chain"]
        chain(c, ldc, row, rows, column, n, *self._arguments, self._memory.at(0))


def emit(functions: Functions, lanes: int) -> None:
    """Define ``moonpoly_operands`` and ``moonpoly_chain``, before any function with a `Program`."""
    _emit_operands(functions)
    _emit_step(functions, lanes)
    _emit_chain(functions)


def _compute(step: Step, v: Expr, e: Expr, lanes: int) -> Expr:
    """One step on scalars or vectors."""

    def extreme(name: str) -> Expr:
        """NaN if either is. A choice written out becomes a masked store, which is slow."""
        return tirx.call_llvm_pure_intrin(vector_type(FLOAT, lanes), name, v, e)

    computed = {
        Step.ADD: lambda: v + e,
        Step.SUBTRACT: lambda: v - e,
        Step.MULTIPLY: lambda: v * e,
        Step.DIVIDE: lambda: v / e,
        Step.REVERSE_SUBTRACT: lambda: e - v,
        Step.MAXIMUM: lambda: extreme("llvm.maximum"),
        Step.MINIMUM: lambda: extreme("llvm.minimum"),
    }
    return computed[step]()


def _emit_step(functions: Functions, lanes: int) -> None:
    """``moonpoly_step``: ``c[j] = step(c[j], e[j * stride])`` for ``n`` elements, in place."""

    @functions.separate("moonpoly_step", c=FLOATS, n=INT, step=INT, e=FLOATS, stride=INT)
    def _(c: Any, n: Expr, step: Expr, e: Any, stride: Expr) -> None:
        vectors = let(select(tirx.any(stride == 0, stride == 1), div(n, lanes), 0))

        def apply(number: int) -> None:
            kind = Step(number)

            def along() -> None:
                with loop(vectors) as v:
                    at = vector(v * lanes, lanes)
                    c[at] = _compute(kind, c[at], e[at], lanes)

            def same() -> None:
                operand = T.Bind(T.Broadcast(e[as_int(0)], lanes))
                with loop(vectors) as v:
                    at = vector(v * lanes, lanes)
                    c[at] = _compute(kind, c[at], operand, lanes)

            branch(stride == 1, along, lambda: branch(stride == 0, same, lambda: None))
            done = let(vectors * lanes)
            with loop(n - done) as j:
                at = let(done + j)
                c[at] = _compute(kind, c[at], e[at * stride], 1)

        switch(step, [int(each) for each in Step], apply)


def _emit_chain(functions: Functions) -> None:
    part = {"c": FLOATS, **dict.fromkeys(("ldc", "row", "rows", "column", "n"), INT)}

    @functions.separate("moonpoly_chain", **part, **PARAMETERS, memory=INTS)
    def _(**args: Any) -> None:
        """See `Program.apply`."""
        c, memory = args["c"], args["memory"]
        strides = [let(memory[_LAST + 1 + which]) for which in range(MAX_OPERANDS)]
        offsets, rest, zero = scratch(MAX_OPERANDS, INT), scratch(1, INT), scratch(1)
        zero[0] = tirx.const(0.0, FLOAT)
        with loop(args["rows"]) as i:
            rest[0] = args["row"] + i
            for which, stride in enumerate(strides):
                offsets[which] = args["column"] * stride
            with loop(memory[_LEADING]) as j:
                dim = let(_LAST - (j + 1) * _WORDS)
                quotient = let(div(rest[0], memory[dim]))
                at = let(rest[0] - quotient * memory[dim])
                for which in range(MAX_OPERANDS):
                    offsets[which] = offsets[which] + at * memory[dim + 1 + which]
                rest[0] = quotient
            with loop(ceil_div(args["n"], COLUMNS)) as block, loop(memory[_STEPS]) as s:
                column = let(block * COLUMNS)
                width = let(minimum(args["n"] - column, COLUMNS))
                place = c.at(i * args["ldc"] + column)
                number, which = _step(args["program"], s)

                def with_operand(which: int) -> None:
                    handle, stride = args[OPERAND_NAMES[which]], strides[which]
                    e = Pointer.to(dltensor.address(handle, dltensor.DATA, FLOAT), FLOAT)
                    start = e.at(offsets[which] + column * stride)
                    functions["moonpoly_step"](place, width, number, start, stride)

                def activate() -> None:
                    branch(
                        number == int(Activation.RELU),
                        lambda: functions["moonpoly_step"](
                            place, width, int(Step.MAXIMUM), zero.at(0), 0
                        ),
                        lambda: functions["moonpoly_activate"](place, 0, 1, width, number),
                    )

                branch(
                    number < int(min(Step)),
                    activate,
                    lambda: switch(which, range(MAX_OPERANDS), with_operand),
                )


def _step(program: Expr, index: Expr) -> tuple[Expr, Expr]:
    """The number of a step of ``program``, and of its operand."""
    code = let(tirx.shift_right(program, index * 8))
    which = tirx.bitwise_and(tirx.shift_right(code, as_int(6)), as_int(3))
    return let(tirx.bitwise_and(code, as_int(63))), let(which)


def _emit_operands(functions: Functions) -> None:
    @functions.fallible("moonpoly_operands", **PARAMETERS, shape=INTS, ndim=INT, memory=INTS)
    def _(program: Expr, shape: Pointer, ndim: Expr, memory: Pointer, **handles: Expr) -> None:
        """See `Program`. Operands that the program does not name may be anything."""
        named = _check_program(program, memory)
        for i in range(_DIMS, _PROGRAM_SIZE):
            memory[i] = as_int(0)
        for which, name in enumerate(OPERAND_NAMES):
            bit = tirx.bitwise_and(named, as_int(1 << which))
            with when(bit > 0):
                _broadcast(Tensor(handles[name], name), which, memory, shape, ndim)
        _merge_leading(memory, shape, ndim)


def _check_program(program: Expr, memory: Pointer) -> Expr:
    """Write the number of steps. Returns a bit for each operand that they name."""
    named = scratch(1, INT)
    named[0] = as_int(0)
    memory[_STEPS] = as_int(0)
    require(
        tirx.all(program >= 0, program < 1 << 8 * MAX_STEPS),
        "program",
        f"must have at most {MAX_STEPS} steps",
    )
    with loop(MAX_STEPS) as s, when(tirx.shift_right(program, s * 8) > 0):
        number, which = _step(program, s)
        has_operand = let(tirx.all(number >= int(min(Step)), number <= int(max(Step))))
        is_activation = tirx.all(number >= 1, number <= int(max(Activation)), which == 0)
        known = tirx.any(has_operand, is_activation)
        require(known, "program", "has a step of no known number: #", number)
        require(which < MAX_OPERANDS, "program", "has a step with operand #", which)
        memory[_STEPS] = s + 1
        with when(has_operand):
            named[0] = tirx.bitwise_or(named[0], tirx.shift_left(as_int(1), which))
    return let(named[0])


def _broadcast(tensor: Tensor, which: int, memory: Pointer, shape: Pointer, ndim: Expr) -> None:
    """Write the strides of operand ``which``, 0 where it is broadcast, aligned right."""
    rule = "must not have more dimensions than the output: # and #"
    require(tensor.ndim <= ndim, tensor.name, rule, tensor.ndim, ndim)
    compact = scratch(1, INT)
    compact[0] = as_int(1)
    with loop(tensor.ndim) as i:
        dim, at = let(tensor.ndim - 1 - i), let(_LAST - i * _WORDS + 1 + which)
        size, whole = let(tensor.shape[dim]), let(shape[ndim - 1 - i])
        rule = "a dimension must be 1 or that of the output: # and #"
        require(tirx.any(size == 1, size == whole), tensor.name, rule, size, whole)
        with when(size != 1):
            branch(
                tensor.has_strides,
                lambda: memory.__setitem__(at, tensor.strides[dim]),
                lambda: memory.__setitem__(at, compact[0]),
            )
        compact[0] = compact[0] * size


def _merge_leading(memory: Pointer, shape: Pointer, ndim: Expr) -> None:
    """Write the sizes of the leading dimensions, and how many there are.

    Neighbours that all operands step through evenly become one.
    """
    count = scratch(1, INT)
    count[0] = as_int(0)
    words = range(1, _WORDS)
    with loop(ndim - 1) as i:
        size = let(shape[ndim - 2 - i])
        with when(size != 1):
            outer, inner = let(_LAST - (i + 1) * _WORDS), let(_LAST - count[0] * _WORDS)
            evenly = [memory[outer + w] == memory[inner + w] * memory[inner] for w in words]

            def one() -> None:
                memory[inner] = memory[inner] * size

            def another() -> None:
                count[0] = count[0] + 1
                for w in words:
                    memory[inner - _WORDS + w] = memory[outer + w]
                memory[inner - _WORDS] = size

            branch(tirx.all(count[0] > 0, *evenly), one, another)
    memory[_LEADING] = count[0]
