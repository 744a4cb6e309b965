"""What Winograd's algorithm cannot do: outputs near infinities, NaN, and numbers that overflow.

A patch's sums spread what is not finite to all of its outputs. Where a block has an output that is
not finite, all of it is computed again, pixel by pixel, from the weights as they were before they
were transformed.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from tvm_moonpoly.emit import (
    INT,
    INTS,
    Expr,
    Functions,
    Pointer,
    ceil_div,
    div,
    let,
    loop,
    minimum,
    scratch,
    vector,
    when,
)
from tvm_moonpoly.numbers import Numbers, as_float
from tvm_moonpoly.operators.conv_arguments import operands
from tvm_moonpoly.planner.conv_blocks import PATCH, SIDE, WIDE
from tvm_moonpoly.planner.conv_numbers import CONVOLUTION

#: Each of three weights as a sum of four transformed ones: index and sign.
_WEIGHTS = (((0, 1),), ((1, 1), (2, -1)), ((3, 1),))


def exact_name(kind: str) -> str:
    """The function that computes a block's outputs again."""
    return f"moonpoly_conv_exact_{kind}"


def emit(functions: Functions, kind: str, dtype: str, lanes: int) -> None:
    """Define `exact_name`: the outputs of the patches of a block, in panels ``begin`` to ``end`` of
    ``group``."""

    @functions.rare(
        exact_name(kind),
        numbers=INTS,
        **operands(dtype),
        group=INT,
        begin=INT,
        end=INT,
        row=INT,
        pixel=INT,
        rows=INT,
        width=INT,
    )
    def _(
        numbers: Pointer,
        x: Pointer,
        weight: Pointer,
        bias: Pointer,
        residual: Pointer,
        out: Pointer,
        group: Expr,
        begin: Expr,
        end: Expr,
        row: Expr,
        pixel: Expr,
        rows: Expr,
        width: Expr,
    ) -> None:
        conv = Numbers(CONVOLUTION, numbers)
        s = conv.kept(
            "h", "w", "oh", "ow", "top", "left", "in_channels", "out_channels", "channels",
            "outputs", "residual", "activation",
        )  # fmt: skip
        first, second = as_float(conv["first"]), as_float(conv["second"])
        high = let(ceil_div(s["oh"], SIDE))
        panels = let(ceil_div(s["outputs"], lanes))
        here = vector(0, lanes)

        def one(image: Expr, oh: Expr, ow: Expr, panel: Expr) -> None:
            total = scratch(lanes)
            base = let((group * panels + panel) * lanes)
            total[here] = bias[vector(base, lanes)]
            weights = let(base * (PATCH * s["channels"]))
            for h, rows_of in enumerate(_WEIGHTS):
                for w, columns_of in enumerate(_WEIGHTS):
                    ih, iw = let(oh - s["top"] + h), let(ow - s["left"] + w)
                    inside = tirx.all(ih >= 0, ih < s["h"], iw >= 0, iw < s["w"])
                    terms = [(WIDE * i + j, a * b) for i, a in rows_of for j, b in columns_of]
                    with when(inside), loop(s["channels"]) as c:
                        at = ((image * s["h"] + ih) * s["w"] + iw) * s["in_channels"]
                        value = x.floats(at + group * s["channels"] + c)

                        def term(e: int, c: Expr = c) -> Expr:
                            step = (e * s["channels"] + c) * lanes
                            return weight[vector(weights + step, lanes)]

                        tap = term(terms[0][0])
                        for e, sign in terms[1:]:
                            tap = tap + term(e) if sign > 0 else tap - term(e)
                        total[here] = total[here] + T.Broadcast(value, lanes) * tap
            column = group * s["outputs"] + panel * lanes
            to = let(((image * s["oh"] + oh) * s["ow"] + ow) * s["out_channels"] + column)
            functions[f"moonpoly_conv_any_outputs_{kind}"](
                total.at(0), residual.at(to), out.at(to), 0, 0,
                minimum(s["outputs"] - panel * lanes, lanes), 1, 1, s["residual"],
                s["activation"], first, second,
            )  # fmt: skip

        with loop(rows) as r:
            image = let(div(row + r, high))
            top = let((row + r - image * high) * SIDE)
            with loop(width) as t, loop(SIDE) as i, loop(SIDE) as j:
                oh, ow = let(top + i), let((pixel + t) * SIDE + j)
                with when(tirx.all(oh < s["oh"], ow < s["ow"])), loop(end - begin) as p:
                    one(image, oh, ow, let(begin + p))
