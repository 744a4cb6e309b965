"""Messages that are put together at run time, of texts and of the numbers and labels of a call.

They lie on the stack: a message is made where an error is raised, and by tvm's runtime alone.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    BYTE,
    BYTES,
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    as_int,
    branch,
    div,
    let,
    loop,
    scratch,
    select,
    when,
)
from tvm_moonpoly.operators import dltensor

#: Longest message in bytes, without the zero that ends it; what is longer is cut off.
LONGEST = 1000

#: Values that the texts of a message may have marks for.
MOST_VALUES = 2

#: Stands in a text for the next of the values.
_MARK = ord("#")

#: Fields of the state of a message: bytes so far, values said, values that there are, the values.
_LENGTH, _SAID, _GIVEN, _VALUES = 0, 1, 2, 3


def length_of(text: str) -> int:
    """Bytes of a text that is known now."""
    return len(text.encode())


class Message:
    """A message that is put together at run time, within a function of `Functions.rare`.

    The values stand for the ``#`` in the texts that follow `expect_values`.
    """

    def __init__(self, *values: Expr) -> None:
        self._values = len(values)
        self._text = scratch(LONGEST + 8, BYTE)
        self._state = scratch(_VALUES + MOST_VALUES, INT)
        for number in (_LENGTH, _SAID, _GIVEN):
            self._state[number] = as_int(0)
        for i, value in enumerate(values):
            self._state[_VALUES + i] = value

    def expect_values(self, count: Expr | None = None) -> None:
        """From here on, ``#`` stands for one of the first ``count`` values (all of them)."""
        self._state[_GIVEN] = as_int(self._values if count is None else count)

    def text(self, text: str) -> None:
        """Append ``text``."""
        self.bytes(StringImm(text), as_int(length_of(text)))

    def bytes(self, text: Expr, length: Expr) -> None:
        """Append what is stored at the address ``text``."""
        self._put("text", text, length)

    def integer(self, value: Expr) -> None:
        """Append an int64."""
        self._put("integer", value)

    def number(self, value: Expr) -> None:
        """Append a float64 with 9 significant digits."""
        self._put("number", value)

    def labels(self, labels: Expr, otherwise: str = "") -> None:
        """Append the text of the uint8 vector ``labels``, or ``otherwise`` when it is null or
        empty."""

        def without() -> None:
            self.text(otherwise)

        def given() -> None:
            # what is no text is left out: the numbers matter more than the words
            code, bits = dltensor.type_of(BYTE)
            branch(
                tirx.all(
                    dltensor.number(labels, dltensor.TYPE_CODE) == tirx.const(code, "uint8"),
                    dltensor.number(labels, dltensor.TYPE_BITS) == tirx.const(bits, "uint8"),
                    dltensor.number(labels, dltensor.NDIM) == 1,
                    dltensor.number(labels, dltensor.DEVICE_TYPE) == dltensor.CPU,
                    dltensor.number(labels, dltensor.BYTE_OFFSET) == tirx.const(0, "uint64"),
                ),
                vector,
                without,
            )

        def vector() -> None:
            size = let(Pointer.to(dltensor.address(labels, dltensor.SHAPE, INT), INT)[0])
            strides = T.Bind(dltensor.address(labels, dltensor.STRIDES, INT))
            step = Pointer.to(strides, INT)[0]

            def read() -> None:
                self.bytes(dltensor.address(labels, dltensor.DATA, BYTE), size)

            def strided() -> None:
                branch(tirx.any(step == 1, size <= 1), read, without)

            def words() -> None:
                branch(tirx.isnullptr(strides), read, strided)

            branch(size > 0, words, without)

        branch(tirx.isnullptr(labels), without, given)

    def raised(self, kind: Expr | str) -> None:
        """Raise it as an error of ``kind``: a name, or its address."""
        name = StringImm(kind) if isinstance(kind, str) else kind
        functions = Functions.current()
        functions["moonpoly_raise_message"](name, self._text.at(0), self._state.at(0))

    def _put(self, what: str, *arguments: Expr) -> None:
        put = Functions.current()[f"moonpoly_put_{what}"]
        put(self._text.at(0), self._state.at(0), *arguments)


def emit(functions: Functions) -> None:
    """Define what a `Message` is made of."""
    _emit_put_integer(functions)
    _emit_put_text(functions)
    _emit_put_number(functions)
    _emit_raise_message(functions)


def _byte(value: Expr | int | str) -> Expr:
    number = ord(value) if isinstance(value, str) else value
    return tirx.Cast(BYTE, as_int(number))


def _append(message: Pointer, state: Pointer, byte: Expr) -> None:
    with when(state[_LENGTH] < LONGEST):
        message[state[_LENGTH]] = byte
        state[_LENGTH] = state[_LENGTH] + 1


#: Parameters of all that appends to a message.
_MEMORY = {"message": BYTES, "state": INTS}


