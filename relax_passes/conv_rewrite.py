"""Rewrite the convolutions of one Relax function."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax import Expr, Var

from .bindings import Bindings, analyze
from .conv_calls import ConvReplacement, replace_convolution
from .conv_epilogue import match_conv_epilogue
from .conv_match import Convolution, classify_conv, convolutions
from .conv_packing import ConvPacking, spec_of
from .conv_planes import planes_of
from .conv_verify import verified_conv
from .match import Left
from .report import Entry, Report
from .rewrite import Options, Rebuild, replace
from .shapes import show


def rewrite_convolutions(
    func: relax.Function,
    name: str,
    mod: tvm.IRModule,
    packing: ConvPacking,
    options: Options,
    report: Report,
) -> relax.Function:
    """`func`, called `name` in `mod`, with its convolutions replaced; itself if it has none."""
    bindings = analyze(func, mod, options.pack_parameters)
    before = dict(bindings.value)
    new: dict[Var, Expr] = {}
    checks: dict[Var, list[Call]] = {}
    for var in convolutions(bindings):
        call = before[var]
        operator = call.op.name.removeprefix("relax.nn.")
        conv = classify_conv(var, bindings, options.static, packing.target)
        found = _replacement(var, conv, bindings, name, packing, options)
        if isinstance(found, Left):
            report.add(Entry(name, operator, show(*call.args), "left", found.reason))
            continue
        last, value = found.epilogue.last, found.value
        if options.verify and not isinstance(conv, Left):
            value = verified_conv(var, call, conv, found, packing)
        replace(last, value, bindings)
        new[last], checks[last] = value, found.checks
        report.add(Entry(name, operator, show(*call.args), "rewritten", found.detail))
    if not new:
        return func
    return Rebuild(mod, new, before.keys() - bindings.value.keys(), checks).visit_expr(func)


def _replacement(
    var: Var,
    conv: Convolution | Left,
    bindings: Bindings,
    name: str,
    packing: ConvPacking,
    options: Options,
) -> ConvReplacement | Left:
    if isinstance(conv, Left):
        return conv
    epilogue = match_conv_epilogue(var, conv, bindings)
    try:
        spec = spec_of(conv, epilogue, options.winograd)
    except ValueError as error:
        return Left(str(error))
    planes = planes_of(var, conv, epilogue, spec, bindings, packing.lanes)
    return replace_convolution(conv, epilogue, spec, packing, name, planes)
