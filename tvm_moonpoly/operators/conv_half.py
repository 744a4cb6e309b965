"""Blocks of a convolution whose outputs are float16: computed in float32, rounded once."""

from __future__ import annotations

from tvm_moonpoly.emit import (
    FLOATS,
    INT,
    Expr,
    Functions,
    Pointer,
    as_int,
    div,
    let,
    loop,
    select,
    when,
)
from tvm_moonpoly.numbers import Numbers
from tvm_moonpoly.operators.conv_tiles import TILES


def emit(functions: Functions, lanes: int) -> None:
    """``m`` rows of ``n`` elements between float16 and float32."""
    matrix = {"half": "float16*", "ldh": INT, "q": FLOATS, "ldq": INT, "m": INT, "n": INT}
    for name, to_half in (("moonpoly_conv_from_half", False), ("moonpoly_conv_to_half", True)):

        @functions.separate(name, **matrix)
        def _(
            half: Pointer, ldh: Expr, q: Pointer, ldq: Expr, m: Expr, n: Expr, to: bool = to_half
        ) -> None:
            with loop(m) as i:
                done = as_int(0)
                for width in (lanes, 1):
                    count = let(div(n - done, width))
                    with loop(count) as j:
                        one, other = i * ldh + done + j * width, i * ldq + done + j * width
                        if to:
                            half.put_floats(one, q.floats(other, width), width)
                        else:
                            q.put_floats(other, half.floats(one, width), width)
                    done = let(done + count * width)


def through_floats(
    functions: Functions,
    conv: Numbers,
    t: Numbers,
    space: Pointer,
    weights: Expr,
    biases: Expr,
    zeros: Pointer,
    residual: Pointer,
    out: Pointer,
    to: Expr,
    lanes: int,
) -> None:
    """The tiles of a block whose outputs are float16: through float32 at the end of the band, in
    whole panels. A residual is put there before."""
    has, rows, width = let(conv["residual"]), let(t["rows"]), let(t["width"])
    own, tail = let(t["panels"] * lanes), let(t["columns"])
    columns = let(own + tail)
    padded = let(own + select(tail > 0, lanes, 0))
    c_row = let(width * padded)
    # from the end: what was written beyond the band is before it
    start = let(conv["band"] - rows * c_row)
    narrow = let(conv["ow"] * conv["out_channels"])

    def converted(name: str, half: Pointer, i: Expr) -> None:
        functions[name](
            half.at(to + i * narrow), conv["out_channels"], space.at(start + i * c_row), padded,
            width, columns,
        )  # fmt: skip

    with when(has > 0), loop(rows) as i:
        converted("moonpoly_conv_from_half", residual, i)
    t["ldc"], t["c_row"], t["x_step"] = padded, c_row, has
    t["ldx"], t["x_row"] = padded * has, c_row * has
    functions[TILES](
        t.memory.at(0),
        space.at(0),
        weights,
        zeros.unless(has > 0, space).at(select(has > 0, start, 0)),
        biases,
        space.at(start),
    )
    with loop(rows) as i:
        converted("moonpoly_conv_to_half", out, i)
