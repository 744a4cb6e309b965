"""Errors of the packed functions, with the numbers and labels of the call that went wrong.

An assertion of tvm can only say a text that was known when it was compiled. Here the message is
put together on the stack when an error is raised, off the path of calls that go well.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import BYTES, INT, Expr, Functions, Pointer, fail, unless
from tvm_moonpoly.operators import messages
from tvm_moonpoly.operators.messages import MOST_VALUES, Message, length_of


def emit(functions: Functions) -> None:
    """Define all that errors are raised with, before any function that may fail."""
    _emit_fail(functions)
    messages.emit(functions)
    _emit_raise(functions)


def require(
    condition: Expr, argument: str, rule: str, *values: Expr, kind: str = "ValueError"
) -> None:
    """Raise an error that names the argument and the rule unless ``condition`` holds.

    Each ``#`` in ``rule`` stands for one of ``values``: at most two, of type int64.
    """
    text = f"{argument}: {rule}"
    if rule.count("#") != len(values) or len(values) > MOST_VALUES:
        raise ValueError(f"rule: {rule!r} does not say {len(values)} values")
    if not values:
        with T.Assert(condition, [text], error_kind=kind):
            pass
        return

    def rare() -> None:
        padded = [*values, *[0] * (MOST_VALUES - len(values))]
        Functions.current()["moonpoly_raise"](*_texts(kind, text), len(values), *padded)
        fail()

    unless(condition, rare)


def require_match(
    first: Expr, second: Expr, labels: Expr, argument: str, rule: str, kind: str = "ValueError"
) -> None:
    """Raise an error that tells both numbers, in the words of ``labels``, unless they are equal.

    ``labels`` is the handle of a uint8 vector or null. Its text follows that of the rule, with the
    numbers for its first two ``#``; without labels the numbers follow.
    """

    def rare() -> None:
        texts = _texts(kind, f"{argument}: {rule}; ")
        Functions.current()["moonpoly_raise_labelled"](*texts, labels, first, second)
        fail()

    unless(first == second, rare)


def _texts(kind: str, text: str) -> list[Any]:
    return [StringImm(kind), StringImm(text), length_of(text)]


def _emit_fail(functions: Functions) -> None:
    """`Functions.failing`: a packed function that does nothing but fail."""
    name = "moonpoly_failure"
    head = f"define linkonce_odr hidden i32 @{name}(ptr %0, ptr %1, i32 %2, ptr %3)"

    @functions.public(functions.failing)
    def _() -> None:
        with T.attr(tirx.const(0, "int32"), "pragma_import_llvm", head + " { ret i32 -1 }\n"):
            T.evaluate(T.call_cpacked(name))


def _emit_raise(functions: Functions) -> None:
    head = {"kind": BYTES, "text": BYTES, "length": INT}

    @functions.rare("moonpoly_raise", **head, given=INT, first=INT, second=INT)
    def _(
        kind: Pointer, text: Pointer, length: Expr, given: Expr, first: Expr, second: Expr
    ) -> None:
        message = Message(first, second)
        message.expect_values(given)
        message.bytes(text.at(0), length)
        message.raised(kind.at(0))

    @functions.rare("moonpoly_raise_labelled", **head, labels="handle", first=INT, second=INT)
    def _(
        kind: Pointer, text: Pointer, length: Expr, labels: Expr, first: Expr, second: Expr
    ) -> None:
        message = Message(first, second)
        message.bytes(text.at(0), length)
        message.expect_values()
        message.labels(labels, otherwise="# and #")
        message.raised(kind.at(0))