def _emit_put_integer(functions: Functions) -> None:
    @functions.separate("moonpoly_put_integer", **_MEMORY, value=INT)
    def _(message: Pointer, state: Pointer, value: Expr) -> None:
        digits, rest, count = scratch(20, BYTE), scratch(1, INT), scratch(1, INT)
        with when(value < 0):
            _append(message, state, _byte("-"))
        rest[0], count[0] = value, as_int(0)
        with loop(20), when(tirx.any(rest[0] != 0, count[0] == 0)):
            # of either sign, since the smallest number has no opposite
            digit = let(tirx.truncmod(rest[0], as_int(10)))
            digits[count[0]] = _byte(select(digit < 0, 0 - digit, digit) + ord("0"))
            count[0] = count[0] + 1
            rest[0] = tirx.truncdiv(rest[0], as_int(10))
        with loop(count[0]) as i:
            _append(message, state, digits[count[0] - 1 - i])


def _emit_put_text(functions: Functions) -> None:
    @functions.separate("moonpoly_put_text", **_MEMORY, text=BYTES, length=INT)
    def _(message: Pointer, state: Pointer, text: Pointer, length: Expr) -> None:
        def value() -> None:
            said = let(state[_SAID])
            state[_SAID] = said + 1
            functions["moonpoly_put_integer"](message.at(0), state.at(0), state[_VALUES + said])

        with loop(length) as i:
            one = let(text[i])
            branch(
                tirx.all(one == _byte(_MARK), state[_SAID] < state[_GIVEN]),
                value,
                lambda: _append(message, state, one),
            )


def _emit_put_number(functions: Functions) -> None:
    @functions.separate("moonpoly_put_number", **_MEMORY, value="float64")
    def _(message: Pointer, state: Pointer, value: Expr) -> None:
        def words(text: str) -> None:
            for character in text:
                _append(message, state, _byte(character))

        def finite() -> None:
            _put_finite(functions, message, state, size)

        size = T.Bind(tirx.Select(value < double(0), double(0) - value, value))
        with when(value < double(0)):
            words("-")
        largest = double(1.7976931348623157e308)
        branch(
            # tvm takes `value != value` for false
            tirx.isnan(value),
            lambda: words("nan"),
            lambda: branch(size > largest, lambda: words("inf"), finite),
        )


def double(value: float) -> Expr:
    """A constant of float64."""
    return tirx.const(value, "float64")


def _put_finite(functions: Functions, message: Pointer, state: Pointer, size: Expr) -> None:
    """``size`` >= 0 as 1.25e-3: its digits without zeros at the end, and its power of ten."""
    decimals = 8
    rest, power = scratch(1, "float64"), scratch(1, INT)
    rest[0], power[0] = size, as_int(0)
    with loop(330):
        with when(rest[0] >= double(10)):
            rest[0] = rest[0] / double(10)
            power[0] = power[0] + 1
        with when(tirx.all(rest[0] < double(1), rest[0] > double(0))):
            rest[0] = rest[0] * double(10)
            power[0] = power[0] - 1
    digits, divisor = scratch(1, INT), scratch(1, INT)
    digits[0] = tirx.Cast(INT, rest[0] * double(10**decimals) + double(0.5))
    with when(digits[0] >= 10 ** (decimals + 1)):
        digits[0] = div(digits[0], 10)
        power[0] = power[0] + 1
    divisor[0] = as_int(10**decimals)
    with loop(decimals + 1) as i, when(tirx.any(i == 0, digits[0] > 0)):
        digit = let(div(digits[0], divisor[0]))
        with when(i == 1):
            _append(message, state, _byte("."))
        _append(message, state, _byte(digit + ord("0")))
        digits[0] = digits[0] - digit * divisor[0]
        divisor[0] = div(divisor[0], 10)
    with when(power[0] != 0):
        _append(message, state, _byte("e"))
        functions["moonpoly_put_integer"](message.at(0), state.at(0), power[0])


def _emit_raise_message(functions: Functions) -> None:
    @functions.separate("moonpoly_raise_message", kind=BYTES, message=BYTES, state=INTS)
    def _(kind: Pointer, message: Pointer, state: Pointer) -> None:
        """What was cut off may have been in the middle of a character of several bytes."""
        with when(state[_LENGTH] == LONGEST):
            more = scratch(1, INT)
            more[0] = as_int(1)
            with loop(4), when(more[0] > 0):
                last = let(message[state[_LENGTH] - 1])
                high = let(tirx.bitwise_and(last, _byte(0xC0)))
                more[0] = select(high == _byte(0x80), 1, 0)
                with when(last >= _byte(0x80)):
                    state[_LENGTH] = state[_LENGTH] - 1
        message[state[_LENGTH]] = _byte(0)
        raise_it = T.call_extern("void", "TVMFFIErrorSetRaisedFromCStr", kind.at(0), message.at(0))
        T.evaluate(raise_it)
