"""The check that a model makes of two of its sizes: an error with its own text and no other."""

from __future__ import annotations

from typing import Any

from tvm_moonpoly.emit import INT, Expr, Functions, fail, unless
from tvm_moonpoly.operators.messages import Message

#: ``moonpoly_check(text, made, given)`` raises a RuntimeError ``TEXT MADE instead of GIVEN`` unless
#: the two int64 are equal. ``text`` is a uint8 vector.
CHECK = "moonpoly_check"


def emit(functions: Functions) -> None:
    """Define `CHECK`."""
    raised = "moonpoly_raise_check"

    @functions.rare(raised, text="handle", made=INT, given=INT)
    def _(text: Any, made: Expr, given: Expr) -> None:
        message = Message()
        message.labels(text)
        message.text(" ")
        message.integer(made)
        message.text(" instead of ")
        message.integer(given)
        message.raised("RuntimeError")

    @functions.public(CHECK, text="handle", made=INT, given=INT)
    def _(text: Any, made: Expr, given: Expr) -> None:
        def rare() -> None:
            functions[raised](text, made, given)
            fail()

        unless(made == given, rare)
